"""Allocate, free and evict borrowed ids with several launch sizes; print what came out of each and what is right."""

import json
import sys

import torch
from pagebind import LaunchOptions
from pagebind.ops import ALLOC, EVICT, FREE, AllocSpec, EvictSpec, FreeSpec
from pagebind.plan import plan_with
from pagebind.words import (
    DOUBLE_FREE,
    DOWN,
    FLOAT,
    GROWTH,
    HOLE_TOP,
    PAGE_BYTES,
    SEAT,
    STATE_WORDS,
    UP,
    VIRTUAL_TOP,
    WATERMARK,
    new_tables,
)
from pagebind_triton import backend

CPU = torch.device("cpu")
SIZES = ((128, 1), (16, 1), (16, 2), (16, 64), (4, 3), (8, 9))  # cells of a program, programs
NUM = 101  # pages of both kinds
SPOILED = -7  # what a launch that borrows must not read or write


def planned(operation, spec, size):
    """Plan an operation for a launch size."""
    threads, programs = size
    return plan_with(backend, operation, spec, CPU, "count", LaunchOptions(threads=threads, programs=programs))


def ints(values):
    """Return a tensor of ids."""
    return torch.tensor(values, dtype=torch.int32)


def float_between(holes):
    """Return the tables of a float of 20 pages, (30, 50], that may grow to 60 and down to 26; `holes` on its stack."""
    chain = torch.zeros(3, STATE_WORDS, dtype=torch.int64)
    for place, (growth, seat, span) in enumerate(((UP, 1, 24), (FLOAT, 30, 20), (DOWN, 60, 30))):
        chain[place][[GROWTH, SEAT, WATERMARK, PAGE_BYTES]] = torch.tensor([growth, seat, span, 16])
    tables = new_tables(NUM, NUM, CPU, borrows=True, chain=chain, place=1)
    tables.p2v[31:51] = torch.arange(71, 91)
    tables.v2p[71:91] = torch.arange(31, 51)
    for page in holes:
        tables.v2p[tables.p2v[page]] = -1
        tables.p2v[page] = -1
    tables.hole_stack[: len(holes)] = ints(holes)
    tables.state[HOLE_TOP] = len(holes)
    tables.state[VIRTUAL_TOP] = SPOILED
    return tables


def positions(tables):
    """Return what a launch moves, and that it leaves no ticket."""
    state = tables.state.tolist()
    return [state[VIRTUAL_TOP], state[HOLE_TOP], state[SEAT], state[WATERMARK], sum(state[16:24])]


def allocs():
    """Every third lane asks: three holes, ten pages up, five down, and two lanes that find nothing."""
    ids = [lane // 3 + 1 if lane % 3 == 1 else (0, -1)[lane % 2] for lane in range(60)]
    taken = [40, 35, 33, *range(51, 61), *range(30, 25, -1), 0, 0]
    pages = [taken[v - 1] if v > 0 else 0 for v in ids]
    answers = []
    for size in SIZES:
        tables = float_between([33, 35, 40])
        out = ints([SPOILED] * 60)
        planned(ALLOC, AllocSpec(max_items=60, borrowed=True), size)(tables, ids=ints(ids), pages=out)
        answers.append([out.tolist(), tables.v2p[1:21].tolist(), positions(tables)])
    return answers, [pages, [*taken[:18], -1, -1], [SPOILED, 0, 25, 35, 0]]


def frees():
    """Free 60 lanes: ids with a page, holes, ids without one, and eight that an earlier lane names too."""
    ids = [(71 + lane // 5, -1, 5, 0, lane // 5 + 60)[lane % 5] for lane in range(60)]
    ids[12::6] = ids[10::5][:8]
    served = sorted({v - 40 for v in ids if v > 70})
    repeats = sum(v > 70 for v in ids) - len(served)
    answers = []
    for size in SIZES:
        tables = float_between([])
        freed = ints([SPOILED] * 60)
        free = planned(FREE, FreeSpec(max_items=60, borrowed=True), size)
        free(ints(ids), tables, freed=freed, pages=len(served))
        released = [page for page in freed.tolist() if page >= 0]
        in_order = tables.hole_stack[: len(served)].tolist() == released
        bound = tables.v2p[71:91].tolist()
        counted = tables.state[DOUBLE_FREE : DOUBLE_FREE + 5].tolist()
        answers.append([sorted(released), in_order, bound, counted, positions(tables)])
    bound = [-1 if page in served else page for page in range(31, 51)]
    zeros = ids.count(0)
    return answers, [served, True, bound, [repeats, zeros, 0, 0, 0], [SPOILED, len(served), 30, 20, 0]]


def evicts():
    """Evict the heads of seven rows of eight pages, two tokens each; the rows share no page and one has two holes."""
    rows = [[*range(71 + lane * 3, 74 + lane * 3), *range(lane * 5 + 1, lane * 5 + 6)] for lane in range(7)]
    rows[3][0] = rows[3][2] = -1
    first = [0, 1, 0, 0, 2, 0, 3]
    lens = [6, 5, 0, 16, 7, 3, 2]
    ids = [v for lane in range(7) for v in rows[lane][first[lane] : lens[lane] // 2]]
    freed = [v - 40 if 71 <= v < 91 else -1 for v in ids]
    served = [page for page in freed if page > 0]
    moved = [max(first[lane], lens[lane] // 2) for lane in range(7)]
    answers = []
    for size in SIZES:
        tables = float_between([])
        spec = EvictSpec(part="head", max_bs=7, max_pages=40, page_size=2, form="page")
        out, begun = ints([SPOILED] * 40), ints(first)
        evict = planned(EVICT, spec, size)
        lanes = (ints(range(7)), torch.zeros(7, dtype=torch.int32), ints(lens))
        evict(ints(rows), *lanes, tables, first=begun, freed=out, pages=len(served))
        holes = tables.hole_stack[: len(served)].tolist()
        counted = tables.state[DOUBLE_FREE : DOUBLE_FREE + 5].tolist()
        answers.append([out.tolist(), holes, begun.tolist(), counted, positions(tables)])
    rest = [-1] * (40 - len(freed))
    return answers, [freed + rest, served, moved, [0] * 5, [SPOILED, len(served), 30, 20, 0]]


def main():
    """Print the answers of each launch size, by operation, with the right one."""
    json.dump({"alloc": allocs(), "free": frees(), "evict": evicts()}, sys.stdout)


if __name__ == "__main__":
    main()
