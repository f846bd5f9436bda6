"""Kernels on texts that lie in one buffer, each from `starts` to `ends`, those of a row one after the other.

Row r has the texts ``first[r] : first[r + 1]``. What is hashed is written with its padding (`lpt_data.sha256_lanes`),
so that the lanes can work on it at once.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numba import njit

from lpt_data import sha256_lanes
from lpt_data.folding import BARE, BLANK, DIGIT, LETTER
from lpt_data.json_strings import _copy, escape, room_to_escape
from lpt_data.sha256_lanes import BLOCK, pad
from lpt_data.wide import WIDTH

_POINT, _HYPHEN, _COMMA = 46, 45, 44
_HEAD = 64  # bytes of two texts that are compared


def hashed(written: np.ndarray, cuts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The SHA-256 of padded messages, uint8 [n, 32]."""
    if sha256_lanes.worth_it():
        return sha256_lanes.digests(written, cuts, sha256_lanes.START)
    view, sha256 = written.data, hashlib.sha256
    bounds = zip(cuts.tolist(), (cuts[:-1] + lengths).tolist(), strict=False)
    digests = [sha256(view[start:end]).digest() for start, end in bounds]
    return np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 32)


def digests_of(data: np.ndarray, starts: np.ndarray, ends: np.ndarray, before: bytes = b"") -> np.ndarray:
    """The SHA-256 of stretches of a buffer with the same bytes before each, uint8 [n, 32]."""
    return hashed(*_framed(data, starts, ends, np.frombuffer(before, np.uint8)))


