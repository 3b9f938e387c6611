"""refresh_table at its edges: dtypes, strides, garbage, long rows, large batches, launch sizes, refusals, any words."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pagebind import LaunchOptions
from pagebind.errors import InvalidArgument
from pagebind.ops import REFRESH_TABLE, RefreshTableSpec
from pagebind.words import EPOCH

from pagebind_conformance import generate
from pagebind_conformance.guarded import Layout
from pagebind_conformance.subject import Subject
from pagebind_conformance.suite.read_table import identify as identify_table
from pagebind_conformance.suite.refresh_table import spec
from pagebind_conformance.trial.call import How, call, compare, hold
from pagebind_conformance.trial.refresh_table import Refreshed, expected_of, rewrite
from pagebind_conformance.trial.sample import sample
from pagebind_conformance.trial.scene import Scene

OPERATION = REFRESH_TABLE
LONG = torch.int64
MOST, LEAST = 2**31 - 1, -(2**31)

# Every value of every field stands here with most values of the others.
SPECS = [
    spec(1),
    spec(1, form="page", fill="sink", windowed=True, borrowed=True, length_dtype=LONG),
    spec(3, granularity="token", multiplier=3, index_dtype=LONG, windowed=True, borrowed=True),
    spec(3, form="page", granularity="token", fill="sink", out_dtype=LONG, row_dtype=LONG),
    spec(16, fill="sink", multiplier=7, row_dtype=LONG, borrowed=True, length_dtype=LONG),
    spec(16, form="page", index_dtype=LONG, out_dtype=LONG, windowed=True),
    spec(4, form="page", granularity="token", borrowed=True),
    spec(4, fill="sink", windowed=True),
]


def identify(value: RefreshTableSpec) -> str:
    """Spell a spec as one of a read table."""
    return identify_table(value) + ("-borrowed" if value.borrowed else "")


every_spec = pytest.mark.parametrize("planned", SPECS, ids=identify)
some_specs = pytest.mark.parametrize("planned", [SPECS[0], SPECS[2], SPECS[3]], ids=identify)


def scene_of(subject: Subject, planned: RefreshTableSpec, **sizes: int) -> Scene:
    """Return a request table that a spec's tables follow."""
    return Scene(subject, planned.page_size, planned.form, **sizes)


def unit_of(planned: RefreshTableSpec) -> int:
    """Return the tokens of a column."""
    return planned.page_size if planned.granularity == "page" else 1


def started(planned: RefreshTableSpec, *starts: int) -> dict[str, Any]:
    """Return the starts of a call, where the spec takes any."""
    return {"starts": list(starts)} if planned.windowed else {}


def drive(scene: Scene, table: Refreshed, rng: Random, steps: int) -> None:
    """Refresh a table as its rows grow, change and go; nothing is cut out of what the scene holds."""
    planned, rows = table.spec, len(scene.request_table)
    tokens = scene.pages * scene.page_size
    lens = [rng.randint(0, tokens) for _ in range(rows)]
    for _ in range(steps):
        r = rng.randrange(rows)
        match rng.randrange(6):
            case 0:
                page = rng.randrange(scene.pages)
                scene.write(r, page, rng.randint(1, len(scene.v2p) - 2))
                scene.touch(r, page * scene.page_size)
            case 1:
                lens[r] = rng.randint(0, tokens)
            case 2:
                scene.move(r, rng.randrange(scene.pages))
                scene.epoch += 1
            case 3 if planned.borrowed:
                scene.first[r] = rng.randint(0, scene.pages)
            case _:
                lens = [min(n + 1, tokens) for n in lens]
        lanes = rng.sample([-1, *range(rows), rows], rng.randint(1, min(rows, len(table.cells))))
        starts = [rng.choice([0, rng.randint(-1, tokens)]) for _ in lanes]
        here = [lens[lane] if 0 <= lane < rows else 1 for lane in lanes]
        scene.refresh(table, lanes, here, seq_len_delta=rng.choice([0, 0, 2, -1]), **started(planned, *starts))


@every_spec
def test_every_form_granularity_fill_and_dtype(subject: Subject, planned: RefreshTableSpec) -> None:
    scene = scene_of(subject, planned)
    drive(scene, scene.table(planned, 6), Random(planned.page_size), 6 if subject.slow else 20)


