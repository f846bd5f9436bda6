"""Shingle sets: which runs of tokens a text holds, as sorted 64-bit hashes, and the true Jaccard similarity of two
sets.

A shingle is a run of tokens (`lpt_data.text`) that weighs ``ngram``: so many words, so many characters of Chinese or
Japanese, four times as many letters of Thai, Lao, Khmer or Myanmar, or any mixture. Its hash is a sum of its token
hashes, each times an odd constant of its place: no string is ever joined. A text that weighs less has no shingles; such
rows are compared whole, elsewhere. Some two shingles of a pair of texts collide with a probability of about (shingles)²
/ 2⁶⁴.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import pyarrow as pa
from numba import njit

from lpt_data.text import NEEDS_LOWER, WEIGHT, buffers, fmix64, tables, tokens_of

_U0, _U1 = np.uint64(0), np.uint64(1)
_SMALL = 24  # elements of a bucket that insertion sort handles best
NOTHING = np.zeros(0, np.uint64)  # no shingle is left out


@dataclass(frozen=True)
class ShingleSets:
    """The sets of some rows: ``values[starts[i]:ends[i]]`` is sorted and without repeats (uint64)."""

    starts: np.ndarray  # int64 [n]
    ends: np.ndarray  # int64 [n]
    values: np.ndarray  # uint64


def shingle_sets(texts: pa.Array, ngram: int) -> ShingleSets:
    """Return the shingle sets of all rows of a large_string array."""
    offsets, data = buffers(texts)
    values = np.empty(int(offsets[-1] - offsets[0]) // 2 + len(texts), np.uint64)
    return ShingleSets(*fill(offsets, data, np.arange(len(texts)), ngram, values), values)


def fill(
    offsets: np.ndarray,
    data: np.ndarray,
    rows: np.ndarray,
    ngram: int,
    values: np.ndarray,
    left_out: np.ndarray = NOTHING,
) -> tuple[np.ndarray, np.ndarray]:
    """Write the sets of ``rows`` of a batch into ``values``, which has room for all their shingles, repeats included.

    The shingles of ``left_out`` (see `hash_table`) are not part of the sets and need no room.
    Returns where each set starts and ends, int64 [n]; 8 bytes for each distinct shingle.
    """
    table, weights = tables(), multipliers(ngram)
    starts, ends, lower, used = _sets(offsets, data, rows, weights, table.ascii, table.unicode, values, left_out)
    for i in np.flatnonzero(lower):  # a capital sigma: Python lower-cases those rows
        raw = data[offsets[rows[i]] : offsets[rows[i] + 1]].tobytes()
        again, text = buffers(pa.array([raw.decode("utf-8", "replace").lower()], pa.large_string()))
        one = np.zeros(1, np.int64)
        _, end, _, more = _sets(again, text, one, weights, table.ascii, table.unicode, values[used:], left_out)
        starts[i], ends[i] = used, used + end[0]
        used += more
    return starts, ends


def hash_table(hashes: np.ndarray) -> np.ndarray:
    """A table of these hashes for `slot_of`: uint64 [a power of two, at least twice as many], 0 in free slots."""
    table = np.zeros(1 << max(int(2 * len(hashes)).bit_length(), 4), np.uint64)
    mask, shift = len(table) - 1, 65 - len(table).bit_length()
    for value in hashes.tolist():
        slot = value >> shift
        while table[slot]:
            slot = (slot + 1) & mask
        table[slot] = value
    return table


@njit(nogil=True, cache=True)
def slot_of(table: np.ndarray, shift: np.uint64, value: np.uint64) -> int:
    """The slot of a hash in a table, -1 where it is not in there; ``shift`` is 64 less the bits of a slot."""
    slot = np.int64(value >> shift)
    while table[slot]:
        if table[slot] == value:
            return int(slot)
        slot = (slot + 1) & (len(table) - 1)
    return -1


@njit(nogil=True, cache=True)
def shift_of(table: np.ndarray) -> np.uint64:
    """The shift that makes a slot of this table out of a hash."""
    bits = 0
    while (1 << bits) < len(table):
        bits += 1
    return np.uint64(64 - bits)


@njit(nogil=True, cache=True)
def leave_out(values: np.ndarray, count: int, table: np.ndarray) -> int:
    """Drop from ``values[:count]`` what is in the table, keeping the order; return how many are left."""
    shift = shift_of(table)
    kept = 0
    for i in range(count):
        value = values[i]
        if slot_of(table, shift, value) < 0:
            values[kept] = value
            kept += 1
    return kept


def jaccard(a: np.ndarray, b: np.ndarray) -> float:
    """The Jaccard similarity of two sorted sets, ``|a ∩ b| / |a ∪ b|``; 0 when both are empty."""
    common = intersection(a, b)
    union = len(a) + len(b) - common
    return common / union if union else 0.0


@cache
def multipliers(ngram: int) -> np.ndarray:
    """The odd constant of each place in a shingle, uint64 [ngram * WEIGHT]: the first ngram for whole tokens alone."""
    return np.array([fmix64(np.uint64(k + 1)) | _U1 for k in range(ngram * WEIGHT)], np.uint64)


@njit(nogil=True, cache=True)
def combine(tokens: np.ndarray, count: int, weights: np.ndarray, out: np.ndarray) -> int:
    """Hash the shingles of ``tokens[:count]`` into ``out``; return how many there are, repeats included."""
    light = _U0
    for i in range(count):
        light |= tokens[i]
    if light & _U1:
        return _combine_mixed(tokens, count, weights, out)
    ngram = len(weights) // WEIGHT
    total = count - ngram + 1
    if total <= 0:
        return 0
    out[:total] = _U0
    for k in range(ngram):
        weight = weights[k]
        for i in range(total):
            out[i] += tokens[i + k] * weight
    return total


@njit(nogil=True, cache=True)
def _combine_mixed(tokens: np.ndarray, count: int, weights: np.ndarray, out: np.ndarray) -> int:
    """Like `combine` where some tokens are light: a shingle starts at each token and ends when it weighs enough.

    The last ones may lack up to three quarters of a token, so that no token at the end is left out of all shingles.
    """
    full = len(weights)  # in units of a light token
    rest = 0
    for i in range(count):
        rest += 1 if tokens[i] & _U1 else WEIGHT
    total = 0
    while total < count and rest > full - WEIGHT:
        weighs = 0
        value = _U0
        k = total
        while k < count and weighs < full:
            value += tokens[k] * weights[k - total]
            weighs += 1 if tokens[k] & _U1 else WEIGHT
            k += 1
        out[total] = value
        rest -= 1 if tokens[total] & _U1 else WEIGHT
        total += 1
    return total


@njit(nogil=True, cache=True)
def sort_unique(values: np.ndarray, spare: np.ndarray, counts: np.ndarray) -> int:
    """Sort hashes in place, drop repeats, return the number left. ``spare`` is as long; ``counts`` is scratch.

    Hashes are spread evenly, so one pass by their top bits leaves buckets of about one element, and insertion sort is
    linear. Buckets that repeats have filled go to an ordinary sort.
    """
    n = len(values)
    bits = 1
    while (1 << bits) < n and bits < 16:
        bits += 1
    size = 1 << bits
    shift = np.uint64(64 - bits)
    counts[: size + 1] = 0
    for i in range(n):
        counts[(values[i] >> shift) + _U1] += 1
    fullest = np.int64(0)
    for k in range(size):
        fullest = max(fullest, counts[k + 1])
        counts[k + 1] += counts[k]
    for i in range(n):
        bucket = values[i] >> shift
        spare[np.uint64(counts[bucket])] = values[i]  # unsigned: no index is asked whether it counts from the end
        counts[bucket] += 1
    if fullest > _SMALL:
        start = np.int64(0)
        for k in range(size):
            if counts[k] - start > _SMALL:
                spare[start : counts[k]].sort()
            start = counts[k]
    for i in range(1, n):  # one pass over all buckets: a loop for each would end where no processor guesses
        value = spare[i]
        place = np.uint64(i)
        if spare[place - _U1] > value:
            while place > _U0 and spare[place - _U1] > value:
                spare[place] = spare[place - _U1]
                place -= _U1
            spare[place] = value
    kept = _U0
    for i in range(n):
        values[kept] = spare[i]
        kept += np.uint64(i + 1 == n or spare[i] != spare[i + 1])
    return int(np.int64(kept))


@njit(nogil=True, cache=True)
def intersection(a: np.ndarray, b: np.ndarray) -> int:
    """The number of values that two sorted sets share."""
    i = 0
    j = 0
    common = 0
    na = len(a)
    nb = len(b)
    while i < na and j < nb:
        x = a[i]
        y = b[j]
        common += x == y
        i += x <= y
        j += y <= x
    return common


@njit(nogil=True, cache=True)
def _sets(
    offsets: np.ndarray,
    data: np.ndarray,
    rows: np.ndarray,
    weights: np.ndarray,
    small: np.ndarray,
    table: np.ndarray,
    values: np.ndarray,
    left_out: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    longest = 0
    for row in rows:
        longest = max(longest, offsets[row + 1] - offsets[row])
    tokens = np.empty(longest // 2 + 1, np.uint64)
    spare = np.empty(longest // 2 + 1, np.uint64)
    counts = np.empty((1 << 16) + 1, np.int64)
    starts = np.zeros(len(rows), np.int64)
    ends = np.zeros(len(rows), np.int64)
    lower = np.zeros(len(rows), np.bool_)
    used = 0
    for i in range(len(rows)):
        row = rows[i]
        starts[i] = used
        count, _ = tokens_of(data, offsets[row], offsets[row + 1], small, table, tokens)
        lower[i] = count == NEEDS_LOWER
        if count > 0:
            if len(left_out):
                total = leave_out(spare, combine(tokens, count, weights, spare), left_out)
                values[used : used + total] = spare[:total]
            else:
                total = combine(tokens, count, weights, values[used:])
            used += sort_unique(values[used : used + total], spare[:total], counts)
        ends[i] = used
    return starts, ends, lower, used
