"""One reader per format, each yielding chunks of numbered rows; a table at the end says which reads what.

Types are never guessed: a CSV cell is text, a JSON value is what it says. A row that cannot be read is reported with
its place, never skipped; a file that ends in the middle raises BadInputError.
"""

from __future__ import annotations

import csv
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from lpt_data.io.chunks import BadRow, Chunk, calm_allocator
from lpt_data.io.jsonl import read_jsonl
from lpt_data.io.lines import MAX_LINE, DuplicateKeyError, split_lines, unique_keys
from lpt_data.io.sources import SourceFile, blocks, cannot_read
from manifests.errors import BadInputError

ROWS = 2048  # rows of a chunk where the format has no natural one


def read(source: SourceFile, columns: Sequence[str] | None = None, *, whole: bool = False) -> Iterator[Chunk]:
    """Read a file chunk by chunk; `columns` lets a Parquet reader leave the others on disk, and a JSONL reader yield
    tables of flat rows instead of dicts; with `whole` it yields tables of whole rows, where they are plain.
    """
    calm_allocator()
    if whole and source.format == "jsonl":
        return read_jsonl(source, None, whole=True)
    return READERS[source.format](source, columns)


def _read_json(source: SourceFile, columns: Sequence[str] | None) -> Iterator[Chunk]:
    """Read a JSON array of objects; a file of JSON lines under this extension is read as such.

    The array is held whole in memory: convert a large one to JSON lines.
    """
    stream = blocks(source)
    first = next(stream, b"")
    if first.lstrip()[:1] != b"[":
        yield from read_jsonl(source, columns)
        return
    data = b"".join(itertools.chain([first], stream))
    rows, bad = _array(source.path, data)
    for start in range(0, len(rows), ROWS):
        part = rows[start : start + ROWS]
        offsets = np.array([start + i for i, row in enumerate(part) if row is not None], np.int64)
        wrong = [b for b in bad if start <= b.offset < start + len(part)]
        yield Chunk(offsets, offsets + 1, [row for row in part if row is not None], None, wrong, len(part))


