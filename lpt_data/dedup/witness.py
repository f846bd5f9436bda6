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

from lpt_data.dedup.lsh import Buckets, plausible
from lpt_data.dedup.shingles import ShingleSets, intersection
from manifests.digests import id_order
from manifests.errors import UsageError

KEEP = ("content", "first", "longest")
QUALITY = "quality:"


@dataclass(frozen=True)
class Cover:
    """The outcome for each row of the cover, by its position."""

    witness: np.ndarray  # int64 [n]: the kept row that this one repeats, -1 for a row that stays
    score: np.ndarray  # float64 [n]: true Jaccard similarity to the witness, 0 for a row that stays
    candidates: int  # pairs whose sets were compared, each once
    verified: int  # of them, pairs at or above the threshold
    matched: np.ndarray  # bool [n]: rows of the verified pairs, those that stay included


@dataclass(frozen=True)
class Contest:
    """Rows 0..n-1 that share buckets, and what `compare` finds out about them: its last fields are written to."""

    names: np.ndarray  # int64 [n]: what a row is called as a witness; below ``references`` for those of a reference
    place: np.ndarray  # int64 [n]: the place of each row in the declared order
    ranks: np.ndarray  # int64 [n]: the place of its record id among all, which breaks ties between witnesses
    group: np.ndarray  # int64 [n]: rows of different groups are no duplicates
    buckets: Buckets
    sets: ShingleSets
    bitmaps: np.ndarray  # uint64 [n, BITMAP], or [0, 0] to do without
    witness: np.ndarray  # int64 [n]: a name, -1 for none
    score: np.ndarray  # float64 [n]
    witness_rank: np.ndarray  # int64 [n]
    matched: np.ndarray  # bool [n]
    counts: np.ndarray  # int64 [2]: pairs compared, pairs verified


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
    order = id_order(ids)
    words = np.ascontiguousarray(ids).view(np.uint64).reshape(-1, 4)[order]
    place = np.zeros(len(order), np.int64)  # of the id among the different ones
    place[order[1:]] = np.cumsum((words[1:] != words[:-1]).any(axis=1))
    keys = [rows, tie, place, -chars.astype(np.int64)]
    if quality is not None:
        keys.append(-quality)
    return np.lexsort((*keys, others))


def id_ranks(ids: np.ndarray) -> np.ndarray:
    """The place of each record id among the ids, int64 [n]; equal ids by position."""
    ranks = np.empty(len(ids), np.int64)
    ranks[id_order(ids)] = np.arange(len(ids))
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
    bitmaps: np.ndarray | None = None,
) -> Cover:
    """Decide the rows 0..n-1 of ``buckets`` and ``sets`` in ``order``; ``ranks`` breaks ties between witnesses.

    The first ``references`` rows, which must be the first in order, stay whatever they resemble, and are the witness of
    every row that resembles one of them. Rows of different ``group`` (int64 [n]) are no duplicates. ``bitmaps`` (uint64
    [n, BITMAP]) spare the comparison of sets that cannot reach the threshold; they change no decision.
    """
    rows = len(order)
    place = np.empty(rows, np.int64)
    place[order] = np.arange(rows)
    contest = Contest(
        np.arange(rows),
        place,
        ranks,
        np.zeros(rows, np.int64) if group is None else group,
        buckets,
        sets,
        np.zeros((0, 0), np.uint64) if bitmaps is None else bitmaps,
        np.full(rows, -1, np.int64),
        np.zeros(rows),
        np.zeros(rows, np.int64),
        np.zeros(rows, bool),
        np.zeros(2, np.int64),
    )
    settle(contest, order, threshold, references)
    counts = contest.counts.tolist()
    return Cover(contest.witness, contest.score, counts[0], counts[1], contest.matched)


def settle(contest: Contest, order: np.ndarray, threshold: float, references: int) -> None:
    """Take the rows of ``order`` one after the other: first against the kept rows before each of them, then the
    removed ones against the kept rows after them.
    """
    none = np.zeros(0, np.int64)
    compare(contest, order, none, threshold, references, grow=True)
    removed = contest.witness[order] >= 0
    compare(contest, order[removed], order[~removed], threshold, references, after=True)


