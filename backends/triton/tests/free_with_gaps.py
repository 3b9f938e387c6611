"""Free 70 lanes, a third of them holes and faults, with several launch sizes; print the sub-pool after each."""

import json
import sys

import torch
from pagebind import LaunchOptions
from pagebind.ops import FREE, FreeSpec
from pagebind.plan import plan_with
from pagebind.words import HOLE_TOP, VIRTUAL_TOP, WATERMARK, new_tables
from pagebind_triton import backend

CPU = torch.device("cpu")


def main():
    """Virtual page v from 6 on lies in physical page 100 - v."""
    ids = [v if v % 3 else (-1, 0, 1000, 2)[v % 4] for v in range(6, 76)]
    answers = {"served": [v for v in ids if v > 5 and v < 100], "states": []}
    for threads, programs in ((64, 1), (16, 1), (16, 2), (16, 64), (4, 3), (8, 9)):
        tables = new_tables(101, 101, CPU)
        tables.v2p[6:100] = torch.arange(94, 0, -1)
        tables.p2v[1:95] = torch.arange(99, 5, -1)
        tables.virtual_stack[:5] = torch.arange(5, 0, -1)
        tables.state[VIRTUAL_TOP] = 5
        tables.state[WATERMARK] = 94
        free = plan_with(
            backend, FREE, FreeSpec(max_items=70), CPU, "count", LaunchOptions(threads=threads, programs=programs)
        )
        free(torch.tensor(ids, dtype=torch.int32), tables, freed=torch.empty(70, dtype=torch.int32))
        state = tables.state.tolist()
        stacks = [tables.virtual_stack[: state[VIRTUAL_TOP]].tolist(), tables.hole_stack[: state[HOLE_TOP]].tolist()]
        answers["states"].append([state, *stacks])
    answers["compiled"] = backend.compile_count()
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
