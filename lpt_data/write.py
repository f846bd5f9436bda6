"""Writers by extension, and the canonical Parquet of an admitted split.

Every writer gives the same bytes for the same rows: no time stamps in archive headers, one thread, fixed levels. Paths
are temporary ones made by the caller (`manifests.files.atomic_path`), unless a function says that it is atomic itself.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from lpt_data.columns import Columns, dump, find_columns
from lpt_data.io.sources import format_of
from lpt_data.text_arrays import text_bytes
from manifests.canon import FIELDS
from manifests.decisions import hex_ids
from manifests.errors import BadInputError
from manifests.files import atomic_path

ROW_GROUP = 50_000  # rows of a Parquet row group at most
GROUP_BYTES = 16 << 20  # bytes of text after which a row group ends early: what is held at a time, plus a UNIT
UNIT = 1_000  # rows that a row group is a multiple of, but for the last one
_ZSTD_LEVEL = 3


@contextlib.contextmanager
def open_bytes(path: Path, compression: str) -> Iterator[IO[bytes]]:
    """Open a file for writing, packed as the extension says."""
    with open(path, "wb") as file:
        if compression == "gz":
            with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0, compresslevel=6) as packed:
                yield packed  # type: ignore[misc]
        elif compression == "zst":
            with zstandard.ZstdCompressor(level=_ZSTD_LEVEL, write_checksum=True).stream_writer(
                file, closefd=False
            ) as packed:
                yield packed
        else:
            yield file


def write_lines(path: Path, compression: str, batches: Iterable[Sequence[bytes]]) -> int:
    """Write lines as they are, each with a line feed; returns how many."""
    count = 0
    with open_bytes(path, compression) as file:
        for lines in batches:
            if lines:
                file.write(b"\n".join(lines) + b"\n")
                count += len(lines)
    return count


def write_rows(
    path: Path, rows: Iterable[Mapping[str, Any]], columns: Columns | None = None, named: str | Path | None = None
) -> int:
    """Write rows in the format of the extension and return how many.

    `columns` is needed for .csv, .tsv and .parquet, whose columns must be known beforehand. `named` is the final name
    of a temporary path.
    """
    file_format, compression = format_of(named or path)
    if file_format == "jsonl":
        return write_lines(path, compression, ([dump(row) for row in part] for part in _parts(rows)))
    if file_format == "json":
        return _write_array(path, compression, rows)
    assert columns is not None
    if file_format == "parquet":
        return write_tables(path, columns.schema, (columns.table(part) for part in _parts(rows)))
    return _write_csv(path, compression, rows, columns.schema.names, "\t" if file_format == "tsv" else ",")


def write_tables(path: Path, schema: pa.Schema, tables: Iterable[pa.Table]) -> int:
    """Write tables of one schema as one Parquet file, its row groups cut by the rows alone; returns how many."""
    count = 0
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for group in _row_groups(schema, tables):
            writer.write_table(group, row_group_size=ROW_GROUP)
            count += group.num_rows
    return count


def _row_groups(schema: pa.Schema, tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Gather tables into groups; a group ends after a whole number of UNITs, whatever tables the rows came in."""
    held: list[pa.Table] = []
    rows = texts = 0
    unit: list[pa.Table] = []
    missing = UNIT
    for table in tables:
        while table.num_rows >= missing:
            unit.append(table.slice(0, missing))
            table = table.slice(missing)
            held += unit
            rows += UNIT
            texts += sum(text_bytes(column) for part in unit for column in part.columns)
            unit, missing = [], UNIT
            if rows >= ROW_GROUP or texts >= GROUP_BYTES:
                yield pa.concat_tables(held)
                held, rows, texts = [], 0, 0
        if table.num_rows:
            unit.append(table)
            missing -= table.num_rows
    yield pa.concat_tables([schema.empty_table(), *held, *unit])


def write_jsonl(path: Path | str, rows: Iterable[Mapping[str, Any]]) -> int:
    """Write rows to a file, whole or not at all, and return how many; the extension may be any that holds rows."""
    held = rows if format_of(path)[0] in ("jsonl", "json") else list(rows)
    columns = None if not isinstance(held, list) else find_columns(held)
    with atomic_path(path) as temporary:
        return write_rows(temporary, held, columns, named=path)


