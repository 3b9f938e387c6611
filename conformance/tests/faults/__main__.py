"""`python -m faults`: patch the backends, fault by fault, and see that the case meant for each fails.

python -m faults                         # what a machine without a GPU can show
python -m faults --mode gpu --jobs 12    # on a GPU
python -m faults --matrix kills.csv      # whole modules of the suite: which cases find which fault
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from faults import WITH_GPU, WITHOUT_GPU, Fault, load
from faults.runner import LIMIT, Job, Outcome, run

COLUMNS = ("fault", "mode", "case", "status", "meant")


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


def write_matrix(path: Path, outcomes: Sequence[tuple[Fault, Outcome]]) -> None:
    """Write a line for each fault, mode and case that ran."""
    rows = [
        (fault.id, outcome.job.mode, case, status, case == fault.case)
        for fault, outcome in outcomes
        for case, status in outcome.cases.items()
        if status != "skipped"
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(sorted(rows))


def summary(outcomes: Sequence[tuple[Fault, Outcome]]) -> str:
    """Say which cases no fault needs: what they find another one finds, too."""
    found_by: dict[str, set[str]] = defaultdict(set)
    ran: set[str] = set()
    for _, outcome in outcomes:
        for case, status in outcome.cases.items():
            if status != "skipped":
                ran.add(case)
            if status == "failed":
                found_by[outcome.job.name].add(case)
    alone = {case for cases in found_by.values() if len(cases) == 1 for case in cases}
    found = set().union(*found_by.values())
    lines = [f"of {len(ran)} cases {len(alone)} are the only one to find some fault"]
    lines += [f"{len(found - alone)} find faults that others find, too: {', '.join(sorted(found - alone))}"]
    lines += [f"{len(ran - found)} find none of these faults: {', '.join(sorted(ran - found))}"]
    return "\n".join(lines)


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
    asked = parser.parse_args(arguments)
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
        write_matrix(asked.matrix, outcomes)
        print(summary(outcomes))
    spent = time.monotonic() - began
    print(f"{len(outcomes) - len(missed)} of {len(outcomes)} faults found by the case meant for them, in {spent:.0f} s")
    if missed:
        print(f"missed: {', '.join(sorted(missed))}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
