"""Texts that are not held: where they lie in an uncompressed file as JSON strings, and how to read them again.

Twelve bytes a text instead of its own. The bytes are read anew into an array and never mapped, since mapped pages count
as memory of the process; whatever stands there by then is checked before it is taken for a string.
"""

from __future__ import annotations

import os

import numpy as np

from lpt_data.io.chunks import Spans
from lpt_data.io.sources import cannot_read, input_changed
from lpt_data.json_strings import unescape
from lpt_data.wide import WIDTH

_GAP = 1 << 13  # bytes that are read along rather than called for anew: copying them takes as long as a system call


def read_again(spans: Spans) -> tuple[np.ndarray, np.ndarray]:
    """Return the texts as offsets (int64 [n + 1]) and UTF-8 bytes; BadInputError where the file has changed."""
    starts, ends = spans.starts, spans.starts + spans.sizes
    cuts = np.flatnonzero(starts[1:] - ends[:-1] > _GAP) + 1
    firsts, lasts = np.append(0, cuts), np.append(cuts, len(starts))
    begins, stops = starts[firsts], ends[lasts - 1] + 1  # with the mark that ends the string
    at = np.append(0, np.cumsum(stops - begins))
    data = np.empty(int(at[-1]), np.uint8)
    try:
        handle = os.open(spans.path, os.O_RDONLY)
        try:
            for begin, start, end in zip(begins.tolist(), at[:-1].tolist(), at[1:].tolist(), strict=True):
                if os.preadv(handle, [data[start:end].data], begin) != end - start:
                    raise input_changed(spans.path)
        finally:
            os.close(handle)
    except OSError as error:
        raise cannot_read(spans.path, error) from error
    moved = np.repeat(at[:-1] - begins, lasts - firsts)
    offsets = np.empty(len(starts) + 1, np.int64)
    out = np.empty(int(spans.sizes.sum(dtype=np.int64)) + WIDTH, np.uint8)
    used = unescape(data, starts + moved, ends + moved, offsets, out)
    if used < 0:
        raise input_changed(spans.path)
    return offsets, out[:used]
