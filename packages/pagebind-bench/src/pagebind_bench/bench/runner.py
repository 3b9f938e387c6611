"""Goes through cases: has each contender ready, holds its result against the others', times it, and records that.

What calls take the host is measured at the end of a case, by turns: it drifts with whatever else the host does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from pagebind import LaunchOptions
from pagebind.errors import Unsupported

from pagebind_bench.bench.evidence import Evidence
from pagebind_bench.bench.kinds import Case
from pagebind_bench.bench.lab import Contender, Fault, Lab, Work
from pagebind_bench.bench.limits import Limits, judged, measured
from pagebind_bench.bench.makers import MAKERS
from pagebind_bench.bench.record import Recorder, Row, spread
from pagebind_bench.bench.timing import Call, CpuTimer, GpuTimer, Round

SWEEP_THREADS = (64, 128, 256, 512, 1_024)
SWEEP_PROGRAMS = (128, 256, 512, 1_024, 2_048, 4_096)
SHARE = {"cuda": 0.9, "cpu": 0.35}
"""Of the memory, what a case may take."""
ALLOCATING_CALLS = 8
"""Calls over which device allocations are counted."""

Told = Callable[[str], None]


@dataclass
class Run:
    """One run over cases on one device."""

    lab: Lab
    timer: GpuTimer | CpuTimer
    recorder: Recorder
    evidence: Mapping[str, Evidence]
    """By backend; no backend without it is ever timed."""
    limits: Limits

    def case(self, case: Case, told: Told = lambda _: None) -> None:
        """Time every contender of a case. Raises Fault where one is wrong: nothing is worth showing then."""
        reference: torch.Tensor | None = None
        why = self._why_not(case)
        ready: list[tuple[Row, Work]] = []
        for contender in MAKERS[case.op](case, self.lab):
            told(f"{case.op} {case.id}: {contender.name}")
            common = self._common(case, contender)
            if why is not None:
                self.recorder.add(**common, metric="time", reason=why)
                continue
            work, reference = self._contender(case, contender, common, reference)
            if work is not None:
                ready.append((common, work))
        if isinstance(self.timer, GpuTimer) and ready:
            self._host(ready, self.timer)
        self._give_back(ready)

    def sweep(self, case: Case, told: Told = lambda _: None) -> None:
        """Time the backends' shipped launch of a case, and every other one of the sweep."""
        why = self._why_not(case)
        own = {backend.name for backend in self.lab.backends}
        options = [LaunchOptions(), *(LaunchOptions(t, p) for t, p in product(SWEEP_THREADS, SWEEP_PROGRAMS))]
        for contender in MAKERS[case.op](case, self.lab):
            if contender.name not in own:
                continue
            for self.lab.options in options:
                told(f"{case.op} {case.id}: {contender.name}, {self.lab.options.threads} x {self.lab.options.programs}")
                common = self._common(case, contender) | {
                    "groups": "sweep",
                    "threads": self.lab.options.threads,
                    "programs": self.lab.options.programs,
                }
                if why is None:
                    self._contender(case, contender, common, None)
                else:
                    self.recorder.add(**common, metric="time", reason=why)
        self.lab.options = LaunchOptions()
        self._give_back([])

    def _contender(
        self, case: Case, contender: Contender, common: Row, reference: torch.Tensor | None
    ) -> tuple[Work | None, torch.Tensor | None]:
        """Time one contender; return its work where it has any, and the result that the next ones are compared to."""
        try:
            work = contender.make()
        except Unsupported as error:
            self.recorder.add(**common, metric="time", reason=str(error))
            return None, reference
        except torch.OutOfMemoryError as error:
            self.recorder.add(**common, metric="time", reason=f"out of memory: {str(error).splitlines()[0]}")
            return None, reference
        compiled = self._compiled(contender)
        work.call()
        try:
            work.need_sound()
            reference = _agreed(work.result(), reference)
        except Fault as error:
            raise Fault(f"{contender.name} on {case.op} {case.id}: {error}") from error
        if work.restore is not None:
            work.restore()
        self._time(case, contender, work, common, compiled)
        return work, reference

    def _time(self, case: Case, contender: Contender, work: Work, common: Row, compiled: int) -> None:
        times = self.timer.measure(work.turns or work.call, work.restore, cold=case.l2 == "cold")
        rate = work.bytes / times.p50 * 1e6 if times.p50 > 0 else None
        moved: Row = {
            "bytes": work.bytes,
            "bytes_per_s": rate,
            "percent_of_ceiling": None if rate is None else 100 * rate / self.limits.bytes_per_s,
            "floor_us": self.limits.floor_us.get(case.l2),
            "ceiling_bytes_per_s": self.limits.bytes_per_s,
        }
        counted = {"launches": self.timer.launches(work.call), "compiles": self._compiled(contender) - compiled}
        self.recorder.add(**common, metric="time", **spread(times), **moved, **counted)

    def _host(self, ready: Sequence[tuple[Row, Work]], timer: GpuTimer) -> None:
        """Time what calls of a case take the host, in turns with bare launches."""
        # A call that takes pages would find none left, sample after sample, if its round were not rewound.
        own = [Round((work.call,), work.turns.rewind) if work.turns else work.call for _, work in ready]
        calls: list[Call | Round] = [*own, *self.lab.bare.values()]
        times = timer.host(calls)
        bare = dict(zip(self.lab.bare, times[len(ready) :], strict=True))
        for (common, work), host in zip(ready, times, strict=False):
            least = bare.get(common["contender"])
            before = self._allocated()
            for _ in range(ALLOCATING_CALLS):
                work.call()
            self.recorder.add(
                **common,
                metric="host",
                **spread(host),
                allocations=(self._allocated() - before) / ALLOCATING_CALLS,
                bare_us=None if least is None else least.p50,
            )

    def _common(self, case: Case, contender: Contender) -> Row:
        """Return the columns of a case and of who does its work."""
        row: Row = {"op": case.op, "case": case.id, "label": case.label, "contender": contender.name}
        row |= {"groups": " ".join(case.groups)} | case.parameters()
        if contender.name in self.evidence:
            evidence = self.evidence[contender.name]
            row |= {"source": evidence.source, "report": str(evidence.path), "report_commit": evidence.commit}
            row["backend_version"] = next(b.version for b in self.lab.backends if b.name == contender.name)
        elif contender.name == "sglang" and self.lab.sglang is not None:
            row["peer_version"] = self.lab.sglang.version
        return row

    def _why_not(self, case: Case) -> str | None:
        kind = self.lab.device.type
        if kind == "cpu" and case.l2 == "cold":
            return "a cold second-level cache is measured on a GPU only"
        memory = _memory(self.lab.device)
        if case.footprint > SHARE[kind] * memory:
            return f"it takes about {case.footprint / 2**30:.1f} GiB, of {memory / 2**30:.1f} here"
        return None

    def _compiled(self, contender: Contender) -> int:
        return sum(backend.compile_count() for backend in self.lab.backends if backend.name == contender.name)

    def _allocated(self) -> int:
        return int(torch.cuda.memory_stats(self.lab.device).get("allocation.all.allocated", 0))

    def _give_back(self, ready: list[tuple[Row, Work]]) -> None:
        # Graphs leave pools behind, which the next case could not use.
        ready.clear()
        if self.lab.device.type == "cuda":
            torch.cuda.empty_cache()


