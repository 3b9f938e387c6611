"""What the suite holds: contracts, operations, behaviours and public faults, each with its named cases.

    python -m pagebind_conformance.reporting.coverage conformance/README.md   # check the tables between its markers
    python -m pagebind_conformance.reporting.coverage --write conformance/README.md   # render them anew

Cases are test functions of the suite, `module.py::test`, found in its sources. A contract names them by patterns, so
that a new case of a kind joins the others; each pattern has to match one.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from pagebind_conformance.reporting.markers import replaced
from pagebind_conformance.reporting.report import ReportError

SUITE = Path(__file__).parents[1] / "suite"
BEGIN, END = "<!-- coverage -->", "<!-- /coverage -->"
SHOWN = 3
"""Cases that a line of a table names; it counts the others."""


class Held(NamedTuple):
    """Something that the suite holds, and patterns of the cases that do: of `module.py::test`, without `test_`."""

    what: str
    by: tuple[str, ...]


CONTRACTS: dict[str, Held] = {
    "1": Held(
        "writes only its outputs inside their valid extent; prefix and sink fill; inputs stay",
        (
            "read_table.py::case_02_*",
            "read_table.py::case_09_*",
            "read_table.py::case_22_*",
            "refresh*.py::*_with_prefix_fill",
            "refresh*.py::*_with_sink_fill",
            "*::awkward_*",
            "*::rows_apart_by_any_stride",
            "*::cells_apart_by_any_stride",
            "compact.py::memory_around_*",
            "contract.py::a_call_made_again_*",
        ),
    ),
    "2": Held(
        "holes, ids outside the table and tombstones read as entry 0; lengths are clipped; no foreign memory",
        (
            "*::case_01_*",
            "*::case_08_*",
            "*::case_22_*",
            "*::bad_lengths_*",
            "*::bad_rows_*",
            "*::bad_prefixes_*",
            "*::lengths_at_the_ends_*",
            "translate.py::any_id_*",
            "translate.py::the_first_id_past_*",
            "refreshing.py::words_that_no_refresh_left_*",
            "span.py::*spoiled*",
            "free.py::a_spoiled_top_*",
            "evict.py::a_first_page_of_garbage_*",
            "contract.py::a_state_block_of_garbage_*",
            "awkward.py::a_row_of_v2p_*",
        ),
    ),
    "3": Held(
        "after planning no allocation, no wait, the caller's stream, shapes from plans; one plan for every batch",
        (
            "launching.py::*",
            "compiling.py::*",
            "graphs.py::*",
            "*::awkward_batches*",
            "*::*launch_sizes_change_no*",
            "large.py::*_by_more_than_65536_blocks",
        ),
    ),
    "4": Held(
        "exact and the same over backends, runs and ranks",
        (
            "*::generated_*",
            "*::case_10_*exact*",
            "pool_machine.py::ranks_*",
            "pool_cases.py::case_18_*",
            "free.py::*_in_lane_order",
            "graphs.py::replays_equal_eager_calls_*",
        ),
    ),
    "5": Held(
        "faults are dropped and counted, the tables stay inverse; of lanes that repeat an id at most one is served",
        (
            "*::case_11_*",
            "*::case_12_*",
            "*::the_sink_and_ids_outside_*",
            "*::of_lanes_that_*",
            "*::*bound_by_hand*",
            "*::a_page_that_two_rows_hold_*",
            "bind.py::what_is_bound_*",
            "awkward.py::two_pages_that_would_meet_*",
            "compact.py::cells_of_the_stack_*",
        ),
    ),
    "6": Held(
        "a call that fails changes nothing",
        (
            "*::case_17_*",
            "*::full_checks_refuse_*",
            "*::*full_checks_name_the_id_and_write_nothing",
            "compact.py::*refuse*",
            "contract.py::*_refused_and_changes_nothing",
            "pool_cases.py::case_05_*",
            "pool_cases.py::case_15_*",
            "pool_cases.py::case_16_*",
        ),
    ),
    "7": Held(
        "empty batches launch nothing; any page size",
        (
            "contract.py::an_empty_batch_*",
            "*::an_empty_batch_writes_nothing",
            "*::empty_batches_*",
            "awkward.py::case_07_every_rank_at_every_page_size",
            "awkward.py::pages_larger_than_a_block",
            "compact.py::pages_of_any_size_*",
        ),
    ),
    "8": Held(
        "what could overflow is refused when planned or done in 64 bits",
        (
            "*::case_10_*",
            "*::more_than_65535_*",
            "*::lengths_at_the_ends_*",
            "large.py::*_by_more_than_65536_blocks",
            "span.py::case_10_*",
            "touch.py::versions_wrap_around",
            "touch.py::tokens_are_clamped",
            "contract.py::a_flawed_spec_is_refused_when_planned",
        ),
    ),
    "counters": Held(
        "each counter is exact, and added to",
        (
            "*::*counted*",
            "*::*counts_once*",
            "*::*is_held_against_*",
            "alloc.py::what_is_not_found_*",
        ),
    ),
    "checks": Held(
        "off counts nothing and guards all the same; full refuses before anything is written",
        ("*::counting_off_*", "*::*full_checks_*", "free.py::a_count_that_is_off_*"),
    ),
    "errors": Held(
        "InvalidArgument, Unsupported, FaultError, CaptureError and OutOfPages where each belongs",
        (
            "contract.py::a_flawed_*",
            "contract.py::features_that_are_not_declared_*",
            "contract.py::outputs_whose_*",
            "*::words_of_another_shape_are_refused",
            "graphs.py::case_13_*refused*",
            "graphs.py::full_checks_are_refused_*",
            "unbind.py::case_12_full_checks_*",
            "pool_cases.py::case_05_*",
        ),
    ),
}
"""Contracts that every operation keeps, in the order and by the numbers of the design."""

BEHAVIOURS: tuple[Held, ...] = (
    Held("prefix fill, sink fill", ("read_table.py::case_09_*", "read_table.py::case_22_*")),
    Held("the width is a cap", ("read_table.py::case_02_*", "read_stream.py::case_02_*")),
    Held("widening by a delta", ("read_table.py::a_length_delta_*", "refresh_table.py::a_delta_*")),
    Held("window starts", ("read_table.py::a_window_*", "read_stream.py::a_window_*", "refresh_table.py::a_window_*")),
    Held(
        "table and stream from one launch",
        ("read_stream.py::table_and_stream_*", "launching.py::a_call_launches_no_more_*"),
    ),
    Held("in place, in a slice of a larger buffer", ("translate.py::a_slice_of_a_larger_buffer_*",)),
    Held("strided 2-D ids", ("translate.py::case_21_*", "translate.py::cells_apart_*")),
    Held("int32 and int64", ("*.py::generated_*", "translate.py::case_10_*", "read_table.py::case_10_*")),
    Held(
        "output pointers stay those of the call",
        ("contract.py::a_call_made_again_*", "graphs.py::replays_equal_*_on_the_same_tensors"),
    ),
    Held("one build for each id space", ("read_table.py::case_20_*", "read_stream.py::case_20_*")),
    Held("padded lanes read the sink alone", ("read_table.py::case_09_*", "translate.py::case_08_*")),
)
"""What engines pin down in their own unit tests."""

PUBLIC_FAULTS: dict[int, str] = {
    1: "a hole at page size 1 reads one element before the table (sglang 34613)",
    2: "a row longer than the table spills into the next row (vllm 54296)",
    3: "virtual ids are used as physical ones: right until the first move (sglang 31471)",
    4: "a table sized by its own pages is indexed by another pool's ids (sglang 37560)",
    5: "capacity ignores a closed move gate, or keeps a memo across it (sglang 39982)",
    6: "what one launch covers is fixed when captured, and the lengths grow (sglang 37511)",
    7: "context parallel: one hop of the translation is left out (vllm 51031, sglang 37693)",
    8: "the padded slot -1 is used as an index: the last slot is overwritten (vllm 43810)",
    9: "padded rows keep the pages of a finished request (vllm 37728, 49757)",
    10: "page id times multiplier overflows 32 bits (vllm 1486, flashinfer 3136)",
    11: "the same page twice in one free (vllm 42571)",
    12: "the same page freed over two calls: a tombstone joins the free list (sglang 40305)",
    13: "something compiles while serving, or inside a capture (vllm 43009, 49349)",
    14: "a staging buffer is rewritten while its copy is pending (TensorRT-LLM 15546)",
    15: "a late release writes into a row that has a new owner (TensorRT-LLM 14423)",
    16: "bytes that two kinds share are counted twice (sglang 39294)",
    17: "an admission that fails is not undone (vllm 11565, kvcached 364)",
    18: "capacity is computed per rank (nano-vllm 275, TensorRT-LLM 17380)",
    19: "bytes recycled to another kind keep NaN bits (vllm 35219, sglang 33974)",
    20: "a memo keyed by shape gives one group another's table (vllm 34874)",
    21: "strides are frozen or ignored (b12x 85)",
    22: "ids past the table or below -1; a pointer from `end - 1` of an empty row (vllm-ascend 10806)",
}
"""Faults that public projects have had, by the number in a case's name."""

