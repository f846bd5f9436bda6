"""Which rows go: greedy cover in a declared total order, every removal with a kept witness.

Rows are taken in order. A row stays unless a row that already stays is a verified duplicate of it, so in a chain A ~ B
~ C, A never takes C with it, and no removal rests on a row that is gone itself. The witness is the kept row with the
highest score (then the smallest record id), wherever it lies in the order. Nothing here depends on batches, threads or
files.

A duplicate is one by words (Jaccard similarity of shingles) or by meaning (cosine of vectors); both are one cover, so
that a row which went by its words never rests on one that went by its meaning. A witness by words comes first.

There is no transitive closure anywhere, and no cap on a bucket: a row is compared with the *kept* rows of its buckets
only, so a million copies cost a million comparisons. Rows that share buckets without being duplicates are all
compared; their number is in the report.

Rows of a reference come first and always stay; a row that resembles one of them goes on its account, whatever else it
resembles. Where no copy is to stay, `Cover.matched` names the kept rows that go with theirs: every kept row is compared
with every removed row of its buckets, so what goes are all rows of verified pairs, whatever the order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numba import njit

from lpt_data.dedup.lsh import Buckets
from lpt_data.dedup.shingles import ShingleSets, intersection
from manifests.errors import UsageError

KEEP = ("content", "first", "longest")
QUALITY = "quality:"
WORDS, MEANING = 1, 2  # what a row resembles its witness by; a witness by words comes before one by meaning


class Meaning(NamedTuple):
    """Which rows mean alike: the vector of each row, and the vectors that are alike, each pair from both sides.

    A vector is alike itself, so rows of one vector are too. Rows that name different numbers are no duplicates.
    """

    of_row: np.ndarray  # int32 [n], -1 for a row that is not compared so
    first: np.ndarray  # int64 [vectors + 1]: rows of the vectors before it
    starts: np.ndarray  # int64 [vectors + 1] into `other` and `score`
    other: np.ndarray  # int32 [k]
    score: np.ndarray  # float64 [k], at or above the threshold
    numbers: np.ndarray  # uint64 [n], a hash of them; zeros where they do not matter


@dataclass(frozen=True)
class Cover:
    """The outcome for each row of the cover, by its position."""

    witness: np.ndarray  # int64 [n]: the kept row that this one repeats, -1 for a row that stays
    score: np.ndarray  # float64 [n]: true Jaccard similarity to the witness, or cosine; 0 for a row that stays
    by: np.ndarray  # int8 [n]: WORDS or MEANING
    candidates: int  # pairs that were compared by words, each once
    verified: int  # of them, pairs at or above the threshold
    alike: int  # pairs of one meaning, each once
    other_numbers: int  # pairs that were of one meaning but name different numbers
    matched: np.ndarray  # bool [n]: rows of the verified pairs, those that stay included


def no_meaning(rows: int) -> Meaning:
    """Return what says nothing about the meaning of ``rows`` rows."""
    none = np.zeros(1, np.int64)
    return Meaning(
        np.full(rows, -1, np.int32), none, none, np.zeros(0, np.int32), np.zeros(0), np.zeros(rows, np.uint64)
    )


def check_keep(keep: str) -> None:
    """Raise UsageError for a policy that is not there."""
    if keep not in KEEP and not (keep.startswith(QUALITY) and keep != QUALITY):
        known = " | ".join((*KEEP, f"{QUALITY}COLUMN"))
        raise UsageError("no such policy for the copy to keep", seen=keep, next=f"--keep {known}")


def total_order(
    keep: str,
    chars: np.ndarray,
    ids: np.ndarray,
    tie: np.ndarray,
    rows: np.ndarray,
    reference: np.ndarray | None = None,
    quality: np.ndarray | None = None,
) -> np.ndarray:
    """The indices 0..n-1 in the declared order, the row to keep first.

    ``content`` and ``longest`` are one order: most code points, then the smallest record id (uint8 [n, 32]), then, for
    rows that differ outside their identity, ``tie`` (a hash of the whole row), and at last the place in the input, that
    then tells apart only rows that are the same. The policy ``first`` is the place in the input. ``quality:COLUMN``
    puts the highest number (``quality``, float64) before all that, NaN last. Rows where ``reference`` (bool) holds come
    before all others.
    """
    others = np.zeros(len(rows), bool) if reference is None else ~reference
    if keep == "first":
        return np.lexsort((rows, others))
    keys = [rows, tie, *_id_words(ids)[::-1], -chars.astype(np.int64)]
    if quality is not None:
        keys.append(-quality)
    return np.lexsort((*keys, others))


def id_ranks(ids: np.ndarray) -> np.ndarray:
    """The place of each record id among the ids, int64 [n]; equal ids by position."""
    ranks = np.empty(len(ids), np.int64)
    ranks[np.lexsort(_id_words(ids)[::-1])] = np.arange(len(ids))
    return ranks


def cover(
    order: np.ndarray,
    ranks: np.ndarray,
    buckets: Buckets,
    sets: ShingleSets,
    threshold: float,
    *,
    references: int = 0,
    group: np.ndarray | None = None,
    meaning: Meaning | None = None,
) -> Cover:
    """Decide the rows 0..n-1 of ``buckets`` and ``sets`` in ``order``; ``ranks`` breaks ties between witnesses.

    The first ``references`` rows, which must be the first in order, stay whatever they resemble, and are the witness of
    every row that resembles one of them. Rows of different ``group`` (int64 [n]) are no duplicates.
    """
    starts = np.zeros(len(buckets.sizes) + 1, np.int64)
    np.cumsum(buckets.sizes, out=starts[1:])
    apart = np.zeros(len(order), np.int64) if group is None else group
    words = _Words(buckets.of_row, starts, sets.starts, sets.ends, sets.values, threshold)
    state = _cover(order, ranks, words, no_meaning(len(order)) if meaning is None else meaning, references, apart)
    candidates, verified, alike, other_numbers = state.counts.tolist()
    return Cover(state.witness, state.score, state.by, candidates, verified, alike, other_numbers, state.matched)


def _id_words(ids: np.ndarray) -> list[np.ndarray]:
    return list(np.ascontiguousarray(ids).view(">u8").astype(np.uint64).T)


@njit(nogil=True, cache=True)
def _score(starts: np.ndarray, ends: np.ndarray, values: np.ndarray, a: int, b: int, threshold: float) -> float:
    """The similarity of two sets, or -1 as soon as their sizes rule the threshold out."""
    na = ends[a] - starts[a]
    nb = ends[b] - starts[b]
    if min(na, nb) / max(na, nb) < threshold:
        return -1.0
    common = intersection(values[starts[a] : ends[a]], values[starts[b] : ends[b]])
    return common / (na + nb - common)


class _Words(NamedTuple):
    """What rows say, for the kernel: their buckets, their shingle sets."""

    of_row: np.ndarray  # int32 [bands, n]
    first: np.ndarray  # int64 [buckets + 1], into the slots
    starts: np.ndarray  # int64 [n], of the shingle set
    ends: np.ndarray
    values: np.ndarray
    threshold: float


class _State(NamedTuple):
    """What is known of each row so far."""

    witness: np.ndarray  # int64 [n]
    score: np.ndarray  # float64 [n]
    by: np.ndarray  # int8 [n], WORDS or MEANING: what the witness resembles
    matched: np.ndarray  # bool [n]
    place: np.ndarray  # int64 [n], in the order
    counts: np.ndarray  # int64 [4]: compared and verified by words, by meaning, kept apart by their numbers


@njit(nogil=True, cache=True)
def _take(state: _State, ranks: np.ndarray, references: int, row: int, other: int, found: float, by: int) -> None:
    """Note a verified pair, and its kept row as the witness where it is the better one."""
    state.matched[row] = True
    state.matched[other] = True
    had = state.witness[row]
    if had >= 0:
        if (other < references) != (had < references):
            better = other < references
        elif by != state.by[row]:
            better = by < state.by[row]
        else:
            better = found > state.score[row] or (found == state.score[row] and ranks[other] < ranks[had])
        if not better:
            return
    state.witness[row] = other
    state.score[row] = found
    state.by[row] = by


@njit(nogil=True, cache=True)
def _by_words(
    state: _State,
    words: _Words,
    slots: np.ndarray,
    filled: np.ndarray,
    seen: np.ndarray,
    ranks: np.ndarray,
    references: int,
    group: np.ndarray,
    row: int,
    after: int,
) -> None:
    """Compare a row with the kept rows of its buckets that come at ``after`` in the order or later."""
    for band in range(words.of_row.shape[0]):
        bucket = words.of_row[band, row]
        if bucket < 0:
            continue
        for slot in range(words.first[bucket], words.first[bucket] + filled[bucket]):
            other = slots[slot]
            if seen[other] == row or state.place[other] < after:
                continue
            seen[other] = row
            if group[other] != group[row]:
                continue
            found = _score(words.starts, words.ends, words.values, row, other, words.threshold)
            state.counts[0] += 1
            if found >= words.threshold:
                state.counts[1] += 1
                _take(state, ranks, references, row, other, found, WORDS)


@njit(nogil=True, cache=True)
def _by_meaning(
    state: _State,
    meaning: Meaning,
    slots: np.ndarray,
    filled: np.ndarray,
    ranks: np.ndarray,
    references: int,
    group: np.ndarray,
    row: int,
    after: int,
) -> None:
    """The same with the kept rows of the vectors that are alike; their pairs are verified already."""
    mine = meaning.of_row[row]
    if mine < 0:
        return
    for at in range(meaning.starts[mine], meaning.starts[mine + 1]):
        vector = meaning.other[at]
        for slot in range(meaning.first[vector], meaning.first[vector] + filled[vector]):
            other = slots[slot]
            if state.place[other] < after or group[other] != group[row]:
                continue
            if meaning.numbers[other] != meaning.numbers[row]:
                state.counts[3] += 1
                continue
            state.counts[2] += 1
            _take(state, ranks, references, row, other, meaning.score[at], MEANING)


@njit(nogil=True, cache=True)
def _cover(
    order: np.ndarray, ranks: np.ndarray, words: _Words, meaning: Meaning, references: int, group: np.ndarray
) -> _State:
    rows = len(order)
    bands = words.of_row.shape[0]
    slots = np.empty(words.first[-1], np.int32)  # the kept rows of each bucket
    filled = np.zeros(len(words.first) - 1, np.int64)
    of_vector = np.empty(meaning.first[-1], np.int32)  # and of each vector
    held = np.zeros(len(meaning.first) - 1, np.int64)
    seen = np.full(rows, -1, np.int64)
    state = _State(
        np.full(rows, -1, np.int64),
        np.zeros(rows, np.float64),
        np.zeros(rows, np.int8),
        np.zeros(rows, np.bool_),
        np.full(rows, -1, np.int64),
        np.zeros(4, np.int64),
    )
    for later in range(2):  # first against the kept rows before each row; then the removed ones against those after
        seen[:] = -1
        for position in range(rows):
            row = order[position]
            state.place[row] = position
            if later and state.witness[row] < 0:
                continue
            if row >= references:
                after = position if later else 0
                _by_words(state, words, slots, filled, seen, ranks, references, group, row, after)
                _by_meaning(state, meaning, of_vector, held, ranks, references, group, row, after)
            if later or state.witness[row] >= 0:
                continue
            for band in range(bands):
                bucket = words.of_row[band, row]
                if bucket >= 0:
                    slots[words.first[bucket] + filled[bucket]] = row
                    filled[bucket] += 1
            vector = meaning.of_row[row]
            if vector >= 0:
                of_vector[meaning.first[vector] + held[vector]] = row
                held[vector] += 1
    return state
