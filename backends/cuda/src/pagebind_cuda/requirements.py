"""Whether this backend can be used on a device type, and what to install where it cannot."""

from __future__ import annotations

from importlib import import_module

import torch
from pagebind.errors import BackendUnavailable


def probe(device_type: str) -> str | None:
    """Return None where the backend is usable on `cuda` (GPU) or `cpu` (host build), else the reason and the mend."""
    return _against_gpu() if device_type == "cuda" else _against_host()


def cupy_extra() -> str:
    """Return the extra of this distribution that brings the CuPy of torch's CUDA version."""
    return "cuda13" if int((torch.version.cuda or "12").split(".")[0]) >= 13 else "cuda12"


def _against_gpu() -> str | None:
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA: install a CUDA build of torch"
    if not torch.cuda.is_available():
        return (
            f"torch {torch.__version__} sees no CUDA device: check the driver with nvidia-smi, and CUDA_VISIBLE_DEVICES"
        )
    install = f"pip install 'pagebind-cuda[{cupy_extra()}]'"
    try:
        cupy = import_module("cupy")
    except ImportError as error:
        return f"CuPy cannot be imported ({error}): {install}"
    try:
        cupy.cuda.nvrtc.getVersion()
    except (ImportError, OSError, RuntimeError) as error:
        wheel = "nvidia-cuda-nvrtc" if cupy_extra() == "cuda13" else "nvidia-cuda-nvrtc-cu12"
        return f"CuPy {cupy.__version__} finds no NVRTC ({error}): pip install {wheel}, or {install}"
    return None


def _against_host() -> str | None:
    from pagebind_cuda.host import compiler  # here, because `python -m pagebind_cuda.host` imports the package first

    try:
        compiler()
    except BackendUnavailable as error:
        return str(error)
    return None
