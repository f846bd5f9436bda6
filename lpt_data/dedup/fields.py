"""What else a row says than the text that is compared: fields that must be equal as well, and a number to keep by."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash
from numba import njit

from lpt_data.dataset import Dataset, TextBatch
from lpt_data.dedup.rows import Rows
from lpt_data.text import fmix64, normal_form
from manifests.errors import BadInputError

_ONE = np.uint64(1)


def parts(key: str, dataset: Dataset) -> tuple[str, tuple[str, ...]]:
    """Split ``prompt+response`` into the key that is compared and the fields that must be equal as well."""
    if key in dataset.columns or "+" not in key:
        return key, ()
    first, *others = (part.strip() for part in key.split("+"))
    return first, tuple(others)


class Groups:
    """One number for each combination of values that some fields have, the same in every data set that is asked."""

    def __init__(self, fields: tuple[str, ...]) -> None:
        self._fields = fields
        self._known: dict[tuple[int, bytes], int] = {}

    def of(self, dataset: Dataset) -> np.ndarray:
        """The group of each row, int64 [rows_in], -1 for a row without one of the fields, which is then quarantined.

        Values are equal when they are after lower-casing and collapsing white space.
        """
        group: np.ndarray | None = None
        for field in self._fields:
            rows, numbers = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
            for batch in dataset.texts(field):
                before = np.zeros(len(batch.rows), np.int64) if group is None else group[batch.rows]
                rows.append(batch.rows)
                numbers.append(self._number(before.tolist(), batch.texts.to_pylist()))
            found = np.full(dataset.rows_in, -1, np.int64)
            found[np.concatenate(rows)] = np.concatenate(numbers)
            group = found if group is None else np.where(group < 0, -1, found)
        assert group is not None
        return group

    def _number(self, before: list[int], texts: list[str]) -> np.ndarray:
        known = self._known
        numbers = []
        for earlier, text in zip(before, texts, strict=True):
            value = (earlier, xxhash.xxh3_128_digest(normal_form(text).encode()))
            numbers.append(-1 if earlier < 0 else known.setdefault(value, len(known) + 1))
        return np.array(numbers, np.int64)


def with_group(batches: Iterable[TextBatch], group: np.ndarray) -> Iterator[TextBatch]:
    """The batches without the rows that have no group."""
    for batch in batches:
        has = group[batch.rows] >= 0
        if has.all():
            yield batch
        elif has.any():
            yield TextBatch(batch.rows[has], batch.texts.filter(pa.array(has)), batch.ids[has])


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
