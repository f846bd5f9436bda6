"""Record ids of texts that lie in Arrow buffers: those of `manifests.canon.text_ids`, without a Python string a row."""

from __future__ import annotations

import hashlib

import numpy as np
import pyarrow as pa
from numba import njit

from lpt_data.json_strings import escape, room_to_escape
from lpt_data.text import buffers
from lpt_data.wide import WIDTH
from manifests.canon import text_frame


def ids_of(texts: pa.Array) -> np.ndarray:
    """Return the ids of the text records of a text array without nulls, as uint8 [n, 32]."""
    before, after = (np.frombuffer(part, np.uint8) for part in text_frame())
    offsets, data = buffers(texts)
    written, ends = _canonical(offsets, data, before, after)
    view, sha256 = memoryview(written), hashlib.sha256
    cuts = ends.tolist()
    digests = [sha256(view[start:end]).digest() for start, end in zip(cuts, cuts[1:], strict=False)]
    return np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 32)


@njit(nogil=True, cache=True)
def _canonical(
    offsets: np.ndarray, data: np.ndarray, before: np.ndarray, after: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The bytes of each record that are hashed, one after the other, and where they begin: int64 [n + 1]."""
    rows = len(offsets) - 1
    room = room_to_escape(data, offsets[0], offsets[rows]) + rows * (len(before) + len(after)) + WIDTH
    out = np.empty(room, np.uint8)
    ends = np.zeros(rows + 1, np.int64)
    at = 0
    for row in range(rows):
        out[at : at + len(before)] = before
        at = escape(data, offsets[row], offsets[row + 1], out, at + len(before))
        out[at : at + len(after)] = after
        at += len(after)
        ends[row + 1] = at
    return out, ends
