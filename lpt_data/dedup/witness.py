"""Which rows go: greedy cover in a declared total order, every removal with a kept witness.

Rows are taken in order. A row stays unless a row that already stays is a verified duplicate of it, so in a chain A ~ B
~ C, A never takes C with it, and no removal rests on a row that is gone itself. The witness is the kept row with the
highest score (then the smallest record id), wherever it lies in the order. Nothing here depends on batches, threads or
files.

There is no transitive closure anywhere, and no cap on a bucket: a row is compared with the *kept* rows of its buckets
only, so a million copies cost a million comparisons. Rows that share buckets without being duplicates are all
compared; their number is in the report.

Rows of a reference come first and always stay; a row that resembles one of them goes on its account, whatever else it
resembles. Where no copy is to stay, `Cover.matched` names the kept rows that go with theirs: every kept row is compared
with every removed row of its buckets, so what goes are all rows of verified pairs, whatever the order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

from lpt_data.dedup.lsh import Buckets
from lpt_data.dedup.shingles import ShingleSets, intersection
from manifests.errors import UsageError

KEEP = ("content", "first", "longest")
QUALITY = "quality:"


@dataclass(frozen=True)
class Cover:
    """The outcome for each row of the cover, by its position."""

    witness: np.ndarray  # int64 [n]: the kept row that this one repeats, -1 for a row that stays
    score: np.ndarray  # float64 [n]: true Jaccard similarity to the witness, 0 for a row that stays
    candidates: int  # pairs that were compared, each once
    verified: int  # of them, pairs at or above the threshold
    matched: np.ndarray  # bool [n]: rows of the verified pairs, those that stay included


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
) -> Cover:
    """Decide the rows 0..n-1 of ``buckets`` and ``sets`` in ``order``; ``ranks`` breaks ties between witnesses.

    The first ``references`` rows, which must be the first in order, stay whatever they resemble, and are the witness of
    every row that resembles one of them. Rows of different ``group`` (int64 [n]) are no duplicates.
    """
    starts = np.zeros(len(buckets.sizes) + 1, np.int64)
    np.cumsum(buckets.sizes, out=starts[1:])
    apart = np.zeros(len(order), np.int64) if group is None else group
    witness, score, counts, matched = _cover(
        order, ranks, buckets.of_row, starts, sets.starts, sets.ends, sets.values, threshold, references, apart
    )
    return Cover(witness, score, int(counts[0]), int(counts[1]), matched)


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


@njit(nogil=True, cache=True)
def _cover(
    order: np.ndarray,
    ranks: np.ndarray,
    of_row: np.ndarray,
    slot_starts: np.ndarray,
    starts: np.ndarray,
    ends: np.ndarray,
    values: np.ndarray,
    threshold: float,
    references: int,
    group: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    rows = len(order)
    bands = of_row.shape[0]
    slots = np.empty(slot_starts[-1], np.int32)  # the kept rows of each bucket
    filled = np.zeros(len(slot_starts) - 1, np.int64)
    seen = np.full(rows, -1, np.int64)
    place = np.empty(rows, np.int64)
    witness = np.full(rows, -1, np.int64)
    score = np.zeros(rows, np.float64)
    counts = np.zeros(2, np.int64)
    matched = np.zeros(rows, np.bool_)
    for later in range(2):  # first against the kept rows before each row; then the removed ones against those after
        seen[:] = -1
        for position in range(rows):
            row = order[position]
            place[row] = position
            if later and witness[row] < 0:
                continue
            for band in range(bands if row >= references else 0):
                bucket = of_row[band, row]
                if bucket < 0:
                    continue
                for slot in range(slot_starts[bucket], slot_starts[bucket] + filled[bucket]):
                    other = slots[slot]
                    if seen[other] == row or (later and place[other] < position):
                        continue
                    seen[other] = row
                    if group[other] != group[row]:
                        continue
                    found = _score(starts, ends, values, row, other, threshold)
                    counts[0] += 1
                    if found < threshold:
                        continue
                    counts[1] += 1
                    matched[row] = True
                    matched[other] = True
                    best = found > score[row] or (found == score[row] and ranks[other] < ranks[witness[row]])
                    if (other < references) != (witness[row] < references):
                        best = other < references
                    if witness[row] < 0 or best:
                        witness[row] = other
                        score[row] = found
            if not later and witness[row] < 0:
                for band in range(bands):
                    bucket = of_row[band, row]
                    if bucket >= 0:
                        slots[slot_starts[bucket] + filled[bucket]] = row
                        filled[bucket] += 1
    return witness, score, counts, matched
