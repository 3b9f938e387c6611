"""Nothing compiles after `warmup()`, whatever a call's sizes, strides and alignments; in every mode that compiles."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from pagebind import Operation
from pagebind.ops import READ_TABLE, REFRESH_TABLE

from pagebind_conformance import generate
from pagebind_conformance.guarded import Layout
from pagebind_conformance.subject import Subject
from pagebind_conformance.suite.read_table import SPECS, identify
from pagebind_conformance.suite.refreshing import SPECS as REFRESHES
from pagebind_conformance.suite.refreshing import identify as identify_refresh
from pagebind_conformance.trial.call import How, call
from pagebind_conformance.trial.read_table import read_table_case
from pagebind_conformance.trial.refresh_table import Refreshed
from pagebind_conformance.trial.sample import CALL_PARAMS, sample, shifted
from pagebind_conformance.trial.scene import Scene

GROUP = "compiling"


@pytest.mark.parametrize("planned", [SPECS[0], SPECS[3], SPECS[4]], ids=identify)
def test_case_13_no_batch_width_or_stride_compiles_after_the_warm_up(subject: Subject, planned: Any) -> None:
    warm = subject.plan(READ_TABLE, planned)
    warm.warmup()
    rng = Random(1)
    v2p, _ = generate.page_tables(rng, 60, 512, 50)
    cells = 17 * planned.page_size
    table = generate.request_table(rng, 17, cells, planned.page_size, planned.form, range(1, 60))
    compiled = subject.backend.compile_count()
    for bs in (1, 3, 16, 17):
        for width in (1, 16, 17):
            for gap in (16 - width % 16, 17 - width % 16):
                layout = Layout(row_gap=gap, shift=gap % 2)
                how = How(layouts={"out": layout, "request_table": Layout(row_gap=gap - 1), "seq_lens": layout})
                lens = [rng.randint(0, 17) for _ in range(bs)]
                starts = [0] * bs if planned.windowed else None
                arguments, _ = read_table_case(
                    subject.device, planned, table, list(range(bs)), lens, v2p, width, starts=starts, how=how
                )
                call(warm, READ_TABLE, arguments)
    assert subject.backend.compile_count() == compiled


@pytest.mark.parametrize("planned", [REFRESHES[0], REFRESHES[1], REFRESHES[2]], ids=identify_refresh)
@pytest.mark.extended
def test_case_13_no_refresh_of_any_width_or_stride_compiles_after_the_warm_up(subject: Subject, planned: Any) -> None:
    subject.need(REFRESH_TABLE, planned)
    subject.plan(REFRESH_TABLE, planned).warmup()
    scene = Scene(subject, planned.page_size, planned.form, rows=17)
    compiled = subject.backend.compile_count()
    for bs, width, gap in ((1, 1, 15), (3, 6, 0), (16, 6, 11), (17, 5, 2), (2, 1, 16)):
        layout = Layout(row_gap=gap, shift=gap % 2)
        layouts = {"out": layout, "request_table": layout, "seq_lens": layout, "built": Layout(shift=gap % 4)}
        table = Refreshed(subject, planned, bs + gap % 2, width, How(layouts=layouts))
        lens = [(7 * b) % 18 for b in range(bs)]
        for _ in range(3):
            scene.refresh(table, list(range(bs)), lens, starts=[0] * bs if planned.windowed else None)
            lens = [n + 1 for n in lens]
    assert subject.backend.compile_count() == compiled


@pytest.mark.parametrize(("operation", "variant"), CALL_PARAMS)
def test_case_13_no_call_compiles_after_the_warm_up(
    subject: Subject, operation: Operation[Any, Any], variant: str
) -> None:
    subject.need(operation)
    warm = subject.plan(operation, sample(operation, subject.device, variant=variant)[0])
    warm.warmup()
    compiled = subject.backend.compile_count()
    for bs in (1, 3, 5, 6):
        for shift, gap in ((0, 8), (1, 0), (3, 1)):
            call(warm, operation, shifted(sample(operation, subject.device, bs, variant)[1], shift, gap))
    assert subject.backend.compile_count() == compiled