def _write_array(path: Path, compression: str, rows: Iterable[Mapping[str, Any]]) -> int:
    count = 0
    with open_bytes(path, compression) as file:
        for row in rows:
            file.write((b",\n" if count else b"[\n") + dump(row))
            count += 1
        file.write(b"\n]\n" if count else b"[]\n")
    return count


def _write_csv(
    path: Path, compression: str, rows: Iterable[Mapping[str, Any]], names: Sequence[str], delimiter: str
) -> int:
    """Cells are text; what is no text is written as JSON, null as nothing."""
    count = 0
    with open_bytes(path, compression) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="")
        writer = csv.writer(text, delimiter=delimiter, lineterminator="\n")
        writer.writerow(names)
        for row in rows:
            writer.writerow([_cell(row.get(name)) for name in names])
            count += 1
        text.detach()  # flushes, and leaves closing to who opened
    return count


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else dump(value).decode()


def _parts(rows: Iterable[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    stream = iter(rows)
    while part := list(islice(stream, ROW_GROUP // 10)):
        yield part


# -- the canonical Parquet

_FUNCTION = pa.struct([("name", pa.string()), ("arguments", pa.string())])
_CALL = pa.struct([("id", pa.string()), ("type", pa.string()), ("function", _FUNCTION)])
MESSAGES = pa.list_(
    pa.struct(
        [
            ("role", pa.string()),
            ("content", pa.string()),
            ("name", pa.string()),
            ("tool_call_id", pa.string()),
            ("tool_calls", pa.list_(_CALL)),
        ]
    )
)
_TYPES = {
    "text": pa.large_string(),
    "messages": MESSAGES,
    "prompt": MESSAGES,
    "chosen": MESSAGES,
    "rejected": MESSAGES,
    "completion": MESSAGES,
    "tools": pa.string(),
    "answer": pa.string(),
    "verifier": pa.string(),
    "label": pa.bool_(),
}


def canonical_schema(kind: str) -> pa.Schema:
    """Return the columns that a canonical file of a kind always has: record_id (hex), then the fields of the record."""
    return pa.schema([("record_id", pa.string()), *((name, _TYPES[name]) for name in FIELDS[kind])])


def write_canonical(
    path: Path,
    kind: str,
    records: Iterable[Mapping[str, Any]],
    ids: np.ndarray,
    extra_columns: Sequence[Mapping[str, Any]] | None = None,
) -> list[str]:
    """Write canonical records with their ids (uint8 [N, 32]) as Parquet, atomically.

    `extra_columns` holds the other columns of each row; one that is named like a field is kept as `source_NAME`, and a
    `record_id` that came with the input is left out, because it may be of other content. Returns the columns that
    became JSON text, since their values have different types.
    """
    fixed = canonical_schema(kind)
    others = [_renamed(row, fixed.names) for row in extra_columns or []]
    columns = find_columns(others)
    schema = pa.schema([*fixed, *columns.schema])
    with atomic_path(path) as temporary:
        written = write_tables(temporary, schema, _canonical_tables(fixed, schema, records, ids, others, columns))
        if written != len(ids) or (extra_columns is not None and written != len(others)):
            raise BadInputError(
                "records, ids and columns differ in number",
                seen=f"{written}, {len(ids)}, {len(others)}",
                next="a defect",
            )
    return list(columns.as_json)


def _canonical_tables(
    fixed: pa.Schema,
    schema: pa.Schema,
    records: Iterable[Mapping[str, Any]],
    ids: np.ndarray,
    others: Sequence[Mapping[str, Any]],
    columns: Columns,
) -> Iterator[pa.Table]:
    at = 0
    for part in _parts(records):
        end = at + len(part)
        arrays = [hex_ids(ids[at:end])]
        arrays += [pa.array([record.get(f.name) for record in part], f.type) for f in fixed if f.name != "record_id"]
        if len(columns.schema):
            arrays += columns.table(others[at:end]).columns
        yield pa.Table.from_arrays(arrays, schema=schema)
        at = end


def _renamed(row: Mapping[str, Any], taken: Sequence[str]) -> dict[str, Any]:
    return {(f"source_{name}" if name in taken else name): v for name, v in row.items() if name != "record_id"}
