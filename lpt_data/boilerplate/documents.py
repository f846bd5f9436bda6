"""The documents of the stage in memory: one buffer of UTF-8, and the order in which they may keep what they share.

A byte of 0xFF, which is in no UTF-8, stands before, between and behind the documents, so that a comparison of two
passages ends there by itself. Bytes held: the text + 1, and 72 a document.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numba import njit

from lpt_data.dataset import Dataset
from lpt_data.dedup.witness import total_order
from lpt_data.text import buffers
from lpt_data.twins import ties
from manifests.errors import BadInputError

BETWEEN = 0xFF
BESIDE_TEXT = 73  # bytes a document: row, id, start, end, characters, place in the order, and the byte between


@dataclass(frozen=True)
class Documents:
    """Documents 0..n-1 in the order of the input; ``data`` may be written to by who cuts in place."""

    data: np.ndarray  # uint8 [bytes]
    starts: np.ndarray  # int64 [n]: where a document lies in ``data`` ...
    ends: np.ndarray  # int64 [n]: ... up to here
    rows: np.ndarray  # int64 [n]: row in the input
    ids: np.ndarray  # uint8 [n, 32]
    chars: np.ndarray  # int64 [n]: characters
    order: np.ndarray  # int64 [n]: documents, first the one that keeps what it shares: longest, then smallest id

    def text(self, document: int) -> str:
        """The text of one document as it is in ``data`` now."""
        return decoded(self.data, self.starts[document], self.ends[document])


def read(
    dataset: Dataset, *, memory: int | None = None, beside: float = 0.0, progress: Callable[[int], None]
) -> Documents:
    """Read all texts; BadInputError when they, and ``beside`` more bytes for each of theirs, exceed ``memory``."""
    held, starts, ends = bytearray([BETWEEN]), [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    rows, ids, count = [np.zeros(0, np.int64)], [np.zeros((0, 32), np.uint8)], 0
    for batch in dataset.texts("text"):
        offsets, data = buffers(batch.texts)
        sizes = np.diff(offsets)
        first = len(held) + np.arange(len(sizes)) + (offsets[:-1] - offsets[0])
        starts.append(first)
        ends.append(first + sizes)
        rows.append(batch.rows)
        ids.append(batch.ids)
        held.extend(_spaced(data, offsets).data)
        count += len(sizes)
        _check_room(int(len(held) * (1 + beside)) + BESIDE_TEXT * count, count, memory)
        progress(count)
    data = np.frombuffer(held, np.uint8)
    begin, end = np.concatenate(starts), np.concatenate(ends)
    row, name = np.concatenate(rows), np.concatenate(ids)
    chars = characters(data, begin, end)
    order = total_order("content", chars, name, ties(dataset, row, name), row)
    return Documents(data, begin, end, row, name, chars, order)


def _check_room(used: int, rows: int, memory: int | None) -> None:
    if memory is not None and used > memory:
        raise BadInputError(
            "the documents do not fit in the memory that was given",
            seen=f"{used:,} of {memory:,} bytes after {rows:,} rows",
            next="a larger --memory, or one source at a time",
        )


def decoded(data: np.ndarray, start: int, end: int) -> str:
    """A stretch of UTF-8 as text."""
    return data[start:end].tobytes().decode("utf-8", "replace")


@njit(nogil=True, cache=True)
def _spaced(data: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """The texts of Arrow buffers with BETWEEN behind each."""
    out = np.empty(offsets[-1] - offsets[0] + len(offsets) - 1, np.uint8)
    at = 0
    for i in range(len(offsets) - 1):
        size = offsets[i + 1] - offsets[i]
        out[at : at + size] = data[offsets[i] : offsets[i + 1]]
        out[at + size] = BETWEEN
        at += size + 1
    return out


@njit(nogil=True, cache=True)
def characters(data: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """How many characters lie in each stretch of UTF-8: int64 [n]."""
    found = np.zeros(len(starts), np.int64)
    for i in range(len(starts)):
        for at in range(starts[i], ends[i]):
            found[i] += (data[at] & 0xC0) != 0x80
    return found
