"""Generated inputs through several backends: the same ones from one seed, all that were asked for, and faults found."""

from __future__ import annotations

import json
import os
import re
import shlex
from dataclasses import replace

import outside
import pytest
import torch
from pagebind.ops import OPERATIONS
from pagebind.ops.unbind import UNBIND
from pagebind.words import HOLE_TOP

from pagebind_conformance.inputs import record
from pagebind_conformance.inputs.__main__ import DIFFERENT, SAME, UNFINISHED, main
from pagebind_conformance.inputs.compare import BACKENDS, ORACLE
from pagebind_conformance.inputs.plans import MORE, operation_of
from pagebind_conformance.inputs.run import Asked, planned, run, subjects_of

CYCLE = len(OPERATIONS) + len(MORE)


class Around:
    """A launch with something else in its place."""

    def __init__(self, launch, run):
        self.launch, self.run = launch, run

    def __call__(self, *args, **kwargs):
        self.run(self.launch, *args, **kwargs)

    def warmup(self):
        self.launch.warmup()


def other(name, run):

    def planner(spec, device, options):
        return Around(outside.PLANNERS[name](spec, device, options), run)

    return replace(outside.BACKEND, name=run.__name__, planners={**outside.PLANNERS, name: planner})


def last_lane_served(launch, ids, v2p, p2v, *, freed, state=None):
    turned = torch.empty_like(freed)
    launch(ids.flip(0), v2p, p2v, freed=turned, state=state)
    freed.copy_(turned.flip(0))


def repeats_tell_the_page_too(launch, ids, v2p, p2v, *, freed, state=None):
    launch(ids, v2p, p2v, freed=freed, state=state)
    for v in ids[ids > 0].unique():
        freed[ids == v] = freed[ids == v].max()


def process_ends(launch, *args, **kwargs):
    os._exit(9)


def free_and(after):
    """Return a backend that frees as the composed form does, and then does this to the hole stack and its top."""

    def run(launch, ids, tables, **rest):
        launch(ids, tables, **rest)
        after(tables.hole_stack, max(int(tables.state[HOLE_TOP]), 0))

    def planner(spec, device, options):
        return Around(OPERATIONS["free"].compose(spec, device, outside.PLANNERS, options), run)

    features = outside.FEATURES | {"borrowed"}
    return replace(outside.BACKEND, name="frees", planners={**outside.PLANNERS, "free": planner}, features=features)


def does_not_plan(spec, device, options):
    raise RuntimeError("no kernel today")


LAST_LANE = other("unbind", last_lane_served)
TOLD_TWICE = other("unbind", repeats_tell_the_page_too)
ABOVE_THE_TOP = free_and(lambda stack, top: stack[top:].fill_(7))
BELOW_THE_TOP = free_and(lambda stack, top: stack[max(top - 1, 0) : top].fill_(7))
PLANLESS = replace(outside.BACKEND, name="planless", planners={**outside.PLANNERS, "bind": does_not_plan})
DEADLY = other("unbind", process_ends)


@pytest.fixture
def check(tmp_path):
    """Run the command on the CPU with small counts; return its exit code and the record."""

    def go(*backends, plans=CYCLE, inputs=5, oracle=0, **options):
        path = tmp_path / "record.json"
        words = [word for name in backends for word in ("--backend", name)]
        words += ["--device", "cpu", "--small", "--plans", plans, "--inputs", inputs, "--oracle", oracle]
        for name, value in options.items():
            words += [f"--{name.replace('_', '-')}", value]
        code = main([*map(str, words), "--json", str(path)])
        return code, json.loads(path.read_text())

    return go


# ---- counts ----


