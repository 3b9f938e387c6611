"""A decode step by the oracle: an extension of one token a lane, with the lengths and the table that belong to it."""

from __future__ import annotations

from random import Random

import pytest

from pagebind_conformance import generate, oracle
from pagebind_conformance.oracle import Emitted
from pagebind_conformance.suite.extend import held_rows


@pytest.mark.parametrize("granularity", ["page", "token"])
@pytest.mark.parametrize("form", ["token", "page"])
@pytest.mark.parametrize("page_size", [1, 3, 16])
def test_a_step_is_an_extension_of_a_token_a_lane_and_its_table_a_fresh_build(page_size, form, granularity):
    seen = set()
    for seed in range(150):
        rng = Random(seed)
        bs, pages = rng.randint(0, 7), rng.randint(1, 3)
        cells, tokens = pages * (page_size if form == "token" else 1), pages * page_size
        pool = generate.sub_pool(rng, rng.randint(2, 40), rng.randint(2, 30), rng.randint(0, 20), rng.randint(0, 5))
        lens = [rng.choice([0, 1, page_size, tokens - 1, tokens, -1, tokens + 1, 2**40]) for _ in range(bs)]
        rows = held_rows(rng, pool, [min(max(n, 0), tokens) for n in lens], cells, page_size, form)
        rows = rows or [[-1] * cells]
        sane = not rng.randrange(2)
        if not sane:
            rows[rng.randrange(len(rows))][rng.randrange(cells)] = rng.choice([-3, 0, 999])
        req_rows = [r if rng.randrange(6) else rng.choice([-1, bs]) for r in range(bs)]
        kinds = {"page_size": page_size, "form": form, "multiplier": 3}
        told, asked = Emitted([7] * bs, [7] * 4, [7] * 4), rng.choice([None, 1])
        extended = oracle.extend(
            rows, req_rows, lens, list(range(bs + 1)), pool, [7] * bs, emitted=told, pages=asked, **kinds
        )
        width = tokens if granularity == "token" else pages
        kinds["granularity"] = granularity
        table, _ = oracle.read_table(rows, req_rows, lens, pool.v2p, [[7] * width for _ in range(bs)], **kinds)
        step = oracle.advance(
            rows, req_rows, lens, pool, [7] * bs, longest=2**62, table=table, emitted=told, pages=asked, **kinds
        )
        counters = step.counters
        assert (step.request_table, step.pool, step.slots, step.emitted, counters) == extended, seed
        starving = [b for b, n in enumerate(step.seq_lens) if n == lens[b]]
        for b, r in enumerate(req_rows):
            if b not in starving:
                assert step.seq_lens[b] == max(lens[b], 0) + 1 <= tokens
            elif 0 <= r < len(rows):
                assert lens[b] >= tokens or step.slots[b] == 0
        if sane:
            fresh, _ = oracle.read_table(
                step.request_table, req_rows, step.seq_lens, step.pool.v2p, [[7] * width for _ in range(bs)], **kinds
            )
            assert step.table == fresh, seed
        seen |= {name for name, count in counters.items() if count}
    assert seen >= {"clipped", "bad_row", "starved", "count_mismatch"}


def test_no_length_is_larger_than_the_longest():
    pool = generate.sub_pool(Random(1), 9, 9, 2, 2)
    step = oracle.advance([[1, 2, 3]] * 2, [0, 1], [4, 5], pool, [7, 7], page_size=2, form="page", longest=5)
    assert (step.seq_lens, step.counters["clipped"]) == ([5, 5], 1)
