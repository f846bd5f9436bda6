"""Lines of files and rows of stages: the two ways in which people and decisions name the same record."""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import itertools
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import orjson
import zstandard

from manifests.canon import FIELDS, record_id
from manifests.digests import bytes_sha256
from manifests.errors import BadInputError, RecordError

_MAX_CELL = 64 << 20  # bytes, as the reader of data has it; the module's own limit is 128 KiB
_TEXT = (".jsonl", ".ndjson", ".json", ".txt")


def row_of_line(path: Path, line: int) -> int:
    """Return the 0-based row of a file that a 1-based line holds; blank lines are no rows, so they are not counted.

    In Parquet, and in a JSON array, the rows themselves are numbered from 1. Raises BadInputError for a blank line
    and for one past the end.
    """
    suffixes = [s.lower() for s in path.suffixes]
    kind = suffixes[-2] if len(suffixes) > 1 and suffixes[-1] in (".gz", ".zst") else (suffixes or [""])[-1]
    if line < 1:
        raise BadInputError("lines are counted from 1", seen=f"{path}:{line}", next=f"{path}:1")
    if kind not in (*_TEXT, ".csv", ".tsv"):
        return line - 1
    with _opened(path) as file:
        if kind in (".csv", ".tsv"):
            return _csv_row(path, file, line, "\t" if kind == ".tsv" else ",")
        if kind == ".json" and file.peek(64).lstrip()[:1] == b"[":  # type: ignore[attr-defined]
            return line - 1
        row = -1
        for number, text in enumerate(file, 1):
            row += bool(text.strip())
            if number == line:
                if not text.strip():
                    raise BadInputError(
                        "that line is blank, so it is no row", seen=f"{path}:{line}", next="name another"
                    )
                return row
    raise _past_end(path, line)


def files_named(entries: Any, path: Path) -> list[tuple[Mapping[str, Any], bool]]:
    """Return the recorded files that `path` names, each with whether its bytes are still those that were recorded.

    A path is matched as it was written, then resolved, then by its contents, so that a moved file is still found.
    """
    files = [f for f in entries or [] if isinstance(f, dict)]
    named = [f for f in files if f.get("path") == str(path)]
    named = named or [f for f in files if Path(str(f.get("path"))).resolve() == path.resolve()]
    if not path.is_file():
        return [(f, False) for f in named]
    if not named:
        named = [f for f in files if f.get("bytes") == path.stat().st_size]
        return [(f, True) for f in named if f.get("sha256") == bytes_sha256(path)]
    return [(f, f.get("sha256") == bytes_sha256(path)) for f in named]


def place_of_row(body: Mapping[str, Any], row: int) -> tuple[str, int] | None:
    """Return the file that a row of a stage's input came from and its 0-based row in it."""
    inputs = [i for i in body.get("inputs") or [] if isinstance(i, dict) and type(i.get("first_row")) is int]
    before = [i for i in inputs if i["first_row"] <= row < i["first_row"] + int(i.get("rows") or 0)]
    return (str(before[-1]["path"]), row - before[-1]["first_row"]) if before else None


def canonical_id(body: Mapping[str, Any], path: str, row: int) -> str | None:
    """Return the record id of a row of a JSONL file whose rows are canonical already; None for any other.

    The file must have the bytes that the stage read. Other layouts are mapped by who reads them, not here.
    """
    place = Path(path)
    read = {str(i.get("path")): i.get("sha256") for i in body.get("inputs") or [] if isinstance(i, dict)}
    kind = str(body.get("kind"))
    if kind not in FIELDS or ".jsonl" not in place.suffixes or not place.is_file():
        return None
    if bytes_sha256(place) != read.get(path):
        return None
    with _opened(place) as file:
        line = next(itertools.islice((text for text in file if text.strip()), row, None), b"")
    try:
        return record_id(kind, orjson.loads(line)).hex()
    except (orjson.JSONDecodeError, RecordError, AttributeError):
        return None


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """Open a file, unpacked; whatever is wrong with it, then or while it is read, is a BadInputError."""
    try:
        with open(path, "rb") as file:
            if path.suffix.lower() == ".gz":
                yield io.BufferedReader(gzip.GzipFile(fileobj=file))
            elif path.suffix.lower() == ".zst":
                yield io.BufferedReader(zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True))
            else:
                yield file
    except (OSError, EOFError, zlib.error, zstandard.ZstdError, csv.Error) as error:
        raise BadInputError(
            "the file cannot be read",
            seen=f"{path}: {getattr(error, 'strerror', None) or error}",
            next="check the path, or fetch the file again",
        ) from error


def _csv_row(path: Path, file: IO[bytes], line: int, delimiter: str) -> int:
    csv.field_size_limit(_MAX_CELL)
    reader = csv.reader(io.TextIOWrapper(file, "utf-8-sig", errors="replace", newline=""), delimiter=delimiter)
    for row, last in enumerate(_last_lines(reader)):
        if line <= last:
            if row == 0:
                raise BadInputError("that line is the header", seen=f"{path}:{line}", next="name a line below it")
            return row - 1
    raise _past_end(path, line)


def _last_lines(reader: Any) -> Iterator[int]:
    for cells in reader:
        if cells:  # the module returns [] for a blank line
            yield reader.line_num


def _past_end(path: Path, line: int) -> BadInputError:
    return BadInputError("the file has no such line", seen=f"{path}:{line}", next="count from 1")
