"""An allocation on lists, held against the oracle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pagebind.ops import ALLOC, AllocSpec

from pagebind_conformance import oracle
from pagebind_conformance.guarded import Guarded
from pagebind_conformance.oracle import SubPool
from pagebind_conformance.subject import Subject
from pagebind_conformance.trial.call import USUAL, GuardedPool, How, call, compare, hold, repeating


def alloc(
    subject: Subject,
    spec: AllocSpec,
    pool: SubPool,
    asked: int | Sequence[int],
    placed: GuardedPool | None = None,
    how: How = USUAL,
) -> tuple[SubPool, list[int], list[int]]:
    """Take `asked` pages, or one for each of the borrowed ids `asked`; return the sub-pool afterwards, ids and pages.

    `placed` is where `pool` lies already. Where borrowed ids repeat, the sub-pool is as the backend left it.
    """
    placed = placed or GuardedPool(pool, spec.index_dtype, subject.device, how)
    n = asked if isinstance(asked, int) else len(asked)
    arguments: dict[str, Any] = {
        "tables": placed,
        "ids": Guarded.poisoned((n,), spec.id_dtype, subject.device, how.layout("ids")),
        "pages": Guarded.poisoned((n,), spec.id_dtype, subject.device, how.layout("pages")),
    }
    if not isinstance(asked, int):
        arguments["ids"] = Guarded(asked, spec.id_dtype, subject.device, how.layout("ids"))
    after, ids, pages, counters = oracle.alloc(pool, asked)
    seen = counters if how.checks != "off" else {}
    if isinstance(asked, int) or not repeating([v for v in asked if v]):
        hold(subject, ALLOC, spec, arguments, placed.expected(pool, after, seen) | {"ids": ids, "pages": pages}, how)
        return after, ids, pages

    # Of lanes that repeat an id one is served, with the page it would have alone: which one, only the backend tells.
    call(subject.plan(ALLOC, spec, how.checks, how.options), ALLOC, arguments)
    got = arguments["pages"].values()
    served = _served(pool, asked, got, after)
    if seen:
        seen = seen | {"bad_bind": len([v for v in asked if v > 0]) - seen["starved"] - len(served)}
    after = after._replace(v2p=list(pool.v2p), p2v=list(pool.p2v))
    for v, p in served:
        after.v2p[v], after.p2v[p] = p, v
    compare(arguments, placed.expected(pool, after, seen) | {"pages": got})
    return after, ids, got


def _served(pool: SubPool, asked: Sequence[int], got: Sequence[int], after: SubPool) -> list[tuple[int, int]]:
    """Return each id that was served, and its page; hold that those were which the oracle serves, each in its lane.

    An id may also go without where a lane of it has a page that is bound already: the lane may hold the id's row while
    it finds that out, and others of the id ask for it in vain.
    """
    lanes = [i for i, v in enumerate(asked) if v > 0]
    distinct = list(range(len(pool.v2p), len(pool.v2p) + len(lanes)))  # ids of nobody, so that every lane shows a page
    wide = pool._replace(v2p=pool.v2p[:-1] + [-1] * (len(lanes) + 2))
    _, _, alone, counted = oracle.alloc(wide, distinct)
    served = []
    for k, i in enumerate(lanes):
        if got[i] != 0:
            assert got[i] == alone[k], f"lane {i} asks as number {k} and got page {got[i]}, not {alone[k]}"
            served.append((asked[i], got[i]))
    assert all(got[i] == 0 for i in set(range(len(asked))) - set(lanes)), "a lane that asks for nothing got a page"
    ids = [v for v, _ in served]
    wanted = {v for v, p in enumerate(after.v2p) if p != pool.v2p[v]}
    uncertain = {asked[i] for k, i in enumerate(lanes[: len(lanes) - counted["starved"]]) if alone[k] == 0}
    assert len(ids) == len(set(ids)), f"{sorted(ids)} were served, an id more than once"
    assert wanted - uncertain <= set(ids) <= wanted, f"{sorted(ids)} were served, not {sorted(wanted)}"
    return served
