"""Launch a kernel in the interpreter in several ways; print how often it patched Triton's language, and the results."""

import json
import threading
from contextlib import nullcontext

import torch
from pagebind import LaunchOptions
from pagebind.ops import READ_TABLE, ReadTableSpec
from pagebind.plan import plan_with
from pagebind_triton import backend, launch
from pagebind_triton.interpreted import patched_once
from triton import language as tl
from triton.runtime import interpreter

CPU = torch.device("cpu")
PATCH = interpreter._patch_lang


def look(planned, way):
    """Return how often a launch patched the language, the table it built, and whether all was restored after it."""
    patched = []

    def counting(fn):
        patched.append(fn)
        return PATCH(fn)

    table = torch.arange(1, 161, dtype=torch.int32).reshape(4, 40) % 50
    v2p = torch.tensor([0, *range(48, 0, -1), 49, -1], dtype=torch.int32)
    rows, lens = torch.tensor([3, 0, 2], dtype=torch.int32), torch.tensor([40, 7, 0], dtype=torch.int32)
    out, before = torch.full((4, 40), -7, dtype=torch.int32), dict(vars(tl))
    interpreter._patch_lang = counting
    with way():
        planned(table, rows, lens, v2p, out=out)
    restored = interpreter._patch_lang is counting and dict(vars(tl)) == before
    interpreter._patch_lang = PATCH
    return {"patches": len(patched), "table": out.tolist(), "restored": restored}


def overlap():
    """Return whether the interpreter is as it was after two host threads, of which the second ended last."""
    entered, left = threading.Event(), threading.Event()

    def first():
        with patched_once():
            entered.set()
            left.wait(0.5)  # the second one would be in by then

    def second():
        entered.wait()
        with patched_once():
            left.set()
            threads[0].join(1)

    threads = [threading.Thread(target=work) for work in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    restored = interpreter._patch_lang is PATCH
    interpreter._patch_lang = PATCH
    return restored


def main():
    """Print what a launch by the backend is like, one of the interpreter alone, and one that is patched once."""
    spec = ReadTableSpec(max_bs=4, page_size=1, max_width=40, num_physical=50)
    planned = plan_with(backend, READ_TABLE, spec, CPU, "count", LaunchOptions(threads=16, programs=2))
    look(planned, nullcontext)  # the interpreter leaves patched what only its own library names
    found = {"backend": look(planned, nullcontext)}
    found["restored"] = overlap()
    launch.patched_once = nullcontext
    print(json.dumps(found | {"interpreter": look(planned, nullcontext), "once": look(planned, patched_once)}))


if __name__ == "__main__":
    main()
