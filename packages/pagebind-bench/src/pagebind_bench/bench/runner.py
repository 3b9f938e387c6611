"""Goes through cases: has each contender ready, holds its result against the others', times it, and records that."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from pagebind import LaunchOptions
from pagebind.errors import Unsupported

from pagebind_bench.bench.cases import Case
from pagebind_bench.bench.evidence import Evidence
from pagebind_bench.bench.lab import Contender, Fault, Lab, Work
from pagebind_bench.bench.limits import Limits, judged, measured
from pagebind_bench.bench.makers import MAKERS
from pagebind_bench.bench.record import Recorder, Row, spread
from pagebind_bench.bench.timing import CpuTimer, GpuTimer

SWEEP_THREADS = (64, 128, 256, 512, 1_024)
SWEEP_PROGRAMS = (128, 256, 512, 1_024, 2_048, 4_096)
SHARE = {"cuda": 0.9, "cpu": 0.35}
"""Of the memory, what a case may take."""

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
        for contender in MAKERS[case.op](case, self.lab):
            told(f"{case.op} {case.id}: {contender.name}")
            common = self._common(case, contender)
            if why is None:
                reference = self._contender(case, contender, common, reference)
            else:
                self.recorder.add(**common, metric="time", reason=why)
        self._give_back()

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
                    self._contender(case, contender, common, None, whole=False)
                else:
                    self.recorder.add(**common, metric="time", reason=why)
        self.lab.options = LaunchOptions()
        self._give_back()

    def _contender(
        self, case: Case, contender: Contender, common: Row, reference: torch.Tensor | None, *, whole: bool = True
    ) -> torch.Tensor | None:
        """Time one contender; return the result that the next ones are compared to."""
        try:
            work = contender.make()
        except Unsupported as error:
            self.recorder.add(**common, metric="time", reason=str(error))
            return reference
        except torch.OutOfMemoryError as error:
            self.recorder.add(**common, metric="time", reason=f"out of memory: {str(error).splitlines()[0]}")
            return reference
        compiled = self._compiled(contender)
        work.call()
        try:
            work.need_sound()
            reference = _agreed(work.result(), reference)
        except Fault as error:
            raise Fault(f"{contender.name} on {case.op} {case.id}: {error}") from error
        if work.restore is not None:
            work.restore()
        self._time(case, contender, work, common, compiled, whole=whole)
        return reference

    def _time(self, case: Case, contender: Contender, work: Work, common: Row, compiled: int, *, whole: bool) -> None:
        times = self.timer.measure(work.call, work.restore, cold=case.l2 == "cold")
        launches = self.timer.launches(work.call) if whole else None
        rate = work.bytes / times.p50 * 1e6 if times.p50 > 0 else None
        moved: Row = {
            "bytes": work.bytes,
            "bytes_per_s": rate,
            "percent_of_ceiling": None if rate is None else 100 * rate / self.limits.bytes_per_s,
            "floor_us": self.limits.floor_us.get(case.l2),
            "ceiling_bytes_per_s": self.limits.bytes_per_s,
        }
        host, allocations = None, None
        if whole and isinstance(self.timer, GpuTimer):
            before = self._allocated()
            host = self.timer.host(work.call)
            allocations = (self._allocated() - before) / (host.calls * (host.repeats + 1))
        counted = {"launches": launches, "compiles": self._compiled(contender) - compiled}
        self.recorder.add(**common, metric="time", **spread(times), **moved, **counted)
        if host is not None:
            self.recorder.add(**common, metric="host", **spread(host), allocations=allocations, **counted)

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

    def _give_back(self) -> None:
        # Graphs leave pools behind, which the next case could not use.
        if self.lab.device.type == "cuda":
            torch.cuda.empty_cache()


def measure_limits(timer: GpuTimer | CpuTimer, device: torch.device, recorder: Recorder, *, triton: bool) -> Limits:
    """Measure floor and ceiling, record them, and return what they come to."""
    timer.warm()
    limits = list(measured(timer, device, triton=triton))
    judgement = judged(limits)
    for limit in limits:
        common: dict[str, Any] = {"op": limit.op, "contender": limit.contender, "l2": limit.l2, "groups": "limit"}
        common["case"] = f"{limit.contender}-{limit.l2}"
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