def _array(path: str, data: bytes) -> tuple[list[dict[str, Any] | None], list[BadRow]]:
    """Parse an array element by element, so that one bad element costs one row and a cut array says where it ends."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise BadInputError(f"{path} is not UTF-8", seen=f"byte {error.start}", next="save it as UTF-8") from error
    decoder = json.JSONDecoder(object_pairs_hook=_marked, parse_constant=_Constant)
    rows: list[dict[str, Any] | None] = []
    bad: list[BadRow] = []
    at = _skip(text, text.index("[") + 1)
    while text[at : at + 1] != "]" or rows:
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            raise _broken(path, text, at, len(rows), str(error)) from error
        reason, detail = _element(value)
        if reason:
            bad.append(BadRow(len(rows), len(rows) + 1, reason, detail))
        rows.append(None if reason else value)
        at = _skip(text, at)
        mark = text[at : at + 1]
        if mark == "]":
            break
        if mark != ",":
            raise _broken(path, text, at, len(rows), "expected a comma or the end of the array")
        at = _skip(text, at + 1)
    rest = _skip(text, at + 1)
    if rest < len(text):
        raise _broken(path, text, rest, len(rows), "text after the end of the array")
    return rows, bad


class _Constant(str):
    """NaN, Infinity or -Infinity where a JSON value should be."""

    __slots__ = ()


class _Repeated(dict[str, Any]):
    """An object in which a key occurs twice."""


def _marked(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    try:
        return unique_keys(pairs)
    except DuplicateKeyError as error:
        return _Repeated({"key": str(error)})


def _element(value: Any) -> tuple[str, str]:
    if isinstance(value, _Repeated):
        return "duplicate_key", f"the key {value['key']!r} occurs twice in one object"
    if not isinstance(value, dict):
        return "not_an_object", f"an element must be an object, this one is {type(value).__name__}"
    try:
        orjson.dumps(value)
    except TypeError as error:
        message = str(error)
        if "surrogate" in message or "UTF-8" in message:
            return "lone_surrogate", message
        if "Recursion" in message:
            return "nested_too_deeply", "more levels than can be written again as JSON"
        if "64-bit" not in message:
            return "invalid_json", message
    return _inside(value)


def _inside(value: Any) -> tuple[str, str]:
    """Look for what the parser marked inside an element."""
    if isinstance(value, _Constant) or (isinstance(value, float) and value - value != 0):
        return "not_a_number", f"{value} is no JSON"
    if isinstance(value, _Repeated):
        return "duplicate_key", f"the key {value['key']!r} occurs twice in one object"
    if isinstance(value, (dict, list)):
        for item in value.values() if isinstance(value, dict) else value:
            found = _inside(item)
            if found[0]:
                return found
    return "", ""


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at


def _broken(path: str, text: str, at: int, rows: int, message: str) -> BadInputError:
    line = text.count("\n", 0, at) + 1
    cut = at >= len(text) or "end of data" in message or "Unterminated" in message
    what = f"{path} is cut short: the array has no end" if cut else f"{path} is no valid JSON array"
    return BadInputError(
        what,
        seen=f"{message}; line {line}, after {rows} whole elements",
        next="fetch or write it again; nothing was written",
    )


def _read_csv(source: SourceFile, columns: Sequence[str] | None) -> Iterator[Chunk]:
    delimiter = "\t" if source.format == "tsv" else ","
    csv.field_size_limit(MAX_LINE)
    reader = csv.reader(_text_lines(source), delimiter=delimiter, strict=True)
    try:
        names = next(reader)
    except (StopIteration, csv.Error) as error:
        raise BadInputError(
            f"{source.path} has no header line", seen=str(error), next="add one with column names"
        ) from error
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated or "" in names:
        raise BadInputError(
            f"the header of {source.path} does not name each column once",
            seen=", ".join(names),
            next=f"rename {', '.join(repeated)}" if repeated else "name every column",
        )
    start, ended = 0, False
    while not ended:
        offsets, lines, rows, bad, count = [], [], [], [], 0
        while count < ROWS:
            line = reader.line_num + 1
            try:
                cells = next(reader)
            except StopIteration:
                ended = True
                break
            except csv.Error as error:
                if "unexpected end of data" in str(error):
                    raise _unclosed(source.path, line, start + count) from error
                bad.append(BadRow(start + count, line, *_csv_reason(error)))
                count += 1
                continue
            if not cells:
                continue  # a blank line
            reason, detail = _cells(cells, names)
            if reason:
                bad.append(BadRow(start + count, line, reason, detail))
            else:
                offsets.append(start + count)
                lines.append(line)
                rows.append(dict(zip(names, cells, strict=True)))
            count += 1
        if count:
            yield Chunk(np.array(offsets, np.int64), np.array(lines, np.int64), rows, None, bad, count)
        start += count


def _text_lines(source: SourceFile) -> Iterator[str]:
    """Lines with their endings (a quoted cell may span several); what is no UTF-8 survives as surrogates, to be
    reported.
    """
    for _, lines in split_lines(blocks(source), carriage_returns=True):
        for line in lines:
            # A line beyond the limit becomes a cell beyond the limit of the csv module, which then names the row.
            yield (line.decode(errors="surrogateescape") if line is not None else "x" * (MAX_LINE + 1)) + "\n"


def _csv_reason(error: csv.Error) -> tuple[str, str]:
    long = "field larger than field limit" in str(error)
    return ("line_too_long", f"a cell longer than {MAX_LINE >> 20} MiB") if long else ("invalid_csv", str(error))


def _cells(cells: list[str], names: list[str]) -> tuple[str, str]:
    if len(cells) != len(names):
        return "ragged_row", f"{len(cells)} cells under {len(names)} column names"
    row = "".join(cells)
    if "\0" in row:
        return "nul_byte", "a cell holds NUL"
    if not row.isascii():
        try:
            row.encode()
        except UnicodeEncodeError as error:
            return "invalid_utf8", f"byte {ord(row[error.start]) - 0xDC00:#x} in a cell"
    return "", ""


def _unclosed(path: str, line: int, rows: int) -> BadInputError:
    return BadInputError(
        f"{path} is cut short: a quoted cell has no end",
        seen=f"the cell opens in the row of line {line}, after {rows} rows",
        next="fetch it again, or close the quotation mark",
    )


def _read_parquet(source: SourceFile, columns: Sequence[str] | None) -> Iterator[Chunk]:
    start = 0
    try:
        with pq.ParquetFile(source.path) as file:
            names = file.schema_arrow.names
            if len(set(names)) != len(names):
                raise BadInputError(
                    f"{source.path} names a column twice", seen=", ".join(names), next="rename one of them"
                )
            wanted = None if columns is None else [name for name in columns if name in names]
            for batch in file.iter_batches(batch_size=ROWS * 4, columns=wanted):
                offsets = np.arange(start, start + batch.num_rows, dtype=np.int64)
                yield Chunk(offsets, offsets + 1, pa.Table.from_batches([batch]), None, [], batch.num_rows)
                start += batch.num_rows
    except pa.ArrowException as error:
        raise _damaged(source.path, error, start) from error
    except OSError as error:
        if error.errno:
            raise cannot_read(source.path, error) from error
        raise _damaged(source.path, error, start) from error


def _damaged(path: str, error: Exception, rows: int) -> BadInputError:
    return BadInputError(
        f"{path} is a damaged or cut Parquet file",
        seen=f"{str(error).splitlines()[0][:200]}; {rows} rows could be read",
        next="fetch it again; nothing was written",
    )


READERS: dict[str, Callable[[SourceFile, Sequence[str] | None], Iterator[Chunk]]] = {
    "jsonl": read_jsonl,
    "json": _read_json,
    "csv": _read_csv,
    "tsv": _read_csv,
    "parquet": _read_parquet,
}