@every_spec
def test_an_empty_batch_writes_nothing(subject: Subject, planned: RefreshTableSpec) -> None:
    scene = scene_of(subject, planned)
    table = scene.table(planned, 2)
    scene.refresh(table, [], [], **started(planned))
    scene.refresh(table, [1, 0], [1, 1], **started(planned, 0, 0))
    words = table.built
    assert scene.refresh(table, [], [], **started(planned)) == [[], []]
    assert table.built == words  # not even a sink fill
    without = Refreshed(subject, planned, 3, 0)
    scene.refresh(without, [0, 1], [1, 1], **started(planned, 0, 0))


@pytest.mark.parametrize("fill", ["prefix", "sink"])
def test_of_a_request_table_without_rows_every_row_is_bad(subject: Subject, fill: str) -> None:
    table = Refreshed(subject, spec(1, fill=fill), 3, 4)
    for _ in range(2):
        table.refresh([], [0, -1], [3, 3], [0, 1, -1], [])
        assert table.counted["bad_row"] == 2
    assert table.built[:2] == [[-1, 0, 0, 0, 0, 0, 0, 0]] * 2


@every_spec
def test_bad_lengths_starts_and_rows_are_clipped_and_counted(subject: Subject, planned: RefreshTableSpec) -> None:
    scene = scene_of(subject, planned)
    least, most = generate.LIMITS[planned.length_dtype]
    lens = [least, -1, 0, 5, 10**6, most - 1, most, 5, 5]
    rows = [0, 1, 2, 3, 0, 1, 2, *generate.LIMITS[planned.row_dtype]]
    table = scene.table(planned, 10)
    for starts in ([0, 0, most, least, 1, -1, least, 3, 0], [0] * 9):
        scene.refresh(table, rows, lens, **started(planned, *starts))
        scene.refresh(table, rows, lens, seq_len_delta=2**31 - 1, **started(planned, *starts))
    if planned.row_dtype is LONG:  # rows whose low 32 bits lie inside
        scene.refresh(table, [2**32, 1 - 2**32], [5, 5], **started(planned, 0, 0))
        assert table.counted["bad_row"] == 2


@every_spec
@pytest.mark.parametrize("checks", ["count", "full"])
def test_a_call_that_leaves_out_the_delta_widens_no_lane(
    subject: Subject, planned: RefreshTableSpec, checks: str
) -> None:
    scene = scene_of(subject, planned)
    table = scene.table(planned, 2)
    first = scene.first if planned.borrowed else None
    # Full checks hand arguments on as they are given: there a backend's own default counts. A token more, or one less,
    # changes how many columns one of the two lanes has; at the second call they are lanes that were appended to.
    for length in (planned.page_size, 2 * planned.page_size):
        arguments = table.arguments(
            scene.request_table, [0, 1], [length, length + 1], scene.v2p, scene.versions, epoch=scene.epoch,
            first=first, **started(planned, 0, 0),
        )  # fmt: skip
        expected, _ = expected_of(planned, arguments)
        del arguments["seq_len_delta"]
        hold(subject, REFRESH_TABLE, planned, arguments, expected, How(checks=checks))


