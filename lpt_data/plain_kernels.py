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
from lpt_data.wide import WIDTH, high_mask, lowest

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
def _is_simple(data: np.ndarray, i: int, end: int) -> bool:
    """Whether a text is ASCII but for curly quotation marks and dashes, U+2013, 2014, 2018, 2019, 201C and 201D."""
    while i < end:
        if i + WIDTH <= end:
            high = high_mask(data, i)
            if high == 0:
                i += WIDTH
                continue
            i += lowest(high)
        elif data[i] < 128:
            i += 1
            continue
        if i + 3 > end or data[i] != 0xE2 or data[i + 1] != 0x80:
            return False
        if data[i + 2] not in (0x93, 0x94, 0x98, 0x99, 0x9C, 0x9D):
            return False
        i += 3
    return True


@njit(nogil=True, cache=True)
def _fold_text(
    data: np.ndarray, start: int, stop: int, table: np.ndarray, out: np.ndarray, begin: int, end: int
) -> int:
    """Write a text from ``end`` on, a blank for each run of blanks; no branch that a processor would have to guess."""
    blank = end == begin or out[end - 1] == BLANK
    for i in range(start, stop):
        new = table[data[i]]
        again = blank
        blank = new == BLANK
        out[end] = new
        end += not (blank and again)
    return end


@njit(nogil=True, cache=True)
def _fold_math(
    data: np.ndarray,
    start: int,
    stop: int,
    table: np.ndarray,
    classes: np.ndarray,
    out: np.ndarray,
    begin: int,
    end: int,
) -> int:
    """The same with the marks of numbers, and without blanks beside operators."""
    for i in range(start, stop):
        byte = data[i]
        new = int(table[byte])
        if byte in (_POINT, _HYPHEN, _COMMA):
            new = _marked(data, i, start, stop, classes, new)
            if new < 0:
                continue
        last = int(out[end - 1]) if end > begin else BLANK
        if new == BLANK:
            if last == BLANK or classes[last] & BARE:
                continue
        elif last == BLANK and end > begin and classes[new] & BARE:
            end -= 1
        out[end] = new
        end += 1
    return end


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

    Returns what is hashed, its cuts and lengths as `_framed` does, and which rows hold characters that `_is_simple`
    does not know and are left out: bool [n].
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
        for text in range(first[row], first[row + 1]):
            if not taken[text] or wide[row]:
                continue
            if end > begin and out[end - 1] != BLANK and not (math and classes[out[end - 1]] & BARE):
                out[end] = BLANK
                end += 1
            if not _is_simple(data, starts[text], ends[text]):
                wide[row] = True
            elif math:
                end = _fold_math(data, starts[text], ends[text], table, classes, out, begin, end)
            else:
                end = _fold_text(data, starts[text], ends[text], table, out, begin, end)
        end -= end > begin and out[end - 1] == BLANK
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
def ends_of(
    data: np.ndarray, starts: np.ndarray, ends: np.ndarray, words: int, seen: int, kept: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The first and the last words of each text, in lower case and with single blanks: uint8 [n, kept] twice.

    They are those of the first and last ``seen`` characters; of more than ``kept`` the first or last ones stay. NUL
    stands where there is none. Which texts hold NUL or other bytes than ASCII there and are left out: bool [n].
    """
    heads = np.zeros((len(starts), kept), np.uint8)
    tails = np.zeros((len(starts), kept), np.uint8)
    odd = np.zeros(len(starts), np.bool_)
    for row in range(len(starts)):
        start, end = starts[row], ends[row]
        for i in range(max(start, end - 4 * seen), end):  # of other bytes than ASCII, up to four are a character
            odd[row] |= data[i] >= 128 or data[i] == 0
        for i in range(start, min(start + 4 * seen, end)):
            odd[row] |= data[i] >= 128 or data[i] == 0
        if odd[row]:
            continue
        i, at, left = _past_spaces(data, start, min(start + seen, end)), 0, words
        while i < min(start + seen, end) and at < kept and left:
            blank = _is_space(data[i])
            heads[row, at] = 32 if blank else _lower(data[i])
            at += 1
            i = _past_spaces(data, i, min(start + seen, end)) if blank else i + 1
            left -= blank
        if at and heads[row, at - 1] == 32 and (not left or i >= min(start + seen, end)):
            heads[row, at - 1] = 0
        first = max(start, end - seen)
        i, at, left = end, kept, words
        while i > first and _is_space(data[i - 1]):
            i -= 1
        while i > first and at and left:
            blank = _is_space(data[i - 1])
            at -= 1
            tails[row, at] = 32 if blank else _lower(data[i - 1])
            i -= 1
            while blank and i > first and _is_space(data[i - 1]):
                i -= 1
            left -= blank
        if at < kept and tails[row, at] == 32 and (not left or i <= first):
            tails[row, at] = 0
    return heads, tails, odd


@njit(nogil=True, cache=True)
def _lower(byte: int) -> int:
    return byte | 32 if 65 <= byte <= 90 else byte


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
