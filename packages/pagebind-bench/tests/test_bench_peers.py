"""Peers: SGLang's modules load alone and from wherever they lie; our own published grids keep the contract."""

import os
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest
from pagebind_bench.bench import sglang
from pagebind_bench.bench.sglang import NEEDED, SLOTS, TABLES, PeerUnavailable, load

needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
TRAP = "raise RuntimeError('the package was imported')\n"
MODULES = {
    "sglang/__init__.py": TRAP,
    "sglang/kernels/__init__.py": TRAP,
    TABLES: "def build_kv_read_table(): return 'table'\n",
    SLOTS: "def alloc_bind_inplace(): pass\ndef bind_inplace(): pass\ndef free_unbind_inplace(): pass\n"
    "def translate_token_ids(): pass\n",
    "sglang-9.8.7.dist-info/METADATA": "Metadata-Version: 2.1\nName: sglang\nVersion: 9.8.7\n",
}


@pytest.fixture
def unpacked(tmp_path):
    for name, text in MODULES.items():
        path = tmp_path / "site" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "site"


@pytest.fixture
def wheel(tmp_path):
    path = tmp_path / "sglang-9.8.7-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in MODULES.items():
            archive.writestr(name, text)
    return path


@needs_triton
def test_a_wheel_an_unpacked_folder_and_the_package_itself_give_the_same_launchers(wheel, unpacked):
    found = [load(path) for path in (wheel, unpacked, unpacked / "sglang")]
    assert {peer.version.split()[0] for peer in found} == {"9.8.7"}
    assert len({peer.version for peer in found}) == 1
    assert all(peer.build_kv_read_table() == "table" for peer in found)
    assert "sglang" not in sys.modules


@needs_triton
def test_an_installed_package_is_found_and_not_imported(unpacked, monkeypatch):
    monkeypatch.syspath_prepend(str(unpacked))
    assert load(None).version.startswith("9.8.7")
    assert "sglang" not in sys.modules


@needs_triton
def test_what_is_missing_is_named_with_the_mend(unpacked, tmp_path, monkeypatch):
    (unpacked / SLOTS).write_text("def bind_inplace(): pass\n")
    with pytest.raises(PeerUnavailable, match=r"virtual_slot.py of .* has no alloc_bind_inplace"):
        load(unpacked)
    (unpacked / SLOTS).write_text("import no_such_module\n")
    with pytest.raises(PeerUnavailable, match="cannot be loaded: ModuleNotFoundError"):
        load(unpacked)
    (unpacked / TABLES).unlink()
    with pytest.raises(PeerUnavailable, match=r"there is no .*kv_read_table.py in .*--sglang a published wheel"):
        load(unpacked)
    (tmp_path / "x.whl").write_text("no zip")
    with pytest.raises(PeerUnavailable, match="neither a wheel nor a folder"):
        load(tmp_path / "x.whl")
    monkeypatch.setattr(sglang.importlib.util, "find_spec", lambda name: name == "triton" or None)
    with pytest.raises(PeerUnavailable, match="SGLang is not installed; pass --sglang"):
        load(None)
    monkeypatch.setattr(sglang.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(PeerUnavailable, match="need Triton"):
        load(unpacked)


def test_sglangs_own_modules_load_and_need_nothing_else_of_it():
    given = os.environ.get("SGLANG")
    try:
        peer = load(Path(given) if given else None)
    except PeerUnavailable as error:
        pytest.skip(f"{error} (the variable SGLANG names it)")
    assert all(callable(getattr(peer, name)) for names in NEEDED.values() for name in names)
    assert not {name for name in sys.modules if name == "sglang" or name.startswith("sglang.")}


INTERPRETED = """
import random, torch
from pagebind_bench.bench import published
from pagebind_conformance import oracle

published.CONTEXT_BLOCK = published.BATCH_BLOCK = 16
published.BATCH_PROGRAMS = 4
random.seed(7)
TOMBSTONE, WORN = -1, 7
ran = 0
for size in (1, 2, 3, 16):
    for bs, width in ((1, 1), (3, 49), (5, 70)):
        num = 90
        v2p = [0, *random.sample(range(1, num), num - 1), TOMBSTONE]
        for gone in random.sample(range(1, num), 9):
            v2p[gone] = TOMBSTONE
        rows = random.sample(range(bs + 2), bs)
        table = [[random.randrange(num * size) for _ in range(width)] for _ in range(bs + 2)]
        for row in table:
            for cell in range(0, width, 5):
                row[cell] = random.choice((-1, -size, row[cell]))
        lens = [random.choice((0, 1, width // 2, width, width + 9)) for _ in range(bs)]
        columns = -(-width // size)
        out = [[WORN] * columns for _ in range(bs)]
        right, counters = oracle.read_table(table, rows, lens, v2p, out, page_size=size)
        assert counters["bad_id"] == 0
        given = [torch.tensor(x, dtype=torch.int32) for x in (table, rows, lens)]
        for grid in (published.grid_from_context, published.grid_from_batch):
            wide = torch.full((bs + 1, columns + 3), WORN, dtype=torch.int32)
            grid(*given, torch.tensor(v2p), out=wide[:bs, :columns], page_size=size)
            assert wide[:bs, :columns].tolist() == right, (grid.__name__, size, bs, width)
            wide[:bs, :columns] = WORN
            assert (wide == WORN).all(), "it wrote outside of its table"
            ran += 1
published.empty(3)
print(ran, "tables")
"""


@needs_triton
def test_the_published_grids_keep_the_contract_of_read_table_in_the_interpreter():
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", INTERPRETED], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "24 tables"


COMPILED = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from pagebind_bench.bench import published

pointers = dict(request_table="*i32", req_rows="*i32", seq_lens="*i32", v2p="*i64", out="*i32")
sizes = dict(request_stride="i32", out_stride="i32", columns="i32", PAGE_SIZE="constexpr", BLOCK="constexpr")
for kernel in (published.context_kernel, published.batch_kernel):
    for size in (1, 3):
        source = ASTSource(fn=kernel, signature=pointers | sizes, constexprs={"PAGE_SIZE": size, "BLOCK": 512})
        triton.compile(source, target=GPUTarget("cuda", 90, 32))
from pagebind_bench.bench import bare

names = {name: "*i32" if name.startswith("p") else "i32" for name in published.bare_kernel.arg_names}
assert list(names.values()) == ["*i32"] * bare.POINTERS + ["i32"] * bare.SIZES
triton.compile(ASTSource(fn=published.bare_kernel, signature=names, constexprs={}), target=GPUTarget("cuda", 90, 32))
triton.compile(ASTSource(fn=published.empty_kernel, signature={}, constexprs={}), target=GPUTarget("cuda", 90, 32))
"""


@needs_triton
def test_the_published_grids_compile_for_a_gpu():
    ptxas = Path(find_spec("triton").submodule_search_locations[0]) / "backends/nvidia/bin/ptxas"
    if not ptxas.exists() and "TRITON_PTXAS_PATH" not in os.environ:
        pytest.skip(f"Triton brings no ptxas at {ptxas}; set TRITON_PTXAS_PATH")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", COMPILED], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
