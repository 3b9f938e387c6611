"""`python -m faults`: patch the backends, fault by fault, and see that the case meant for each fails.

python -m faults                         # what a machine without a GPU can show
python -m faults --mode gpu --jobs 12    # on a GPU
python -m faults --matrix kills.csv      # whole modules of the suite: which cases find which fault
python -m faults --tell kills.csv        # what such a file shows
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from faults import WITH_GPU, WITHOUT_GPU, Fault, load
from faults.runner import LIMIT, Job, Outcome, run

COLUMNS = ("fault", "mode", "case", "status", "meant")
Row = tuple[str, ...]


def jobs_of(faults: Sequence[Fault], modes: Sequence[str], whole: bool = False) -> dict[str, tuple[Fault, Job]]:
    """Return a job for each fault and mode that can show it, by name; `whole` runs all cases of its modules."""
    jobs = {}
    for fault in faults:
        for mode in fault.modes:
            if mode not in modes or (mode != WITH_GPU and mode != WITHOUT_GPU[fault.backend]):
                continue
            name = f"{fault.id}@{mode}"
            alone = Job(name, fault.backend, mode, (fault.case,), fault.apply, fault.only, stops=True)
            all_cases = Job(name, fault.backend, mode, fault.modules, fault.apply, alone=alone)
            jobs[name] = fault, all_cases if whole else alone
    return jobs


def tell(fault: Fault, outcome: Outcome) -> str:
    """Say in a line whether a fault was found, and how it showed."""
    found = outcome.failed(fault.case)
    shown = outcome.reasons.get(fault.case, "") if found else f"the case {outcome.cases.get(fault.case, 'did not run')}"
    lines = [f"{'found ' if found else 'MISSED'} {outcome.job.name} by {fault.case}, {outcome.seconds:.1f} s: {shown}"]
    if not found:
        lines += [f"    {fault.file}: {fault.reason}", *(f"    {line}" for line in outcome.trouble.splitlines())]
    return "\n".join(lines)


def rows_of(outcomes: Sequence[tuple[Fault, Outcome]]) -> list[Row]:
    """Return a row for each fault, mode and case that ran, as COLUMNS names its cells."""
    return sorted(
        (fault.id, outcome.job.mode, case, status, str(case == fault.case))
        for fault, outcome in outcomes
        for case, status in outcome.cases.items()
        if status != "skipped"
    )


def write_matrix(path: Path, rows: Sequence[Row]) -> None:
    """Write rows as CSV."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([COLUMNS, *rows])


def read_matrix(path: Path) -> list[Row]:
    """Return the rows of a CSV that `write_matrix` wrote."""
    with path.open(encoding="utf-8", newline="") as file:
        return [tuple(row) for row in csv.reader(file)][1:]


@dataclass(frozen=True)
class Kills:
    """What a matrix shows of cases: which of them the faults need."""

    ran: Mapping[str, frozenset[str]]
    """Cases by fault and mode."""
    found_by: Mapping[str, frozenset[str]]

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Kills:
        """Gather the rows of a matrix."""
        ran: dict[str, set[str]] = defaultdict(set)
        found_by: dict[str, set[str]] = defaultdict(set)
        for fault, mode, case, status, _ in rows:
            ran[f"{fault}@{mode}"].add(case)
            if status == "failed":
                found_by[f"{fault}@{mode}"].add(case)
        frozen = ({name: frozenset(cases) for name, cases in kept.items()} for kept in (ran, found_by))
        return cls(*frozen)

    @property
    def cases(self) -> frozenset[str]:
        """All that ran."""
        return frozenset().union(*self.ran.values())

    @property
    def finding(self) -> frozenset[str]:
        """Those that find some fault."""
        return frozenset().union(*self.found_by.values())

    @property
    def alone(self) -> frozenset[str]:
        """Those that are the only one to find some fault."""
        return frozenset(case for cases in self.found_by.values() if len(cases) == 1 for case in cases)

    @property
    def generated(self) -> int:
        """How many faults a case with generated inputs finds."""
        return sum(any("generated" in case for case in cases) for cases in self.found_by.values())

    def enough(self) -> list[str]:
        """Return few cases that find all that any case finds, each time the one that finds most of the rest."""
        left, chosen = set(self.found_by), []
        while left:
            chosen.append(max(sorted(self.finding), key=lambda case: sum(case in self.found_by[f] for f in left)))
            left = {fault for fault in left if chosen[-1] not in self.found_by[fault]}
        return chosen

    def told(self) -> str:
        """Say which cases no fault needs: what they find another one finds, too."""
        others, none = sorted(self.finding - self.alone), sorted(self.cases - self.finding)
        return "\n".join(
            [
                f"{len(self.ran)} faults, {len(self.cases)} cases, of which {len(self.finding)} find a fault and "
                f"{len(self.enough())} are enough for all; generated ones find {self.generated} faults",
                f"{len(self.alone)} are the only one to find some fault: {', '.join(sorted(self.alone))}",
                f"{len(others)} find faults that others find, too: {', '.join(others)}",
                f"{len(none)} find none of these faults: {', '.join(none)}",
            ]
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run faults; the exit code is 1 where one was missed."""
    parser = argparse.ArgumentParser(prog="python -m faults", description=__doc__.partition("\n")[0])
    modes = [*WITHOUT_GPU.values(), WITH_GPU]
    parser.add_argument("--mode", action="append", choices=modes, help="may be repeated; left out: all without a GPU")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="processes at once (2)")
    parser.add_argument("--only", default="", metavar="TEXT", help="faults whose id holds it")
    parser.add_argument(
        "--limit", type=float, default=LIMIT, metavar="S", help=f"seconds that a fault has ({LIMIT:.0f})"
    )
    parser.add_argument("--matrix", type=Path, metavar="CSV", help="run whole modules, and write fault x case there")
    parser.add_argument("--tell", type=Path, metavar="CSV", help="say what a matrix shows, and run nothing")
    asked = parser.parse_args(arguments)
    if asked.tell is not None:
        print(Kills.of(read_matrix(asked.tell)).told())
        return 0
    faults = [fault for fault in load() if asked.only in fault.id]
    jobs = jobs_of(faults, asked.mode or list(WITHOUT_GPU.values()), whole=asked.matrix is not None)
    if not jobs:
        parser.error(f"no fault of these modes has {asked.only!r} in its id; there are {len(load())} in all")
    began, outcomes = time.monotonic(), []
    for outcome in run([job for _, job in jobs.values()], asked.jobs, asked.limit):
        fault, _ = jobs[outcome.job.name]
        outcomes.append((fault, outcome))
        print(tell(fault, outcome), flush=True)
    missed = [outcome.job.name for fault, outcome in outcomes if not outcome.failed(fault.case)]
    if asked.matrix is not None:
        rows = rows_of(outcomes)
        write_matrix(asked.matrix, rows)
        print(Kills.of(rows).told())
    spent = time.monotonic() - began
    print(f"{len(outcomes) - len(missed)} of {len(outcomes)} faults found by the case meant for them, in {spent:.0f} s")
    if missed:
        print(f"missed: {', '.join(sorted(missed))}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