def test_as_many_inputs_as_were_asked_for_are_run_and_recorded(check):
    code, told = check("cpu", "outside:BACKEND", inputs=7, oracle=33)
    assert code == SAME
    assert told["finished"]
    assert told["difference"] is None
    assert told["totals"] | {"oracle": 0, "open": 0} == {"plans": CYCLE, "inputs": 7 * CYCLE, "oracle": 0, "open": 0}
    assert set(told["operations"]) == set(OPERATIONS)
    assert told["operations"]["read_table"]["plans"] == 2
    asked = Asked(("cpu",), "cpu", CYCLE, 7, 33)
    assert sum(asked.oracle_of(n) for n in range(CYCLE)) == 33
    for one in told["plans"]:
        assert one["seed"] == [0, one["plan"]]
        assert one["inputs"] == 7
        assert asked.oracle_of(one["plan"]) <= one["oracle"] <= asked.oracle_of(one["plan"]) + one["open"]
    assert told["totals"]["open"] > 0
    assert [one["mode"] for one in told["backends"]] == ["cpu", "cpu"]
    assert "advance" in told["backends"][1]["composed"]


def test_processes_change_nothing_of_the_counts(check):
    (_, alone), (code, spread) = (check("cpu", plans=6, oracle=9, processes=n) for n in (1, 2))
    assert code == SAME
    for told in (alone, spread):
        for one in told["plans"]:
            del one["seconds"]
    assert spread["plans"] == alone["plans"]
    assert spread["totals"] == alone["totals"]


def test_a_time_limit_ends_it_with_what_was_done(check, capsys):
    code, told = check("cpu", time_limit=0)
    assert code == UNFINISHED
    assert not told["finished"]
    assert told["totals"]["inputs"] == 0
    assert told["asked"]["inputs"] == 5 * CYCLE
    assert "the time limit of 0 s" in told["why_not"]
    assert "no difference so far; not finished" in capsys.readouterr().err


def test_a_process_that_is_lost_is_told(check):
    code, told = check("cpu", "test_suite_inputs:DEADLY", plans=4, processes=2)
    assert code == UNFINISHED
    assert "a process was lost" in told["why_not"]


def test_a_record_with_other_totals_or_too_few_inputs_is_refused(check):
    _, told = check("cpu", plans=2)
    record.check(told)
    for change, complaint in (
        (lambda one: one["totals"].update(inputs=11), "inputs of the plans"),
        (lambda one: one["asked"].update(inputs=11), "10 of 11 inputs"),
        (lambda one: one.update(finished=False), "finished means"),
        (lambda one: one["plans"][0].pop("seed"), r"plans\[0\]"),
    ):
        other = json.loads(json.dumps(told))
        change(other)
        with pytest.raises(record.RecordError, match=complaint):
            record.check(other)


# ---- differences ----

FOUND = [
    "faulty:hole_read_before_the_table",
    "faulty:clip_not_counted",
    "faulty:lengths_clipped_in_place",
    "faulty:one_cell_past_the_extent",
    "faulty:sink_bound",
    "faulty:every_lane_of_a_repeat_served",
    "faulty:tombstone_used_as_an_index",
    "faulty:pad_slot_passed_on",
    "faulty:a_neighbours_counters_written",
    "faulty:new_ids_not_padded",
    "faulty:first_page_not_moved",
    "faulty:low_band_pairs_descending",
    "faulty_refresh:changed_rounded_up",
    "faulty_refresh:version_not_raised",
    "failing:BACKEND",
]


@pytest.mark.parametrize("name", FOUND)
def test_a_planted_fault_is_found_and_shown_again_by_its_command(check, name):
    code, told = check("cpu", name, plans=2 * CYCLE, inputs=60)
    found = told["difference"]
    assert code == DIFFERENT
    assert not told["finished"]
    assert found["complaint"]
    assert found["call"]["operation"] == operation_of(found["plan"]).name
    assert found["where"] == ORACLE or found["verdicts"]["cpu"] == "as the oracle"
    words = shlex.split(found["reproduce"])
    again = words[words.index("--only") + 1]
    assert "--small" in words
    assert [words[i + 1] for i, word in enumerate(words) if word == "--backend"] == ["cpu", name]
    code, shown = check("cpu", name, only=again)
    assert code == DIFFERENT
    for one in (found, shown["difference"]):
        del one["reproduce"]
    assert shown["difference"] == found
    assert shown["asked"]["inputs"] == 1


