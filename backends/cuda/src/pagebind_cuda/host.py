"""Kernels on the CPU: the same `.cu` files compiled by g++, to test them without a GPU, also under sanitizers.

`python -m pagebind_cuda.host` prints the environment in which a test run is checked by AddressSanitizer and
UndefinedBehaviorSanitizer, or says what is missing:

    env $(python -m pagebind_cuda.host) pytest --pyargs pagebind_conformance --backend cuda --device cpu

With `--json` it prints one object instead, `{"missing": null or text, "environment": {name: value}}`. In a process that
runs so, kernels are built with both sanitizers; else they are built without.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from pagebind.errors import BackendUnavailable, PagebindError

from pagebind_cuda.launch import SOURCES, Variant, loaded

_SANITIZERS = ("asan", "ubsan")
_CXX20_TEST = "template <auto value> concept Odd = value % 2 == 1;\nint main() { return Odd<1> ? 0 : 1; }\n"


class HostKernel:
    """One variant in the host build. Its plan's values are arguments, so that few variants serve all plans."""

    def __init__(self, variant: Variant, folder: Path = SOURCES) -> None:
        """Take the kernel file of the variant's operation from `folder`; nothing is built yet."""
        self._variant = variant
        self._source = folder / f"{variant.operation}.cu"
        self._planned = (ctypes.c_longlong * len(variant.planned))(*variant.planned)
        self._launch: Any = None

    def __call__(self, blocks: int, threads: int, *arguments: int) -> None:
        """Run every block to its end; raises PagebindError where the threads of a block get stuck."""
        if self._launch is None:
            self.warmup()
        packed = (ctypes.c_longlong * len(arguments))(*arguments)
        failure = self._launch(blocks, threads, packed, len(arguments), self._planned)
        if failure is not None:
            raise PagebindError(f"{self._variant.operation} on the host: {failure.decode()}")

    def warmup(self) -> None:
        """Build and load the variant, once in a process; a library of an earlier process is used again."""
        key = ("host", self._source, self._variant.index_wide, self._variant.out_wide)
        if key not in loaded:
            loaded[key] = _load(self._source, self._variant.definitions)
        self._launch = loaded[key]


def _load(source: Path, definitions: dict[str, int]) -> Any:
    # PyDLL keeps the interpreter's lock: one launch at a time, as the header's state is one for the library.
    launch = ctypes.PyDLL(str(_build(source, definitions))).launch
    launch.restype = ctypes.c_char_p
    launch.argtypes = (ctypes.c_longlong, ctypes.c_longlong, ctypes.c_void_p, ctypes.c_longlong, ctypes.c_void_p)
    return launch


def sanitized() -> bool:
    """Return whether AddressSanitizer's runtime is in this process."""
    return hasattr(ctypes.CDLL(None), "__asan_init")


@cache
def compiler() -> tuple[str, ...]:
    """Return the command of a C++20 compiler: $CXX, or g++. Raises BackendUnavailable naming what is missing."""
    named = os.environ.get("CXX", "")
    command = tuple(shlex.split(named)) or ("g++",)
    origin = "from CXX" if named else "the default; CXX names another"
    mend = "install g++ 10 or newer (apt install g++), or set CXX"
    if shutil.which(command[0]) is None:
        raise BackendUnavailable(
            f"the host build needs a C++20 compiler, and {command[0]!r} ({origin}) is not on PATH: {mend}"
        )
    tried = subprocess.run(
        [*command, "-std=c++20", "-fsyntax-only", "-x", "c++", "-"],
        input=_CXX20_TEST,
        capture_output=True,
        text=True,
        check=False,
    )
    if tried.returncode:
        said = (tried.stderr.strip().splitlines() or ["no message"])[0]
        raise BackendUnavailable(
            f"the host build needs C++20, and {shlex.join(command)!r} ({origin}) does not compile it ({said}): {mend}"
        )
    return command


def sanitizer_environment() -> dict[str, str]:
    """Return the variables that put a Python process under the sanitizers; raises BackendUnavailable without them."""
    command = compiler()
    libraries = []
    for name in (*_SANITIZERS, "stdc++"):
        said = subprocess.run(
            [*command, f"-print-file-name=lib{name}.so"], capture_output=True, text=True, check=False
        ).stdout.strip()
        # A compiler that does not have the library answers its bare name.
        if not os.path.isabs(said) or not Path(said).exists():
            raise BackendUnavailable(
                f"{shlex.join(command)!r} has no lib{name}.so, which a run under sanitizers needs: install the "
                "sanitizer libraries of that compiler (Debian: libasan and libubsan come with g++), or set CXX"
            )
        libraries.append(str(Path(said).resolve()))
    return {
        "LD_PRELOAD": ":".join(libraries),
        # Python and torch leak by design, and the loader's addresses differ between runs.
        "ASAN_OPTIONS": "detect_leaks=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }


def _build(source: Path, definitions: dict[str, int]) -> Path:
    command = [*compiler(), "-std=c++20", "-shared", "-fPIC", "-fvisibility=hidden", "-x", "c++", "-DPAGEBIND_HOST=1"]
    command += [f"-I{SOURCES}", *(f"-D{name}={value}LL" for name, value in definitions.items())]
    if sanitized():
        command += ["-O1", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
    else:
        command += ["-O2"]
    digest = hashlib.sha256("\0".join([*command, _compiler_version()]).encode())
    for file in [*sorted(SOURCES.glob("*.cuh")), source]:
        digest.update(file.read_bytes())
    library = _cache_folder() / f"{source.stem}-{digest.hexdigest()[:24]}.so"
    if not library.exists():
        with tempfile.TemporaryDirectory(dir=library.parent) as folder:
            made = Path(folder) / library.name
            done = subprocess.run(
                [*command, str(source), "-o", str(made)],
                capture_output=True,
                text=True,
                check=False,
                env={name: value for name, value in os.environ.items() if name != "LD_PRELOAD"},
            )
            if done.returncode:
                raise BackendUnavailable(
                    f"{source.name} does not compile: {shlex.join(done.args)}\n{done.stdout}{done.stderr}"
                )
            made.replace(library)  # whole or not at all, whoever else builds it
    return library


@cache
def _compiler_version() -> str:
    return subprocess.run([*compiler(), "--version"], capture_output=True, text=True, check=False).stdout


@cache
def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = Path(base) / "pagebind-cuda"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError:  # a home that cannot be written: build for this process alone
        return Path(tempfile.mkdtemp(prefix="pagebind-cuda-"))


def main(arguments: Sequence[str]) -> int:
    """Print the sanitizers' environment, one NAME=VALUE a line; exit code 2 where something is missing."""
    if arguments not in ([], ["--json"]):
        print(f"unknown argument {arguments[0]!r}; usage: python -m pagebind_cuda.host [--json]", file=sys.stderr)
        return 2
    environment: dict[str, str] = {}
    missing = None
    try:
        environment = sanitizer_environment()
    except BackendUnavailable as error:
        missing = str(error)
    if arguments:
        print(json.dumps({"missing": missing, "environment": environment}))
        return 0
    if missing is not None:
        print(missing, file=sys.stderr)
        return 2
    print("\n".join(f"{name}={value}" for name, value in environment.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
