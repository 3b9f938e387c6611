"""refresh_table: what is kept and what is written, column by column, and the same cells as a fresh build.

Before every call the table's cells are overwritten, so that `written` is what the call wrote and nothing else.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from pagebind.errors import FaultError
from pagebind.ops import REFRESH_TABLE, RefreshTableSpec
from pagebind.ops.refresh_table import new_built

from pagebind_conformance.subject import Subject
from pagebind_conformance.trial.call import How
from pagebind_conformance.trial.refresh_table import Refreshed
from pagebind_conformance.trial.scene import Scene

OPERATION = REFRESH_TABLE
LONG = torch.int64
MOST, LEAST = 2**31 - 1, -(2**31)
NEVER = [-1, 0, 0, 0, 0, 0, 0, 0]
"""The words of a row that holds nothing."""


class Kind(NamedTuple):
    """What the cells of both tables are."""

    page_size: int
    form: str
    granularity: str

    @property
    def unit(self) -> int:
        """Tokens of a column."""
        return self.page_size if self.granularity == "page" else 1

    @property
    def of_page(self) -> int:
        """Columns of a page."""
        return 1 if self.granularity == "page" else self.page_size

    def spec(self, **fields: Any) -> RefreshTableSpec:
        """Return a spec of the sizes all cases share."""
        return spec(self.page_size, form=self.form, granularity=self.granularity, **fields)

    def scene(self, subject: Subject, **sizes: int) -> Scene:
        """Return a request table of this kind."""
        return Scene(subject, self.page_size, self.form, **sizes)


def spec(page_size: int, **fields: Any) -> RefreshTableSpec:
    """Return a spec of the sizes all cases share, so that few plans serve many cases."""
    return RefreshTableSpec(**{"max_bs": 80, "max_width": 400, "num_physical": 512, "page_size": page_size, **fields})


KINDS = [
    Kind(1, "token", "page"),
    Kind(3, "token", "page"),
    Kind(3, "page", "token"),
    Kind(16, "page", "page"),
    Kind(3, "token", "token"),
]


def identify(kind: Kind) -> str:
    """Spell a kind: `ps3-token-page`."""
    return f"ps{kind.page_size}-{kind.form}-{kind.granularity}"


kinds = pytest.mark.parametrize("kind", KINDS, ids=identify)
some_kinds = pytest.mark.parametrize("kind", KINDS[1:3], ids=identify)
fills = pytest.mark.parametrize("fill", ["prefix", "sink"])


def every(table: Refreshed) -> list[int]:
    """Return all columns."""
    return list(range(table.width))


def test_a_table_that_was_never_built_says_so(subject: Subject) -> None:
    made = new_built(2, 7, subject.device)
    assert (made.dtype, made.device) == (torch.int32, subject.device)
    assert made.tolist() == [[-1, 0, 0, 0, 7, 0, 0, 0]] * 2


@kinds
def test_the_first_refresh_writes_the_lanes_and_leaves_the_rest_with_prefix_fill(subject: Subject, kind: Kind) -> None:
    scene = kind.scene(subject)
    table = scene.table(kind.spec(), 5)
    written = scene.refresh(table, [2, 0, 3], [4 * kind.unit, 0, table.width * kind.unit])
    assert written == [[0, 1, 2, 3], [], every(table), [], []]
    lanes = [[2, 0, 5, 0, 4, 0, 0, 0], [0, 0, 5, 0, 0, 0, 0, 0], [3, 0, 5, 0, table.width, 0, 0, 0]]
    assert table.built == [*lanes, *new_built(2, table.width, "cpu").tolist()]


@kinds
def test_the_first_refresh_writes_the_whole_table_with_sink_fill(subject: Subject, kind: Kind) -> None:
    scene = kind.scene(subject)
    table = scene.table(kind.spec(fill="sink"), 5)
    written = scene.refresh(table, [2, 0, 3], [4 * kind.unit, 0, table.width * kind.unit])
    assert written == [every(table)] * 5
    assert table.cells[1] == table.cells[3] == [0] * table.width
    assert table.built[1:2] + table.built[3:] == [[0, 0, 5, 0, 0, 0, 0, 0], NEVER, NEVER]


@kinds
@fills
def test_the_same_again_writes_nothing(subject: Subject, kind: Kind, fill: str) -> None:
    scene = kind.scene(subject)
    table = scene.table(kind.spec(fill=fill), 5)
    for _ in range(3):
        written = scene.refresh(table, [2, 0, 3, 1], [4 * kind.unit, 0, table.width * kind.unit, 1])
    assert written == [[]] * 5


@kinds
@fills
def test_an_appended_row_writes_its_new_columns_alone(subject: Subject, kind: Kind, fill: str) -> None:
    scene = kind.scene(subject)
    table = scene.table(kind.spec(fill=fill), 2)
    lens = [(2 * kind.unit + 1, [0, 1, 2]), (3 * kind.unit, []), (3 * kind.unit + 1, [3]), (6 * kind.unit, [4, 5])]
    for step, (length, new) in enumerate(lens):
        written = scene.refresh(table, [1, 0], [length, 2 * kind.unit])
        if step:
            assert written == [new, []]
        assert table.built[0] == [1, 0, 5, 0, -(-length // kind.unit), 0, 0, 0]


@kinds
@fills
def test_a_window_that_moves_on_writes_new_columns_and_empties_old_ones(
    subject: Subject, kind: Kind, fill: str
) -> None:
    scene = kind.scene(subject)
    table = scene.table(kind.spec(fill=fill, windowed=True), 1)
    scene.refresh(table, [1], [3 * kind.unit], starts=[0])
    seen = []
    for start, end in ((1, 4), (3, 5), (1, 5), (1, 3), (4, 6), (6, 6)):
        begun = start * kind.unit + kind.unit - 1  # the column that a start lies in is part of the extent
        seen.append(scene.refresh(table, [1], [end * kind.unit], starts=[begun])[0])
        assert table.built[0] == [1, 0, 5, *((start, end) if start < end else (0, 0)), 0, 0, 0]
    if fill == "prefix":
        assert seen == [[3], [4], [1, 2], [], [4, 5], []]
    else:
        assert seen == [[0, 3], [1, 2, 4], [1, 2], [3, 4], [1, 2, 4, 5], [4, 5]]
        assert table.cells == [[0] * table.width]


@kinds
@pytest.mark.parametrize("into", ["first", "last"])
def test_a_row_touched_once_is_written_from_the_column_of_that_token_on(
    subject: Subject, kind: Kind, into: str
) -> None:
    scene = kind.scene(subject)
    table = scene.table(kind.spec(), 2)
    lens = [5 * kind.unit, 5 * kind.unit]
    scene.refresh(table, [2, 1], lens)
    scene.renew(1, 3 * kind.unit // kind.page_size)
    scene.touch(1, 3 * kind.unit + (kind.unit - 1 if into == "last" else 0))
    assert scene.refresh(table, [2, 1], lens) == [[], [3, 4]]
    assert table.built[1] == [1, 1, 5, 0, 5, 0, 0, 0]
    scene.touch(1, 5 * kind.unit)  # what changed lies past the row's end
    assert scene.refresh(table, [2, 1], lens) == [[], []]
    assert scene.refresh(table, [2, 1], [lens[0], 6 * kind.unit]) == [[], [5]]


@kinds
@fills
def test_a_row_cut_and_grown_anew_is_written_from_the_cut_on(subject: Subject, kind: Kind, fill: str) -> None:
    scene = kind.scene(subject)
    table = scene.table(kind.spec(fill=fill), 1)
    scene.refresh(table, [3], [6 * kind.unit])
    for page in range(3 * kind.unit // kind.page_size, scene.pages):
        scene.renew(3, page)
    scene.touch(3, 3 * kind.unit)
    assert scene.refresh(table, [3], [5 * kind.unit]) == [[3, 4] + ([5] if fill == "sink" else [])]


@kinds
def test_a_row_that_was_handed_over_is_written_whole(subject: Subject, kind: Kind) -> None:
    scene = kind.scene(subject)
    table = scene.table(kind.spec(), 2)
    lens = [5 * kind.unit, 5 * kind.unit]
    scene.refresh(table, [2, 1], lens)
    for page in range(scene.pages):
        scene.renew(1, page)
    scene.touch(1, 0)
    assert scene.refresh(table, [2, 1], lens) == [[], [0, 1, 2, 3, 4]]
    scene.renew(1, 0)
    scene.touch(1, 0)
    scene.touch(1, 4 * kind.unit)  # the second change tells nothing of the first
    assert scene.refresh(table, [2, 1], lens) == [[], [0, 1, 2, 3, 4]]


@some_kinds
@pytest.mark.parametrize(
    ("built", "now", "writes"),
    [
        (0, 0, "nothing"),
        (LEAST, LEAST, "nothing"),
        (0, 1, "from there on"),
        (-1, 0, "from there on"),
        (MOST, LEAST, "from there on"),
        (0, 2, "all"),
        (MOST - 1, LEAST, "all"),
        (MOST, LEAST + 1, "all"),
        (1, 0, "all"),
        (LEAST, MOST, "all"),
        (-9, 4, "all"),
    ],
)
def test_versions_are_told_apart_by_being_equal_or_one_ahead(
    subject: Subject, kind: Kind, built: int, now: int, writes: str
) -> None:
    scene = kind.scene(subject)
    table = scene.table(kind.spec(), 1)
    scene.versions[1] = [built, kind.unit]
    scene.refresh(table, [1], [5 * kind.unit])
    scene.versions[1] = [now, 3 * kind.unit]
    wanted = {"nothing": [], "from there on": [3, 4], "all": [0, 1, 2, 3, 4]}[writes]
    assert scene.refresh(table, [1], [5 * kind.unit]) == [wanted]
    assert table.built[0][1] == now
    assert scene.refresh(table, [1], [5 * kind.unit]) == [[]]


@kinds
def test_a_compaction_rebuilds_every_row(subject: Subject, kind: Kind) -> None:
    scene = kind.scene(subject)
    table = scene.table(kind.spec(), 3)
    lens = [5 * kind.unit, 2 * kind.unit]
    scene.refresh(table, [1, 0], lens)
    scene.move(1, 0)
    scene.epoch += 1
    assert scene.refresh(table, [1, 0], lens) == [[0, 1, 2, 3, 4], [0, 1], []]
    assert scene.refresh(table, [1, 0], lens) == [[], [], []]


@kinds
@fills
def test_a_compaction_among_steady_calls_rebuilds_every_row(subject: Subject, kind: Kind, fill: str) -> None:
    scene = kind.scene(subject)
    table = scene.table(kind.spec(fill=fill), 2)
    lens = [2 * kind.unit, kind.unit]
    scene.refresh(table, [1, 0], lens)
    for _ in range(2):
        assert scene.refresh(table, [1, 0], lens) == [[], []]
        scene.move(1, 0)
        scene.epoch += 1
        assert scene.refresh(table, [1, 0], lens) == [[0, 1], [0]]


@pytest.mark.parametrize(
    ("built", "now", "word"),
    [(5, 4, 4), (2**31 - 1, 2**31, LEAST), (2**32 - 1, 2**32, 0), (0, 2**31, LEAST), (7, 2**40 + 8, 8)],
)
def test_an_epoch_of_other_low_bits_rebuilds(subject: Subject, built: int, now: int, word: int) -> None:
    scene = KINDS[0].scene(subject)
    table = scene.table(KINDS[0].spec(), 1)
    scene.epoch = built
    scene.refresh(table, [1], [5])
    scene.epoch = now
    assert scene.refresh(table, [1], [5]) == [[0, 1, 2, 3, 4]]
    assert table.built == [[1, 0, word, 0, 5, 0, 0, 0]]


@pytest.mark.parametrize("epoch", [5, 2**31 + 5, 2**32 - 1])
def test_of_an_epoch_the_low_32_bits_are_compared(subject: Subject, epoch: int) -> None:
    scene = KINDS[1].scene(subject)
    table = scene.table(KINDS[1].spec(), 1)
    for scene.epoch in (epoch, epoch + 2**32, epoch + 2**50):
        written = scene.refresh(table, [1], [5])
    assert written == [[]]


@kinds
@fills
def test_permuted_lanes_and_rows_that_come_and_go_are_written_whole(subject: Subject, kind: Kind, fill: str) -> None:
    scene = kind.scene(subject)
    table = scene.table(kind.spec(fill=fill), 4)
    lens = [4 * kind.unit] * 4
    whole = [0, 1, 2, 3]
    scene.refresh(table, [0, 1, 2, 3], lens)
    assert scene.refresh(table, [0, 2, 1, 3], lens) == [[], whole, whole, []]
    assert scene.refresh(table, [0, 2, 3, 3], lens) == [[], [], whole, []]  # a row may stand in two lanes
    assert scene.refresh(table, [1, 2, 3, 0], lens) == [whole, [], [], whole]


@kinds
@fills
@pytest.mark.parametrize("columns", [0, 1, 2])
@pytest.mark.parametrize("end", [-1, -2, LEAST])
def test_an_end_before_the_first_column_leads_nowhere(
    subject: Subject, kind: Kind, fill: str, columns: int, end: int
) -> None:
    scene = kind.scene(subject)
    built = [[row, 0, scene.epoch, 0, end, 0, 0, 0] for row in (1, 0)]
    table = scene.table(kind.spec(fill=fill), 2, built=built)
    scene.refresh(table, [1, 0], [columns * kind.unit] * 2, garbage=True)


@kinds
def test_rows_past_the_batch_stay_as_they_are_with_prefix_fill(subject: Subject, kind: Kind) -> None:
    scene = kind.scene(subject)
    table = scene.table(kind.spec(), 4)
    lens = [4 * kind.unit] * 4
    scene.refresh(table, [0, 1, 2, 3], lens)
    words = table.built
    assert scene.refresh(table, [0], lens[:1]) == [[]] * 4
    assert table.built == words
    scene.touch(2, 3 * kind.unit)
    assert scene.refresh(table, [0, 1, 2], lens[:3]) == [[], [], [3], []]


@kinds
def test_rows_past_the_batch_are_emptied_once_with_sink_fill(subject: Subject, kind: Kind) -> None:
    scene = kind.scene(subject)
    table = scene.table(kind.spec(fill="sink"), 4)
    lens = [4 * kind.unit] * 4
    scene.refresh(table, [0, 1, 2, 3], lens)
    assert scene.refresh(table, [0, 1], lens[:2]) == [[], [], [0, 1, 2, 3], [0, 1, 2, 3]]
    assert table.built[2:] == [NEVER, NEVER]
    assert scene.refresh(table, [0, 1], lens[:2]) == [[]] * 4
    assert scene.refresh(table, [0, 1, 2], lens[:3]) == [[], [], [0, 1, 2, 3], []]


@some_kinds
def test_rows_past_a_batch_of_more_lanes_than_a_row_has_words_are_emptied_with_sink_fill(
    subject: Subject, kind: Kind
) -> None:
    scene = kind.scene(subject, rows=12)
    table = scene.table(kind.spec(fill="sink"), 12)
    lens = [2 * kind.unit] * 12
    scene.refresh(table, list(range(12)), lens)
    assert scene.refresh(table, list(range(10)), lens[:10]) == [[]] * 10 + [[0, 1]] * 2


@kinds
@fills
@pytest.mark.parametrize("columns", [1, 3])
def test_a_row_that_was_empty_is_written_from_its_first_column_on(
    subject: Subject, kind: Kind, fill: str, columns: int
) -> None:
    scene = kind.scene(subject)
    table = scene.table(kind.spec(fill=fill), 2)
    scene.refresh(table, [1, 0], [0, 2 * kind.unit])
    assert scene.refresh(table, [1, 0], [columns * kind.unit, 2 * kind.unit]) == [list(range(columns)), []]


@kinds
@fills
def test_a_shorter_length_keeps_what_is_left(subject: Subject, kind: Kind, fill: str) -> None:
    scene = kind.scene(subject)
    table = scene.table(kind.spec(fill=fill), 1)
    scene.refresh(table, [1], [5 * kind.unit])
    assert scene.refresh(table, [1], [3 * kind.unit]) == [[] if fill == "prefix" else [3, 4]]
    assert table.built[0] == [1, 0, 5, 0, 3, 0, 0, 0]
    assert scene.refresh(table, [1], [5 * kind.unit]) == [[3, 4]]
    assert scene.refresh(table, [1], [0]) == [[] if fill == "prefix" else [0, 1, 2, 3, 4]]
    assert table.built[0] == [1, 0, 5, 0, 0, 0, 0, 0]


@kinds
@fills
def test_a_row_one_column_shorter_gives_that_column_up(subject: Subject, kind: Kind, fill: str) -> None:
    scene = kind.scene(subject)
    table = scene.table(kind.spec(fill=fill), 2)
    scene.refresh(table, [1, 0], [3 * kind.unit, 2 * kind.unit])
    written = scene.refresh(table, [1, 0], [2 * kind.unit, 3 * kind.unit])
    assert written == [[] if fill == "prefix" else [2], [2]]
    assert [words[4] for words in table.built] == [2, 3]


@kinds
@fills
def test_a_bad_row_is_an_empty_one_and_noted_as_nothing(subject: Subject, kind: Kind, fill: str) -> None:
    scene = kind.scene(subject)
    table = scene.table(kind.spec(fill=fill), 3)
    lens = [4 * kind.unit] * 3
    scene.refresh(table, [0, 1, 2], lens)
    for bad in (4, -1):
        written = scene.refresh(table, [0, bad, 2], lens)
        assert table.counted == {"clipped": 0, "bad_row": 1, "bad_id": 0}  # at each call
        assert table.built[1] == NEVER
        assert written == [[], [0, 1, 2, 3] if fill == "sink" and bad == 4 else [], []]
    assert scene.refresh(table, [0, 1, 2], lens) == [[], [0, 1, 2, 3], []]


@kinds
def test_lengths_that_are_clipped_are_counted_at_each_call(subject: Subject, kind: Kind) -> None:
    scene = kind.scene(subject)
    table = scene.table(kind.spec(), 3)
    for _ in range(2):
        scene.refresh(table, [0, 1, 7], [table.width * kind.unit + 1, -1, -1])
        assert table.counted == {"clipped": 2, "bad_row": 1, "bad_id": 0}
        assert table.built[:2] == [[0, 0, 5, 0, table.width, 0, 0, 0], [1, 0, 5, 0, 0, 0, 0, 0]]


@kinds
@fills
def test_a_length_below_0_in_a_good_row_is_clipped_and_counted(subject: Subject, kind: Kind, fill: str) -> None:
    scene = kind.scene(subject)
    table = scene.table(kind.spec(fill=fill), 2)
    scene.refresh(table, [0, 1], [kind.unit, kind.unit])
    for _ in range(2):
        scene.refresh(table, [0, 1], [2 * kind.unit, -1])
        assert table.counted == {"clipped": 1, "bad_row": 0, "bad_id": 0}
        assert table.built == [[0, 0, 5, 0, 2, 0, 0, 0], [1, 0, 5, 0, 0, 0, 0, 0]]


@kinds
@fills
def test_a_row_longer_than_a_narrow_table_stays_in_its_row(subject: Subject, kind: Kind, fill: str) -> None:
    scene = kind.scene(subject)
    table = Refreshed(subject, kind.spec(fill=fill), 2, 3)
    scene.refresh(table, [2, 1], [2 * kind.unit] * 2)
    for length, new, clipped in ((3 * kind.unit, [2], 0), (3 * kind.unit + 1, [], 1), (5 * kind.unit, [], 1)):
        assert scene.refresh(table, [2, 1], [length, 2 * kind.unit]) == [new, []]
        assert table.counted["clipped"] == clipped
        assert table.built[0] == [2, 0, 5, 0, 3, 0, 0, 0]


@kinds
def test_ids_past_the_table_are_counted_where_they_are_written(subject: Subject, kind: Kind) -> None:
    scene = kind.scene(subject)
    table = scene.table(kind.spec(), 1)
    for page in (1, 3):
        scene.write(0, page, len(scene.v2p) - 1)
    all_columns = table.width * kind.unit
    seen = []
    for length in (all_columns, all_columns, all_columns - kind.unit, all_columns):
        scene.refresh(table, [0], [length])
        seen.append(table.counted["bad_id"])
    scene.touch(0, 3 * kind.page_size)
    scene.refresh(table, [0], [all_columns])
    assert [*seen, table.counted["bad_id"]] == [2 * kind.of_page, 0, 0, 0, kind.of_page]


@kinds
@pytest.mark.parametrize("checks", ["count", "off"])
@pytest.mark.parametrize("other", ["grows", "stays"])
def test_an_id_past_the_table_is_counted_where_it_is_appended(
    subject: Subject, kind: Kind, checks: str, other: str
) -> None:
    scene = kind.scene(subject)
    table = scene.table(kind.spec(), 2, How(checks=checks))
    scene.write(0, 2, len(scene.v2p) - 1)
    full = 2 * kind.page_size
    scene.refresh(table, [0, 1], [full, full])
    scene.refresh(table, [0, 1], [full + 1, full + (other == "grows")])
    assert (len(table.written[0]), table.counted["bad_id"]) == (1, 1)


@kinds
@pytest.mark.parametrize("windowed", [False, True], ids=["whole", "windowed"])
def test_columns_below_a_first_page_that_moved_are_written_anew(subject: Subject, kind: Kind, windowed: bool) -> None:
    scene = kind.scene(subject)
    table = scene.table(kind.spec(borrowed=True, windowed=windowed), 2)
    ends = [5 * kind.page_size, 4 * kind.page_size]
    starts = {"starts": [0, 0]} if windowed else {}
    below = {pages: list(range(pages * kind.of_page)) for pages in (2, 3)}
    scene.refresh(table, [1, 0], ends, **starts)
    scene.v2p, kept = list(scene.v2p), scene.v2p
    for page in range(2):  # the window has left them
        cell = scene.request_table[1][page * (kind.page_size if kind.form == "token" else 1)]
        scene.v2p[cell // (kind.page_size if kind.form == "token" else 1)] = -1
    scene.first[1] = 2
    assert scene.refresh(table, [1, 0], ends, **starts) == [below[2], []]
    assert table.built[0] == [1, 0, 5, 0, 5 * kind.of_page, 2, 0, 0]
    assert scene.refresh(table, [1, 0], ends, **starts) == [[], []]
    scene.first[1] = 3
    assert scene.refresh(table, [1, 0], ends, **starts) == [below[3], []]
    scene.v2p = kept
    scene.first[1] = 0  # the row begins anew, and what was below its first page is there again
    assert scene.refresh(table, [1, 0], ends, **starts) == [below[3], []]
    scene.first[0] = 9  # past the end of the row
    assert scene.refresh(table, [1, 0], ends, **starts) == [[], list(range(4 * kind.of_page))]


def test_without_borrowed_ids_a_row_has_no_first_page(subject: Subject) -> None:
    scene = KINDS[1].scene(subject)
    table = scene.table(KINDS[1].spec(), 1)
    scene.refresh(table, [0], [9])
    assert table.built[0][5] == 0


@kinds
@fills
def test_a_delta_widens_the_extent_that_is_built(subject: Subject, kind: Kind, fill: str) -> None:
    scene = kind.scene(subject)
    table = scene.table(kind.spec(fill=fill), 2)
    lens = [2 * kind.unit, table.width * kind.unit - 1]
    scene.refresh(table, [1, 0], lens)
    assert scene.refresh(table, [1, 0], lens, seq_len_delta=kind.unit + 1) == [
        [2, 3],
        [table.width - 1] if kind.unit == 1 else [],
    ]
    assert table.counted["clipped"] == 1
    assert scene.refresh(table, [1, 0], lens)[0] == ([] if fill == "prefix" else [2, 3])
    assert scene.refresh(table, [1, 0], lens, seq_len_delta=-(2**31) + 1)[0] == ([] if fill == "prefix" else [0, 1])


@kinds
@fills
def test_a_delta_of_one_token_moves_the_end_by_one_token(subject: Subject, kind: Kind, fill: str) -> None:
    scene = kind.scene(subject)
    table = scene.table(kind.spec(fill=fill), 2)
    lens = [2 * kind.unit, kind.unit]
    scene.refresh(table, [1, 0], lens)
    assert scene.refresh(table, [1, 0], lens, seq_len_delta=1) == [[2], [1]]
    scene.refresh(table, [1, 0], lens, seq_len_delta=-1)
    assert [words[4] for words in table.built] == ([1, 0] if kind.unit == 1 else [2, 1])


@kinds
def test_ids_written_under_columns_that_a_longer_length_covered_are_told(subject: Subject, kind: Kind) -> None:
    scene = kind.scene(subject)
    table = scene.table(kind.spec(), 1)
    for page in range(scene.pages):
        scene.write(2, page, scene.spare.pop() if page * kind.page_size < 3 * kind.unit else -1)
    scene.refresh(table, [2], [3 * kind.unit], seq_len_delta=2 * kind.unit)
    assert table.cells[0][3:5] == [0, 0]
    for page in range(3 * kind.unit // kind.page_size, scene.pages):
        scene.renew(2, page)
    assert scene.refresh(table, [2], [4 * kind.unit], stale=True) == [[]]
    scene.touch(2, 3 * kind.unit)
    assert scene.refresh(table, [2], [5 * kind.unit]) == [[3, 4]]


@kinds
def test_several_tables_follow_one_request_table_each_at_its_own_pace(subject: Subject, kind: Kind) -> None:
    scene = kind.scene(subject)
    often, seldom = scene.table(kind.spec(), 4), scene.table(kind.spec(fill="sink", windowed=True), 5)
    lens = [2 * kind.unit] * 4
    for step in range(9):
        r = step % 4
        if step % 3 == 2:
            scene.renew(r, kind.unit // kind.page_size)
            scene.touch(r, kind.unit // kind.page_size * kind.page_size)
        else:
            lens[r] += kind.unit
        scene.refresh(often, [0, 1, 2, 3], lens)
        if step % 4 == 3:
            scene.refresh(seldom, [1, 2, 3, 0], [lens[1], lens[2], lens[3], lens[0]], starts=[0, step, 0, 1])


@kinds
def test_full_checks_refuse_faults_of_written_cells_alone(subject: Subject, kind: Kind) -> None:
    scene = kind.scene(subject)
    planned = kind.spec()
    scene.write(0, 1, len(scene.v2p) - 1)
    full = scene.table(planned, 1, How(checks="full"))
    with pytest.raises(FaultError, match="bad_id"):
        scene.refresh(full, [0], [3 * kind.page_size])
    with pytest.raises(FaultError, match="bad_row: 0"):
        scene.refresh(full, [9], [1])
    counting = scene.table(planned, 1)
    scene.refresh(counting, [0], [3 * kind.page_size])
    kept = scene.table(planned, 1, How(checks="full"), counting.built)
    appended = [*range(3 * kind.of_page, 4 * kind.of_page)]
    assert scene.refresh(kept, [0], [4 * kind.page_size], stale=True) == [appended]  # it holds none of what it keeps
