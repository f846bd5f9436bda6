"""The second pass of a stage: what was kept, written out; what was quarantined, kept readable.

Where input and output are JSON lines, a kept line is written as it stands, byte for byte but for its line ending. Where
both are Parquet of one schema, columns are copied. Everything else goes through rows, with the types that all values
have.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lpt_data.columns import Columns, find_columns
from lpt_data.dataset import Batch, Dataset, Quarantine
from lpt_data.io.lines import parse_exact
from lpt_data.io.readers import raw_lines
from lpt_data.io.sources import format_of
from lpt_data.progress import Progress
from lpt_data.write import write_lines, write_rows, write_tables
from manifests.errors import BadInputError

_ROUNDED = 2.0**63  # orjson makes a float at least this large of an integer that does not fit 64 bits


def write_survivors(
    dataset: Dataset, keep: np.ndarray, path: Path, named: Path, columns: Columns | None, progress: Progress
) -> int:
    """Write the rows where `keep` (bool [rows_in]) holds to `path`, in the format of the name `named`; returns how
    many.
    """
    file_format, compression = format_of(named)
    if file_format == "jsonl" and _all(dataset, "jsonl"):
        return write_lines(path, compression, _kept_lines(dataset, keep, progress))
    schema = shared_schema(dataset) if file_format == "parquet" else None
    if schema is not None:
        return write_tables(path, schema, _kept_tables(dataset, keep, progress))
    return write_rows(path, kept_rows(dataset, keep, progress), columns, named)


def columns_needed(dataset: Dataset, keep: np.ndarray, named: Path, progress: Progress) -> Columns | None:
    """Return the columns of the kept rows where the output format must know them beforehand, else None."""
    file_format = format_of(named)[0]
    if file_format in ("jsonl", "json") or (file_format == "parquet" and shared_schema(dataset) is not None):
        return None
    return find_columns(kept_rows(dataset, keep, progress, "looking at columns"))


def write_quarantine(dataset: Dataset, rows: Sequence[Quarantine], path: Path) -> int:
    """Write quarantined rows with place, reason and, of JSON lines, what was written there, so that they can be
    repaired.
    """
    return write_lines(path, "", ([line] for line in _quarantine_lines(dataset, {q.row: q for q in rows})))


def kept_rows(
    dataset: Dataset, keep: np.ndarray, progress: Progress, label: str = "writing"
) -> Iterator[dict[str, Any]]:
    """Yield kept rows as dicts with their values as written."""
    for batch in dataset.batches():
        places = np.flatnonzero(keep[batch.rows])
        if isinstance(batch.records, pa.Table):
            if len(places):
                yield from _json_safe(batch, places, dataset)
        elif batch.raw is not None:
            raw = batch.raw
            for i in places.tolist():
                yield parse_exact(raw[i]) if _may_be_rounded(batch.records[i]) else batch.records[i]
        else:
            yield from (batch.records[i] for i in places.tolist())
        progress(int(batch.rows[-1]) + 1 if len(batch.rows) else 0, len(keep), label)


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


def _kept_lines(dataset: Dataset, keep: np.ndarray, progress: Progress) -> Iterator[list[bytes]]:
    at = 0
    for source in dataset.files:
        for _, lines in raw_lines(source):
            end = at + len(lines)
            wanted = keep[at:end]
            if len(wanted) != len(lines):
                raise input_changed(source.path)
            kept = [line for line, keep_it in zip(lines, wanted.tolist(), strict=True) if keep_it]
            if None in kept:
                raise input_changed(source.path)
            yield kept  # type: ignore[misc]
            at = end
            progress(at, len(keep), "writing")


def _kept_tables(dataset: Dataset, keep: np.ndarray, progress: Progress) -> Iterator[pa.Table]:
    for batch in dataset.batches():
        assert isinstance(batch.records, pa.Table)
        yield batch.records.filter(pa.array(keep[batch.rows])).replace_schema_metadata(None)
        progress(int(batch.rows[-1]) + 1, len(keep), "writing")


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
        return table.to_pylist()
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


def input_changed(path: str) -> BadInputError:
    """Return the error for an input that is not what it was when it was first read."""
    return BadInputError(
        "an input changed while it was read",
        seen=path,
        next="wait until nothing writes to it, then run the same command again",
    )