@every_spec
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_words_that_no_refresh_left_lead_nowhere(subject: Subject, planned: RefreshTableSpec, seed: int) -> None:
    rng = Random(seed)
    scene = scene_of(subject, planned)
    scene.epoch = rng.choice([0, 2**31, 2**63 - 1, -(2**63)])
    junk = [0, 1, 3, 5, -1, -2, MOST, LEAST, MOST - 1, 2**30, rng.randint(LEAST, MOST)]
    built = [[rng.choice(junk) for _ in range(8)] for _ in range(7)]
    for words in built[::2]:  # of the right row and epoch, so that they are believed
        words[0], words[1], words[2] = rng.randrange(4), 0, (scene.epoch + 2**31) % 2**32 - 2**31
    table = scene.table(planned, 7, built=built)
    rows = [words[0] if 0 <= words[0] < 4 else rng.randrange(-1, 5) for words in built[:6]]
    tokens = scene.pages * scene.page_size
    lens, starts = [tokens, 1, tokens // 2, 0, tokens, tokens], [rng.choice([0, 0, 1, tokens // 2]) for _ in range(6)]
    scene.refresh(table, rows, lens, garbage=True, **started(planned, *starts))
    scene.versions = [[rng.choice(junk), rng.choice(junk)] for _ in range(4)]
    scene.first = [rng.choice(junk) for _ in range(4)]
    scene.refresh(table, rows, lens, garbage=True, **started(planned, *starts))
    known = {words[0]: words[1] for words in table.built}
    ahead = [known[r] + 1 if known.get(r, MOST) < MOST else LEAST for r in range(4)]
    scene.versions = [[version, changed] for version, changed in zip(ahead, junk[-4:], strict=True)]
    scene.refresh(table, rows[::-1], lens[::-1], garbage=True, **started(planned, *starts))


@every_spec
def test_words_that_a_refresh_may_have_left_are_believed(subject: Subject, planned: RefreshTableSpec) -> None:
    @subject.generated()
    @given(
        rng=generate.RANDOM,
        bs=st.integers(0, 6),
        extra=st.integers(0, 2),
        gaps=st.tuples(st.integers(0, 3), st.integers(0, 3)),
        delta=st.sampled_from([0, 0, 3, -2]),
    )
    def equal(rng: Random, bs: int, extra: int, gaps: tuple[int, int], delta: int) -> None:
        layouts = {"request_table": Layout(row_gap=gaps[0]), "out": Layout(row_gap=gaps[1], shift=gaps[0])}
        layouts |= {name: Layout(shift=gaps[1]) for name in ("built", "versions", "first", "v2p")}
        scene = scene_of(subject, planned)
        for _ in range(3):
            scene.write(rng.randrange(4), rng.randrange(scene.pages), rng.choice([-1, -9, len(scene.v2p) + 3]))
        width = scene.pages * scene.page_size // unit_of(planned)
        scene.versions = [[rng.choice([0, MOST, LEAST, 7]), rng.randint(0, 99)] for _ in range(4)]
        scene.first = [rng.randint(0, scene.pages) for _ in range(4)]
        built = []
        for _ in range(bs + extra):
            r, begin = rng.randrange(-1, 4), rng.randint(0, width)
            version = (scene.versions[r][0] - rng.choice([0, 1, 1, 2, -1]) + 2**31) % 2**32 - 2**31
            live = rng.choice([scene.first[r], rng.randint(0, scene.pages)]) if planned.borrowed else 0
            epoch = scene.epoch - (rng.random() < 0.1)
            known = [r, version, epoch, begin, rng.randint(begin, width), live, 0, 0]
            built.append(known if r >= 0 else [-1, 0, 0, 0, rng.choice([0, width]), 0, 0, 0])
        table = scene.table(planned, bs + extra, How(layouts=layouts), built)
        rows = [words[0] if rng.random() < 0.8 else rng.randrange(-1, 5) for words in built[:bs]]
        lens = generate.lengths(rng, bs, width * unit_of(planned), planned.length_dtype)
        starts = started(planned, *generate.lengths(rng, bs, width * unit_of(planned), planned.length_dtype))
        scene.refresh(table, rows, lens, seq_len_delta=delta, stale=True, **starts)

    equal()


@some_specs
@pytest.mark.parametrize("size", [1, 31, 33, 63, 80], ids="size{}".format)
def test_awkward_batches_and_widths(subject: Subject, planned: RefreshTableSpec, size: int) -> None:
    bs = min(size, 7) if subject.slow else size
    of_page = planned.page_size // unit_of(planned)  # columns
    scene = scene_of(subject, planned, rows=bs, pages=-(-size // of_page), num_physical=6600)
    wide = RefreshTableSpec(**{**vars(planned), "num_physical": 6600})
    drive(scene, scene.table(wide, bs + 1), Random(size), 3)


@some_specs
@pytest.mark.parametrize("gap", [0, 1, 16, 1000], ids="gap{}".format)
@pytest.mark.parametrize("shift", [0, 1], ids=["aligned", "shifted"])
def test_rows_apart_by_any_stride(subject: Subject, planned: RefreshTableSpec, gap: int, shift: int) -> None:
    layouts = {name: Layout(row_gap=gap, shift=shift) for name in ("request_table", "out")}
    layouts |= {name: Layout(shift=shift) for name in ("built", "versions", "first", "v2p", "req_rows", "seq_lens")}
    scene = scene_of(subject, planned)
    drive(scene, scene.table(planned, 5, How(layouts=layouts)), Random(gap), 4)


@pytest.mark.parametrize("threads", [32, 64], ids="threads{}".format)
@pytest.mark.parametrize("programs", [1, 3], ids="programs{}".format)
def test_launch_sizes_change_no_result(subject: Subject, threads: int, programs: int) -> None:
    scene = scene_of(subject, SPECS[0], rows=7, pages=150, num_physical=1200)
    wide = spec(1, num_physical=1200)
    how = How(options=LaunchOptions(threads=threads, programs=programs))
    drive(scene, scene.table(wide, 9, how), Random(threads + programs), 5)


@some_specs
def test_more_lanes_than_a_block_has_threads_append_a_column_each(subject: Subject, planned: RefreshTableSpec) -> None:
    scene = scene_of(subject, planned, rows=70, pages=3, num_physical=300)
    table = scene.table(planned, 72, How(options=LaunchOptions(threads=32, programs=3)))
    unit, lanes = unit_of(planned), list(range(69, -1, -1))
    scene.refresh(table, lanes, [unit] * 70, **started(planned, *[0] * 70))
    for end, begun, new in ((2, 0, [1]), (2, 0, []), (3, 1, [2])):
        written = scene.refresh(table, lanes, [end * unit] * 70, **started(planned, *[begun * unit] * 70))
        assert written == [new] * 70 + [[]] * 2
        assert [words[4] for words in table.built[:70]] == [end] * 70


@pytest.mark.parametrize("planned", [SPECS[0], SPECS[1], SPECS[2]], ids=identify)
def test_a_row_longer_than_any_block_is_rebuilt_and_kept(subject: Subject, planned: RefreshTableSpec) -> None:
    columns = 501 if subject.slow else 12_000
    pages = columns // (1 if unit_of(planned) == planned.page_size else planned.page_size)
    num = 4 * pages + 100
    scene = scene_of(subject, planned, rows=4, pages=pages, num_physical=num)
    table = scene.table(RefreshTableSpec(**{**vars(planned), "max_width": columns, "num_physical": num}), 5)
    unit, whole = unit_of(planned), list(range(columns if planned.fill == "sink" else columns - 1))
    lens = [7, (columns - 1) * unit, 3, 9]
    begun = started(planned, 0, 0, 0, 0)
    assert scene.refresh(table, [0, 1, 2, 3], lens, **begun)[1] == whole
    assert scene.refresh(table, [0, 1, 2, 3], lens, **begun) == [[]] * 5
    lens[1] += unit
    assert scene.refresh(table, [0, 1, 2, 3], lens, **begun)[1] == [columns - 1]
    page = pages // 3
    scene.renew(1, page)
    scene.touch(1, page * scene.page_size)
    assert scene.refresh(table, [0, 1, 2, 3], lens, **begun)[1] == list(range(page * scene.page_size // unit, columns))
    scene.move(1, pages - 1)
    scene.epoch += 1
    assert scene.refresh(table, [0, 1, 2, 3], lens, **begun)[1] == list(range(columns))
    scene.refresh(table, [1, 0, 1, 3], [lens[1], 7, lens[1] - 1, 9], **begun)  # in other lanes, and in two of them


@pytest.mark.parametrize("planned", [SPECS[1], SPECS[2]], ids=identify)
def test_a_long_row_is_written_below_and_above_what_its_window_held(
    subject: Subject, planned: RefreshTableSpec
) -> None:
    columns = 501 if subject.slow else 12_000
    pages = columns // (1 if unit_of(planned) == planned.page_size else planned.page_size)
    num = 4 * pages + 100
    scene = scene_of(subject, planned, rows=4, pages=pages, num_physical=num)
    table = scene.table(RefreshTableSpec(**{**vars(planned), "max_width": columns, "num_physical": num}), 2)
    unit, begin, end = unit_of(planned), columns - 99, columns - 9
    scene.refresh(table, [2, 1], [end * unit, unit], **started(planned, begin * unit, 0))
    written = scene.refresh(table, [2, 1], [columns * unit, unit], **started(planned, 0, 0))
    assert written == [[*range(begin), *range(end, columns)], []]


@pytest.mark.parametrize("planned", [SPECS[0], SPECS[1]], ids=identify)
def test_more_than_1024_lanes(subject: Subject, planned: RefreshTableSpec) -> None:
    subject.need_mode("gpu", "cpu", what="a batch over 1,024")
    rng = Random(4)
    scene = scene_of(subject, planned, rows=1500, pages=3, num_physical=4700)
    table = scene.table(RefreshTableSpec(**{**vars(planned), "max_bs": 1500, "num_physical": 4700}), 1450)
    lanes = rng.sample(range(-1, 1501), 1400)
    for step in range(5):
        lens = [min(step + lane % 2, 3) for lane in lanes]
        scene.refresh(table, lanes, lens, **started(planned, *[lane % 2 for lane in lanes]))
        if step == 1:
            for at in (3, 700, 1030, 1399):
                scene.renew(lanes[at] % 1500, 0)
                scene.touch(lanes[at] % 1500, 0)
        if step == 2:
            lanes[5], lanes[1200] = lanes[1200], lanes[5]
            lanes.pop()


@every_spec
def test_a_call_repeated_on_the_same_tensors_reads_what_they_hold_now(
    subject: Subject, planned: RefreshTableSpec
) -> None:
    scene = scene_of(subject, planned)
    tables = [scene.table(planned, 5) for _ in range(2)]
    begun = started(planned, 0, 0, 0)
    held = tables[0].arguments(
        scene.request_table, [0, 1, 2], [1, 1, 1], scene.v2p, scene.versions, epoch=scene.epoch,
        first=scene.first if planned.borrowed else None, **begun,
    )  # fmt: skip
    for step in range(8):
        r = step % 3
        scene.renew(r, 1)
        scene.touch(r, planned.page_size)
        if step == 5:
            scene.move(1, 0)
            scene.epoch += 1
        words = held["state"].before_values()
        words[EPOCH] = scene.epoch
        wanted = {
            "request_table": scene.request_table,
            "req_rows": [(r + b) % 4 if step > 4 else b for b in range(3)],
            "seq_lens": [(step + b) * planned.page_size // 2 for b in range(3)],
            "v2p": scene.v2p,
            "versions": scene.versions,
            "state": words,
        }
        for name, values in wanted.items():
            rewrite(held[name], values)
        for table in tables if step % 2 else tables[:1]:
            lanes = (held[name] for name in ("request_table", "req_rows", "seq_lens", "v2p", "versions"))
            table.refresh(*lanes, **{name: held[name] for name in ("state", "first", "starts")})


@pytest.mark.parametrize("form", ["token", "page"])
def test_case_10_an_entry_past_32_bits_is_exact_in_int64(subject: Subject, form: str) -> None:
    planned = spec(1, form=form, num_physical=1_500_001, multiplier=2000, out_dtype=LONG)
    table = Refreshed(subject, planned, 1, 2)
    table.refresh([[1, 1]], [0], [1], [0, 1_500_000, -1], [[0, 0]])
    assert table.refresh([[1, 1]], [0], [2], [0, 1_500_000, -1], [[0, 0]]) == [[3_000_000_000] * 2]
    assert table.written == [[1]]


@every_spec
def test_counting_off_changes_no_cell_and_no_counter(subject: Subject, planned: RefreshTableSpec) -> None:
    scene = scene_of(subject, planned)
    scene.write(2, 0, len(scene.v2p))
    table = scene.table(planned, 4, How(checks="off"))
    for _ in range(2):
        scene.refresh(table, [2, 9, 0], [10**6, 3, -4], **started(planned, 0, 1, 0))


@pytest.mark.parametrize(
    ("name", "wrong", "told"),
    [
        ("state", lambda held: None, "state"),
        ("built", lambda held: held[:, :7].contiguous(), "new_built"),
        ("built", lambda held: held[:-1], "out"),
        ("built", lambda held: held.repeat(1, 2)[:, :8], "new_built"),
        ("versions", lambda held: held[:-1], "request_table"),
        ("versions", lambda held: held.repeat(1, 2)[:, :2], "new_versions"),
        ("first", lambda held: held[:-1], "request_table"),
        ("first", lambda held: None, "first"),
    ],
    ids=["no-state", "built-narrow", "built-short", "built-strided", "short", "strided", "first-short", "no-first"],
)
def test_words_of_another_shape_are_refused(subject: Subject, name: str, wrong: Any, told: str) -> None:
    planned, arguments = sample(REFRESH_TABLE, subject.device, variant="borrowed")
    with pytest.raises(InvalidArgument, match=told):
        call(subject.plan(REFRESH_TABLE, planned), REFRESH_TABLE, arguments | {name: wrong(arguments[name].view)})
    compare(arguments)


def test_a_first_page_that_the_plan_does_not_take_is_refused(subject: Subject) -> None:
    _, arguments = sample(REFRESH_TABLE, subject.device, variant="borrowed")
    planned, plain = sample(REFRESH_TABLE, subject.device)
    with pytest.raises(InvalidArgument, match="borrowed=False"):
        call(subject.plan(REFRESH_TABLE, planned), REFRESH_TABLE, plain | {"first": arguments["first"]})
    compare(plain)
