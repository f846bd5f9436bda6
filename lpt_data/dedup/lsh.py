"""Which rows to compare: bands of MinHash signatures, chosen for recall at the threshold, since verification follows.

Two rows of similarity j share a band of r rows with probability j**r, and at least one of b bands with ``1 - (1 -
j**r)**b`` (Leskovec, Rajaraman, Ullman, ch. 3.4). Common settings are chosen for precision, because the match is
believed: 9 bands of 13 rows find two pairs in five at j = 0.8. Here a match is only a reason to look.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numba import njit

from lpt_data.dedup.minhash import Scheme, mix, sign
from lpt_data.dedup.shingles import NOTHING, combine, leave_out, multipliers
from lpt_data.text import NEEDS_LOWER, buffers, fmix64, fold, sequence_hash, tables, tokens_of
from manifests.errors import UsageError

RECALL = 0.995  # of the pairs that lie exactly at the threshold; more of all above it
NUM_PERM = 128  # hashes a row at most, unless told otherwise
IDLE = 0.15  # share of the pairs at half the threshold that may be compared for nothing
BITMAP = 8  # words of 64 bits: which of 512 places the shingles of a row fall on
MOST_PAIRS = 64  # rows of a bucket up to which every pair of it is looked at before the rows are joined
HUGE = 1000  # rows from which a bucket is worth a line in the report
GRID = (0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0)
_NO_BITMAPS = np.zeros((0, BITMAP), np.uint64)
_ONE, _WORD, _INSIDE, _PLACE = (np.uint64(n) for n in (1, 6, 63, 55))
_M1, _M2, _M4 = (np.uint64(n) for n in (0x5555555555555555, 0x3333333333333333, 0x0F0F0F0F0F0F0F0F))
_BYTES, _TWO, _FOUR, _TOP = (np.uint64(n) for n in (0x0101010101010101, 2, 4, 56))


@dataclass(frozen=True)
class Bands:
    """How signatures are cut: ``bands`` bands of ``rows`` hashes."""

    bands: int
    rows: int

    @property
    def num_perm(self) -> int:
        """Hashes a signature needs."""
        return self.bands * self.rows

    def proposed(self, similarity: float) -> float:
        """The probability that a pair of this similarity shares a band."""
        return 1.0 - (1.0 - similarity**self.rows) ** self.bands

    def curve(self, threshold: float) -> list[tuple[float, float]]:
        """The S-curve, (similarity, probability), on a fixed grid and at the threshold."""
        return [(j, round(self.proposed(j), 6)) for j in sorted({*GRID, threshold})]


def choose_bands(threshold: float, num_perm: int | None = None, recall: float = RECALL) -> Bands:
    """The fewest rows a band, so the fewest hashes, that leave few idle comparisons (IDLE) at full recall at the
    threshold; the most that fit in ``num_perm`` hashes where none do.

    Raises UsageError for a threshold outside (0, 1] and for one that no banding reaches.
    """
    budget = NUM_PERM if num_perm is None else num_perm
    if not 0.0 < threshold <= 1.0:
        raise UsageError(
            "the threshold of a near duplicate lies above 0 and not above 1", seen=threshold, next="--threshold 0.8"
        )
    if budget < 1:
        raise UsageError("a signature needs at least one hash", seen=budget, next=f"num_perm: {NUM_PERM}")
    if threshold == 1.0:
        return Bands(1, min(budget, 16))  # equal sets have equal signatures, so one band finds them all
    best: Bands | None = None
    for rows in range(1, budget + 1):
        miss = 1.0 - threshold**rows
        if miss >= 1.0:
            break
        bands = int(np.ceil(np.log(1.0 - recall) / np.log(miss)))
        if bands * rows <= budget:
            best = Bands(max(bands, 1), rows)
            if best.proposed(threshold / 2) <= IDLE:
                break
    if best is None:
        reach = Bands(budget, 1).proposed(threshold)
        raise UsageError(
            "no banding finds near duplicates at this threshold",
            seen=f"threshold {threshold}: {budget} hashes find at most {reach:.1%} of the pairs, not {recall:.1%}",
            next="raise --threshold, or num_perm in the config",
        )
    return best


@dataclass(frozen=True)
class Sketch:
    """What is kept of each row of a batch, 84 + 8 * bands bytes a row."""

    sequence: np.ndarray  # uint64 [n], a hash of the whole token sequence
    tokens: np.ndarray  # int32 [n]
    shingles: np.ndarray  # int32 [n], repeats included, template ones not; 0 for a row too short to have one
    chars: np.ndarray  # int32 [n], code points of the text
    keys: np.ndarray  # uint64 [bands, n]; without meaning where there are no shingles
    bitmaps: np.ndarray  # uint64 [n, BITMAP], see `plausible`


def sketch(
    offsets: np.ndarray, data: np.ndarray, scheme: Scheme, bands: Bands | None, left_out: np.ndarray = NOTHING
) -> Sketch:
    """Tokenise, shingle and sign a batch of texts (Arrow buffers) in one pass; ``bands=None`` skips the signing.

    The shingles in the table ``left_out`` count for nothing.
    """
    table = tables()
    a, b = scheme.permutations() if bands else (np.zeros(0, np.uint64),) * 2
    cut = (bands.bands, bands.rows) if bands else (0, 0)
    sequence, tokens, shingles, chars, keys, bitmaps = _sketch(
        offsets, data, multipliers(scheme.ngram), a, b, cut[0], cut[1], table.ascii, table.unicode, left_out
    )
    again = np.flatnonzero(tokens == NEEDS_LOWER)
    if len(again):  # a capital sigma: Python lower-cases these rows
        texts = [data[offsets[i] : offsets[i + 1]].tobytes().decode("utf-8", "replace") for i in again]
        lowered = sketch(
            *buffers(pa.array([text.lower() for text in texts], pa.large_string())), scheme, bands, left_out
        )
        sequence[again], tokens[again] = lowered.sequence, lowered.tokens
        shingles[again], keys[:, again], bitmaps[again] = lowered.shingles, lowered.keys, lowered.bitmaps
        chars[again] = list(map(len, texts))
    return Sketch(sequence, tokens, shingles, chars, keys, bitmaps)


@njit(nogil=True, cache=True)
def plausible(a: np.ndarray, b: np.ndarray, size: int, threshold: float) -> bool:
    """Whether two sets can reach the threshold, by bitmaps and ``size``, at least the sum of their sizes.

    Loses no pair: ``|A ^ B| <= (1 - t) / (1 + t) * (|A| + |B|)`` where J >= t, and each place that only one of two
    bitmaps has is due to a shingle that only one of the sets has (Sandes et al. 2020, bitmap filter).
    """
    differ = np.int64(0)
    for k in range(len(a)):
        x = a[k] ^ b[k]
        x -= (x >> _ONE) & _M1
        x = (x & _M2) + ((x >> _TWO) & _M2)
        differ += np.int64((((x + (x >> _FOUR)) & _M4) * _BYTES) >> _TOP)
    return bool(differ * (1.0 + threshold) <= (1.0 - threshold) * size * (1.0 + 1e-12) + 1e-6)


@dataclass(frozen=True)
class Links:
    """What one partition of one band says about its rows 0..k-1."""

    joined: np.ndarray  # int32 [k]: the first row, in this partition, of those that a row may resemble; itself for none
    shares: np.ndarray  # bool [k]: some other row has its key
    largest: int  # rows of the largest bucket
    huge: int  # buckets of HUGE rows and more


def links(keys: np.ndarray, who: np.ndarray, bitmaps: np.ndarray, shingles: np.ndarray, threshold: float) -> Links:
    """Join the rows of a partition that share a key, uint64 [k], and may reach the threshold.

    ``who`` (int64 [k]) says where a row is in ``bitmaps`` (uint64 [m, BITMAP]; [0, BITMAP]: do without) and
    ``shingles`` (int32 [m]). Rows of a bucket of more than MOST_PAIRS rows are all joined, so the cost stays linear.
    """
    joined, shares, sizes = _links(keys, who, bitmaps, shingles, threshold)
    return Links(joined, shares, int(sizes.max(initial=0)), int(np.count_nonzero(sizes >= HUGE)))


def repeated(keys: np.ndarray) -> np.ndarray:
    """Which rows have a key, uint64 [k], that another one has too: int64, ascending."""
    return np.flatnonzero(links(keys, np.arange(len(keys)), _NO_BITMAPS, np.zeros(0, np.int32), 1.0).shares)


@dataclass(frozen=True)
class Buckets:
    """Rows that share a band key, in compressed form; buckets of one row are left out."""

    of_row: np.ndarray  # int32 [bands, n]: the bucket of each row in each band, -1 for none
    sizes: np.ndarray  # int64 [buckets]


def buckets(keys: np.ndarray, run: Callable[[Callable, Iterable], Iterable] = map) -> Buckets:
    """Group rows by band key, uint64 [n, bands]: one hash table a band, linear in the rows; ``run`` may use threads."""
    columns = [np.ascontiguousarray(keys[:, band]) for band in range(keys.shape[1])]
    found = list(run(_group, columns))
    of_row = np.full((len(columns), len(keys)), -1, np.int32)
    first = 0
    for band, (of_band, sizes) in enumerate(found):
        of_row[band] = np.where(of_band >= 0, of_band + np.int32(first), np.int32(-1))
        first += len(sizes)
    return Buckets(of_row, np.concatenate([np.zeros(0, np.int64), *(sizes for _, sizes in found)]))


@njit(nogil=True, cache=True)
def _sketch(
    offsets: np.ndarray,
    data: np.ndarray,
    weights: np.ndarray,
    a: np.ndarray,
    b: np.ndarray,
    bands: int,
    width: int,
    small: np.ndarray,
    table: np.ndarray,
    left_out: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    rows = len(offsets) - 1
    longest = 0
    for row in range(rows):
        longest = max(longest, offsets[row + 1] - offsets[row])
    tokens = np.empty(longest // 2 + 1, np.uint64)
    hashes = np.empty(longest // 2 + 1, np.uint64)
    signature = np.empty(len(a), np.uint64)
    sequence = np.zeros(rows, np.uint64)
    counts = np.zeros(rows, np.int32)
    shingles = np.zeros(rows, np.int32)
    chars = np.zeros(rows, np.int32)
    keys = np.zeros((bands, rows), np.uint64)
    bitmaps = np.zeros((rows, BITMAP if bands else 0), np.uint64)
    for row in range(rows):
        count, length = tokens_of(data, offsets[row], offsets[row + 1], small, table, tokens)
        counts[row] = count
        chars[row] = length
        sequence[row] = sequence_hash(tokens, max(count, 0))
        total = combine(tokens, count, weights, hashes) if count > 0 else 0
        if len(left_out) and total > 0:
            total = leave_out(hashes, total, left_out)
        shingles[row] = total
        if bands == 0 or total == 0:
            continue
        mix(hashes, total)
        for i in range(total):
            place = hashes[i] >> _PLACE
            bitmaps[row, place >> _WORD] |= _ONE << (place & _INSIDE)
        sign(hashes, total, a, b, signature)
        for band in range(bands):
            key = np.uint64(band + 1)
            for k in range(band * width, (band + 1) * width):
                key = fold(key, signature[k])
            keys[band, row] = fmix64(key)
    return sequence, counts, shingles, chars, keys, bitmaps


@njit(nogil=True, cache=True)
def find_root(parent: np.ndarray, i: int) -> int:
    """The root of an element of a union-find forest, with path halving."""
    while parent[i] != i:
        parent[i] = parent[parent[i]]
        i = parent[i]
    return i


@njit(nogil=True, cache=True)
def join(parent: np.ndarray, i: int, k: int) -> None:
    """Join two elements of a union-find forest; the smallest one of a tree is its root."""
    a, b = find_root(parent, i), find_root(parent, k)
    parent[max(a, b)] = min(a, b)


@njit(nogil=True, cache=True)
def _links(
    keys: np.ndarray, who: np.ndarray, bitmaps: np.ndarray, shingles: np.ndarray, threshold: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rows = len(keys)
    bits = 4
    while (1 << bits) < 2 * rows:
        bits += 1
    shift = np.uint64(64 - bits)
    mask = (1 << bits) - 1
    first = np.full(1 << bits, -1, np.int32)
    size = np.zeros(rows, np.int32)  # of a bucket, at its first row
    last = np.empty(rows, np.int32)  # row of a bucket so far, at its first row
    before = np.full(rows, -1, np.int32)  # the row before in the same bucket
    parent = np.arange(rows).astype(np.int32)
    shares = np.zeros(rows, np.bool_)
    for row in range(rows):
        slot = np.int64(keys[row] >> shift)
        while first[slot] >= 0 and keys[first[slot]] != keys[row]:
            slot = (slot + 1) & mask
        if first[slot] < 0:
            first[slot] = row
            size[row] = 1
            last[row] = row
            continue
        head = first[slot]
        size[head] += 1
        shares[head] = shares[row] = True
        if len(bitmaps) == 0 or size[head] > MOST_PAIRS:
            if size[head] == MOST_PAIRS + 1:
                other = last[head]
                while other >= 0:
                    join(parent, head, other)
                    other = before[other]
            join(parent, head, row)
            continue
        a, other = who[row], last[head]
        while other >= 0:
            b = who[other]
            if find_root(parent, row) != find_root(parent, other) and plausible(
                bitmaps[a], bitmaps[b], int(shingles[a]) + int(shingles[b]), threshold
            ):
                join(parent, row, other)
            other = before[other]
        before[row] = last[head]
        last[head] = row
    for row in range(rows):
        parent[row] = find_root(parent, row)
    return parent, shares, size


@njit(nogil=True, cache=True)
def _group(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    rows = len(keys)
    bits = 4
    while (1 << bits) < 2 * rows:
        bits += 1
    shift = np.uint64(64 - bits)
    mask = (1 << bits) - 1
    first = np.full(1 << bits, -1, np.int32)
    bucket = np.full(rows, -1, np.int32)
    sizes = np.zeros(rows // 2 + 1, np.int64)
    found = 0
    for row in range(rows):
        slot = np.int64(keys[row] >> shift)
        while first[slot] >= 0 and keys[first[slot]] != keys[row]:
            slot = (slot + 1) & mask
        if first[slot] < 0:
            first[slot] = row
            continue
        other = first[slot]
        if bucket[other] < 0:
            bucket[other] = found
            sizes[found] = 1
            found += 1
        bucket[row] = bucket[other]
        sizes[bucket[row]] += 1
    return bucket, sizes[:found].copy()
