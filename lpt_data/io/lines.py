"""Strict JSON lines: what one line means, or the reason why it means nothing.

orjson refuses most of what is wrong (NaN, raw control characters, half surrogate pairs, bytes that are no UTF-8). It
keeps the last of two equal keys in silence, so a block of lines is checked by counting quotation marks: parsing and
writing back loses some exactly when a key was dropped. An escape `\\u0022` also changes that count, so its presence,
like a difference, sends the block down the slow and exact path.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import orjson

MAX_LINE = 64 << 20  # bytes; a longer line is quarantined without being held
_QUOTE, _BACKSLASH, _U, _TWO = 34, 92, 117, 50


class Bad(NamedTuple):
    """A line that is no row: its place among the lines looked at, the reason, and what was seen."""

    place: int
    reason: str
    detail: str


class DuplicateKeyError(ValueError):
    """An object names the same key twice; the text is the key."""


class _NotANumberError(ValueError):
    pass


def whole_lines(blocks: Iterable[bytes], limit: int = MAX_LINE) -> Iterator[bytes | int]:
    """Cut blocks where lines end: yields runs of whole lines with their line feeds, which the last line may lack.

    A line longer than `limit` bytes is not held; the number of its bytes stands for it, alone.
    """
    pending: list[bytes] = []
    size = 0
    for block in blocks:
        first, cut = block.find(b"\n") + 1, block.rfind(b"\n") + 1
        if cut:
            start = 0
            if size + first - 1 > limit:
                yield size + first
                pending, start = [], first
            if pending or cut > start:
                yield b"".join([*pending, memoryview(block)[start:cut]])
            pending, size = [], 0
        size += len(block) - cut
        pending = [*pending, block[cut:]] if size <= limit else []
    if size:
        yield b"".join(pending) if size <= limit else size


def split_lines(
    blocks: Iterable[bytes], limit: int = MAX_LINE, *, carriage_returns: bool = False
) -> Iterator[tuple[int, list[bytes | None]]]:
    """Yield (number of the first line, lines without their endings); a line longer than `limit` bytes is None.

    With `carriage_returns`, one before the line feed stays: in CSV it may belong to a quoted cell.
    """
    number = 1
    for run in whole_lines(blocks, limit):
        lines: list[bytes | None] = [None]
        if isinstance(run, bytes):
            lines = [*cut_lines(run, carriage_returns=carriage_returns)]
        yield number, lines
        number += len(lines)


def cut_lines(run: bytes, *, carriage_returns: bool = False) -> list[bytes]:
    """The lines of a run without their endings."""
    lines = run.split(b"\n")
    if not lines[-1]:
        lines.pop()
    if not carriage_returns and b"\r" in run:
        lines = [line.removesuffix(b"\r") for line in lines]
    return lines


def parse_lines(lines: list[bytes]) -> tuple[list[dict[str, Any] | None], list[Bad]]:
    """Parse lines that are not blank; a row is None where the line is bad, and then `Bad` tells its place and the
    reason.
    """
    loads = orjson.loads
    bad: list[Bad] = []
    rows: list[Any]
    try:
        rows = [loads(line) for line in lines]
    except ValueError:
        rows = [_parse(place, line, bad) for place, line in enumerate(lines)]
    for place, row in enumerate(rows):
        if type(row) is not dict and row is not None:
            bad.append(Bad(place, "not_an_object", f"a line must be an object, this one is {_json_type(row)}"))
            rows[place] = None
    if None in rows and len(bad) < rows.count(None):  # a line `null` parses to None
        known = {b.place for b in bad}
        bad += [
            Bad(i, "not_an_object", "this line is null") for i, r in enumerate(rows) if r is None and i not in known
        ]
    try:
        repeated = _may_repeat_keys(lines, rows, bad)
    except TypeError:  # orjson reads 1,024 levels and writes 254
        _refuse_depth(rows, bad)
        repeated = _may_repeat_keys(lines, rows, bad)
    if repeated:
        _find_repeated(lines, rows, bad)
    bad.sort()
    return rows, bad


def parse_exact(line: bytes) -> dict[str, Any]:
    """Parse a line that `parse_lines` took, keeping integers exact that do not fit 64 bits (orjson makes floats of
    them).
    """
    return json.loads(line)


def _parse(place: int, line: bytes, bad: list[Bad]) -> Any:
    try:
        return orjson.loads(line)
    except ValueError as error:
        bad.append(Bad(place, *_why(line, str(error))))
        return None


def _why(line: bytes, message: str) -> tuple[str, str]:
    try:
        line.decode()
    except UnicodeDecodeError as error:
        return "invalid_utf8", f"byte {error.start} of the line: {line[error.start : error.start + 1]!r}"
    if b"\0" in line:
        return "nul_byte", f"byte {line.index(0)} of the line is NUL; inside a string write \\u0000"
    if "surrogate" in message:
        return "lone_surrogate", message
    if "infinity" in message:
        return "not_a_number", message
    try:
        json.loads(line, parse_constant=_refuse_constant)
    except _NotANumberError as error:
        return "not_a_number", f"{error} is no JSON"
    except (ValueError, RecursionError):
        pass
    return "invalid_json", message


def _refuse_constant(name: str) -> Any:
    raise _NotANumberError(name)


def _json_type(value: Any) -> str:
    names = {list: "an array", str: "a string", bool: "true or false", int: "a number", float: "a number"}
    return names.get(type(value), type(value).__name__)


def _may_repeat_keys(lines: list[bytes], rows: list[Any], bad: list[Bad]) -> bool:
    read = lines if not bad else [line for line, row in zip(lines, rows, strict=True) if row is not None]
    raw = np.frombuffer(b"".join(read), np.uint8)
    again = np.frombuffer(orjson.dumps(rows), np.uint8)
    if np.count_nonzero(raw == _QUOTE) != np.count_nonzero(again == _QUOTE):
        return True
    escapes = np.flatnonzero(raw == _BACKSLASH)
    escapes = escapes[escapes < len(raw) - 5]
    escapes = escapes[raw[escapes + 1] == _U]
    ends_22 = (raw[escapes + 4] == _TWO) & (raw[escapes + 5] == _TWO)  # \uXX22, of which \u0022 is one
    return bool(ends_22.any())


def _refuse_depth(rows: list[Any], bad: list[Bad]) -> None:
    for place, row in enumerate(rows):
        try:
            orjson.dumps([row])
        except TypeError:
            bad.append(Bad(place, "nested_too_deeply", "more levels than can be written again as JSON"))
            rows[place] = None


def _find_repeated(lines: list[bytes], rows: list[Any], bad: list[Bad]) -> None:
    for place, (line, row) in enumerate(zip(lines, rows, strict=True)):
        if row is None or (line.count(b'"') == orjson.dumps(row).count(b'"') and b"\\u0022" not in line):
            continue
        try:
            json.loads(line, object_pairs_hook=unique_keys)
        except DuplicateKeyError as error:
            bad.append(Bad(place, "duplicate_key", f"the key {str(error)!r} occurs twice in one object"))
            rows[place] = None


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build an object out of its pairs, or raise DuplicateKeyError (an object_pairs_hook for the json module)."""
    built = dict(pairs)
    if len(built) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise DuplicateKeyError(key)
            seen.add(key)
    return built