def compare(
    contest: Contest,
    rows: np.ndarray,
    kept: np.ndarray,
    threshold: float,
    references: int,
    *,
    grow: bool = False,
    after: bool = False,
) -> None:
    """Compare ``rows`` with the ``kept`` rows of their buckets and note the best witness of each.

    With ``grow``, a row without a witness becomes a kept one for those that come after it; with ``after``, kept rows
    are looked at by those alone that come before them in the declared order.
    """
    starts = np.zeros(len(contest.buckets.sizes) + 1, np.int64)
    np.cumsum(contest.buckets.sizes, out=starts[1:])
    _compare(
        rows, kept, grow, after, contest.names, contest.place, contest.ranks, contest.group, contest.buckets.of_row,
        starts, contest.sets.starts, contest.sets.ends, contest.sets.values, contest.bitmaps, threshold, references,
        contest.witness, contest.score, contest.witness_rank, contest.matched, contest.counts,
    )  # fmt: skip


@njit(nogil=True, cache=True)
def similarity(starts: np.ndarray, ends: np.ndarray, values: np.ndarray, a: int, b: int) -> float:
    """The true Jaccard similarity of two sets."""
    common = intersection(values[starts[a] : ends[a]], values[starts[b] : ends[b]])
    return common / (ends[a] - starts[a] + ends[b] - starts[b] - common)


@njit(nogil=True, cache=True)
def sizes_reach(starts: np.ndarray, ends: np.ndarray, a: int, b: int, threshold: float) -> bool:
    """Whether two sets can reach the threshold by their sizes alone."""
    na = ends[a] - starts[a]
    nb = ends[b] - starts[b]
    return min(na, nb) / max(na, nb) >= threshold


@njit(nogil=True, cache=True)
def _enter(row: int, of_row: np.ndarray, slots: np.ndarray, slot_starts: np.ndarray, filled: np.ndarray) -> None:
    """Note a kept row in its buckets."""
    for band in range(of_row.shape[0]):
        bucket = of_row[band, row]
        if bucket >= 0:
            slots[slot_starts[bucket] + filled[bucket]] = row
            filled[bucket] += 1


@njit(nogil=True, cache=True)
def _compare(
    rows: np.ndarray,
    kept: np.ndarray,
    grow: bool,
    after: bool,
    names: np.ndarray,
    place: np.ndarray,
    ranks: np.ndarray,
    group: np.ndarray,
    of_row: np.ndarray,
    slot_starts: np.ndarray,
    starts: np.ndarray,
    ends: np.ndarray,
    values: np.ndarray,
    bitmaps: np.ndarray,
    threshold: float,
    references: int,
    witness: np.ndarray,
    score: np.ndarray,
    witness_rank: np.ndarray,
    matched: np.ndarray,
    counts: np.ndarray,
) -> None:
    bands = of_row.shape[0]
    slots = np.empty(slot_starts[-1], np.int32)  # the kept rows of each bucket
    filled = np.zeros(len(slot_starts) - 1, np.int64)
    seen = np.full(len(names), -1, np.int64)
    for row in kept:
        _enter(row, of_row, slots, slot_starts, filled)
    for row in rows:
        for band in range(bands if names[row] >= references else 0):
            bucket = of_row[band, row]
            if bucket < 0:
                continue
            for slot in range(slot_starts[bucket], slot_starts[bucket] + filled[bucket]):
                other = slots[slot]
                if seen[other] == row or (after and place[other] < place[row]):
                    continue
                seen[other] = row
                if group[other] != group[row] or not sizes_reach(starts, ends, row, other, threshold):
                    continue
                both = ends[row] - starts[row] + ends[other] - starts[other]
                if len(bitmaps) and not plausible(bitmaps[row], bitmaps[other], both, threshold):
                    continue
                found = similarity(starts, ends, values, row, other)
                counts[0] += 1
                if found < threshold:
                    continue
                counts[1] += 1
                matched[row] = True
                matched[other] = True
                best = found > score[row] or (found == score[row] and ranks[other] < witness_rank[row])
                if (names[other] < references) != (witness[row] < references):
                    best = names[other] < references
                if witness[row] < 0 or best:
                    witness[row] = names[other]
                    witness_rank[row] = ranks[other]
                    score[row] = found
        if grow and witness[row] < 0:
            _enter(row, of_row, slots, slot_starts, filled)
