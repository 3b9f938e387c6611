"""Refresh lanes step after step, and print how many launches looked further than they should, as JSON.

A lane is steady that has its row as it was, and a column more at most; one without a row that had none is, too, in the
batch or past it. A launch of steady lanes looks no further than `write_steady`; where lanes have several columns more,
no further than `write_several`.
"""

import json
import sys
from itertools import product

import torch
from pagebind import LaunchOptions
from pagebind.ops import REFRESH_TABLE, RefreshTableSpec
from pagebind.ops.refresh_table import NOTHING, new_built
from pagebind.ops.touch import new_versions
from pagebind.words import EPOCH, new_state
from pagebind_triton import refresh_table

CPU = torch.device("cpu")
LANES, ROWS, REQUESTS, COLUMNS = 7, 9, 9, 60
STEPS = (0, 1, 1, 1)


def batches():
    """Yield specs, sizes of launches, and whether the last two lanes pad the batch."""
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
        # All lanes at once, or some; a program that owns several, or programs that own none.
        options = LaunchOptions(threads=(16, 64)[number // 3 % 2], programs=(1, 3, 7)[number % 3])
        yield spec, options, (number + number // 6) % 2 == 1


def looked_further(*_):
    """Stand for what a launch should not come to."""
    raise AssertionError("looked further")


def steps(spec, options, padded):
    """Return what looked further or was wrong, of steady steps and of those that are not."""
    torch.manual_seed(1)
    found = []
    ids = 50 * (spec.page_size if spec.form == "token" else 1)
    request_table = torch.randint(1, ids, (REQUESTS, COLUMNS * spec.page_size), dtype=torch.int32)
    v2p = torch.randint(0, 90, (51,), dtype=spec.index_dtype)
    rows = torch.randperm(REQUESTS)[:LANES].to(spec.row_dtype)
    unit = spec.page_size if spec.granularity == "page" else 1
    lens = torch.tensor([9, 0, 1, 17, 15, 5, 0], dtype=spec.length_dtype)
    starts = torch.tensor([3, 0, 0, 30, 8, 0, 0], dtype=spec.length_dtype)
    if padded:
        rows[-2:] = NOTHING
    versions, state = new_versions(REQUESTS, CPU), new_state(CPU)
    versions += 3
    state[EPOCH] = 2**32 + 7
    plans = [refresh_table.plan(spec, CPU, options), REFRESH_TABLE.compose(spec, CPU, {}, options)]
    few = plans[0].variants[0].constants["FEW"]
    tables = [(torch.full((ROWS, COLUMNS), 88, dtype=spec.out_dtype), new_built(ROWS, COLUMNS, CPU)) for _ in plans]
    further = {name: getattr(refresh_table, name) for name in ("write_several", "write_small")}

    def step(*forbidden):
        more = {"starts": starts} if spec.windowed else {}
        more |= {"first": torch.full((REQUESTS,), 2, dtype=torch.int32)} if spec.borrowed else {}
        vars(refresh_table).update(dict.fromkeys(forbidden, looked_further))
        states = [state.clone() for _ in plans]
        try:
            for launch, (out, built), counted in zip(plans, tables, states, strict=True):
                lanes = request_table, rows, lens, v2p
                launch(*lanes, out=out, built=built, versions=versions, state=counted, **more)
        except Exception as error:
            if "looked further" not in repr(error) + repr(error.__cause__):
                raise
            return "further"
        finally:
            vars(refresh_table).update(further)
        return "right" if all(map(torch.equal, *tables)) and torch.equal(*states) else "wrong"

    found.append(step())
    for columns in STEPS:
        lens += unit * columns
        starts += unit * columns * (spec.fill == "prefix")
        found.append(step(*further))
    at = -(-int(lens[0]) // unit)
    if spec.form == "token" or spec.granularity == "page":  # else the last new column would hold it, too
        request_table[rows[0], at * unit if spec.form == "token" else at] = 10**6  # past the table: to be counted
    lens[0] += 2 * unit
    lens[2] += few * unit
    found.append(step(*further))
    found.append(step("write_small"))
    lens[4] += (few + 1) * unit
    found.append(step("write_small"))
    found.append(step())
    for change in ("version", "epoch", "row", "extent", "padding"):  # each of them is seen
        versions += change == "version"
        state[EPOCH] += change == "epoch"
        rows[:2] = rows[:2].flip(0) if change == "row" else rows[:2]
        (starts if spec.windowed else lens)[0] -= unit * (change == "extent")
        rows[-1] = (REQUESTS - 1 if padded else NOTHING) if change == "padding" else rows[-1]
        found.append(step("write_small"))
        found.append(step())
    found.append(step(*further))
    return found


def main():
    """Print what each kind of batch did, as often as it did."""
    results = [" ".join(steps(*batch)) for batch in batches()]
    json.dump({result: results.count(result) for result in results}, sys.stdout)


if __name__ == "__main__":
    main()
