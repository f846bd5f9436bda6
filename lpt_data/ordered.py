"""Rows written in an order of their own, some more than once, with columns added to each.

Rows are held a window of the output at a time; each window is one pass over the input, so memory is bounded whatever
the order. Parquet of one schema stays Arrow; other rows go through as read. Where the files have several layouts, rows
are written as canonical records beside their other columns, since one file has one layout.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from lpt_data.columns import Columns, find_columns
from lpt_data.dataset import Dataset
from lpt_data.io.sources import format_of
from lpt_data.progress import Progress
from lpt_data.survivors import Rewritten, kept_rows, shared_schema
from lpt_data.write import write_rows, write_tables
from manifests.canon import FIELDS

WINDOW_BYTES = 1 << 29  # bytes of input rows, as written, that are held at a time


@dataclass(frozen=True)
class Order:
    """What is written: input row of each output row (int64 [n]) and the columns added to it (n rows)."""

    rows: np.ndarray
    added: pa.Table
    left_out: tuple[str, ...] = ()  # columns of the input that are not written
    ids: np.ndarray | None = None  # record id of each output row, uint8 [n, 32]; None: those of the input rows


def write_ordered(dataset: Dataset, order: Order, path: Path, named: Path, progress: Progress) -> tuple[int, list[str]]:
    """Write rows in the order asked, in the format of the name `named`; returns how many, and the columns that became
    JSON text. A column of the input that is named like an added one is kept as `source_NAME`.
    """
    file_format = format_of(named)[0]
    schema = shared_schema(dataset) if file_format == "parquet" and dataset.one_layout else None
    if schema is not None:
        kept = [field for field in schema if field.name not in order.left_out]
        names = [_free(field.name, order.added.column_names) for field in kept]
        whole = pa.schema([*(f.with_name(n) for f, n in zip(kept, names, strict=True)), *order.added.schema])
        return write_tables(path, whole, _tables(dataset, order, whole, progress)), []
    columns: Columns | None = None
    if file_format not in ("jsonl", "json"):
        columns = find_columns(_rows(dataset, order, progress, "looking at columns"))
    written = write_rows(path, _rows(dataset, order, progress, "writing"), columns, named)
    return written, list(columns.as_json) if columns is not None else []


def window_rows(dataset: Dataset) -> int:
    """Return how many output rows are held at a time."""
    packed = {"parquet": 4}
    size = sum(s.bytes * (4 if s.compression else packed.get(s.format, 1)) for s in dataset.files)
    return max(1000, int(WINDOW_BYTES / max(1.0, size / max(1, dataset.rows_in))))


def _windows(dataset: Dataset, order: Order) -> Iterator[tuple[int, int, np.ndarray]]:
    """Yield (first output row, end, which input rows are needed: bool [rows_in])."""
    step = window_rows(dataset)
    for start in range(0, len(order.rows), step):
        end = min(start + step, len(order.rows))
        needed = np.zeros(dataset.rows_in, bool)
        needed[order.rows[start:end]] = True
        yield start, end, needed


def _tables(dataset: Dataset, order: Order, schema: pa.Schema, progress: Progress) -> Iterator[pa.Table]:
    for start, end, needed in _windows(dataset, order):
        held, numbers = [], []
        for batch in dataset.batches():
            assert isinstance(batch.records, pa.Table)
            mask = needed[batch.rows]
            held.append(batch.records.filter(pa.array(mask)).replace_schema_metadata(None))
            numbers.append(batch.rows[mask])
            progress(start, len(order.rows), "writing")
        present = np.concatenate(numbers)
        if not np.array_equal(present, np.flatnonzero(needed)):
            return  # the input changed, as below
        places = np.searchsorted(present, order.rows[start:end])
        table = pa.concat_tables(held).take(pa.array(places))
        table = table.drop_columns([name for name in table.column_names if name in order.left_out])
        yield pa.Table.from_arrays([*table.columns, *order.added.slice(start, end - start).columns], schema=schema)


def _rows(dataset: Dataset, order: Order, progress: Progress, label: str) -> Iterator[dict[str, Any]]:
    taken = order.added.column_names
    for start, end, needed in _windows(dataset, order):
        held = dict(_needed(dataset, needed, taken, order.left_out, progress, label))
        added = order.added.slice(start, end - start).to_pylist()
        for row, more in zip(order.rows[start:end].tolist(), added, strict=True):
            if row not in held:
                return  # the input changed: fewer rows are written than were asked for, which the stage notices
            yield {**held[row], **more}


def _needed(
    dataset: Dataset, needed: np.ndarray, taken: list[str], gone: tuple[str, ...], progress: Progress, label: str
) -> Iterator[tuple[int, dict[str, Any]]]:
    if dataset.one_layout:
        numbers = np.flatnonzero(needed).tolist()
        for number, row in zip(numbers, kept_rows(dataset, needed, progress, Rewritten.of(None), label), strict=False):
            yield number, {_free(name, taken): value for name, value in row.items() if name not in gone}
        return
    fields, out = ["record_id", *FIELDS[dataset.kind]], {"record_id", *gone}
    for number, record, extra, name in dataset.identified():
        if needed[number]:
            others = {_free(key, [*fields, *taken]): value for key, value in extra.items() if key not in out}
            yield number, {"record_id": name.hex(), **record, **others}
        if number % 1000 == 0:
            progress(number, len(needed), label)


def _free(name: str, taken: list[str]) -> str:
    while name in taken:
        name = f"source_{name}"
    return name
