"""The second pass of a stage: what was kept, written out; what was quarantined, kept readable.

Where input and output are JSON lines, a kept line is written as it stands, byte for byte but for its line ending. Where
both are Parquet of one schema, columns are copied. Everything else goes through rows, with the types that all values
have.

A row that the stage rewrote is the row as it was with other values in the columns that `Rewritten` names; it alone is
serialised again.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lpt_data.columns import Columns, dump, find_columns
from lpt_data.dataset import Batch, Dataset, Quarantine
from lpt_data.io.jsonl import raw_lines, read_jsonl
from lpt_data.io.lines import parse_exact
from lpt_data.io.sources import format_of, input_changed
from lpt_data.progress import Progress
from lpt_data.write import write_lines, write_rows, write_tables
from manifests.arrow import plain_rows
from manifests.errors import BadInputError

_ROUNDED = 2.0**63  # orjson makes a float at least this large of an integer that does not fit 64 bits


# The rewritten rows of a stage: row in the input, and a JSON object of the columns that have other values now.
REWRITTEN = pa.schema([pa.field("row", pa.int64(), nullable=False), pa.field("columns", pa.large_binary())])


@dataclass(frozen=True)
class Rewritten:
    """The new values of rewritten rows; empty for a stage that rewrites nothing."""

    rows: np.ndarray  # int64 [n], ascending
    columns: pa.ChunkedArray | None

    @classmethod
    def of(cls, table: pa.Table | None) -> Rewritten:
        """Make one out of a table of REWRITTEN, in any order, or of None."""
        if table is None:
            return cls(np.zeros(0, np.int64), None)
        ordered = table.sort_by("row")
        return cls(ordered["row"].to_numpy(), ordered["columns"])

    def within(self, rows: np.ndarray) -> dict[int, dict[str, Any]]:
        """Return the rewritten ones among rows (int64 [n], ascending): place among them -> column -> new value."""
        if self.columns is None or not len(rows):
            return {}
        first, last = np.searchsorted(self.rows, [rows[0], rows[-1] + 1]).tolist()
        places = np.searchsorted(rows, self.rows[first:last]).tolist()
        values = self.columns.slice(first, last - first).to_pylist()
        return {place: orjson.loads(value) for place, value in zip(places, values, strict=True)}


def write_survivors(
    dataset: Dataset,
    keep: np.ndarray,
    path: Path,
    named: Path,
    columns: Columns | None,
    progress: Progress,
    rewritten: Rewritten,
) -> int:
    """Write the rows where `keep` (bool [rows_in]) holds to `path`, in the format of the name `named`; returns how
    many.
    """
    file_format, compression = format_of(named)
    if file_format == "jsonl" and _all(dataset, "jsonl"):
        return write_lines(path, compression, _kept_lines(dataset, keep, progress, rewritten))
    schema = shared_schema(dataset) if file_format == "parquet" else None
    if schema is not None:
        return write_tables(path, schema, _kept_tables(dataset, keep, progress, rewritten))
    if file_format == "parquet" and columns is not None and columns is dataset.uniform and rewritten.columns is None:
        return write_tables(path, columns.schema, _scanned_tables(dataset, keep, columns, progress))
    return write_rows(path, kept_rows(dataset, keep, progress, rewritten), columns, named)


def columns_needed(
    dataset: Dataset, keep: np.ndarray, named: Path, progress: Progress, rewritten: Rewritten
) -> Columns | None:
    """Return the columns of the kept rows where the output format must know them beforehand, else None."""
    if not types_matter(dataset, named):
        return None
    if dataset.uniform is not None and keep.any():
        return dataset.uniform
    return find_columns(kept_rows(dataset, keep, progress, rewritten, "looking at columns"))


def types_matter(dataset: Dataset, named: Path) -> bool:
    """Tell whether the types of all kept values must be known before the first of them is written."""
    file_format = format_of(named)[0]
    return file_format not in ("jsonl", "json") and (file_format != "parquet" or shared_schema(dataset) is None)


def write_quarantine(dataset: Dataset, rows: Sequence[Quarantine], path: Path) -> int:
    """Write quarantined rows with place, reason and, of JSON lines, what was written there, so that they can be
    repaired.
    """
    return write_lines(path, "", ([line] for line in _quarantine_lines(dataset, {q.row: q for q in rows})))


def kept_rows(
    dataset: Dataset, keep: np.ndarray, progress: Progress, rewritten: Rewritten, label: str = "writing"
) -> Iterator[dict[str, Any]]:
    """Yield kept rows as dicts with their values as written, or as rewritten."""
    if dataset.uniform is not None:  # checked in the first pass, with no value that a second reader could lose
        for lines in _kept_lines(dataset, keep, progress, rewritten, label):
            yield from map(orjson.loads, lines)
        return
    for batch in dataset.batches():
        places = np.flatnonzero(keep[batch.rows])
        new = rewritten.within(batch.rows)
        for i, row in zip(places.tolist(), _as_written(batch, places, dataset), strict=True):
            yield {**row, **new[i]} if i in new else row
        progress(int(batch.rows[-1]) + 1 if len(batch.rows) else 0, len(keep), label)


def _as_written(batch: Batch, places: np.ndarray, dataset: Dataset) -> Iterator[dict[str, Any]]:
    if isinstance(batch.records, pa.Table):
        if len(places):
            yield from _json_safe(batch, places, dataset)
    elif batch.raw is not None:
        raw = batch.raw
        for i in places.tolist():
            yield parse_exact(raw[i]) if _may_be_rounded(batch.records[i]) else batch.records[i]
    else:
        yield from (batch.records[i] for i in places.tolist())


def _may_be_rounded(value: Any) -> bool:
    if type(value) is float:
        return abs(value) >= _ROUNDED
    if type(value) is dict:
        return any(_may_be_rounded(item) for item in value.values() if type(item) in (float, dict, list))
    return type(value) is list and any(_may_be_rounded(item) for item in value if type(item) in (float, dict, list))


def _all(dataset: Dataset, file_format: str) -> bool:
    return all(source.format == file_format for source in dataset.files)


def shared_schema(dataset: Dataset) -> pa.Schema | None:
    """Return the schema that all files have, where all are Parquet."""
    if not _all(dataset, "parquet"):
        return None
    schemas = [pq.read_schema(source.path).remove_metadata() for source in dataset.files]
    return schemas[0] if all(schema.equals(schemas[0]) for schema in schemas) else None


def _kept_lines(
    dataset: Dataset, keep: np.ndarray, progress: Progress, rewritten: Rewritten, label: str = "writing"
) -> Iterator[list[bytes]]:
    at = 0
    for source in dataset.files:
        for _, lines in raw_lines(source):
            end = at + len(lines)
            wanted = keep[at:end]
            if len(wanted) != len(lines):
                raise input_changed(source.path)
            places = np.flatnonzero(wanted).tolist()
            new = rewritten.within(np.arange(at, end))
            kept = list(compress(lines, wanted.tolist()))
            if None in kept:
                raise input_changed(source.path)
            if new:
                kept = [_rewritten_line(line, new.get(i)) for i, line in zip(places, kept, strict=True)]
            yield kept  # type: ignore[misc]
            at = end
            progress(at, len(keep), label)


def _rewritten_line(line: bytes | None, columns: Mapping[str, Any] | None) -> bytes | None:
    return line if columns is None or line is None else dump({**parse_exact(line), **columns})


def _kept_tables(dataset: Dataset, keep: np.ndarray, progress: Progress, rewritten: Rewritten) -> Iterator[pa.Table]:
    for batch in dataset.batches():
        assert isinstance(batch.records, pa.Table)
        table = _with_new_values(batch.records, rewritten.within(batch.rows))
        yield table.filter(pa.array(keep[batch.rows])).replace_schema_metadata(None)
        progress(int(batch.rows[-1]) + 1, len(keep), "writing")


def _scanned_tables(dataset: Dataset, keep: np.ndarray, columns: Columns, progress: Progress) -> Iterator[pa.Table]:
    """The kept rows of JSON lines of one plain shape."""
    start = 0
    for source in dataset.files:
        rows = 0
        for chunk in read_jsonl(source, columns.schema.names, keep[start:]):
            rows += chunk.rows
            if start + rows > len(keep):
                raise input_changed(source.path)
            if isinstance(chunk.records, list):
                yield columns.table(list(compress(chunk.records, keep[start + chunk.offsets].tolist())))
            elif chunk.records.schema == columns.schema:
                yield chunk.records
            else:
                raise input_changed(source.path)
            progress(start + rows, len(keep), "writing")
        start += rows


def _with_new_values(table: pa.Table, new: Mapping[int, Mapping[str, Any]]) -> pa.Table:
    """The table with the new values in place, every column in the type it had."""
    for name in sorted({name for columns in new.values() for name in columns}):
        number = table.column_names.index(name)
        values = table[name].to_pylist()
        for place, columns in new.items():
            if name in columns:
                values[place] = columns[name]
        table = table.set_column(number, table.schema.field(number), pa.array(values, table.schema.field(number).type))
    return table


def _json_safe(batch: Batch, places: np.ndarray, dataset: Dataset) -> list[dict[str, Any]]:
    """Rows of a Parquet table for a format of text; what JSON cannot say is an error, because it would be written
    as null.
    """
    assert isinstance(batch.records, pa.Table)
    table = batch.records.take(pa.array(places))
    for name in table.column_names:
        column = table[name]
        if pa.types.is_floating(column.type) and not pc.all(pc.fill_null(pc.is_finite(column), True)).as_py():
            raise BadInputError(
                f"the column {name} holds NaN or an infinity, which JSON cannot say",
                seen=dataset.files[batch.file].path,
                next="write to a .parquet file",
            )
    try:
        return plain_rows(table)
    except UnicodeDecodeError as error:
        raise BadInputError(
            "a text column holds bytes that are no UTF-8",
            seen=f"{dataset.files[batch.file].path}: {error}",
            next="write to a .parquet file, or repair the input",
        ) from error


def _quarantine_lines(dataset: Dataset, rows: Mapping[int, Quarantine]) -> Iterator[bytes]:
    starts = [*dataset.first_rows, dataset.rows_in]
    for number, source in enumerate(dataset.files):
        row = starts[number]
        mine = sorted(r for r in rows if row <= r < starts[number + 1])
        if mine and source.format == "jsonl":
            for lines, texts in raw_lines(source):
                for line, text in zip(lines.tolist(), texts, strict=True):
                    if row in rows:
                        yield _quarantine_line(rows[row], line, text)
                    row += 1
        else:
            yield from (_quarantine_line(rows[r], rows[r].line or r - row + 1, None) for r in mine)


def _quarantine_line(found: Quarantine, line: int, raw: bytes | None) -> bytes:
    body: dict[str, Any] = {
        "row": found.row,
        "file": found.file,
        "line": line,
        "reason": found.reason,
        "detail": found.detail,
    }
    if raw is not None:
        try:
            body["raw"] = raw.decode()
        except UnicodeDecodeError:
            body["raw_base64"] = base64.b64encode(raw).decode()
    return orjson.dumps(body)
