"""`python -m faults.mutants MODULE ...`: mutate modules of the cpu backend mechanically, and list what survives.

    python -m faults.mutants unbind entries --jobs 2

The mutants are those of cosmic-ray, a change of one operator, number or condition each; the suite's modules about the
mutated one are run until the first failure. A survivor is either another way to say the same, or a case that lacks.
"""

from __future__ import annotations

import argparse
import ast
import sys
import time
from collections.abc import Iterator, Sequence
from difflib import unified_diff
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from faults import package_of
from faults.runner import Job, run

BACKEND = "cpu"
MODULES = {
    "entries": ("translate.py", "read_table.py", "read_stream.py", "large.py"),
    "read_table": ("read_table.py", "beside.py"),
    "cells": ("read_table.py", "read_stream.py", "awkward.py", "large.py"),
    "refresh_table": ("refresh_table.py", "refreshing.py", "following.py", "awkward.py", "large.py"),
    "composed": (
        "alloc.py",
        "free.py",
        "extend.py",
        "truncate.py",
        "assign.py",
        "release.py",
        "evict.py",
        "compact.py",
    ),
}
"""Modules of the suite about a module of the backend, where they are more than the one of its name and `contract`."""

OPERATORS = (
    *("ReplaceBinaryOperator_Add_Sub", "ReplaceBinaryOperator_Sub_Add", "ReplaceBinaryOperator_Mul_Add"),
    *("ReplaceBinaryOperator_FloorDiv_Mul", "ReplaceBinaryOperator_Mod_FloorDiv"),
    *("ReplaceBinaryOperator_BitOr_BitAnd", "ReplaceBinaryOperator_BitAnd_BitOr"),
    *("ReplaceComparisonOperator_Eq_NotEq", "ReplaceComparisonOperator_NotEq_Eq"),
    *("ReplaceComparisonOperator_Lt_LtE", "ReplaceComparisonOperator_LtE_Lt"),
    *("ReplaceComparisonOperator_Gt_GtE", "ReplaceComparisonOperator_GtE_Gt"),
    *("ReplaceComparisonOperator_Is_IsNot", "ReplaceComparisonOperator_IsNot_Is"),
    *("ReplaceUnaryOperator_Delete_Invert", "ReplaceUnaryOperator_Delete_USub", "ReplaceUnaryOperator_Delete_Not"),
    *("AddNot", "ReplaceTrueWithFalse", "ReplaceFalseWithTrue", "ReplaceAndWithOr", "ReplaceOrWithAnd"),
    *("NumberReplacer", "ZeroIterationForLoop"),
)
"""Of cosmic-ray's operators those that make a fault somebody could make; the others turn `+` into whatever there is."""


class _Bare(ast.NodeTransformer):
    """Takes annotations and docstrings away: a mutant of those is none."""

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        node.returns = None
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        node.annotation = ast.Constant(None)
        return self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> Any:
        return ast.Pass() if isinstance(node.value, ast.Constant) else self.generic_visit(node)


def bare(source: str) -> str:
    """Return what of a source is executed."""
    return ast.dump(_Bare().visit(ast.parse(source)))


def mutants_of(source: str) -> Iterator[str]:
    """Yield a source with one mutation each, no two of them the same program."""
    plugins, mutating = import_module("cosmic_ray.plugins"), import_module("cosmic_ray.mutating")
    seen = {bare(source)}
    for name in OPERATORS:
        operator = plugins.get_operator(f"core/{name}")()
        occurrence = 0
        while (mutant := mutating.mutate_code(source, operator, occurrence)) is not None:
            occurrence += 1
            try:
                program = bare(mutant)
            except SyntaxError:
                continue
            if program not in seen:
                seen.add(program)
                yield mutant


def changed(source: str, mutant: str, name: str) -> str:
    """Return the lines that differ, with the number of the first."""
    lines = list(unified_diff(source.splitlines(), mutant.splitlines(), n=0, lineterm=""))[2:]
    return "\n".join([f"{name} {lines[0]}", *lines[1:]])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the mutants of modules, and list the survivors. The exit code is 0 however many there are."""
    parser = argparse.ArgumentParser(prog="python -m faults.mutants", description=__doc__.partition("\n")[0])
    parser.add_argument("modules", nargs="+", metavar="MODULE", help=f"of {package_of(BACKEND)}: unbind, entries, ...")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="processes at once (2)")
    parser.add_argument("--most", type=int, metavar="N", help="of each module about as many mutants, evenly chosen")
    asked = parser.parse_args(arguments)
    folder = Path(import_module(package_of(BACKEND)).__file__ or "").parent
    jobs, told = [], {}
    for module in asked.modules:
        path = folder / f"{module}.py"
        if not path.exists():
            parser.error(f"{package_of(BACKEND)} has no module {module!r}; it has {', '.join(_modules(folder))}")
        source = path.read_text(encoding="utf-8")
        mutants = list(mutants_of(source))
        step = max(len(mutants) // asked.most, 1) if asked.most else 1
        for number, mutant in enumerate(mutants[::step]):
            name = f"{module}-{number}"
            told[name] = changed(source, mutant, path.name)
            write = partial(_write, path.name, mutant)
            cases = (*MODULES.get(module, (f"{module}.py",)), "contract.py")
            jobs.append(Job(name, BACKEND, "cpu", cases, write, stops=True))
    began, survived = time.monotonic(), 0
    for outcome in run(jobs, asked.jobs):
        killed = outcome.trouble or {"failed", "errored"} & set(outcome.cases.values())
        survived += not killed
        if not killed:
            print(f"survived: {told[outcome.job.name]}", flush=True)
    spent = time.monotonic() - began
    print(f"{survived} of {len(jobs)} mutants survived, in {spent:.0f} s")
    return 0


def _write(name: str, text: str, package: Path) -> None:
    (package / name).write_text(text, encoding="utf-8")


def _modules(folder: Path) -> list[str]:
    return sorted(path.stem for path in folder.glob("*.py") if path.stem != "__init__")


if __name__ == "__main__":
    sys.exit(main())