ALL_OPERATIONS = ("contract.py", "compiling.py", "launching.py")
"""Modules whose cases run on every operation."""


class CoverageError(Exception):
    """Something that has to be held is not, or a pattern matches no case."""


def cases(suite: Path = SUITE) -> dict[str, str | None]:
    """Return every case of the suite, with the operation its module is about, None where it is about several."""
    found: dict[str, str | None] = {}
    for path in sorted(suite.glob("*.py")):
        operation, tests = None, []
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "OPERATION":
                operation = node.value.id.lower() if isinstance(node.value, ast.Name) else None
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                tests.append(f"{path.name}::{node.name}")
        found |= dict.fromkeys(tests, operation)
    return found


def matching(patterns: Sequence[str], among: Iterable[str], what: str) -> list[str]:
    """Return the cases that a pattern matches. Raises CoverageError for a pattern that matches none."""
    found: dict[str, None] = {}
    short = {case.replace("::test_", "::"): case for case in among}
    for pattern in patterns:
        matched = [case for name, case in short.items() if fnmatchcase(name, pattern)]
        if not matched:
            raise CoverageError(f"{what} is held by {pattern!r}, which matches no case: was it renamed or removed?")
        found |= dict.fromkeys(matched)
    return sorted(found)


def of_public_fault(number: int, among: Iterable[str]) -> list[str]:
    """Return the cases of a numbered fault. Raises CoverageError where there is none."""
    found = sorted(case for case in among if f"::test_case_{number:02}_" in case)
    if not found:
        raise CoverageError(f"case {number} ({PUBLIC_FAULTS[number]}) has no case: name one test_case_{number:02}_...")
    return found


