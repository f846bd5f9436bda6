"""Texts that are not held: where they lie in an uncompressed file as JSON strings, and how to read them again.

Twelve bytes a text instead of its own. The bytes are read anew into an array and never mapped, since mapped pages count
as memory of the process. A file that is no longer the one that was first read is refused by its mark, since other bytes
may be strings as well; whatever stands there is checked before it is taken for a string.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np

from lpt_data.io.chunks import Spans
from lpt_data.io.sources import BYTE_ORDER_MARK, cannot_read, input_changed, mark_of
from lpt_data.json_strings import unescape
from lpt_data.wide import WIDTH

_GAP = 1 << 13  # bytes that are read along rather than called for anew: copying them takes as long as a system call
_LOAD = 2 << 20  # bytes of the file, twice which are held at a time where no text has more: rows may be all gaps
_AROUND = 1 << 9  # bytes before and behind a string that are looked at first for the ends of its line


def read_again(spans: Spans) -> tuple[np.ndarray, np.ndarray]:
    """Return the texts, which ascend, as offsets (int64 [n + 1]) and UTF-8 bytes; InputChangedError where the file is
    another by now.
    """
    starts, ends = spans.starts, spans.starts + spans.sizes
    firsts, lasts = _runs(starts, ends)
    begins, stops = starts[firsts], ends[lasts - 1] + 1  # with the mark that ends the string
    sums = np.cumsum(stops - begins)
    loads = np.flatnonzero(np.diff(sums // _LOAD)) + 1  # runs that are held together
    bounds = [0, *loads.tolist(), len(firsts)]
    at = np.append(0, sums)
    data = np.empty(int(np.diff(at[bounds]).max()), np.uint8)
    offsets = np.empty(len(starts) + 1, np.int64)
    out = np.empty(int(spans.sizes.sum(dtype=np.int64)) + WIDTH, np.uint8)
    used = 0
    try:
        handle = os.open(spans.path, os.O_RDONLY)
        try:
            for low, high in zip(bounds[:-1], bounds[1:], strict=True):
                runs, texts = slice(low, high), slice(int(firsts[low]), int(lasts[high - 1]))
                places = at[low:high] - at[low]
                for begin, size, place in zip(
                    begins[runs].tolist(), (stops - begins)[runs].tolist(), places.tolist(), strict=True
                ):
                    _fill(handle, data[place : place + size].data, begin, spans.path)
                moved = np.repeat(places - begins[runs], (lasts - firsts)[runs])
                into = offsets[texts.start : texts.stop + 1]
                more = unescape(data, starts[texts] + moved, ends[texts] + moved, into, out[used:])
                if more < 0:
                    raise input_changed(spans.path)
                into += used
                used += more
            _check(handle, spans)  # after the last byte: whatever changed before shows
        finally:
            os.close(handle)
    except OSError as error:
        raise cannot_read(spans.path, error) from error
    return offsets, out[:used]


def lines_around(spans: Spans) -> Iterator[bytes]:
    """Yield the line that each string lies in, without its ending; the strings ascend, one or none a line.
    InputChangedError where the file is another by now, after the last line at the latest.
    """
    starts, ends = spans.starts, spans.starts + spans.sizes
    try:
        handle = os.open(spans.path, os.O_RDONLY)
        try:
            _check(handle, spans)  # in another file the ends of a line may be anywhere
            for first, last in zip(*(cut.tolist() for cut in _runs(starts, ends)), strict=True):
                low = max(0, int(starts[first]) - _AROUND)
                data = os.pread(handle, int(ends[last - 1]) + _AROUND - low, low)
                for start, end in zip(starts[first:last].tolist(), ends[first:last].tolist(), strict=True):
                    before, behind = data.rfind(b"\n", 0, start - low), data.find(b"\n", end - low)
                    if before < 0 or behind < 0:
                        yield _line(handle, start, end, spans.path)
                    else:
                        yield data[before + 1 : behind].removesuffix(b"\r")
            _check(handle, spans)
        finally:
            os.close(handle)
    except OSError as error:
        raise cannot_read(spans.path, error) from error


def _check(handle: int, spans: Spans) -> None:
    if mark_of(os.fstat(handle)) != spans.mark:
        raise input_changed(spans.path)


def _line(handle: int, start: int, end: int, path: str) -> bytes:
    """The line around one string, whose ends are looked for a piece at a time; a mark of the encoding that the first
    line may begin with is no part of it.
    """
    first, found, size = start, -1, _AROUND
    while first and found < 0:
        size = min(2 * size, first, _LOAD)
        piece = os.pread(handle, size, first - size)
        if len(piece) < size:
            raise input_changed(path)
        found = piece.rfind(b"\n")
        first += found + 1 - size if found >= 0 else -size
    last, found, size = end, -1, _AROUND
    while found < 0 and (piece := os.pread(handle, size, last)):
        found = piece.find(b"\n")
        last, size = last + (found if found >= 0 else len(piece)), min(2 * size, _LOAD)
    line = os.pread(handle, last - first, first)
    return (line if first else line.removeprefix(BYTE_ORDER_MARK)).removesuffix(b"\r")


def _runs(starts: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The first string of each run that one call reads, and one past the last."""
    assert (starts[1:] >= ends[:-1]).all()
    apart = (starts[1:] - ends[:-1] > _GAP) | (starts[1:] // _LOAD != starts[:-1] // _LOAD)
    cuts = np.flatnonzero(apart) + 1
    return np.append(0, cuts), np.append(cuts, len(starts))


def _fill(handle: int, room: memoryview, begin: int, path: str) -> None:
    """Read the bytes of a file from ``begin`` on until the room is full; a call may bring fewer than asked for."""
    while room:
        done = os.preadv(handle, [room], begin)
        if not done:
            raise input_changed(path)
        room, begin = room[done:], begin + done
