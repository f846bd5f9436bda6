"""Which rewriting rules can find anything in a text: one fast pass over its bytes that spares most texts most rules."""

from __future__ import annotations

import numpy as np
from numba import njit

NON_ASCII, CONTROL, ANGLE, AMPERSAND, AT, UNTIDY, IPV4, IPV6, PHONE, CARD, IBAN = (1 << n for n in range(11))


@njit(nogil=True, cache=True)
def _is_digit(byte: int) -> bool:
    return 48 <= byte <= 57


@njit(nogil=True, cache=True)
def _is_hex(byte: int) -> bool:
    return 48 <= byte <= 57 or 65 <= byte <= 70 or 97 <= byte <= 102


@njit(nogil=True, cache=True)
def _is_upper(byte: int) -> bool:
    return 65 <= byte <= 90


@njit(nogil=True, cache=True)
def _hidden(data: np.ndarray, i: int) -> bool:
    """Whether a character that nobody sees starts at byte i, which is not ASCII: C1, soft hyphen, zero width, bidi."""
    if i + 1 >= len(data):
        return False
    lead, second = data[i], data[i + 1]
    if lead == 0xC2:
        return 0x80 <= second <= 0x9F or second == 0xAD
    if i + 2 >= len(data):
        return False
    third = data[i + 2]
    if lead == 0xE2:
        return (second == 0x80 and third in (0x8B, 0xAD, 0xAE)) or (second == 0x81 and third == 0xA0)
    return lead == 0xEF and second == 0xBB and third == 0xBF


@njit(nogil=True, cache=True)
def _digits_end(data: np.ndarray, i: int) -> int:
    """Marks of the last digit of a run, at byte i."""
    size = len(data)
    if i < 2 or i + 5 >= size or (data[i + 1] != 45 and data[i + 1] != 46):
        return 0
    three = _is_digit(data[i - 1]) and _is_digit(data[i - 2])
    return PHONE if three and _is_digit(data[i + 2]) and _is_digit(data[i + 3]) and _is_digit(data[i + 4]) else 0


@njit(nogil=True, cache=True)
def _space_marks(data: np.ndarray, i: int) -> int:
    """Marks of a control character at byte i."""
    byte = data[i]
    if byte == 10:
        blank = i > 0 and (data[i - 1] == 32 or data[i - 1] == 9)
        empty = i > 2 and data[i - 1] == 10 and data[i - 2] == 10 and data[i - 3] == 10
        return UNTIDY if blank or empty or i == 0 or (i == len(data) - 1 and data[i - 1] == 10) else 0
    if byte == 13:
        return UNTIDY
    return 0 if byte == 9 or byte == 12 else CONTROL


@njit(nogil=True, cache=True)
def marks(data: np.ndarray) -> int:  # noqa: C901 one pass
    """Tell what a text may hold: an OR of the bits above. May say too much, never too little."""
    found = 0
    size = len(data)
    if size and (data[size - 1] == 32 or data[size - 1] == 9):
        found |= UNTIDY
    run, parts = 0, 0  # digits with single blanks or hyphens between; groups of digits joined by dots
    for i in range(size):
        byte = data[i]
        if 97 <= byte <= 122:
            run = parts = 0
        elif byte >= 128:
            found |= NON_ASCII
            if (byte == 0xC2 or byte == 0xE2 or byte == 0xEF) and _hidden(data, i):
                found |= CONTROL
            run = parts = 0
        elif _is_digit(byte):
            run += 1
            if run == 13:
                found |= CARD
            if parts == 3:
                found |= IPV4
            if i + 1 < size and _is_digit(data[i + 1]):
                if i >= 2 and _is_upper(data[i - 1]) and _is_upper(data[i - 2]):
                    found |= IBAN
            else:
                found |= _digits_end(data, i)
        else:
            before = i > 0 and _is_digit(data[i - 1])
            parts = parts + 1 if byte == 46 and before else 0
            if not ((byte == 32 or byte == 45) and before):
                run = 0
            if byte < 32 or byte == 127:
                found |= _space_marks(data, i)
            elif byte == 64:
                found |= AT
            elif byte == 38:
                found |= AMPERSAND
            elif byte == 60:
                found |= ANGLE
            elif byte == 43:
                if i + 1 < size and _is_digit(data[i + 1]):
                    found |= PHONE
            elif byte == 58 and i >= 4 and _is_hex(data[i - 1]) and (data[i - 4] == 50 or data[i - 4] == 51):
                found |= IPV6
    return found