def render(operations: Sequence[str], known: dict[str, str | None] | None = None) -> str:
    """Return the tables in Markdown. Raises CoverageError where something is held by no case."""
    known = cases() if known is None else known
    lines = ["| contract | what every operation keeps | cases | such as |", "|---|---|---:|---|"]
    for name, held in CONTRACTS.items():
        found = matching(held.by, known, f"contract {name}")
        lines.append(f"| {name} | {held.what} | {len(found)} | {_such_as(found)} |")
    lines += ["", "| operation | cases of its own | in |", "|---|---:|---|"]
    for operation in operations:
        found = sorted(case for case, about in known.items() if about == operation)
        if not found:
            raise CoverageError(f"operation {operation!r} has no case; its module sets OPERATION to it")
        lines.append(f"| `{operation}` | {len(found)} | {_modules(found)} |")
    every = [case for case in known if case.partition("::")[0] in ALL_OPERATIONS]
    others = sorted(case for case, about in known.items() if about is None and case not in every)
    lines.append(f"| every one of them | {len(every)} | {_modules(every)} |")
    lines.append(f"| several together, pools among them | {len(others)} | {_modules(others)} |")
    lines += ["", "| what engines pin down in their own tests | cases | such as |", "|---|---:|---|"]
    for held in BEHAVIOURS:
        found = matching(held.by, known, held.what)
        lines.append(f"| {held.what} | {len(found)} | {_such_as(found)} |")
    lines += ["", "| case | what went wrong (issue or pull request) | held by |", "|---|---|---|"]
    for number, what in PUBLIC_FAULTS.items():
        lines.append(f"| `case_{number:02}` | {what} | {_modules(of_public_fault(number, known))} |")
    unknown = {int(n) for case in known for n in re.findall(r"::test_case_(\d+)_", case)} - set(PUBLIC_FAULTS)
    if unknown:
        raise CoverageError(f"cases are named after the faults {sorted(unknown)}, which PUBLIC_FAULTS does not tell")
    return "\n".join(lines)


def _modules(found: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted({case.partition(".py::")[0] for case in found}))


def _such_as(found: Sequence[str]) -> str:
    # One of each module first, so that a line does not show three of a kind.
    first = {case.partition("::")[0]: case for case in reversed(found)}
    shown = [*sorted(first.values()), *(case for case in found if case not in first.values())][:SHOWN]
    return ", ".join(f"`{case.replace('.py::test_', '::')}`" for case in shown)


def main(arguments: Sequence[str] | None = None) -> int:
    """Check or write the tables of a page; the exit code is 1 where it is stale or something is not held."""
    parser = argparse.ArgumentParser(prog="python -m pagebind_conformance.reporting.coverage")
    parser.add_argument("page", type=Path)
    parser.add_argument("--write", action="store_true", help="render the tables anew")
    asked = parser.parse_args(arguments)
    from pagebind.ops import OPERATIONS

    text = asked.page.read_text(encoding="utf-8")
    try:
        wanted = replaced(text, BEGIN, END, f"{render(list(OPERATIONS))}\n", str(asked.page))
    except (CoverageError, ReportError) as error:
        print(error, file=sys.stderr)
        return 1
    if asked.write:
        asked.page.write_text(wanted, encoding="utf-8")
    elif wanted != text:
        print(
            f"{asked.page} is stale: python -m pagebind_conformance.reporting.coverage --write {asked.page}",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
