"""Record ids of texts that lie in Arrow buffers: those of `manifests.canon.text_ids`, without a Python string a row."""

from __future__ import annotations

import hashlib

import numpy as np
import pyarrow as pa
from numba import njit

from lpt_data import sha256_lanes
from lpt_data.json_strings import escape, room_to_escape
from lpt_data.sha256_lanes import BLOCK, pad
from lpt_data.text import buffers
from lpt_data.wide import WIDTH
from manifests.canon import text_frame


def ids_of(texts: pa.Array) -> np.ndarray:
    """Return the ids of the text records of a text array without nulls, as uint8 [n, 32]."""
    before, after = (np.frombuffer(part, np.uint8) for part in text_frame())
    offsets, data = buffers(texts)
    written, starts, lengths = _canonical(offsets, data, before, after)
    if sha256_lanes.worth_it():
        return sha256_lanes.digests(written, starts, sha256_lanes.START)
    view, sha256 = written.data, hashlib.sha256
    bounds = zip(starts.tolist(), (starts[:-1] + lengths).tolist(), strict=False)
    digests = [sha256(view[start:end]).digest() for start, end in bounds]
    return np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 32)


@njit(nogil=True, cache=True)
def _canonical(
    offsets: np.ndarray, data: np.ndarray, before: np.ndarray, after: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The bytes of each record that are hashed, padded for the hash, one after the other; where they begin, int64
    [n + 1], and how long they are without the padding, int64 [n].
    """
    rows = len(offsets) - 1
    frame = len(before) + len(after)
    out = np.empty(room_to_escape(data, offsets[0], offsets[rows]) + rows * (frame + 2 * BLOCK) + WIDTH, np.uint8)
    starts = np.zeros(rows + 1, np.int64)
    lengths = np.zeros(rows, np.int64)
    at = 0
    for row in range(rows):
        out[at : at + len(before)] = before
        end = escape(data, offsets[row], offsets[row + 1], out, at + len(before))
        out[end : end + len(after)] = after
        lengths[row] = end + len(after) - at
        at = pad(out, at, lengths[row])
        starts[row + 1] = at
    return out, starts, lengths