def measure_limits(timer: GpuTimer | CpuTimer, lab: Lab, recorder: Recorder, *, triton: bool) -> Limits:
    """Measure floor and ceiling, record them, and return what they come to."""
    timer.warm()
    limits = list(measured(timer, lab.device, lab.bare, triton=triton))
    judgement = judged(limits)
    for limit in limits:
        common: dict[str, Any] = {"op": limit.op, "contender": limit.contender, "l2": limit.l2, "groups": "limit"}
        common["case"] = f"{limit.contender}-{limit.l2}"
        if limit.times is not None:
            moved = {"bytes": limit.bytes, "bytes_per_s": limit.bytes / limit.times.p50 * 1e6} if limit.bytes else {}
            recorder.add(**common, metric="time", **spread(limit.times), **moved)
        if limit.host is not None:
            recorder.add(**common, metric="host", **spread(limit.host))
    return judgement


def best(rows: Iterable[Row]) -> list[tuple[Row, Row | None]]:
    """Return, for each case and backend of a sweep, the fastest launch, and the shipped one where it was timed."""
    found: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        if row["groups"] == "sweep" and row.get("p50") is not None:
            found.setdefault((row["op"], row["case"], row["contender"]), []).append(row)
    told = []
    for group in found.values():
        swept: Sequence[Row] = [row for row in group if row["threads"] is not None]
        if swept:
            shipped = next((row for row in group if row["threads"] is None), None)
            told.append((min(swept, key=lambda row: float(row["p50"])), shipped))
    return told


def _agreed(result: torch.Tensor | None, reference: torch.Tensor | None) -> torch.Tensor | None:
    if result is None:
        return reference
    if reference is None:
        return result.clone()
    if not torch.equal(result, reference):
        raise Fault("its result is not that of the contenders before it")
    return reference


def _memory(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
