"""The command: `python -m pagebind_conformance.inputs --help`."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import torch
from pagebind.errors import PagebindError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from pagebind_conformance import inputs
from pagebind_conformance.inputs import record
from pagebind_conformance.inputs.run import Asked, Done, LostProcess, run, subjects_of

SAME, DIFFERENT, UNFINISHED = 0, 1, 3
"""Exit codes: all was done and nothing differs; something differs; time was up, or a process was lost."""

SECONDS_APART = 15
"""Between lines of progress where there is no terminal to draw in."""


def main(arguments: list[str] | None = None) -> int:
    """Run a check and say what it found."""
    parser = argparse.ArgumentParser(description=inputs.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", action="append", required=True, help="a name or module:attribute; the first leads")
    parser.add_argument("--device", default="cuda", help="a backend that does not run on it gets copies on the CPU")
    parser.add_argument("--plans", type=_positive, default=100)
    parser.add_argument("--inputs", type=_positive, default=2000, help="of each plan")
    parser.add_argument("--oracle", type=int, default=20_000, help="inputs in all that are held against the oracle too")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--small", action="store_true", help="small inputs alone, as where GPU code runs without a GPU")
    parser.add_argument("--processes", type=_positive, default=1, help="plans are spread over them")
    parser.add_argument("--time-limit", type=float, help="seconds, after which no new inputs are begun")
    parser.add_argument("--only", type=_only, metavar="PLAN:INDEX", help="one input, or PLAN:FIRST-LAST")
    parser.add_argument("--commit", help="that the record names; left out, that of the working directory")
    parser.add_argument("--json", type=Path, help="where to write the record")
    given = parser.parse_args(arguments)
    if not 0 <= given.oracle <= given.plans * given.inputs:
        parser.error(f"--oracle {given.oracle}; there are {given.plans} x {given.inputs} inputs")
    asked = Asked(
        tuple(given.backend), given.device, given.plans, given.inputs, given.oracle, given.seed, given.small,
        given.processes, given.time_limit, given.only,
    )  # fmt: skip
    console = Console(stderr=True)
    torch.set_num_threads(1)  # calls are small; more threads wait for each other
    try:
        subjects = subjects_of(asked)
    except PagebindError as error:
        parser.error(str(error))
    started = time.time()
    all_done, why_not = _go(asked, console, started)
    told = record.made(asked, subjects, all_done, started, why_not, given.commit)
    if given.json is not None:
        record.write(told, given.json)
    _tell(told, console)
    if told["difference"] is not None:
        return DIFFERENT
    return SAME if why_not is None else UNFINISHED


def _go(asked: Asked, console: Console, started: float) -> tuple[list[Done], str | None]:
    """Return what was done, and why not all."""
    all_done: list[Done] = []
    total = sum(len(asked.inputs_of(number)) for number in asked.numbers())
    shown = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    counted, last = 0, started

    def in_time() -> bool:
        return asked.time_limit is None or time.time() - started < asked.time_limit

    with Progress(*shown, TimeRemainingColumn(), console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("inputs", total=total)

        def tell(some: int) -> None:
            nonlocal counted, last
            counted += some
            progress.advance(bar, some)
            if not console.is_terminal and time.time() - last > SECONDS_APART:
                last = time.time()
                console.print(f"{counted} of {total} inputs after {last - started:.0f} s")

        try:
            for done in run(asked, tell, in_time):
                all_done.append(done)
                progress.update(bar, description=f"inputs, {len(all_done)} of {len(asked.numbers())} plans")
                if done.found is not None:
                    return all_done, f"input {done.found.index} of plan {done.plan} shows a difference"
        except LostProcess as error:
            return all_done, str(error)
    if sum(done.inputs for done in all_done) < total:
        return all_done, f"the time limit of {asked.time_limit:g} s"
    return all_done, None


def _tell(told: dict[str, Any], console: Console) -> None:
    totals, found = told["totals"], told["difference"]
    of = ", ".join(f"{one['asked']} ({one['mode']})" for one in told["backends"])
    rate = totals["inputs"] / max(told["seconds"], 1e-3)
    console.print(
        f"{of}: {totals['inputs']} inputs of {totals['plans']} plans, {totals['oracle']} of them with the oracle, in "
        f"{told['seconds']:.1f} s ({rate:.0f}/s)",
        highlight=False,
    )
    if found is None:
        end = "no difference" if told["finished"] else f"no difference so far; not finished: {told['why_not']}"
        console.print(end)
        return
    lines = [f"plan {found['plan']}, input {found['index']}: a difference {found['where']}", found["complaint"]]
    lines += [f"  {name}: {verdict}" for name, verdict in found["verdicts"].items()]
    console.print(
        "\n".join([*lines, f"reproduce: {found['reproduce']}"]), markup=False, highlight=False, soft_wrap=True
    )


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return number


def _only(text: str) -> tuple[int, int, int]:
    plan, _, some = text.partition(":")
    first, _, last = some.partition("-")
    try:
        return int(plan), int(first), int(last or first)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not PLAN:INDEX or PLAN:FIRST-LAST") from None


if __name__ == "__main__":
    sys.exit(main())
