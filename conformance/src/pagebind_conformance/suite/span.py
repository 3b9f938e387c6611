"""Growth and frontiers: where the pages of a sub-pool come from that shares its bytes with neighbours in a chain."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pagebind import LaunchOptions
from pagebind.ops import AllocSpec

from pagebind_conformance import generate
from pagebind_conformance.generate import empty_blocks, filled_blocks, member, num_pages
from pagebind_conformance.guarded import Layout
from pagebind_conformance.oracle import DOWN, FLOAT, UP, Block, Chain, SubPool
from pagebind_conformance.subject import Subject
from pagebind_conformance.suite.extend import spec as extend_spec
from pagebind_conformance.trial.alloc import alloc
from pagebind_conformance.trial.call import How
from pagebind_conformance.trial.extend import extend

GROUP = "span"
LEVEL = "extended"
LONG = torch.int64
SPECS = [AllocSpec(max_items=512), AllocSpec(max_items=512, index_dtype=LONG, id_dtype=LONG)]
EXTREMES = [-1, -(2**31) - 1, -(2**63), 0, 1, 2**31 - 1, 2**31, 2**62, 2**63 - 1]


def identify(value: AllocSpec) -> str:
    """Spell a spec by the dtypes of index and ids."""
    return f"i{8 * value.index_dtype.itemsize}i{8 * value.id_dtype.itemsize}"


every_spec = pytest.mark.parametrize("planned", SPECS, ids=identify)
sizes_of_two = pytest.mark.parametrize("page_bytes", [(1, 1), (4, 2), (3, 5), (16, 1), (1, 16)], ids=str)
sizes_of_three = pytest.mark.parametrize("page_bytes", [(1, 1, 1), (4, 2, 8), (3, 5, 2), (2, 7, 1)], ids=str)


class Sharing:
    """Sub-pools of one chain, called one at a time: what one takes, the others see in its block."""

    def __init__(self, subject: Subject, planned: AllocSpec, blocks: Sequence[Block], total: int) -> None:
        self.subject, self.planned, self.blocks = subject, planned, blocks
        self.pools = [member(Random(j), blocks, j, total, 60, 60) for j in range(len(blocks))]

    def pool(self, place: int) -> SubPool:
        """Return a sub-pool in the chain as it is now."""
        blocks = [
            block._replace(seat=pool.seat, watermark=pool.watermark)
            for block, pool in zip(self.blocks, self.pools, strict=True)
        ]
        return self.pools[place]._replace(chain=Chain(tuple(blocks), place))

    def alloc(self, place: int, asked: int) -> list[int]:
        """Take pages of a sub-pool and return those that were found."""
        self.pools[place], _, pages = alloc(self.subject, self.planned, self.pool(place), asked)
        return [p for p in pages if p]

    def taken(self) -> list[int]:
        """Return every byte of the spans."""
        found: list[int] = []
        for block, pool in zip(self.blocks, self.pools, strict=True):
            first = block.base + (pool.seat + 1) * block.page_bytes
            found += range(first, first + pool.watermark * block.page_bytes)
        return found


@every_spec
def test_an_end_down_takes_the_next_lower_page(subject: Subject, planned: AllocSpec) -> None:
    # Page p of the upper end lies at byte 1 + 3 p; its last, 5, ends at byte 18, and byte 19 is nobody's.
    shared = Sharing(subject, planned, empty_blocks((1, 3), 20), 20)
    assert shared.alloc(1, 3) == [5, 4, 3]
    assert shared.alloc(1, 1) == [2]
    assert (shared.pools[1].seat, shared.pools[1].watermark) == (1, 4)


@every_spec
def test_an_end_up_begins_above_the_sinks_of_all(subject: Subject, planned: AllocSpec) -> None:
    shared = Sharing(subject, planned, empty_blocks((1, 3), 20), 20)
    assert shared.alloc(0, 2) == [4, 5]  # bytes 0 to 3 are the sinks
    assert (shared.pools[0].seat, shared.pools[0].watermark) == (3, 2)


@every_spec
def test_holes_come_before_growth_in_either_direction(subject: Subject, planned: AllocSpec) -> None:
    blocks = empty_blocks((2, 2, 2), 60)
    blocks[0] = blocks[0]._replace(watermark=3)
    blocks[1] = blocks[1]._replace(seat=11, watermark=4)
    blocks[2] = blocks[2]._replace(seat=22, watermark=5)
    for place, holes in ((0, 2), (1, 3), (2, 4)):
        pool = member(Random(place), blocks, place, 60, 40, blocks[place].watermark - holes)
        _, _, pages = alloc(subject, planned, pool, holes + 2)
        assert pages[:holes] == pool.hole_stack[:holes][::-1]
        assert pages[holes:] == {0: [6, 7], 1: [16, 17], 2: [22, 21]}[place]


@every_spec
def test_a_float_grows_up_while_there_is_room_above_and_then_down(subject: Subject, planned: AllocSpec) -> None:
    blocks = empty_blocks((1, 2, 1), 23)  # the float's page p lies at bytes 1 + 2 p and 2 + 2 p
    blocks[0] = blocks[0]._replace(watermark=1)  # byte 4
    blocks[1] = blocks[1]._replace(seat=5, watermark=1)
    blocks[2] = blocks[2]._replace(seat=15, watermark=4)  # bytes 19 to 22
    shared = Sharing(subject, planned, blocks, 23)
    assert shared.alloc(1, 1) == [7]
    assert (shared.pools[1].seat, shared.pools[1].watermark) == (5, 2)
    assert shared.alloc(1, 3) == [8, 5, 4]
    assert (shared.pools[1].seat, shared.pools[1].watermark) == (3, 5)
    assert shared.alloc(1, 9) == [3, 2]
    assert (shared.pools[1].seat, shared.pools[1].watermark) == (1, 7)


@every_spec
@pytest.mark.parametrize(("below", "pages"), [(1, [5, 6, 7, 8, 4, 3, 2]), (2, [6, 7, 8, 5, 4, 3])], ids=["odd", "even"])
@pytest.mark.parametrize("seat", [0, 9, 3, -1, 2**63 - 1], ids="seat{}".format)
def test_an_empty_float_sits_in_the_middle_wherever_it_sat_before(
    subject: Subject, planned: AllocSpec, below: int, pages: list[int], seat: int
) -> None:
    blocks = empty_blocks((1, 2, 1), 23)
    blocks[0] = blocks[0]._replace(watermark=below)
    blocks[2] = blocks[2]._replace(seat=15, watermark=4)
    pool = member(Random(1), blocks, 1, 23, 40, 0)._replace(seat=seat)
    for asked in (0, 1, len(pages) - 1, 12):
        after, _, got = alloc(subject, planned, pool, asked)
        found = min(asked, len(pages))
        assert got == pages[:found] + [0] * (asked - found)
        if asked:
            assert (after.seat, after.watermark) == (min(pages[:found]) - 1, found)


@every_spec
@sizes_of_two
def test_two_ends_meet_to_the_last_byte(subject: Subject, planned: AllocSpec, page_bytes: tuple[int, int]) -> None:
    for first in (0, 1):
        total = 3 * sum(page_bytes) + 7
        shared = Sharing(subject, planned, empty_blocks(page_bytes, total), total)
        for turn in range(5):
            shared.alloc((first + turn) % 2, (1, 2, 1, 40, 40)[turn])
        assert not shared.alloc(first, 1)
        taken = shared.taken()
        assert len(set(taken)) == len(taken)
        assert min(taken) >= sum(page_bytes)
        last = shared.blocks[1].base + num_pages(shared.blocks[1], total) * page_bytes[1]
        gap = set(range(sum(page_bytes), last)) - set(taken)
        assert len(gap) < min(page_bytes) + page_bytes[0], "a page between the ends was left"


@every_spec
@sizes_of_three
def test_a_float_meets_both_ends(subject: Subject, planned: AllocSpec, page_bytes: tuple[int, int, int]) -> None:
    total = 5 * sum(page_bytes)
    shared = Sharing(subject, planned, empty_blocks(page_bytes, total), total)
    for place, asked in ((1, 1), (0, 2), (2, 1), (1, 3), (0, 40), (2, 40), (1, 40), (0, 1)):
        shared.alloc(place, asked)
    taken = shared.taken()
    assert len(set(taken)) == len(taken)
    assert min(taken) >= sum(page_bytes)
    for place in range(3):
        assert not shared.alloc(place, 1)


@every_spec
@pytest.mark.parametrize("seat", [0, 6, 14, -5, 2**63 - 1], ids="seat{}".format)
def test_an_empty_neighbour_is_no_bound(subject: Subject, planned: AllocSpec, seat: int) -> None:
    blocks = empty_blocks((1, 1, 1), 23)
    blocks[1] = blocks[1]._replace(seat=seat, reach=5)  # a float keeps its neighbours out by what it holds alone
    up, down = (member(Random(j), blocks, j, 23, 40, 0) for j in (0, 2))
    assert alloc(subject, planned, up, 20)[2] == list(range(3, 23))
    assert alloc(subject, planned, down, 20)[2] == list(range(20, 0, -1))
    middle = member(Random(1), empty_blocks((1, 1, 1), 23), 1, 23, 40, 0)
    for end in (0, 2):
        middle = neighbour_spoiled(middle, end, "seat", seat)
    assert alloc(subject, planned, middle, 30)[2] == [*range(12, 22), *range(11, 1, -1), *[0] * 10]


@every_spec
def test_the_reach_of_a_lease_keeps_neighbours_out(subject: Subject, planned: AllocSpec) -> None:
    def found(place: int, **reaches: int) -> int:
        blocks = empty_blocks((1, 1, 1), 33)
        blocks[0] = blocks[0]._replace(watermark=2, reach=reaches.get("up", 0))
        blocks[1] = blocks[1]._replace(seat=14, watermark=3, reach=reaches.get("float", 0))
        blocks[2] = blocks[2]._replace(seat=27, watermark=3, reach=reaches.get("down", 0))
        pool = member(Random(place), blocks, place, 33, 60, 60)
        return sum(p > 0 for p in alloc(subject, planned, pool, 40)[2])

    # Bytes 3, 4 are the lower end's, 16 to 18 the float's, 30 to 32 the upper end's.
    assert (found(0), found(1), found(2)) == (11, 22, 11)
    assert (found(0, up=9), found(2, down=9)) == (11, 11)  # one's own bounds nobody else
    assert (found(1, up=2), found(1, down=3)) == (22, 22)  # no more than the span
    assert (found(1, up=7), found(1, down=9), found(1, up=7, down=9)) == (17, 16, 11)
    assert (found(0, float=9), found(2, float=9)) == (11, 11)
    assert (found(1, up=2**62), found(1, down=2**62), found(1, up=2**62, down=2**62)) == (11, 11, 0)


@every_spec
def test_the_reach_of_an_empty_end_is_a_bound(subject: Subject, planned: AllocSpec) -> None:
    blocks = empty_blocks((1, 2), 24)
    blocks[0] = blocks[0]._replace(reach=5)  # bytes 3 to 7
    pages = alloc(subject, planned, member(Random(1), blocks, 1, 24, 40, 0), 12)[2]
    assert pages == [10, 9, 8, 7, 6, 5, 4, *[0] * 5]  # page 4 begins at byte 9, page 3 at byte 7
    blocks = empty_blocks((1, 2), 24)
    blocks[1] = blocks[1]._replace(reach=2)  # its pages 10 and 9, from byte 19 on
    pages = alloc(subject, planned, member(Random(1), blocks, 0, 24, 40, 0), 20)[2]
    assert pages == [*range(3, 19), *[0] * 4]


@every_spec
def test_lanes_past_a_frontier_starve_and_touch_the_sink_alone(subject: Subject, planned: AllocSpec) -> None:
    blocks = empty_blocks((3, 3, 3), 90)
    blocks[0] = blocks[0]._replace(watermark=4)
    blocks[1] = blocks[1]._replace(seat=9, watermark=5)
    blocks[2] = blocks[2]._replace(seat=20, watermark=7)
    for place, found in ((0, 4), (1, 11), (2, 7)):
        pool = member(Random(place), blocks, place, 90, 60, 60)
        for asked in (found - 1, found, found + 1, 40):
            after, ids, pages = alloc(subject, planned, pool, asked)
            assert all(pages[:found])
            assert set(ids[found:]) | set(pages[found:]) <= {0}
            assert after.watermark == pool.watermark + min(asked, found)


@every_spec
@pytest.mark.parametrize("n", [31, 33, 150], ids="n{}".format)
def test_growth_over_more_than_one_block_of_lanes(subject: Subject, planned: AllocSpec, n: int) -> None:
    blocks = empty_blocks((1, 2, 1), 900)
    blocks[1] = blocks[1]._replace(seat=200, watermark=40)
    blocks[2] = blocks[2]._replace(seat=896 - 370, watermark=370)  # a few pages above the float are free
    for place in (1, 2):
        pool = member(Random(n), blocks, place, 900, 600, 30)
        for options in (LaunchOptions(threads=32, programs=2), *(() if subject.slow else (None,))):
            alloc(subject, planned, pool, n, how=How(options=options))


def spoiled(pool: SubPool, word: str, value: int) -> SubPool:
    """Return the sub-pool with one word of its block spoiled; without holes, which growth could hand out again."""
    pool = pool._replace(hole_top=0)
    if word in SubPool._fields:
        changed: dict[str, Any] = {word: value}
        return pool._replace(**changed)
    return neighbour_spoiled(pool, pool.chain.place if pool.chain else 0, word, value)


def neighbour_spoiled(pool: SubPool, place: int, word: str, value: int) -> SubPool:
    """Return the sub-pool with one word of a block of its chain spoiled."""
    assert pool.chain is not None
    blocks = list(pool.chain.blocks)
    blocks[place] = blocks[place]._replace(**{word: value})
    return pool._replace(chain=pool.chain._replace(blocks=tuple(blocks)))


def three(place: int) -> SubPool:
    """Return one of three sub-pools that all hold something."""
    blocks = empty_blocks((3, 2, 4), 120)
    blocks[0] = blocks[0]._replace(watermark=6)
    blocks[1] = blocks[1]._replace(seat=22, watermark=5)
    blocks[2] = blocks[2]._replace(seat=22, watermark=5)
    return member(Random(place), blocks, place, 120, 60, 60)


@pytest.mark.parametrize(
    "word", ["virtual_top", "hole_top", "watermark", "seat", "reach", "growth", "base", "page_bytes"]
)
def test_a_spoiled_word_of_ones_own_leads_nowhere(subject: Subject, word: str) -> None:
    for place, value in product(range(3), EXTREMES[::2] if subject.slow else EXTREMES):
        alloc(subject, SPECS[0], spoiled(three(place), word, value), 9, how=SHIFTED)


@pytest.mark.parametrize("word", Block._fields)
def test_a_spoiled_word_of_a_neighbour_leads_nowhere(subject: Subject, word: str) -> None:
    pairs = [(0, 1), (1, 0), (1, 2), (2, 1)] if subject.slow else list(product(range(3), range(3)))
    for (place, other), value in product(pairs, EXTREMES[::2] if subject.slow else EXTREMES):
        if place != other:
            alloc(subject, SPECS[1], neighbour_spoiled(three(place), other, word, value), 9, how=SHIFTED)


SHIFTED = How(layouts={name: Layout(shift=1) for name in ("v2p", "p2v", "virtual_stack", "hole_stack", "chain")})


@every_spec
def test_all_words_spoiled_together(subject: Subject, planned: AllocSpec) -> None:
    rng = Random(8)
    for place in range(3):
        for _ in range(3 if subject.slow else 12):
            blocks = tuple(Block(*(rng.choice(EXTREMES) for _ in Block._fields)) for _ in range(3))
            pool = three(place)._replace(chain=Chain(blocks, place), hole_top=rng.choice([0, -3]))
            alloc(subject, planned, pool._replace(seat=rng.choice(EXTREMES), watermark=rng.choice(EXTREMES)), 9)


@every_spec
def test_case_10_bytes_beyond_64_gibibytes_are_counted_exactly(subject: Subject, planned: AllocSpec) -> None:
    page = 2**30
    blocks = empty_blocks((page, page - 7, page // 3), 90 * page)
    blocks[0] = blocks[0]._replace(watermark=30)
    blocks[1] = blocks[1]._replace(seat=40, watermark=11)
    blocks[2] = blocks[2]._replace(seat=blocks[2].seat - 60, watermark=60)
    for place in range(3):
        pool = member(Random(place), blocks, place, 90 * page, 400, 400)
        alloc(subject, planned, pool, 150)
    # All as far up as bytes go: the distances stay what they are.
    far = 2**61 - 80 * page
    moved = tuple(block._replace(base=block.base + far) for block in blocks)
    for place in range(3):
        pool = member(Random(place), blocks, place, 90 * page, 400, 400)
        alloc(subject, planned, pool._replace(chain=Chain(moved, place)), 150)


@every_spec
def test_without_a_chain_the_words_of_a_place_in_one_mean_nothing(subject: Subject, planned: AllocSpec) -> None:
    # The trial leaves growth down and the rest poison there.
    pool = generate.sub_pool(Random(3), 40, 30, 6, 2, seat=4)
    after, _, pages = alloc(subject, planned, pool, 5)
    assert pages[2:] == [13, 14, 15]
    assert (after.seat, after.watermark) == (4, 11)


@pytest.mark.parametrize("dtypes", [{}, {"index_dtype": LONG, "out_dtype": LONG}], ids=["i32", "i64"])
@pytest.mark.parametrize("page_size", [1, 4, 3], ids="ps{}".format)
@pytest.mark.parametrize("place", [0, 1, 2], ids=["up", "float", "down"])
def test_extend_takes_its_pages_by_the_same_rule(
    subject: Subject, page_size: int, dtypes: dict[str, torch.dtype], place: int
) -> None:
    form = ("page", "token")[(place + page_size) % 2]
    planned = extend_spec(page_size, form=form, **dtypes)
    rows = [generate.spread([-1] * 12, page_size, form) for _ in range(3)]
    lanes = [2, 0, 1], [0, 0, 0], [0, 3 * page_size, 4 * page_size, 11 * page_size]
    pool, capacity = three(place), 11 * page_size
    extend(subject, planned, rows, *lanes, pool, capacity=capacity, pages=11)
    for word, value in (("watermark", 2**63 - 1), ("seat", -(2**63)), ("growth", 2**40), ("base", -1)):
        if word == "watermark" or not subject.slow:
            extend(subject, planned, rows, *lanes, spoiled(pool, word, value), capacity=capacity, how=SHIFTED)


@every_spec
@pytest.mark.parametrize("sound", [True, False], ids=["sound", "spoiled"])
def test_generated_chains_equal_the_oracle(subject: Subject, planned: AllocSpec, sound: bool) -> None:
    @subject.generated()
    @given(
        rng=generate.RANDOM,
        page_bytes=st.lists(st.sampled_from([1, 1, 2, 3, 5, 16]), min_size=1, max_size=4),
        more=st.integers(0, 150),
        place=st.integers(0, 3),
        num_virtual=st.integers(2, 90),
        live=st.integers(0, 60),
        asked=st.integers(0, 60),
    )
    def equal(
        rng: Random, page_bytes: list[int], more: int, place: int, num_virtual: int, live: int, asked: int
    ) -> None:
        total = 2 * sum(page_bytes) + more
        blocks, place = filled_blocks(rng, page_bytes, total), place % len(page_bytes)
        pool = member(rng, blocks, place, total, num_virtual, live)
        for _ in range(0 if sound else rng.randint(1, 3)):
            word = rng.choice(Block._fields)
            if rng.random() < 0.4:
                pool = spoiled(pool, word, rng.choice(EXTREMES))
            else:
                pool = neighbour_spoiled(pool, rng.randrange(len(blocks)), word, rng.choice(EXTREMES))
        alloc(subject, planned, pool, asked)

    equal()


@every_spec
def test_generated_turns_of_three_never_overlap(subject: Subject, planned: AllocSpec) -> None:
    @subject.generated(0.25)
    @given(
        rng=generate.RANDOM,
        page_bytes=st.tuples(*[st.sampled_from([1, 2, 3, 7])] * 3),
        turns=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9)), max_size=9),
    )
    def apart(rng: Random, page_bytes: tuple[int, ...], turns: list[tuple[int, int]]) -> None:
        total = 2 * sum(page_bytes) + rng.randint(0, 90)
        shared = Sharing(subject, planned, empty_blocks(page_bytes, total), total)
        for place, asked in turns:
            shared.alloc(place, asked)
        taken = shared.taken()
        assert len(set(taken)) == len(taken)
        assert not taken or (min(taken) >= sum(page_bytes) and max(taken) < total)

    apart()


def test_a_chain_tells_its_directions_by_growth_alone(subject: Subject) -> None:
    # An end down below an end up: each grows away from the other, and reaches bound nobody.
    blocks = [Block(DOWN, 0, 1, seat=10, watermark=2, reach=9), Block(UP, 0, 1, seat=20, watermark=2, reach=9)]
    for place, growth, wanted in ((0, DOWN, [10, 9]), (1, UP, [23, 24]), (1, FLOAT, [23, 24]), (0, 7, [13, 14])):
        own = blocks[place]._replace(growth=growth)
        chain = Chain(tuple(own if j == place else block for j, block in enumerate(blocks)), place)
        pool = generate.sub_pool(Random(1), 40, 40, 2, 0, seat=own.seat, chain=chain)
        assert alloc(subject, SPECS[0], pool, 2)[2] == wanted
