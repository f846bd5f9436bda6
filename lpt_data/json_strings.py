"""JSON strings and the texts they stand for, as kernels on bytes: strict, and equal to what orjson reads and writes.

`string_end` and `valid_utf8` say whether a string may be taken as it stands; what they refuse, a JSON parser names. The
tests hold both directions against orjson.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from lpt_data.wide import WIDTH, copy64, high_mask, lowest, special_mask

_U1 = np.uint64(1)
_QUOTE, _BACKSLASH, _SLASH = 0x22, 0x5C, 0x2F
_LETTERS = np.frombuffer(b"btnvfr", np.uint8)  # of the bytes 8 to 13; JSON has no \v
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
LONGEST_ESCAPE = 6  # bytes that one byte of text may become


@njit(nogil=True, cache=True)
def _next_special(data: np.ndarray, i: int, end: int) -> int:
    """The first quotation mark, backslash or control character from ``i`` on, or ``end``."""
    while i + WIDTH <= len(data) and i < end:
        mask = special_mask(data, i)
        if mask:
            return min(i + lowest(mask), end)
        i += WIDTH
    while i < end and data[i] >= 0x20 and data[i] != _QUOTE and data[i] != _BACKSLASH:
        i += 1
    return min(i, end)


@njit(nogil=True, cache=True)
def _hex4(data: np.ndarray, i: int, end: int) -> int:
    """The number that four hexadecimal digits say, or -1."""
    if i + 4 > end:
        return -1
    value = 0
    for k in range(i, i + 4):
        digit = int(data[k])
        if 48 <= digit <= 57:
            digit -= 48
        elif 65 <= digit <= 70:
            digit -= 55
        elif 97 <= digit <= 102:
            digit -= 87
        else:
            return -1
        value = (value << 4) | digit
    return value


@njit(nogil=True, cache=True)
def _unicode_escape(data: np.ndarray, i: int, end: int) -> tuple[int, int]:
    """The code point of the escape whose backslash is at ``i`` and the index after it; -1 for one that is none."""
    code = _hex4(data, i + 2, end)
    if code < 0xD800 or code > 0xDFFF:
        return code, i + 6
    if code > 0xDBFF or i + 12 > end or data[i + 6] != _BACKSLASH or data[i + 7] != 117:
        return -1, i
    low = _hex4(data, i + 8, end)
    if low < 0xDC00 or low > 0xDFFF:
        return -1, i
    return 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00), i + 12


@njit(nogil=True, cache=True)
def _plain_escape(letter: int) -> int:
    """The byte that a backslash and this letter stand for, or -1."""
    if letter in (_QUOTE, _BACKSLASH, _SLASH):
        return letter
    if letter == 110:
        return 10
    if letter == 116:
        return 9
    if letter == 114:
        return 13
    if letter == 98:
        return 8
    return 12 if letter == 102 else -1


@njit(nogil=True, cache=True)
def string_end(data: np.ndarray, i: int, end: int) -> int:
    """The index of the quotation mark that closes a string whose first byte is at ``i``; -1 for no string of JSON.

    Whether its bytes are UTF-8 is not looked at.
    """
    while True:
        i = _next_special(data, i, end)
        if i + 1 >= end and (i >= end or data[i] != _QUOTE):
            return -1
        if data[i] == _QUOTE:
            return i
        if data[i] != _BACKSLASH:
            return -1
        if data[i + 1] == 117:
            code, i = _unicode_escape(data, i, end)
            if code < 0:
                return -1
        elif _plain_escape(data[i + 1]) < 0:
            return -1
        else:
            i += 2


@njit(nogil=True, cache=True)
def valid_utf8(data: np.ndarray, i: int, end: int) -> bool:
    """Whether ``data[i:end]`` is UTF-8 as Python reads it: no overlong form, no surrogate, nothing above U+10FFFF."""
    while i < end:
        if i + WIDTH <= len(data):
            mask = high_mask(data, i)
            if mask == 0:  # a guess for the processor, where adding `lowest` would have it wait
                i += WIDTH
                continue
            i += lowest(mask)
            if i >= end:
                break
        elif data[i] < 0x80:
            i += 1
            continue
        lead = data[i]
        if lead < 0xC2 or lead > 0xF4:
            return False
        extra = 1 if lead < 0xE0 else (2 if lead < 0xF0 else 3)
        if i + extra >= end:
            return False
        second = data[i + 1]
        least = 0xA0 if lead == 0xE0 else (0x90 if lead == 0xF0 else 0x80)
        most = 0x9F if lead == 0xED else (0x8F if lead == 0xF4 else 0xBF)
        if second < least or second > most:
            return False
        for k in range(i + 2, i + extra + 1):
            if data[k] & 0xC0 != 0x80:
                return False
        i += extra + 1
    return True


@njit(nogil=True, cache=True)
def _write_utf8(code: int, out: np.ndarray, at: int) -> int:
    if code < 0x80:
        out[at] = code
        return at + 1
    if code < 0x800:
        out[at] = 0xC0 | (code >> 6)
        out[at + 1] = 0x80 | (code & 0x3F)
        return at + 2
    if code < 0x10000:
        out[at] = 0xE0 | (code >> 12)
        out[at + 1] = 0x80 | ((code >> 6) & 0x3F)
        out[at + 2] = 0x80 | (code & 0x3F)
        return at + 3
    out[at] = 0xF0 | (code >> 18)
    out[at + 1] = 0x80 | ((code >> 12) & 0x3F)
    out[at + 2] = 0x80 | ((code >> 6) & 0x3F)
    out[at + 3] = 0x80 | (code & 0x3F)
    return at + 4


@njit(nogil=True, cache=True)
def _copy(data: np.ndarray, i: int, end: int, out: np.ndarray, at: int) -> int:
    """Copy ``data[i:end]`` to ``out[at:]``, which has 64 bytes to spare; returns the end of the copy."""
    while i + WIDTH <= len(data) and i < end:
        copy64(data, i, out, at)
        run = min(WIDTH, end - i)
        i += run
        at += run
    while i < end:
        out[at] = data[i]
        i += 1
        at += 1
    return at


@njit(nogil=True, cache=True)
def unescape(data: np.ndarray, starts: np.ndarray, ends: np.ndarray, offsets: np.ndarray, out: np.ndarray) -> int:
    """Write the texts of strings that `string_end` took, without their quotation marks, one after the other.

    ``offsets`` [n + 1] receives where each begins; ``out`` has 64 bytes more than all strings. Returns the end; -1 for
    what is no string of JSON, nor followed by a quotation mark.
    """
    at = 0
    for row in range(len(starts)):
        offsets[row] = at
        i = starts[row]
        end = ends[row]
        if data[end] != _QUOTE:
            return -1
        while True:
            escape = _next_special(data, i, end)
            at = _copy(data, i, escape, out, at)
            if escape >= end:
                break
            if data[escape] != _BACKSLASH:
                return -1
            if data[escape + 1] == 117:
                code, i = _unicode_escape(data, escape, end)
                if code < 0:
                    return -1
                at = _write_utf8(code, out, at)
            else:
                code = _plain_escape(data[escape + 1])
                if code < 0:
                    return -1
                out[at] = code
                at += 1
                i = escape + 2
            if i > end:
                return -1
    offsets[len(starts)] = at
    return at


@njit(nogil=True, cache=True)
def room_to_escape(data: np.ndarray, start: int, end: int) -> int:
    """Bytes that suffice for ``data[start:end]`` as part of JSON strings."""
    more = 0
    i = _next_special(data, start, end)
    while i < end:
        more += LONGEST_ESCAPE - 1
        i = _next_special(data, i + 1, end)
    return end - start + more


@njit(nogil=True, cache=True)
def escape(data: np.ndarray, i: int, end: int, out: np.ndarray, at: int) -> int:
    """Write the text ``data[i:end]`` as the inside of a JSON string to ``out[at:]``; returns where it ends."""
    while True:
        special = _next_special(data, i, end)
        at = _copy(data, i, special, out, at)
        if special >= end:
            return at
        byte = data[special]
        out[at] = _BACKSLASH
        if byte in (_QUOTE, _BACKSLASH):
            out[at + 1] = byte
            at += 2
        elif 8 <= byte <= 13 and byte != 11:
            out[at + 1] = _LETTERS[byte - 8]
            at += 2
        else:
            out[at + 1] = 117
            out[at + 2] = 48
            out[at + 3] = 48
            out[at + 4] = _HEX[byte >> 4]
            out[at + 5] = _HEX[byte & 15]
            at += 6
        i = special + 1
