"""Build tables of uneven rows with several launch sizes, so that each way to finish rows is taken; print what differs.

What a table must hold is computed here from the definition of `pagebind.ops.read_table`, cell by cell.
"""

import json
import random
import sys

import torch
from pagebind import LaunchOptions
from pagebind.ops import READ_TABLE, ReadTableSpec
from pagebind.plan import plan_with
from pagebind.words import BAD_ID, BAD_ROW, CLIPPED, new_state
from pagebind_triton import backend, build, read_table

CPU = torch.device("cpu")
UNTOUCHED = -7
WIDTH = 150
# name: lengths of the lanes, which a launch of 4 programs of 16 cells finishes in its own way
BATCHES = {
    "one tile each": [16, 15, 1],
    "alike": [90, 100, 88],
    "one long": [150, 3, 0, 7],
    "one long, alone": [150],
    "two long, not the first": [5, 140, 0, 150],
    "more lanes than programs": [20, 1, 150, 0, 16, 33, 2],
    "more lanes than programs, one tile each": [3, 16, 1, 0, 5, 9, 16],
    "more lanes than a launch takes": [1 + 37 * lane % 40 for lane in range(9)] + [150, 0, 2],
}
UNEVEN = ["alike", "two long, not the first", "more lanes than a launch takes"]


def expected(spec, table, rows, lens, v2p, starts, width):
    """Return the cells and the counters, as the contract has them."""
    unit = spec.page_size if spec.granularity == "page" else 1
    tokens = len(table[0]) * (spec.page_size if spec.form == "page" else 1)
    most = min(width * unit, tokens)
    out = [[UNTOUCHED if spec.fill == "prefix" else 0] * width for _ in rows]
    counts = [0, 0, 0]
    for cells, row, asked, start in zip(out, rows, lens, starts, strict=True):
        if not 0 <= row < len(table):
            counts[1] += 1
            continue
        length = min(max(asked, 0), most)
        counts[0] += length != asked
        for column in range(max(start, 0) // unit, -(-length // unit)):
            token = column * unit
            held = table[row][token if spec.form == "token" else token // spec.page_size]
            page = held // spec.page_size if spec.form == "token" else held
            counts[2] += page >= len(v2p) - 1
            physical = v2p[page] if 0 <= page < len(v2p) - 1 else -1
            offset = token % spec.page_size if spec.form == "page" else held % spec.page_size
            entry = physical * spec.multiplier * (spec.page_size // unit) + (offset if unit == 1 else 0)
            cells[column] = entry if physical >= 0 else 0
    return out, counts


def main():
    """Print how many tables were right, and those that were not."""
    rng = random.Random(6)
    right, wrong = 0, []
    planned = {"max_bs": 30, "num_physical": 64}
    specs = [
        ReadTableSpec(page_size=1, max_width=WIDTH, **planned),
        ReadTableSpec(page_size=1, max_width=2**31 - 1, **planned),  # tiles are counted in 64 bits
        ReadTableSpec(page_size=3, max_width=WIDTH, granularity="token", form="page", windowed=True, **planned),
        ReadTableSpec(page_size=1, max_width=WIDTH, fill="sink", windowed=True, multiplier=5, **planned),
    ]
    # A launch of any size finishes each batch, for one spec; for the others, and for launches of few lanes, one does.
    ways = [(specs[0], programs, build.MOST_LANES, list(BATCHES)) for programs in (1, 3, 4, 11)]
    ways += [(spec, 4, build.MOST_LANES, UNEVEN) for spec in specs[1:]]
    ways += [(spec, 3, 8, UNEVEN[-1:]) for spec in specs]
    for spec, programs, most_lanes, names in ways:
        build.MOST_LANES = read_table.MOST_LANES = most_lanes
        options = LaunchOptions(threads=16, programs=programs)
        launch = plan_with(backend, READ_TABLE, spec, CPU, "count", options)
        for name in names:
            lens = BATCHES[name]
            ids = range(-1, 66 * spec.page_size)
            cells = WIDTH // spec.page_size if spec.form == "page" else WIDTH
            table = [[rng.choice(ids) for _ in range(cells)] for _ in range(len(lens) + 1)]
            v2p = [0, *(rng.choice((-1, rng.randint(1, 63))) for _ in range(60)), -1]
            rows = [rng.choice((-1, 10**6)) if rng.random() < 0.1 else rng.randrange(len(table)) for _ in lens]
            asked = [length + rng.choice((0, 0, 5)) for length in lens]
            starts = [rng.choice((0, 1, 40)) if spec.windowed else 0 for _ in lens]
            state = new_state(CPU)
            out = torch.full((len(lens), WIDTH), UNTOUCHED, dtype=torch.int32)
            launch(
                torch.tensor(table, dtype=torch.int32),
                torch.tensor(rows, dtype=torch.int32),
                torch.tensor(asked, dtype=torch.int32),
                torch.tensor(v2p, dtype=torch.int32),
                out=out,
                starts=torch.tensor(starts, dtype=torch.int32) if spec.windowed else None,
                state=state,
            )
            found = out.tolist(), [int(state[word]) for word in (CLIPPED, BAD_ROW, BAD_ID)]
            if found == expected(spec, table, rows, asked, v2p, starts, WIDTH):
                right += 1
            else:
                wrong.append([name, repr(spec), programs, most_lanes])
    json.dump({"right": right, "wrong": wrong}, sys.stdout)


if __name__ == "__main__":
    main()
