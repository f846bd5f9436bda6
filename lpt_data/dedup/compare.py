"""Verification and witness cover, one batch of components after the other, so that only its shingle sets are held.

`cover_batch` decides a batch alone. A component that no batch can hold is a chain of batches in the declared order:
each is compared with the rows of those before it that stay, then with itself, and the removed rows of those before it
with the rows of it that stay. That is every pair which the cover of the whole would compare, each once, so the outcome
is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numba import njit

from lpt_data.dedup.graph import Batches, deal
from lpt_data.dedup.lsh import BITMAP, buckets
from lpt_data.dedup.rows import Rows, Run
from lpt_data.dedup.shingles import ShingleSets
from lpt_data.dedup.witness import Contest, compare, settle
from lpt_data.spill import Queues, Spill

COLUMNS = ("witness", "score", "witness_rank", "matched")  # what an outcome says of each row
ROW = 160  # bytes of a row of a batch beside its keys, bitmap and shingle set


@dataclass(frozen=True)
class Batch:
    """Rows to be decided together, in any order, with all that it takes."""

    names: np.ndarray  # int64 [n]: positions, those of a reference below all others
    place: np.ndarray  # int64 [n]: in the declared order of all rows
    ranks: np.ndarray  # int64 [n]: of the record id among all rows
    group: np.ndarray  # int64 [n]
    keys: np.ndarray  # uint64 [n, bands]
    bitmaps: np.ndarray  # uint64 [n, BITMAP]
    sets: ShingleSets

    def take(self, rows: np.ndarray) -> Batch:
        """Some rows as a batch of their own, with a copy of their sets."""
        starts, ends = self.sets.starts[rows], self.sets.ends[rows]
        stops = np.cumsum(ends - starts)
        values = gathered(self.sets.values, starts, ends)
        return Batch(
            self.names[rows], self.place[rows], self.ranks[rows], self.group[rows], self.keys[rows],
            self.bitmaps[rows], ShingleSets(stops - (ends - starts), stops, values),
        )  # fmt: skip

    def joined(self, other: Batch) -> Batch:
        """The rows of this batch, then those of another one."""
        mine, theirs = self.sets, other.sets
        both = {
            name: np.concatenate([getattr(self, name), getattr(other, name)])
            for name in ("names", "place", "ranks", "group", "keys", "bitmaps")
        }
        starts = np.concatenate([mine.starts, theirs.starts + len(mine.values)])
        ends = np.concatenate([mine.ends, theirs.ends + len(mine.values)])
        return Batch(**both, sets=ShingleSets(starts, ends, np.concatenate([mine.values, theirs.values])))


@dataclass(frozen=True)
class Outcome:
    """What was found about the rows of a batch."""

    names: np.ndarray  # int64 [n]
    witness: np.ndarray  # int64 [n]: the name of the kept row that this one repeats, -1 for a row that stays
    score: np.ndarray  # float64 [n]: true Jaccard similarity to the witness
    witness_rank: np.ndarray  # int64 [n]
    matched: np.ndarray  # bool [n]: in some verified pair
    counts: np.ndarray  # int64 [2]: pairs compared, pairs verified

    @classmethod
    def nothing(cls, names: np.ndarray) -> Outcome:
        """The outcome for rows that nothing was compared with yet."""
        count = len(names)
        witness, rank = np.full(count, -1, np.int64), np.zeros(count, np.int64)
        return cls(names, witness, np.zeros(count), rank, np.zeros(count, bool), np.zeros(2, np.int64))


def cover_batch(batch: Batch, threshold: float, references: int = 0) -> Outcome:
    """Decide the rows of whole components: greedy cover in the declared order, every removal with a kept witness."""
    found = Outcome.nothing(batch.names)
    settle(_contest(batch, found), np.argsort(batch.place, kind="stable"), threshold, references)
    return found


def cover_chain(
    numbers: range, load: Callable[[int], Batch], threshold: float, references: int, room: int
) -> list[Outcome]:
    """Decide one component whose batches do not fit in memory together, in the declared order."""
    found: list[Outcome] = []
    stay: list[Batch | None] = []  # the rows that stay, while they are few enough to be at hand
    for step, number in enumerate(numbers):
        batch = load(number)
        mine = Outcome.nothing(batch.names)

        def kept(earlier: int) -> Batch:
            held = stay[earlier]
            return load(numbers[earlier]).take(np.flatnonzero(found[earlier].witness < 0)) if held is None else held

        for earlier in range(step):
            met = _against(batch, mine, kept(earlier), threshold, references)
            found[earlier].matched[found[earlier].witness < 0] |= met
        settle(_contest(batch, mine), np.argsort(batch.place, kind="stable"), threshold, references)
        stays = np.flatnonzero(mine.witness < 0)
        fresh = batch.take(stays)
        found.append(mine)
        small = fresh.sets.values.nbytes + len(stays) * ROW <= room // (8 * len(numbers))
        stay.append(fresh if small else None)
        del batch
        for earlier in range(step if len(stays) else 0):
            gone = np.flatnonzero(found[earlier].witness >= 0)
            if len(gone):
                again = load(numbers[earlier]).take(gone)
                mine.matched[stays] |= _again(again, found[earlier], gone, fresh, threshold, references)
    return found


def _against(batch: Batch, found: Outcome, kept: Batch, threshold: float, references: int) -> np.ndarray:
    """Compare all rows of a batch with rows of another one that stay; returns which of those match: bool [kept]."""
    if not len(kept.names):
        return np.zeros(0, bool)
    count, both = len(batch.names), batch.joined(kept)
    contest = _contest(both, _padded(found, len(kept.names)))
    compare(contest, np.arange(count), np.arange(count, len(both.names)), threshold, references)
    for name in COLUMNS:
        getattr(found, name)[:] = getattr(contest, name)[:count]
    return contest.matched[count:]


def _again(
    gone: Batch, found: Outcome, places: np.ndarray, kept: Batch, threshold: float, references: int
) -> np.ndarray:
    """Compare the removed rows of an earlier batch (at ``places`` in its outcome) with later rows that stay."""
    mine = Outcome(gone.names, **{name: getattr(found, name)[places] for name in COLUMNS}, counts=found.counts)
    met = _against(gone, mine, kept, threshold, references)
    for name in COLUMNS:
        getattr(found, name)[places] = getattr(mine, name)
    return met


def _padded(found: Outcome, more: int) -> Outcome:
    none = Outcome.nothing(np.full(more, -1, np.int64))
    joined = {name: np.concatenate([getattr(found, name), getattr(none, name)]) for name in ("names", *COLUMNS)}
    return Outcome(**joined, counts=found.counts)


def _contest(batch: Batch, found: Outcome) -> Contest:
    return Contest(
        batch.names, batch.place, batch.ranks, batch.group, buckets(batch.keys), batch.sets, batch.bitmaps,
        found.witness, found.score, found.witness_rank, found.matched, found.counts,
    )  # fmt: skip


# -- batches out of rows


@dataclass(frozen=True)
class Standing:
    """Where rows stand among all that are compared, by ascending position."""

    positions: np.ndarray  # int64 [m]
    place: np.ndarray  # int64 [m]: in the declared order
    ranks: np.ndarray  # int64 [m]: of the record ids


def outcomes(
    rows: Rows,
    standing: Standing,
    root: np.ndarray,
    threshold: float,
    ngram: int,
    run: Run,
    spill: Spill,
    room: int,
) -> tuple[int, Iterator[Outcome]]:
    """The number of batches that components (``root``, int [m]) are dealt into, and what is found about each."""
    weights = 8 * rows.shingles[standing.positions].astype(np.int64) + 12 * rows.keys.width + 8 * BITMAP + ROW
    batches = deal(root, standing.place, weights, max(room // 2, 1))
    load = loader(rows, standing, batches, ngram, run, spill, room)

    def of_each() -> Iterator[Outcome]:
        for chain in batches.chains:
            if len(chain) == 1:
                yield cover_batch(load(chain[0]), threshold, rows.references)
            else:
                yield from cover_chain(chain, load, threshold, rows.references, room)

    return batches.count, of_each()


def loader(
    rows: Rows, standing: Standing, batches: Batches, ngram: int, run: Run, spill: Spill, room: int
) -> Callable[[int], Batch]:
    """A function that makes batch ``i``: from memory where there is one alone, else out of queues filled in one pass
    over the texts.
    """
    positions = standing.positions
    if batches.count == 1:
        sets = rows.shingle_sets(positions, ngram, run)
        keys, bitmaps = rows.keys_of(positions), rows.bitmaps.take(positions)
        return lambda number: _batch(rows, standing, np.arange(len(positions)), keys, bitmaps, sets)
    of_row, count, width = batches.of_row, batches.count, rows.keys.width
    members = np.argsort(of_row, kind="stable")  # by batch, ascending inside
    cuts = np.searchsorted(of_row[members], np.arange(count + 1))
    values = Queues(count, np.uint64, spill, room // 8)
    signatures = Queues(count, np.uint64, spill, room // 16)
    sizes = np.empty(len(positions), np.int64)
    for here, sets in rows.sets_by_batch(positions, ngram, run):
        sizes[here] = sets.ends - sets.starts
        for number, chosen in _by_batch(of_row[here]):
            values.add(number, gathered(sets.values, sets.starts[chosen], sets.ends[chosen]))
    for here in _pieces(len(positions)):
        both = np.hstack([rows.keys_of(positions[here]), rows.bitmaps.take(positions[here])])
        for number, chosen in _by_batch(of_row[here]):
            signatures.add(number, both[chosen].ravel())

    def load(number: int) -> Batch:
        mine = members[cuts[number] : cuts[number + 1]]
        both = signatures.read(number).reshape(-1, width + BITMAP)
        ends = np.cumsum(sizes[mine])
        sets = ShingleSets(ends - sizes[mine], ends, values.read(number))
        return _batch(rows, standing, mine, both[:, :width], np.ascontiguousarray(both[:, width:]), sets)

    return load


def _batch(
    rows: Rows, standing: Standing, mine: np.ndarray, keys: np.ndarray, bitmaps: np.ndarray, sets: ShingleSets
) -> Batch:
    names = standing.positions[mine]
    group = np.zeros(len(names), np.int64) if rows.group is None else rows.group[names]
    return Batch(names, standing.place[mine], standing.ranks[mine], group, keys, bitmaps, sets)


def _by_batch(numbers: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Each batch number among some rows with the indices of its rows, ascending."""
    order = np.argsort(numbers, kind="stable")
    for chosen in np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1) if len(order) else ():
        yield int(numbers[chosen[0]]), chosen


def _pieces(count: int, size: int = 1 << 16) -> Iterator[slice]:
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))


@njit(nogil=True, cache=True)
def gathered(values: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Some stretches of an array, one after the other."""
    found = np.empty((ends - starts).sum(), values.dtype)
    at = 0
    for i in range(len(starts)):
        size = ends[i] - starts[i]
        found[at : at + size] = values[starts[i] : ends[i]]
        at += size
    return found
