"""Rows of one record that differ beside it: an order among them that does not hang on the order of the files."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import orjson
import pyarrow as pa
import xxhash

from lpt_data.dataset import Dataset
from lpt_data.dedup.lsh import repeated
from lpt_data.io.jsonl import chosen_lines
from manifests.arrow import plain_rows

Lines = Callable[[np.ndarray], Iterator[bytes] | None]


def ties(dataset: Dataset, rows: np.ndarray, ids: np.ndarray, lines: Lines = lambda places: None) -> np.ndarray:
    """A hash of the whole row as written, uint64 [n], where several of the rows have one record id, else 0.

    `rows` (int64 [n], ascending) are places in the input and `ids` (uint8 [n, 32]) their record ids. `lines` gives the
    lines of some of them (ascending places among `rows`) if it can; else the input is read once more where there is
    such a pair.
    """
    tie = np.zeros(len(rows), np.uint64)
    twins = repeated(np.ascontiguousarray(ids[:, :8]).view(np.uint64)[:, 0])
    if not len(twins):
        return tie
    if (found := lines(twins)) is not None:
        tie[twins] = np.fromiter(map(xxhash.xxh3_64_intdigest, found), np.uint64)  # to its end, where it is checked
        return tie
    wanted = np.zeros(dataset.rows_in, bool)
    wanted[rows[twins]] = True
    for places, written in _as_written(dataset, wanted):
        tie[np.searchsorted(rows, places)] = [xxhash.xxh3_64_intdigest(line) for line in written]
    return tie


def _as_written(dataset: Dataset, wanted: np.ndarray) -> Iterator[tuple[np.ndarray, list[bytes]]]:
    """The wanted rows with their bytes: their very lines where all files are JSONL, not parsed again, else JSON."""
    if all(source.format == "jsonl" for source in dataset.files):
        for first, source in zip(dataset.first_rows, dataset.files, strict=True):
            yield from chosen_lines(source, wanted, first)
        return
    for batch in dataset.batches():
        places = np.flatnonzero(wanted[batch.rows])
        records = batch.records
        chosen = plain_rows(records.take(places)) if isinstance(records, pa.Table) else [records[i] for i in places]
        yield batch.rows[places], [orjson.dumps(record, default=str) for record in chosen]
