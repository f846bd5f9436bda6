"""Duplicates by meaning inside the dedup stage: which rows are alike, and what a user needs to choose a threshold.

Compared are the rows that differ by more than case and white space. Words come first: a row that is a near-duplicate of
a row that stays goes for it. Of the rest, in the declared order, a row goes when a row that stays means the same. What
had gone for a row that then went itself is looked at again, after the rows that stay for good, until nothing is left to
look at. So in the end every removed row resembles a row that stays, by words or by meaning, and no two rows that stay
resemble each other; there is no closure over chains.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numba import njit

from lpt_data.config import DedupConfig, SemanticConfig
from lpt_data.dedup.memory import give_back
from lpt_data.dedup.report import differing
from lpt_data.dedup.rows import Room as Budget
from lpt_data.dedup.rows import Rows
from lpt_data.dedup.witness import id_ranks
from lpt_data.progress import Progress
from lpt_data.semantic import alike as meanings
from lpt_data.semantic import numbers
from lpt_data.semantic.alike import Alike, Semantics, find_alike
from lpt_data.semantic.alike import check as check_settings
from lpt_data.semantic.cache import as_words
from lpt_data.semantic.room import Room
from lpt_data.semantic.vectors import claim_embedder
from lpt_data.spill import Spill
from manifests.errors import UsageError

BIN = 0.01  # of the histogram
BAND = 0.05  # of the samples
SAMPLES = 4  # pairs shown in each band
BORDER = 1e-4  # scores this close to the threshold may fall on the other side on another machine
BORDERLINE = 20  # of them shown
A_PAIR = 100  # bytes of a pair at the threshold while rows are decided


@dataclass(frozen=True)
class Pairs:
    """The pairs of one stage; places are those among the distinct texts."""

    alike: Alike
    positions: np.ndarray  # int64 [n], the rows compared, ascending
    config: SemanticConfig
    room: Room

    def first(self, place: int) -> int:
        """The position of a row that has a text."""
        return int(self.positions[self.alike.texts.first[place]])


def pairs_of(
    rows: Rows,
    positions: np.ndarray,
    config: SemanticConfig,
    semantics: Semantics,
    progress: Progress,
    budget: Budget,
    spill: Spill,
) -> Pairs:
    """Find which of some rows (ascending positions) mean alike, in what their texts leave of the budget."""

    def left() -> int:
        give_back()
        return budget.left(len(rows.rows))

    def claim(size: int, what: str, instead: str) -> None:
        if size > left():
            rows.evict()
        budget.claim(size, len(rows.rows), what, instead)

    room = Room(spill, left, claim)
    texts, outside = rows.texts_of(positions), positions < rows.references
    return Pairs(find_alike(texts, outside, config, semantics, progress, room), positions, config, room)


class Meaning(NamedTuple):
    """Which of some rows mean alike, by the vectors of their texts; a vector is alike itself."""

    of_row: np.ndarray  # int32 [n], the vector of each row
    first: np.ndarray  # int64 [vectors + 1]: rows of the vectors before it
    starts: np.ndarray  # int64 [vectors + 1] into `other` and `score`
    other: np.ndarray  # int32 [k], each pair from both sides
    score: np.ndarray  # float64 [k], at or above the threshold
    numbers: np.ndarray  # uint64 [n], a hash of those that the row names; zeros where they do not matter
    group: np.ndarray  # int64 [n]: rows of different groups are no duplicates


@dataclass(frozen=True)
class Settled:
    """What became of the rows, by position; `witness` is -1 for those that stay."""

    witness: np.ndarray  # int64 [n]
    score: np.ndarray  # float64 [n]
    meant: np.ndarray  # bool [n]: the row went by its meaning
    matched: np.ndarray  # bool [n]: in some verified pair
    kept_apart: int  # comparisons of rows of one meaning that name different numbers
    rounds: int  # times that rows were looked at


Rank = Callable[[np.ndarray], np.ndarray]  # the place of some rows in the declared order


class Near(Protocol):
    """What the comparison by words found, by position."""

    @property
    def witness(self) -> np.ndarray:
        """The row that each repeats, -1 for none: int64 [n]."""
        ...

    @property
    def score(self) -> np.ndarray:
        """float64 [n]."""
        ...

    @property
    def matched(self) -> np.ndarray:
        """Whether a row is in some verified pair: bool [n]."""
        ...


def check(config: DedupConfig, semantics: Semantics | None) -> None:
    """Raise UsageError for the method without its settings or an embedder, and for values that make no sense."""
    if ("semantic" in config.method) != (config.semantic is not None) or (config.semantic and not semantics):
        raise UsageError(
            "the method semantic comes with its settings and an embedder",
            seen=f"method {','.join(config.method)}",
            next="DedupConfig(method=('semantic',), semantic=SemanticConfig(…)) and decide(…, semantics=…)",
        )
    if config.semantic is not None:
        check_settings(config.semantic)


def check_room(budget: Budget, rows: int, semantics: Semantics) -> None:
    """Raise BadInputError now where an embedder that is sure to be needed will not fit."""
    source = semantics.source
    if not semantics.kept_only and not source.cache().known_files():
        claim_embedder(lambda *asked: budget.claim(asked[0], rows, *asked[1:]), source)


def settle(rows: Rows, pairs: Pairs, rank: Rank, near: Callable[[np.ndarray, Rank], Near]) -> Settled:
    """Decide the rows of ``pairs``; ``near`` decides some of them by their words, in the order of a rank."""
    total, positions = len(rows.rows), pairs.positions
    meaning = _meaning(rows, pairs)
    place = rank(positions)
    fixed = np.zeros(len(positions), bool)
    meant = np.zeros(len(positions), bool)
    witness, score, matched = np.full(total, -1, np.int64), np.zeros(total), np.zeros(total, bool)
    todo = np.arange(len(positions))
    rounds = apart = 0
    while len(todo):

        def settled_first(some: np.ndarray) -> np.ndarray:
            at = np.searchsorted(positions, some)
            ranks = np.empty(len(some), np.int64)
            ranks[np.lexsort((place[at], ~fixed[at]))] = np.arange(len(some))
            return ranks

        here = np.union1d(np.flatnonzero(fixed), todo)
        found = near(positions[here], settled_first)
        by_words, how = found.witness, found.score
        matched |= found.matched
        stays = todo[by_words[positions[todo]] < 0]
        order = stays[np.argsort(place[stays], kind="stable")]
        goes, avoided = _greedy(order, np.flatnonzero(fixed), meaning, positions, rows.references)
        apart += avoided
        fixed[order[~goes]] = True
        meant[order[goes]] = True
        gone = todo[by_words[positions[todo]] >= 0]
        witness[positions[todo]] = -1
        witness[positions[gone]], score[positions[gone]] = by_words[positions[gone]], how[positions[gone]]
        todo = gone[meant[np.searchsorted(positions, witness[positions[gone]])]]
        rounds += 1
    names = id_ranks(rows.ids[positions])
    best, cosine = _best(np.flatnonzero(meant), fixed, meaning, names, positions, rows.references)
    witness[positions[meant]], score[positions[meant]] = positions[best], cosine
    matched[positions] |= _alike(meaning, positions, rows.references)
    went = np.zeros(total, bool)
    went[positions[meant]] = True
    return Settled(witness, score, went, matched, apart, rounds)


def _meaning(rows: Rows, pairs: Pairs) -> Meaning:
    alike, positions = pairs.alike, pairs.positions
    count = len(alike.texts.keys)
    vector = alike.group()[alike.texts.of_position] if len(positions) else np.zeros(0, np.int64)
    count_over = sum(int((part.score >= pairs.config.threshold).sum()) for part in alike.parts())
    pairs.room.claim(A_PAIR * count_over, f"{count_over:,} pairs at the threshold", "a higher --semantic-threshold")
    over = alike.over(pairs.config.threshold)
    over = over.chosen(~over.same)
    a, b, score = over.a.astype(np.int64), over.b.astype(np.int64), over.score
    itself = np.unique(vector)
    one, other = np.concatenate([a, b, itself]), np.concatenate([b, a, itself])
    order = np.lexsort((other, one))
    named = np.zeros(len(positions), np.uint64)
    if pairs.config.same_numbers:
        met = np.bincount(one, minlength=count) > 1
        some = np.flatnonzero(met[vector] | (np.bincount(vector, minlength=count) > 1)[vector])
        chosen = rows.texts_of(positions[some])
        named[some] = numbers.signatures(text.decode("utf-8", "replace") for text in chosen)
    return Meaning(
        vector.astype(np.int32),
        np.concatenate([[0], np.cumsum(np.bincount(vector, minlength=count))]).astype(np.int64),
        np.concatenate([[0], np.cumsum(np.bincount(one, minlength=count))]).astype(np.int64),
        other[order].astype(np.int32),
        np.concatenate([score, score, np.ones(len(itself))])[order],
        named,
        np.zeros(len(positions), np.int64) if rows.group is None else rows.group[positions],
    )


@njit(nogil=True, cache=True)
def _greedy(
    order: np.ndarray, fixed: np.ndarray, meaning: Meaning, positions: np.ndarray, references: int
) -> tuple[np.ndarray, int]:
    """Take rows in order: one goes when a row that stays, or one of ``fixed``, means the same. bool [order]."""
    kept = np.empty(meaning.first[-1], np.int32)  # the rows that stay, by vector
    filled = np.zeros(len(meaning.first) - 1, np.int64)
    goes = np.zeros(len(order), np.bool_)
    apart = 0
    for i in range(len(fixed) + len(order)):
        row = fixed[i] if i < len(fixed) else order[i - len(fixed)]
        vector = meaning.of_row[row]
        if i >= len(fixed) and positions[row] >= references:
            for at in range(meaning.starts[vector], meaning.starts[vector + 1]):
                other = meaning.other[at]
                for slot in range(meaning.first[other], meaning.first[other] + filled[other]):
                    if meaning.group[kept[slot]] != meaning.group[row]:
                        continue
                    if meaning.numbers[kept[slot]] != meaning.numbers[row]:
                        apart += 1
                        continue
                    goes[i - len(fixed)] = True
                    break
                if goes[i - len(fixed)]:
                    break
        if i < len(fixed) or not goes[i - len(fixed)]:
            kept[meaning.first[vector] + filled[vector]] = row
            filled[vector] += 1
    return goes, apart


@njit(nogil=True, cache=True)
def _best(
    gone: np.ndarray, fixed: np.ndarray, meaning: Meaning, names: np.ndarray, positions: np.ndarray, references: int
) -> tuple[np.ndarray, np.ndarray]:
    """The row that stays which each of some rows resembles most: one of a reference, then the highest score, then the
    smallest record id.
    """
    kept = np.empty(meaning.first[-1], np.int32)
    filled = np.zeros(len(meaning.first) - 1, np.int64)
    for row in range(len(fixed)):
        if fixed[row]:
            vector = meaning.of_row[row]
            kept[meaning.first[vector] + filled[vector]] = row
            filled[vector] += 1
    best = np.full(len(gone), -1, np.int64)
    score = np.zeros(len(gone))
    for i in range(len(gone)):
        row = gone[i]
        vector = meaning.of_row[row]
        for at in range(meaning.starts[vector], meaning.starts[vector + 1]):
            other = meaning.other[at]
            for slot in range(meaning.first[other], meaning.first[other] + filled[other]):
                k = kept[slot]
                if meaning.group[k] != meaning.group[row] or meaning.numbers[k] != meaning.numbers[row]:
                    continue
                better = best[i] < 0
                if not better and (positions[k] < references) != (positions[best[i]] < references):
                    better = positions[k] < references
                elif not better:
                    same = meaning.score[at] == score[i]
                    better = meaning.score[at] > score[i] or (same and names[k] < names[best[i]])
                if better:
                    best[i] = k
                    score[i] = meaning.score[at]
    return best, score


@njit(nogil=True, cache=True)
def _alike(meaning: Meaning, positions: np.ndarray, references: int) -> np.ndarray:
    """Which rows have any other row of one meaning, whatever became of it: bool [n]."""
    rows = np.empty(meaning.first[-1], np.int32)
    filled = np.zeros(len(meaning.first) - 1, np.int64)
    for row in range(len(positions)):
        vector = meaning.of_row[row]
        rows[meaning.first[vector] + filled[vector]] = row
        filled[vector] += 1
    found = np.zeros(len(positions), np.bool_)
    for row in range(len(positions)):
        vector = meaning.of_row[row]
        for at in range(meaning.starts[vector], meaning.starts[vector + 1]):
            if found[row]:
                break
            other = meaning.other[at]
            for slot in range(meaning.first[other], meaning.first[other + 1]):
                k = rows[slot]
                if k == row or (positions[k] < references and positions[row] < references):
                    continue
                if meaning.group[k] == meaning.group[row] and meaning.numbers[k] == meaning.numbers[row]:
                    found[row] = True
                    break
    return found


class Drawn(NamedTuple):
    """How many pairs of a kind there are, and some of them: which ones is chance that content decides."""

    pairs: int
    chance: np.ndarray  # uint64 [k], ascending
    shown: meanings.Pairs  # [k]

    def more(self, chance: np.ndarray, pairs: meanings.Pairs, most: int) -> Drawn:
        """Return it with further pairs, of which at most so many are shown."""
        if not len(chance):
            return self
        joined = np.concatenate([self.chance, chance])
        order = np.argsort(joined, kind="stable")[:most]
        columns = (np.concatenate(both)[order] for both in zip(self.shown, pairs, strict=True))
        return Drawn(self.pairs + len(chance), joined[order], meanings.Pairs(*columns))


def told(rows: Rows, pairs: Pairs, settled: Settled) -> dict[str, Any]:
    """What the stage says of it: how vectors came to be, the pairs by score, examples to choose a threshold by."""
    threshold, floor = pairs.config.threshold, float(pairs.alike.told["floor"])
    bands = _edges(floor)
    # A random order of pairs that is the same for the same texts, however their rows are ordered.
    words = as_words(pairs.alike.texts.keys)[:, 1] if len(pairs.alike.texts.keys) else np.zeros(0, np.uint64)
    nothing = Drawn(0, np.zeros(0, np.uint64), meanings.Pairs(*np.zeros((4, 0))))
    low = int(np.floor(floor / BIN + 1e-9))
    bins = np.zeros(round(1 / BIN) + 1 - low, np.int64)
    border, drawn, over = nothing, [nothing] * len(bands), 0
    for part in pairs.alike.parts():
        chance, score = words[part.a] ^ words[part.b], part.score
        over += int(np.count_nonzero(score >= threshold))
        bins += np.bincount(
            np.minimum((score / BIN + 1e-9).astype(np.int64), round(1 / BIN)) - low, minlength=len(bins)
        )
        near = np.abs(score - threshold) <= BORDER
        border = border.more(chance[near], part.chosen(near), BORDERLINE)
        within = [(score >= least) & ((score < most) | (most >= 1)) for least, most in bands]
        drawn = [band.more(chance[here], part.chosen(here), SAMPLES) for band, here in zip(drawn, within, strict=True)]
    return {
        **pairs.alike.told,
        "threshold": threshold,
        "same_numbers": pairs.config.same_numbers,
        "pairs": int(bins.sum()),
        "pairs_at_threshold": over,
        "kept_apart_by_numbers": settled.kept_apart,
        "rounds": settled.rounds,
        "histogram": [[round((low + k) * BIN, 6), n] for k, n in enumerate(_trimmed(bins))],
        "bands": [
            {"from": least, "to": most, "pairs": band.pairs, "shown": _shown(rows, pairs, band)}
            for (least, most), band in zip(bands, drawn, strict=True)
            if band.pairs
        ],
        "borderline": {
            "within": BORDER,
            "pairs": border.pairs,
            "shown": [_pair(rows, pairs, border.shown, k, short=True) for k in range(len(border.chance))],
        },
    }


def _trimmed(bins: np.ndarray) -> list[int]:
    """Counts up to the last one that is not zero."""
    return bins[: np.flatnonzero(bins)[-1] + 1].tolist() if bins.any() else []


def _edges(floor: float) -> list[tuple[float, float]]:
    """The bands of scores, the highest first."""
    lows = np.maximum(np.round(np.arange(1.0, floor - BAND, -BAND), 6) - BAND, 0.0)
    return [(round(low, 6), round(low + BAND, 6)) for low in lows.tolist()]


def _shown(rows: Rows, pairs: Pairs, band: Drawn) -> list[dict[str, Any]]:
    return [_pair(rows, pairs, band.shown, k) for k in np.argsort(-band.shown.score, kind="stable").tolist()]


def _pair(rows: Rows, pairs: Pairs, of: meanings.Pairs, k: int, *, short: bool = False) -> dict[str, Any]:
    positions = [pairs.first(int(of.a[k])), pairs.first(int(of.b[k]))]
    said = [rows.text(position).decode("utf-8", "replace") for position in positions]
    told: dict[str, Any] = {
        "score": round(float(of.score[k]), 6),
        "record_ids": [rows.ids[position].tobytes().hex() for position in positions],
        "same_numbers": numbers.numbers_in(said[0]) == numbers.numbers_in(said[1]),
    }
    return told if short else {**told, "texts": list(differing(*said))}
