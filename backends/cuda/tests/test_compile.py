"""Every variant compiles for sm_90 as on a machine with a GPU: by NVRTC through CuPy, or else by nvcc."""

import re
import shutil
import subprocess
from itertools import product

import pytest
from pagebind.ops import OPERATIONS
from pagebind.ops.evict import PARTS
from pagebind_cuda.gpu import options_of, source_of
from pagebind_cuda.launch import PLANNED, Variant

# What plans of an operation fix besides dtypes of one vector each, which only a load depends on.
FLAG = (0, 1)
CHOICES = {
    "read_table": {
        **{"form_token": FLAG, "granularity_token": FLAG, "fill_sink": FLAG, "windowed": FLAG},
        "beside": (0, 2),
    },
    "refresh_table": {"form_token": FLAG, "granularity_token": FLAG, "fill_sink": FLAG, "borrowed": FLAG},
    "read_stream": {"form_token": FLAG, "granularity_token": FLAG},
    "alloc": {"borrowed": FLAG},
    "free": {"borrowed": FLAG},
    "extend": {"form_token": FLAG, "emits": FLAG},
    "advance": {"form_token": FLAG, "granularity_token": FLAG, "emits": FLAG, "appends": (1,)},
    "truncate": {"form_token": FLAG},
    "release": {"form_token": FLAG},
    "evict": {"form_token": FLAG, "part": range(len(PARTS))},
}
PAGE_SIZES = (1, 16, 3)


def variants():
    for operation in OPERATIONS:
        choices = CHOICES.get(operation, {})
        combinations = product((False, True), (False, True), *choices.values())
        for number, (index_wide, out_wide, *chosen) in enumerate(combinations):
            vectors = {name: (number + i) % 2 for i, name in enumerate(PLANNED) if name.endswith("_wide")}
            planned = {"page_size": PAGE_SIZES[number % 3], "ranks": 1 + number % 3} | vectors
            planned |= dict(zip(choices, chosen, strict=True))
            yield Variant(operation, index_wide, out_wide, tuple(planned.get(name, 0) for name in PLANNED))


@pytest.fixture(scope="module")
def compile_for_sm_90(tmp_path_factory):
    missing = []
    try:
        from cupy.cuda import nvrtc

        nvrtc.getVersion()
    except (ImportError, RuntimeError, OSError) as error:
        missing.append(f"NVRTC through CuPy ({str(error).splitlines()[0]})")
    else:
        return lambda *given: _by_nvrtc(nvrtc, *given)
    if shutil.which("nvcc") is None:
        missing.append("nvcc on PATH")
        pytest.skip(f"needs one of: {'; '.join(missing)}")
    folder = tmp_path_factory.mktemp("cubin")
    return lambda *given: _by_nvcc(folder, *given)


def _by_nvrtc(nvrtc, source, options):
    program = nvrtc.createProgram(source, "kernel.cu", (), ())
    try:
        nvrtc.compileProgram(program, (*options, "-arch=sm_90"))
    except nvrtc.NVRTCError:
        pytest.fail(nvrtc.getProgramLog(program))
    assert nvrtc.getProgramLog(program).strip("\0\n") == ""
    ptx = nvrtc.getPTX(program)
    return nvrtc.getCUBIN(program), ptx if isinstance(ptx, str) else ptx.decode()


def _by_nvcc(folder, source, options):
    (folder / "kernel.cu").write_text(source)
    for form in ("cubin", "ptx"):
        command = ["nvcc", f"-{form}", "-arch=sm_90", *options, str(folder / "kernel.cu")]
        ran = subprocess.run([*command, "-o", str(folder / form)], capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr
    return (folder / "cubin").read_bytes(), (folder / "ptx").read_text()


@pytest.mark.parametrize("operation", list(OPERATIONS))
def test_every_variant_compiles_for_sm_90_and_waits_before_it_touches_memory(compile_for_sm_90, operation):
    for variant in variants():
        if variant.operation == operation:
            cubin, ptx = compile_for_sm_90(source_of(operation), options_of(variant))
            assert f"{operation}_kernel".encode() in cubin
            (waits,) = re.finditer(r"griddepcontrol\.wait", ptx)
            touches = re.search(r"\b((ld|st)\.(volatile\.|relaxed\.gpu\.)?global|atom|red)\b", ptx)
            assert touches is not None
            assert waits.start() < touches.start(), touches.group()
