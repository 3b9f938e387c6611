"""Refresh steady lanes step after step, and print how many launches looked further than `write_steady`, as JSON.

A lane is steady that has its row as it was, and a column more at most; a lane past the batch that was emptied is, too.
"""

import json
import sys
from itertools import product

import torch
from pagebind import LaunchOptions
from pagebind.ops import REFRESH_TABLE, RefreshTableSpec
from pagebind.ops.refresh_table import new_built
from pagebind.ops.touch import new_versions
from pagebind.words import EPOCH, new_state
from pagebind_triton import refresh_table

CPU = torch.device("cpu")
LANES, ROWS, REQUESTS, COLUMNS = 5, 7, 9, 60
STEPS = (0, 1, 1, 1)


def batches():
    """Yield specs, sizes of launches, and what a step adds to lengths and starts."""
    kinds = product(("prefix", "sink"), (False, True), ((1, "page"), (3, "page"), (3, "token")))
    for number, (fill, flag, (ps, granularity)) in enumerate(kinds):
        dtype = (torch.int64, torch.int32)[number // 2 % 2]
        spec = RefreshTableSpec(
            max_bs=LANES,
            max_width=COLUMNS,
            page_size=ps,
            num_physical=90,
            form="page" if number % 3 else "token",
            granularity=granularity,
            fill=fill,
            windowed=flag,
            borrowed=number % 2 == 0,
            **dict.fromkeys(("row_dtype", "length_dtype", "index_dtype", "out_dtype"), dtype),
        )
        # Two lanes at once, or all; a program that owns several, or programs that own none.
        yield spec, LaunchOptions(threads=16, programs=(1, 3, 7)[number % 3])


def looked_further(*_):
    """Stand for `write_small`."""
    raise AssertionError("looked further")


def steps(spec, options):
    """Return what looked further or was wrong, of steady steps and of those that are not."""
    torch.manual_seed(1)
    found = []
    ids = 50 * (spec.page_size if spec.form == "token" else 1)
    request_table = torch.randint(1, ids, (REQUESTS, COLUMNS * spec.page_size), dtype=torch.int32)
    v2p = torch.randint(0, 90, (51,), dtype=spec.index_dtype)
    rows = torch.randperm(REQUESTS)[:LANES].to(spec.row_dtype)
    unit = spec.page_size if spec.granularity == "page" else 1
    lens = torch.tensor([9, 0, 1, 17, 15], dtype=spec.length_dtype)
    starts = torch.tensor([3, 0, 0, 30, 8], dtype=spec.length_dtype)
    versions, state = new_versions(REQUESTS, CPU), new_state(CPU)
    versions += 3
    state[EPOCH] = 2**32 + 7
    plans = [REFRESH_TABLE.compose(spec, CPU, {}, options), refresh_table.plan(spec, CPU, options)]
    tables = [(torch.full((ROWS, 25), 88, dtype=spec.out_dtype), new_built(ROWS, 25, CPU)) for _ in plans]
    further = refresh_table.write_small

    def step(steady):
        more = {"starts": starts} if spec.windowed else {}
        more |= {"first": torch.full((REQUESTS,), 2, dtype=torch.int32)} if spec.borrowed else {}
        refresh_table.write_small = looked_further if steady else further
        try:
            for launch, (out, built) in zip(plans, tables, strict=True):
                lanes = request_table, rows, lens, v2p
                launch(*lanes, out=out, built=built, versions=versions, state=state.clone(), **more)
        except Exception as error:
            if "looked further" not in repr(error) + repr(error.__cause__):
                raise
            return "further"
        finally:
            refresh_table.write_small = further
        return "right" if all(map(torch.equal, *tables)) else "wrong"

    found.append(step(False))
    for columns in STEPS:
        lens += unit * columns
        starts += unit * columns * (spec.fill == "prefix")
        found.append(step(True))
    lens[-1] += 2 * unit
    found.append(step(True))
    found.append(step(False))
    for change in ("version", "epoch", "row", "extent"):  # each of them is seen
        versions += change == "version"
        state[EPOCH] += change == "epoch"
        rows[:2] = rows[:2].flip(0) if change == "row" else rows[:2]
        (starts if spec.windowed else lens)[0] -= unit * (change == "extent")
        found.append(step(True))
        found.append(step(False))
    return found


def main():
    """Print what each kind of batch did, as often as it did."""
    results = [" ".join(steps(*batch)) for batch in batches()]
    json.dump({result: results.count(result) for result in results}, sys.stdout)


if __name__ == "__main__":
    main()
