"""The record of a check: what was asked, what was done, with which sources and seeds, and the difference, if any."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jsonschema
import pagebind
from pagebind.ops import OPERATIONS

import pagebind_conformance
from pagebind_conformance import source
from pagebind_conformance.inputs.compare import Found, described
from pagebind_conformance.inputs.run import Asked, Done, planned
from pagebind_conformance.subject import Subject

SCHEMA_VERSION = 1
COUNTS = ("inputs", "oracle", "open")

_count: dict[str, Any] = {"type": "integer", "minimum": 0}
_text = {"type": "string", "minLength": 1}
_maybe = {"type": ["string", "null"]}
_counts = dict.fromkeys(COUNTS, _count)


def _object(**properties: Any) -> dict[str, Any]:
    required = sorted(properties)
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "A check of pagebind backends by generated inputs",
    **_object(
        schema={"const": SCHEMA_VERSION},
        suite=_object(version=_text, inputs_source=_text),
        core=_object(version=_text),
        commit=_maybe,
        environment={"type": "object", "additionalProperties": _maybe},
        backends={
            "type": "array",
            "minItems": 1,
            "items": _object(
                asked=_text,
                distribution=_text,
                version=_text,
                device=_text,
                hardware=_text,
                mode=_text,
                source=_maybe,
                composed={"type": "array", "items": _text},
            ),
        },
        asked=_object(
            seed={"type": "integer"},
            plans=_count,
            inputs=_count,
            oracle=_count,
            processes=_count,
            small={"type": "boolean"},
        ),
        seeds=_text,
        started=_text,
        seconds={"type": "number", "minimum": 0},
        finished={"type": "boolean"},
        why_not={"type": ["string", "null"]},
        totals=_object(plans=_count, **_counts),
        operations={"type": "object", "additionalProperties": _object(plans=_count, **_counts)},
        plans={
            "type": "array",
            "items": _object(
                plan=_count,
                seed={"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2},
                operation=_text,
                level={"enum": ["core", "extended"]},
                spec={"type": "object"},
                checks=_text,
                options=_text,
                seconds={"type": "number", "minimum": 0},
                **_counts,
            ),
        },
        difference={"oneOf": [{"type": "null"}, {"$ref": "#/$defs/difference"}]},
        reproduce=_text,
    ),
    "$defs": {
        "difference": _object(
            plan=_count,
            index=_count,
            last=_count,
            where={"enum": ["between backends", "from the oracle"]},
            complaint=_text,
            verdicts={"type": "object", "additionalProperties": _text},
            call={"type": ["object", "null"]},
            tensors={"type": "array", "items": {"type": "object"}},
            reproduce=_text,
        )
    },
}


class RecordError(ValueError):
    """A record does not hold what it has to."""


def made(
    asked: Asked,
    subjects: list[Subject],
    all_done: Sequence[Done],
    started: float,
    why_not: str | None,
    commit: str | None = None,
) -> dict[str, Any]:
    """Return the record of what was done, checked."""
    plans = []
    for done in sorted(all_done, key=lambda done: done.plan):
        counts = {name: getattr(done, name) for name in COUNTS}
        plans.append({**described(planned(asked, subjects, done.plan)), **counts, "seconds": done.seconds})
    operations: dict[str, dict[str, int]] = {}
    for plan in plans:
        of = operations.setdefault(plan["operation"], dict.fromkeys(("plans", *COUNTS), 0))
        of["plans"] += 1
        for name in COUNTS:
            of[name] += plan[name]
    found = next(((done, done.found) for done in all_done if done.found is not None), None)
    record = {
        "schema": SCHEMA_VERSION,
        "suite": {"version": pagebind_conformance.__version__, "inputs_source": own_digest()},
        "core": {"version": pagebind.__version__},
        "commit": commit or source.commit_here(),
        "environment": source.environment(),
        "backends": [_backend(subject) for subject in subjects],
        "asked": {
            "seed": asked.seed,
            "plans": len(asked.numbers()),
            "processes": asked.processes,
            "small": planned(asked, subjects, asked.numbers()[0]).small,
            "inputs": sum(len(asked.inputs_of(number)) for number in asked.numbers()),
            "oracle": sum(min(asked.oracle_of(n), len(asked.inputs_of(n))) for n in asked.numbers()),
        },
        "seeds": "plan p by numpy.random.default_rng([seed, p]), its input i by default_rng([seed, p, i])",
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started)),
        "seconds": round(time.time() - started, 3),
        "finished": why_not is None,
        "why_not": why_not,
        "totals": {"plans": len(plans), **{name: sum(plan[name] for plan in plans) for name in COUNTS}},
        "operations": operations,
        "plans": plans,
        "difference": None if found is None else _difference(asked, *found),
        "reproduce": command(asked),
    }
    check(record)
    return record


def check(record: dict[str, Any]) -> None:
    """Raise RecordError unless a record keeps the schema, its totals are those of its plans, and it has no less."""
    try:
        jsonschema.validate(record, SCHEMA)
    except jsonschema.ValidationError as error:
        raise RecordError(f"at {error.json_path}: {error.message}") from None
    plans, totals, asked = record["plans"], record["totals"], record["asked"]
    for name in COUNTS:
        counted = sum(plan[name] for plan in plans), sum(of[name] for of in record["operations"].values())
        if counted != (totals[name], totals[name]):
            raise RecordError(f"{name} of the plans and operations are {counted}, the total says {totals[name]}")
    if record["finished"] != (record["why_not"] is None) or (record["finished"] and record["difference"]):
        raise RecordError("finished means that nothing differed, and that there is no reason why not")
    short = [name for name in ("plans", "inputs", "oracle") if totals[name] < asked[name]]
    if record["finished"] and short:
        told = ", ".join(f"{totals[name]} of {asked[name]} {name}" for name in short)
        raise RecordError(f"a record that is said to be finished has {told}")


def write(record: dict[str, Any], path: Path) -> None:
    """Write a record, whole or not at all."""
    beside = path.with_name(f"{path.name}.part")
    beside.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    os.replace(beside, path)


def command(asked: Asked, only: str | None = None) -> str:
    """Return the command of a check, or of some inputs of it: `PLAN:INDEX` or `PLAN:FIRST-LAST`."""
    kept = ("PAGEBIND_", "TRITON_INTERPRET", *(["PYTHONPATH"] if any(":" in name for name in asked.backends) else []))
    variables = [f"{k}={shlex.quote(v)}" for k, v in sorted(os.environ.items()) if k.startswith(kept)]
    words = ["python", "-m", "pagebind_conformance.inputs"]
    for name in asked.backends:
        words += ["--backend", name]
    words += ["--device", asked.device, "--seed", str(asked.seed)]
    words += ["--small"] if asked.small else []
    if only is not None:
        words += ["--only", only]
    else:
        words += ["--plans", str(asked.plans), "--inputs", str(asked.inputs), "--oracle", str(asked.oracle)]
    return " ".join([*variables, shlex.join(words)])


def own_digest() -> str:
    """Return the SHA-256 over the sources that draw and compare inputs, which the suite's digest leaves out."""
    whole = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        whole.update(f"{path.name}\0".encode())
        whole.update(hashlib.sha256(path.read_bytes()).digest())
    return whole.hexdigest()


def _backend(subject: Subject) -> dict[str, Any]:
    backend = subject.backend
    return {
        "asked": subject.asked,
        "distribution": backend.distribution,
        "version": backend.version,
        "device": str(subject.device),
        "mode": subject.mode,
        "source": source.digest(source.package_of(backend, subject.asked)),
        "hardware": source.device_name(subject.device),
        "composed": sorted(OPERATIONS.keys() - backend.planners.keys()),
    }


def _difference(asked: Asked, done: Done, found: Found) -> dict[str, Any]:
    last = found.index if found.last is None else found.last
    only = f"{done.plan}:{found.index}" + (f"-{last}" if last != found.index else "")
    return {
        "plan": done.plan,
        "index": found.index,
        "last": last,
        "where": found.where,
        "complaint": found.error.complaint,
        "verdicts": done.verdicts,
        **found.error.record(),
        "reproduce": command(asked, only),
    }
