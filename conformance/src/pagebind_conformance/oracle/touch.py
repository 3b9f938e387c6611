"""touch on lists: the words of rows that changed, other than by appending."""

from __future__ import annotations

from collections.abc import Sequence

INT32 = 2**32
MOST = 2**31 - 1


def touch(
    versions: Sequence[Sequence[int]], req_rows: Sequence[int], tokens: Sequence[int]
) -> tuple[list[list[int]], dict[str, int]]:
    """Return `versions` as they must be afterwards, a `[version, token]` each, and the counters.

    Of a row that stands in several lanes the token is that of the last one, where any of theirs is right.

    >>> touch([[4, 0], [2**31 - 1, 9]], [1, 2], [-7, 3])
    ([[4, 0], [-2147483648, 0]], {'bad_row': 1})
    """
    after = [list(words) for words in versions]
    counters = {"bad_row": 0}
    for r, token in zip(req_rows, tokens, strict=True):
        if not 0 <= r < len(after):
            counters["bad_row"] += 1
            continue
        after[r] = [wrapped(after[r][0] + 1), min(max(token, 0), MOST)]
    return after, counters


def wrapped(value: int) -> int:
    """Return what an int32 holds of an int.

    >>> wrapped(2**31), wrapped(-1), wrapped(5 * 2**32 + 7)
    (-2147483648, -1, 7)
    """
    return (value + INT32 // 2) % INT32 - INT32 // 2