def test_the_cells_that_differ_are_told(check, capsys):
    _, told = check("cpu", "faulty:virtual_used_as_physical", plans=4, inputs=20)
    found = told["difference"]
    assert found["where"] == BACKENDS
    assert found["verdicts"]["faulty:virtual_used_as_physical"].startswith("faulty:virtual_used_as_physical: out")
    (grid,) = (one for one in found["tensors"] if one["name"] == "out")
    assert grid["differing"] > 0
    assert grid["expected"] != grid["actual"]
    assert {one["name"] for one in found["call"]["inputs"]} >= {"ids", "v2p", "out"}
    assert f"reproduce: {found['reproduce']}" in capsys.readouterr().err


def test_what_is_left_open_is_no_difference(check):
    code, told = check("cpu", "test_suite_inputs:LAST_LANE", plans=3, inputs=150)
    assert operation_of(2) is UNBIND
    assert told["plans"][2]["open"] > 5
    assert code == SAME


@pytest.mark.parametrize(("name", "ends"), [("ABOVE_THE_TOP", SAME), ("BELOW_THE_TOP", DIFFERENT)])
def test_cells_of_a_stack_mean_nothing_from_its_top_on(check, name, ends):
    assert operation_of(6).name == "free"
    assert check("cpu", f"test_suite_inputs:{name}", plans=7, inputs=50)[0] == ends


def test_shapes_come_again_so_that_a_memo_of_them_shows(check):
    code, told = check("cpu", "faulty:memo_by_shape", plans=1, inputs=400)
    assert code == DIFFERENT
    assert told["difference"]["call"]["operation"] == "read_table"


def test_every_backend_is_held_to_what_is_left_open(check):
    code, told = check("cpu", "test_suite_inputs:TOLD_TWICE", plans=3, inputs=150)
    found = told["difference"]
    assert code == DIFFERENT
    assert found["where"] == ORACLE
    assert found["complaint"].startswith("test_suite_inputs:TOLD_TWICE: freed")


def test_a_backend_that_does_not_plan_is_told(check):
    code, told = check("cpu", "test_suite_inputs:PLANLESS", plans=3)
    assert code == DIFFERENT
    assert "PLANLESS raised RuntimeError when it planned: no kernel today" in told["difference"]["complaint"]


def test_backends_that_all_write_what_they_must_not_are_found_without_the_oracle():
    name = "faulty:lengths_clipped_in_place"
    asked = Asked((name, name), "cpu", plans=1, inputs=50, oracle=0, small=True)
    (done,) = run(asked, lambda some: None, lambda: True)
    assert done.found is not None
    assert done.found.where == BACKENDS
    assert "seq_lens" in done.found.error.complaint


def test_one_backend_alone_is_held_against_the_oracle(check):
    code, told = check("faulty:floor_instead_of_ceil", plans=1, inputs=30, oracle=30)
    assert code == DIFFERENT
    assert told["difference"]["where"] == ORACLE
    assert check("faulty:floor_instead_of_ceil", plans=1, inputs=30)[0] == SAME


# ---- refusals ----


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--backend", "triton", "--device", "cpu"], "TRITON_INTERPRET|not installed"),
        (["--backend", "nobody", "--device", "cpu"], "'nobody' .* is not installed"),
        (["--backend", "cpu", "--device", "cpu", "--plans", "2", "--inputs", "3", "--oracle", "7"], "2 x 3 inputs"),
        (["--backend", "cpu", "--device", "cpu", "--only", "3"], "PLAN:INDEX"),
        (["--backend", "cpu", "--device", "cpu", "--inputs", "0"], "less than 1"),
    ],
)
def test_what_cannot_be_run_is_refused_with_the_reason(capsys, words, complaint):
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert re.search(complaint, " ".join(capsys.readouterr().err.split()))


def test_a_plan_asks_for_nothing_that_a_backend_with_a_planner_does_not_declare():
    asked = Asked(("cpu", "outside:BACKEND"), "cpu", small=True)
    subjects = subjects_of(asked)
    for number in range(100):
        one = planned(asked, subjects, number)
        if one.operation.name in outside.PLANNERS:
            assert one.operation.features(one.spec) <= outside.BACKEND.features
