"""Reports made by hand, for tests of what reads and shows them."""

from __future__ import annotations

from pagebind_conformance.reporting import report


def case(operation, number, status="passed", level="core", composed=False, **more):
    return {
        "id": f"{operation}.py::test_{number}[{composed}]",
        "operation": operation,
        "level": level,
        "status": status,
        "reason": "" if status == "passed" else "because",
        "composed": composed,
        "features": [],
        **more,
    }


def made(cases=None, *, name="mine", mode="cpu", complete=True, started="2026-09-01T10:00:00Z", digest="a" * 64):
    cases = cases or [case("read_table", 1), case("read_table", 2), case("alloc", 1, level="extended")]
    levels = report.levels_of(cases)
    one = {
        "schema": 2,
        "suite": {"distribution": "pagebind-conformance", "version": "0.1.0"},
        "core": {"distribution": "pagebind", "version": "0.1.0"},
        "backend": {
            "name": name,
            "distribution": f"pagebind-{name}",
            "version": "0.1.0",
            "package": name,
            "features": [],
            "planners": ["read_table"],
        },
        "source": digest,
        "commit": "0123456789abcdef",
        "environment": {"python": "3.11.7", "platform": "Linux", "torch": "2.13.0"},
        "device": {"type": "cpu", "name": "x86_64"},
        "mode": mode,
        "started": started,
        "duration_seconds": 1.5,
        "reproduce": f"python -m pytest --pyargs pagebind_conformance --backend {name}",
        "success": report.successful(levels, [], complete),
        "levels": levels,
        "cases": cases,
        "stale_known_failures": [],
        "footer": {"complete": complete, "total": len(cases), "why_incomplete": None if complete else "interrupted"},
    }
    return report.sealed(one)


def of_version_1(one):
    """Return a report as the suite wrote them before there were seals."""
    footer = {key: value for key, value in one["footer"].items() if key != "seal"}
    cases = [{k: v for k, v in c.items() if k not in ("features", "difference")} for c in one["cases"]]
    return {**one, "schema": 1, "footer": footer, "cases": cases}


def difference(expected=("1 2 3", "4 5 6"), actual=("1 2 3", "4 . 6"), call=True, **more):
    """Return what a failed comparison of `out` leaves in a report."""
    shape = [len(actual), len(actual[0].split())]
    tensor = {"name": "out", "shape": shape, "row": 0, "column": 0, "differing": 1, "outside": 0}
    inputs = [{"name": "req_rows", "shape": [2], "cells": ["0 1"]}]
    told = {"operation": "read_table", "spec": {"page_size": "3"}, "arguments": {"delta": "2"}, "inputs": inputs}
    return {
        "call": told if call else None,
        "tensors": [{**tensor, "expected": expected and list(expected), "actual": list(actual), **more}],
    }
