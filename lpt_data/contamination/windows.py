"""Rolling hashes of runs of tokens and of characters, and the tables they are looked up in; no string is built.

A *window* of ``n`` words ends at a token and is the shortest run that weighs ``n`` words (a light token of Thai, Lao,
Khmer or Myanmar weighs a quarter). Its hash is a polynomial in an odd base over the token hashes, modulo 2^64. Two
different windows agree with a probability of about 2^-64 a comparison.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from lpt_data.text import WEIGHT, decode, fmix64

_BASE = np.uint64(0x9E3779B97F4A7C15)
_SPREAD = np.uint64(0xD1342543DE82EF95)
_U0, _U1, _U6, _U63 = np.uint64(0), np.uint64(1), np.uint64(6), np.uint64(63)
CHARS = 50  # letters and digits of one exact match (GPT-4's rule)
_TURN, _BACK = np.uint64(CHARS), np.uint64(64 - CHARS)
_LOW_LINE = 95  # "_" is part of a word, but neither a letter nor a digit
_CODE = np.uint32(0x1FFFFF)  # as in lpt_data.text: the lower-case code point of a table entry
_POWERS = np.array([pow(int(_BASE), k, 1 << 64) for k in range(WEIGHT * 16 + 2)], np.uint64)
_MARK = np.array([(((k + 1) * 0xBF58476D1CE4E5B9) ^ (k << 40)) & (2**64 - 1) for k in range(256)], np.uint64)


class Table(NamedTuple):
    """A set of 64-bit keys with a number each: a bitmap that answers most misses, then open addressing."""

    bitmap: np.ndarray  # uint64, 2^bits bits
    bits: int
    slots: np.ndarray  # uint64, 0 where empty
    values: np.ndarray  # int32
    slot_bits: int


def make_table(keys: np.ndarray) -> Table:
    """Return a table of distinct keys (uint64, none 0); the number of a key is its place."""
    size = max(len(keys), 1)
    bits = min(max(int(32 * size - 1).bit_length(), 10), 30)
    slot_bits = int(2 * size).bit_length()
    bitmap = np.zeros(1 << (bits - 6), np.uint64)
    slots, values = np.zeros(1 << slot_bits, np.uint64), np.zeros(1 << slot_bits, np.int32)
    _insert(keys, bitmap, bits, slots, values, slot_bits)
    return Table(bitmap, bits, slots, values, slot_bits)


@njit(nogil=True, cache=True)
def _insert(
    keys: np.ndarray, bitmap: np.ndarray, bits: int, slots: np.ndarray, values: np.ndarray, slot_bits: int
) -> None:
    mask = np.int64((1 << slot_bits) - 1)
    for k in range(len(keys)):
        spread = keys[k] * _SPREAD
        bit = spread >> np.uint64(64 - bits)
        bitmap[bit >> _U6] |= _U1 << (bit & _U63)
        slot = np.int64(spread >> np.uint64(64 - slot_bits))
        while slots[slot] != _U0:
            slot = np.int64(slot + 1) & mask
        slots[slot] = keys[k]
        values[slot] = k


@njit(nogil=True, cache=True)
def find(table: Table, key: np.uint64) -> int:
    """The number of a key, -1 where it is not in the table."""
    mask = np.int64((1 << table.slot_bits) - 1)
    slot = np.int64((key * _SPREAD) >> np.uint64(64 - table.slot_bits))
    while table.slots[slot] != _U0:
        if table.slots[slot] == key:
            return table.values[slot]
        slot = np.int64(slot + 1) & mask
    return -1


@njit(nogil=True, cache=True)
def likely(table: Table, keys: np.ndarray, first: int, count: int, places: np.ndarray) -> int:
    """Write which of ``keys[first:count]`` the bitmap lets through, in order; return how many. Nearly all it lets
    through are in the table, and nearly all others end here, without a branch that could be missed."""
    bitmap = table.bitmap
    shift = np.uint64(64 - table.bits)
    found = 0
    for j in range(first, count):
        bit = (keys[j] * _SPREAD) >> shift
        places[found] = j
        found += 1 if (bitmap[bit >> _U6] >> (bit & _U63)) & _U1 else 0
    return found


@njit(nogil=True, cache=True)
def windows(tokens: np.ndarray, count: int, need: int, hashes: np.ndarray, lengths: np.ndarray) -> None:
    """Write the hash and the length in tokens of the window of ``need`` quarter words that ends at each token.

    Where none ends, both are 0.
    """
    h = _U0
    weight = 0
    i = 0
    for j in range(count):
        token = tokens[j]
        h = h * _BASE + token
        weight += 1 if token & _U1 else WEIGHT
        while True:
            first = 1 if tokens[i] & _U1 else WEIGHT
            if weight - first < need:
                break
            h -= tokens[i] * _POWERS[j - i]
            weight -= first
            i += 1
        if weight >= need:
            hashes[j] = h if h != _U0 else _U1
            lengths[j] = j - i + 1
        else:
            hashes[j] = _U0
            lengths[j] = 0


@njit(nogil=True, cache=True)
def run_hash(tokens: np.ndarray, start: int, end: int) -> np.uint64:
    """The hash of a run of tokens, its length in it."""
    h = np.uint64(end - start)
    for k in range(start, end):
        h = h * _BASE + tokens[k]
    return h if h != _U0 else _U1


@njit(nogil=True, cache=True)
def char_windows(
    data: np.ndarray, start: int, end: int, small: np.ndarray, table: np.ndarray, marks: np.ndarray, hashes: np.ndarray
) -> int:
    """Hash every run of CHARS letters and digits, lower case, everything between them left out; return their number.

    A cyclic polynomial: one rotation and two exclusive ors a character. `marks` and `hashes` hold a number a byte.
    """
    seen = 0
    i = start
    while i < end:
        byte = data[i]
        if byte < 128:
            low = small[byte]
            marks[seen] = _MARK[low]
            seen += 1 if (low != 0) & (low != _LOW_LINE) else 0  # no branch: it would be missed at each word's end
            i += 1
        else:
            code, i = decode(data, i, end)
            entry = (table[code] if code < len(table) else np.uint32(0)) & _CODE
            if entry:
                marks[seen] = fmix64(np.uint64(entry))
                seen += 1
    h = _U0
    for k in range(min(seen, CHARS)):
        h = ((h << _U1) | (h >> _U63)) ^ marks[k]
    if seen < CHARS:
        return 0
    hashes[0] = h if h != _U0 else _U1
    for k in range(CHARS, seen):
        gone = marks[k - CHARS]
        h = ((h << _U1) | (h >> _U63)) ^ marks[k] ^ ((gone << _TURN) | (gone >> _BACK))
        hashes[k - CHARS + 1] = h if h != _U0 else _U1
    return seen - CHARS + 1
