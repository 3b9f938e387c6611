"""Read a trace of requests, in any of three public forms, plain or gzipped.

    normalised CSV   arrival_ms,input_tokens,output_tokens[,hash_ids]      hash_ids separated by spaces
    Azure's CSV      TIMESTAMP,ContextTokens,GeneratedTokens               date and time, up to any fraction of a second
    Mooncake's JSONL {"timestamp": ms, "input_length": ..., "output_length": ..., "hash_ids": [...]}

The form is told by the first line, gzip by its magic bytes. Equal block hashes mean an equal whole prefix up to the end
of that block.
"""

from __future__ import annotations

import csv
import gzip
import json
import math
import reprlib
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from pagebind.errors import InvalidArgument, did_you_mean

GZIP_MAGIC = b"\x1f\x8b"
MAX_TOKENS = 2**31 - 1
"""Longest input or output; request tables hold int32 lengths."""
MAX_ARRIVAL_MS = 1e15
"""Latest arrival: past every date there is, and a float still tells eighths of a millisecond."""
MAX_FIELD = 2**31 - 1
"""Longest field of a CSV: hash lists pass the 128 KiB that Python's csv module allows by default."""


class Request(NamedTuple):
    """One request of a trace. Lengths are tokens; `hash_ids` name the blocks of the input, from its start."""

    arrival_ms: float
    input_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...] = ()

    @property
    def tokens(self) -> int:
        """Tokens its row holds at most: the last token that is generated is never fed back."""
        return self.input_tokens + max(self.output_tokens - 1, 0)


class Form(NamedTuple):
    """One form: its columns (those in `optional` may be missing) and how a row of them becomes a Request."""

    name: str
    arrival: str
    input: str
    output: str
    hashes: str | None
    parse_arrival: Callable[[Any], float]
    parse_hashes: Callable[[Any], tuple[int, ...]]

    @property
    def required(self) -> tuple[str, str, str]:
        """Columns that must be there."""
        return (self.arrival, self.input, self.output)


def read_trace(path: Path, limit: int | None = None) -> list[Request]:
    """Return the first `limit` requests of a trace (all where None), ordered by arrival; the first arrives at 0 ms.

    Raises InvalidArgument, naming file and line, for a file that is missing, empty or in no known form, and for a
    length or an arrival that is not a number, is negative or is too large.

    >>> read_trace(Path("trace.csv"))[0]
    Request(arrival_ms=0.0, input_tokens=374, output_tokens=44, hash_ids=())
    """
    requests: list[Request] = []
    with _open(path) as stream:
        try:
            for request in _rows(path, stream):
                if limit is not None and len(requests) >= limit:
                    break
                requests.append(request)
        except (OSError, EOFError, zlib.error) as error:
            raise InvalidArgument(f"trace {path} cannot be read to its end: {error}; fetch it again") from error
        except UnicodeDecodeError as error:
            raise InvalidArgument(f"trace {path} is not text in UTF-8: {error}; {_what_exists()}") from error
    if not requests:
        raise InvalidArgument(f"trace {path} has no request behind its header; {_what_exists()}")
    requests.sort(key=lambda request: request.arrival_ms)
    start = requests[0].arrival_ms
    return [request._replace(arrival_ms=request.arrival_ms - start) for request in requests]


def block_tokens(requests: Sequence[Request], asked: int | None) -> tuple[int, str]:
    """Return the tokens of a hashed block and where that number comes from; 0 where no request has hashes.

    `asked` None infers it from the numbers of hashes, which are ceil(input / block) in some sources and floor in
    others; 0 leaves the hashes unused. Raises InvalidArgument where `asked` does not fit, or nothing can be inferred.
    """
    hashed = [(number, request) for number, request in enumerate(requests, 1) if request.hash_ids]
    if asked == 0:
        return 0, "--block-tokens 0: hashes are not used"
    if not hashed:
        if asked is not None:
            raise InvalidArgument(
                f"--block-tokens is {asked}, but no request has block hashes: leave it out, or pass a trace with hashes"
            )
        return 0, "no request has block hashes"
    inferred = _inferred_block(request for _, request in hashed)
    if asked is None:
        if inferred is None:
            raise InvalidArgument(
                "the trace has block hashes, and their numbers do not tell how many tokens a block has: "
                "pass --block-tokens (0 leaves the hashes unused)"
            )
        return inferred, "inferred from the numbers of hashes"
    for number, request in hashed:
        whole, count = request.input_tokens // asked, len(request.hash_ids)
        if not whole <= count <= whole + 1:
            advice = f"; {inferred} fits every request" if inferred else ""
            raise InvalidArgument(
                f"--block-tokens is {asked}, but request {number} has {count} hashes for {request.input_tokens} "
                f"tokens, where blocks of {asked} make {whole} whole ones{advice}: pass the block size of this trace, "
                "or 0 to leave the hashes unused"
            )
    return asked, "--block-tokens"


