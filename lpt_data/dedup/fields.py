"""What else a row says than the text that is compared: fields that must be equal as well, and a number to keep by."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any

import numpy as np
import pyarrow as pa
from numba import njit

from lpt_data.dataset import Dataset, TextBatch
from lpt_data.dedup.rows import Rows
from lpt_data.dedup.store import Growing
from lpt_data.text import fmix64, normal_form
from manifests.errors import BadInputError

_ONE = np.uint64(1)


def parts(key: str, dataset: Dataset) -> tuple[str, tuple[str, ...]]:
    """Split ``prompt+response`` into the key that is compared and the fields that must be equal as well."""
    if key in dataset.columns or "+" not in key:
        return key, ()
    first, *others = (part.strip() for part in key.split("+"))
    return first, tuple(others)


def groups(datasets: Sequence[Dataset], fields: tuple[str, ...]) -> list[np.ndarray]:
    """One number for each combination of values that some fields have, over all data sets: int64 [rows_in] of each.

    -1 for a row without one of the fields, which is then quarantined. Values are equal when they are after lower-casing
    and collapsing white space; what is compared are BLAKE2b digests of 128 bits, 16 bytes a row.
    """
    parts = [_digests(dataset, fields) for dataset in datasets]
    every = np.concatenate(parts)
    order = np.lexsort(every.T)
    new = np.zeros(len(order), bool)
    new[1:] = (every[order[1:]] != every[order[:-1]]).any(axis=1)
    numbers = np.empty(len(order), np.int64)
    numbers[order] = np.cumsum(new)
    numbers[~every.any(axis=1)] = -1
    return np.split(numbers, np.cumsum([len(part) for part in parts])[:-1])


def _digests(dataset: Dataset, fields: tuple[str, ...]) -> np.ndarray:
    """A digest of the fields of each row, uint64 [rows_in, 2]; zeros where one is missing."""
    before: np.ndarray | None = None
    for field in fields:
        rows, digests = Growing(np.int64), Growing(np.uint64, 2)
        for batch in dataset.texts(field):
            earlier = b"" if before is None else before[batch.rows].tobytes()
            texts = (normal_form(text).encode("utf-8", "surrogatepass") for text in batch.texts.to_pylist())
            packed = [blake2b(earlier[16 * i : 16 * i + 16] + text, digest_size=16) for i, text in enumerate(texts)]
            digests.add(np.frombuffer(b"".join(one.digest() for one in packed), np.uint64).reshape(-1, 2))
            rows.add(batch.rows)
        found = np.zeros((dataset.rows_in, 2), np.uint64)
        found[rows.done()] = digests.done()
        if before is not None:
            found[~before.any(axis=1)] = 0
        before = found
    assert before is not None
    return before


def with_group(batches: Iterable[TextBatch], group: np.ndarray) -> Iterator[TextBatch]:
    """The batches without the rows that have no group."""
    for batch in batches:
        has = group[batch.rows] >= 0
        if has.all():
            yield batch
        elif has.any():
            yield batch.chosen(has)


def same_text_other_fields(sequence: np.ndarray, group: np.ndarray, references: int) -> int:
    """How many rows, those of a reference left out, have the words of another row and other values in the fields."""
    _, text = np.unique(sequence, return_inverse=True)
    order = np.lexsort((group, text))
    new = np.concatenate([[True], (np.diff(text[order]) != 0) | (np.diff(group[order]) != 0)]) if len(order) else order
    groups = np.bincount(text[order], weights=new)
    return int(np.count_nonzero(groups[text[references:]] > 1))


def told_apart(rows: Rows) -> Rows:
    """The rows with hashes that make them meet others of their group alone."""
    assert rows.group is not None
    salt = _salt(rows.group)
    return replace(rows, sequence=rows.sequence ^ salt, salt=salt)


@njit(nogil=True, cache=True)
def _salt(group: np.ndarray) -> np.ndarray:
    salt = np.empty(len(group), np.uint64)
    for i in range(len(group)):
        salt[i] = fmix64(np.uint64(group[i]) + _ONE)
    return salt


def quality(dataset: Dataset, column: str) -> np.ndarray:
    """The number in a column, float64 [rows_in]; NaN where there is none. Text counts where it reads as a number.

    Raises BadInputError for a column that is not there and for a value that is no number.
    """
    if column not in dataset.columns:
        raise BadInputError(
            f"no column is called {column}",
            seen=f"columns: {', '.join(dataset.columns)}",
            next="--keep quality:COLUMN with one of them",
        )
    numbers = np.full(dataset.rows_in, np.nan)
    for batch in dataset.batches():
        records = batch.records
        if isinstance(records, pa.Table):
            values = records[column].to_pylist() if column in records.column_names else [None] * records.num_rows
        else:
            values = [record.get(column) for record in records]
        if all(type(value) is float for value in values):
            numbers[batch.rows] = values
            continue
        for row, line, value in zip(batch.rows.tolist(), batch.lines.tolist(), values, strict=True):
            numbers[row] = _number(value, column, f"{dataset.files[batch.file].path}:{line}")
    return numbers


def _number(value: Any, column: str, place: str) -> float:
    if value is None or value == "":
        return math.nan
    try:
        if isinstance(value, bool):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise BadInputError(
            f"the column {column} holds something that is no number",
            seen=f"{place}: {repr(value)[:80]}",
            next="--keep content, or a column of numbers; a row without a value may have null there and goes last",
        ) from None