@njit(nogil=True, cache=True)
def _framed(
    data: np.ndarray, starts: np.ndarray, ends: np.ndarray, before: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rows = len(starts)
    out = np.empty((ends - starts).sum() + rows * (len(before) + 2 * BLOCK) + WIDTH, np.uint8)
    cuts = np.zeros(rows + 1, np.int64)
    lengths = np.zeros(rows, np.int64)
    at = 0
    for row in range(rows):
        out[at : at + len(before)] = before
        end = _copy(data, starts[row], ends[row], out, at + len(before))
        lengths[row] = end - at
        at = pad(out, at, lengths[row])
        cuts[row + 1] = at
    return out, cuts, lengths


@njit(nogil=True, cache=True)
def written(
    data: np.ndarray,
    starts: np.ndarray,
    ends: np.ndarray,
    first: np.ndarray,
    shape: np.ndarray,
    piece_of: np.ndarray,
    pieces: np.ndarray,
    piece_bounds: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows as JSON: the pieces of a row's shape with its texts, escaped, between them.

    Shape s begins at piece ``piece_of[s]``. Returns the bytes, the bounds of the rows, int64 [n + 1], and where in them
    the inside of each text begins, int64 [m].
    """
    room = WIDTH
    for row in range(len(first) - 1):
        piece = piece_of[shape[row]]
        room += piece_bounds[piece + first[row + 1] - first[row] + 1] - piece_bounds[piece]
        for text in range(first[row], first[row + 1]):
            room += room_to_escape(data, starts[text], ends[text])
    out = np.empty(room, np.uint8)
    bounds = np.zeros(len(first), np.int64)
    inside = np.zeros(len(starts), np.int64)
    at = 0
    for row in range(len(first) - 1):
        piece = piece_of[shape[row]]
        for text in range(first[row], first[row + 1]):
            size = piece_bounds[piece + 1] - piece_bounds[piece]
            out[at : at + size] = pieces[piece_bounds[piece] : piece_bounds[piece + 1]]
            at += size
            piece += 1
            inside[text] = at
            at = escape(data, starts[text], ends[text], out, at)
        size = piece_bounds[piece + 1] - piece_bounds[piece]
        out[at : at + size] = pieces[piece_bounds[piece] : piece_bounds[piece + 1]]
        at += size
        bounds[row + 1] = at
    return out[:at], bounds, inside


@njit(nogil=True, cache=True)
def _class(data: np.ndarray, i: int, start: int, end: int, classes: np.ndarray) -> int:
    return classes[data[i]] if start <= i < end else 0


@njit(nogil=True, cache=True)
def _marked(data: np.ndarray, i: int, start: int, end: int, classes: np.ndarray, blank: int) -> int:
    """What a point, hyphen or comma at ``i`` becomes, as in `lpt_data.folding`; -1 where it goes without a blank."""
    before, after = _class(data, i - 1, start, end, classes), _class(data, i + 1, start, end, classes)
    if data[i] == _POINT:
        return _POINT if before & after & DIGIT else BLANK
    if data[i] == _HYPHEN:
        return BLANK if before & after & LETTER else _HYPHEN
    second, third = _class(data, i + 2, start, end, classes), _class(data, i + 3, start, end, classes)
    thousands = before & after & second & third & DIGIT
    return -1 if thousands and not _class(data, i + 4, start, end, classes) & DIGIT else blank


@njit(nogil=True, cache=True)
def folded(
    data: np.ndarray,
    starts: np.ndarray,
    ends: np.ndarray,
    first: np.ndarray,
    taken: np.ndarray,
    table: np.ndarray,
    classes: np.ndarray,
    math: bool,
    before: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The taken texts of each row (bool [m]) folded as `lpt_data.folding` does, a line feed between two.

    Returns what is hashed, its cuts and lengths as `_framed` does, and which rows hold other bytes than ASCII and are
    left out: bool [n].
    """
    rows = len(first) - 1
    out = np.empty((ends - starts).sum() + len(starts) + rows * (len(before) + 2 * BLOCK) + WIDTH, np.uint8)
    cuts = np.zeros(rows + 1, np.int64)
    lengths = np.zeros(rows, np.int64)
    wide = np.zeros(rows, np.bool_)
    at = 0
    for row in range(rows):
        out[at : at + len(before)] = before
        begin = at + len(before)
        end = begin
        pending = False
        for text in range(first[row], first[row + 1]):
            if not taken[text] or wide[row]:
                continue
            pending = True
            for i in range(starts[text], ends[text]):
                byte = data[i]
                if byte >= 128:
                    wide[row] = True
                    break
                new = int(table[byte])
                if math and (byte in (_POINT, _HYPHEN, _COMMA)):
                    new = _marked(data, i, starts[text], ends[text], classes, new)
                    if new < 0:
                        continue
                if new == BLANK:
                    pending = True
                    continue
                if pending:
                    pending = False
                    if end > begin and not (classes[out[end - 1]] | classes[new]) & BARE:
                        out[end] = BLANK
                        end += 1
                out[end] = new
                end += 1
        lengths[row] = end - at
        at = pad(out, at, lengths[row])
        cuts[row + 1] = at
    return out, cuts, lengths, wide


@njit(nogil=True, cache=True)
def characters(data: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """The characters of each text, int64 [m]."""
    counts = np.zeros(len(starts), np.int64)
    for text in range(len(starts)):
        count = 0
        for i in range(starts[text], ends[text]):
            count += data[i] & 0xC0 != 0x80
        counts[text] = count
    return counts


@njit(nogil=True, cache=True)
def _is_space(byte: int) -> bool:
    return byte == 32 or 9 <= byte <= 13 or 28 <= byte <= 31


@njit(nogil=True, cache=True)
def _past_spaces(data: np.ndarray, i: int, end: int) -> int:
    while i < end and _is_space(data[i]):
        i += 1
    return i


@njit(nogil=True, cache=True)
def begin_differently(
    data: np.ndarray, starts: np.ndarray, ends: np.ndarray, others: np.ndarray, other_ends: np.ndarray
) -> np.ndarray:
    """Whether the visible ASCII characters at the start of two texts tell that neither begins the other, bool [n]."""
    found = np.zeros(len(starts), np.bool_)
    for row in range(len(starts)):
        i, j = starts[row], others[row]
        for _ in range(_HEAD):
            i, j = _past_spaces(data, i, ends[row]), _past_spaces(data, j, other_ends[row])
            if i >= ends[row] or j >= other_ends[row] or data[i] >= 127 or data[j] >= 127:
                break
            if data[i] != data[j]:
                found[row] = data[i] > 32 and data[j] > 32
                break
            i += 1
            j += 1
    return found


@njit(nogil=True, cache=True)
def _word(byte: int) -> bool:
    return 48 <= byte <= 57 or 65 <= byte <= 90 or 97 <= byte <= 122 or byte == 95


@njit(nogil=True, cache=True)
def _digit(data: np.ndarray, i: int, start: int, end: int) -> bool:
    return start <= i < end and 48 <= data[i] <= 57


@njit(nogil=True, cache=True)
def _alone(data: np.ndarray, i: int, j: int, start: int, end: int) -> bool:
    """Whether ``data[i:j]`` stands in a text as no part of a word or number of ASCII."""
    if i > start:
        before = data[i - 1]
        if _word(before) or (before in (44, 45, 46) and _digit(data, i - 2, start, end)):
            return False
    if j < end:
        after = data[j]
        return not (_word(after) or (after in (44, 46, 47) and _digit(data, j + 1, start, end)))
    return True


@njit(nogil=True, cache=True)
def _holds(data: np.ndarray, start: int, end: int, a: int, b: int) -> bool:
    for i in range(start, end - (b - a) + 1):
        if data[i] != data[a]:
            continue
        same = 1
        while same < b - a and data[i + same] == data[a + same]:
            same += 1
        if same == b - a and _alone(data, i, i + same, start, end):
            return True
    return False


@njit(nogil=True, cache=True)
def may_hold(
    data: np.ndarray, starts: np.ndarray, ends: np.ndarray, first: np.ndarray, searched: np.ndarray, sought: np.ndarray
) -> np.ndarray:
    """Whether a searched text of a row (bool [m]) may hold the row's sought text (int64 [n]) as a word of its own.

    Blanks around what is sought and points behind it are left out; what begins like JSON is in no text.
    """
    rows = len(first) - 1
    found = np.zeros(rows, np.bool_)
    for row in range(rows):
        a, b = _past_spaces(data, starts[sought[row]], ends[sought[row]]), ends[sought[row]]
        while b > a and _is_space(data[b - 1]):
            b -= 1
        if b > a and (data[a] >= 127 or data[b - 1] >= 127):
            found[row] = True
            continue
        while b > a and data[b - 1] == _POINT:
            b -= 1
        if b == a or data[a] == 91 or data[a] == 123:
            continue
        for text in range(first[row], first[row + 1]):
            if searched[text] and _holds(data, starts[text], ends[text], a, b):
                found[row] = True
    return found