def _inferred_block(requests: Iterable[Request]) -> int | None:
    # Each request bounds the block size from both sides; a source rounds its last block up or drops it, never both.
    up, down = (1, MAX_TOKENS), (1, MAX_TOKENS)
    for request in requests:
        tokens, count = request.input_tokens, len(request.hash_ids)
        most = -(-tokens // (count - 1)) - 1 if count > 1 else MAX_TOKENS
        up = (max(up[0], -(-tokens // count)), min(up[1], most))
        down = (max(down[0], tokens // (count + 1) + 1), min(down[1], tokens // count))
    found = {size for low, high in (up, down) for size in _sizes(low, high)}
    return found.pop() if len(found) == 1 else None


def _sizes(low: int, high: int) -> list[int]:
    if low >= high:
        return [low] if low == high else []
    return [size for size in (2**power for power in range(31)) if low <= size <= high]


# ---- opening and telling the form ------------------------------------------------------------------------------------


def _open(path: Path) -> TextIO:
    try:
        with path.open("rb") as raw:
            magic = raw.read(len(GZIP_MAGIC))
        if magic == GZIP_MAGIC:
            return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
        return path.open(encoding="utf-8-sig", newline="")
    except FileNotFoundError as error:
        near = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
        raise InvalidArgument(
            f"trace {path} does not exist{did_you_mean(path.name, near)}; {_what_exists()}, or leave TRACE out to have "
            "one generated"
        ) from error
    except OSError as error:
        raise InvalidArgument(f"trace {path} cannot be read: {error.strerror}; {_what_exists()}") from error


def _rows(path: Path, stream: TextIO) -> Iterator[Request]:
    first = stream.readline()
    if not first.strip():
        raise InvalidArgument(f"trace {path} is empty, or its first line is; {_what_exists()}")
    if first.lstrip().startswith("{"):
        yield from _json_rows(path, first, stream)
    else:
        yield from _csv_rows(path, first, stream)


def _csv_rows(path: Path, first: str, stream: TextIO) -> Iterator[Request]:
    header = [name.strip() for name in next(csv.reader([first]))]
    form = _form_of(path, header)
    csv.field_size_limit(MAX_FIELD)
    reader = csv.reader(stream)
    try:
        for fields in reader:
            if fields:
                line = reader.line_num + 1
                if len(fields) < len(header) and header[len(fields)] in form.required:
                    raise InvalidArgument(
                        f"line {line} of trace {path} has {len(fields)} field(s), {header[len(fields)]} is missing; "
                        f"its header names {', '.join(header)}: mend the line"
                    )
                yield _request(path, line, form, dict(zip(header, fields, strict=False)))
    except csv.Error as error:
        raise InvalidArgument(f"line {reader.line_num + 1} of trace {path} is not CSV: {error}; mend it") from error


def _json_rows(path: Path, first: str, stream: TextIO) -> Iterator[Request]:
    line, text = 1, first
    while text:
        if text.strip():
            try:
                fields = json.loads(text)
            except ValueError as error:
                raise InvalidArgument(f"line {line} of trace {path} is not JSON: {error}; mend the line") from error
            except RecursionError as error:
                raise InvalidArgument(f"line {line} of trace {path} is nested too deeply; mend the line") from error
            if not isinstance(fields, dict):
                raise InvalidArgument(f"line {line} of trace {path} is no JSON object; {_what_exists()}")
            missing = [name for name in MOONCAKE.required if name not in fields]
            if missing:
                raise InvalidArgument(
                    f"line {line} of trace {path} has no {', '.join(missing)}; "
                    f"it has {', '.join(fields) or 'nothing'}; {_what_exists()}"
                )
            yield _request(path, line, MOONCAKE, fields)
        line, text = line + 1, stream.readline()


def _form_of(path: Path, header: Sequence[str]) -> Form:
    forms = (NORMALISED, AZURE)
    for form in forms:
        if all(name in header for name in form.required):
            return form
    near = max(forms, key=lambda form: sum(name in header for name in form.required))
    missing = [name for name in near.required if name not in header]
    shown = ", ".join(header)
    raise InvalidArgument(
        f"trace {path} has columns {shown if len(shown) <= 200 else shown[:200] + ' ...'}; "
        f"{near.name} needs {', '.join(missing)} too{did_you_mean(missing[0], header)}; {_what_exists()}"
    )


# ---- values ----------------------------------------------------------------------------------------------------------


def _request(path: Path, line: int, form: Form, fields: dict[str, Any]) -> Request:
    def wrong(column: str, must: str) -> InvalidArgument:
        shown = reprlib.repr(fields[column])  # repr itself could recurse too deeply
        shown = shown if len(shown) <= 60 else shown[:57] + "..."
        return InvalidArgument(f"line {line} of trace {path}: {column} is {shown}; it must be {must}: mend the line")

    def length(column: str, least: int) -> int:
        value = fields[column]
        try:
            number = int(value) if isinstance(value, str) or float(value) == int(value) else -1
        except (TypeError, ValueError, OverflowError):
            number = -1
        if isinstance(value, bool) or not least <= number <= MAX_TOKENS:
            raise wrong(column, f"a whole number of tokens from {least} to {MAX_TOKENS}")
        return number

    try:
        value = fields[form.arrival]
        arrival = math.nan if isinstance(value, bool) else form.parse_arrival(value)
    except (TypeError, ValueError, OverflowError):
        arrival = math.nan
    if not 0 <= arrival <= MAX_ARRIVAL_MS:  # nan is neither
        what = "a date and time, from 1970 on" if form is AZURE else f"milliseconds from 0 to {MAX_ARRIVAL_MS:g}"
        raise wrong(form.arrival, what)
    hashes: tuple[int, ...] = ()
    if form.hashes is not None and fields.get(form.hashes):
        try:
            hashes = form.parse_hashes(fields[form.hashes])
        except (TypeError, ValueError) as error:
            raise wrong(form.hashes, "whole numbers, one for each block of the input") from error
    return Request(arrival, length(form.input, 1), length(form.output, 0), hashes)


def _timestamp_ms(text: str) -> float:
    """Return a date and time as milliseconds since 1970, keeping fractions finer than Python's microseconds."""
    head, _, tail = text.strip().replace("Z", "+00:00").partition(".")
    digits = tail[: len(tail) - len(tail.lstrip("0123456789"))]
    moment = datetime.fromisoformat(head + tail[len(digits) :].strip())
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    return moment.timestamp() * 1000 + (float(f"0.{digits}") * 1000 if digits else 0)


def _what_exists() -> str:
    forms = "; ".join(f"{form.name} ({', '.join(form.required)})" for form in (NORMALISED, AZURE, MOONCAKE))
    return f"forms that can be read, plain or gzipped: {forms}"


def _split(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split()))


def _whole(values: Any) -> tuple[int, ...]:
    if not isinstance(values, list) or any(isinstance(v, bool) or not isinstance(v, int) for v in values):
        raise ValueError("not a list of whole numbers")
    return tuple(values)


NORMALISED = Form("normalised CSV", "arrival_ms", "input_tokens", "output_tokens", "hash_ids", float, _split)
AZURE = Form("Azure's CSV", "TIMESTAMP", "ContextTokens", "GeneratedTokens", None, _timestamp_ms, _split)
MOONCAKE = Form("Mooncake's JSONL", "timestamp", "input_length", "output_length", "hash_ids", float, _whole)
