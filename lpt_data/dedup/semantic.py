"""Duplicates by meaning inside the dedup stage: which rows are alike, and what a user needs to choose a threshold.

What is compared are the rows that differ by more than case and white space, near-duplicates among them: whether a row
is near another one and whether it means the same are one cover (`witness`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from lpt_data.config import SemanticConfig
from lpt_data.dedup.report import differing
from lpt_data.dedup.rows import Rows
from lpt_data.dedup.witness import Cover, Meaning
from lpt_data.progress import Progress
from lpt_data.semantic import numbers
from lpt_data.semantic.alike import Alike, Engine, find_alike
from lpt_data.semantic.cache import as_words

BIN = 0.01  # of the histogram
BAND = 0.05  # of the samples
SAMPLES = 4  # pairs shown in each band
BORDER = 1e-4  # scores this close to the threshold may fall on the other side on another machine
BORDERLINE = 20  # of them shown


@dataclass(frozen=True)
class Pairs:
    """The pairs of one stage; places are those among the distinct texts."""

    alike: Alike
    positions: np.ndarray  # int64 [n], the rows compared, ascending
    config: SemanticConfig

    def first(self, place: int) -> int:
        """The position of a row that has a text."""
        return int(self.positions[self.alike.texts.first[place]])


def pairs_of(rows: Rows, positions: np.ndarray, config: SemanticConfig, engine: Engine, progress: Progress) -> Pairs:
    """Find which of some rows (ascending positions) mean alike."""
    texts = [rows.text(position) for position in positions.tolist()]
    return Pairs(find_alike(texts, positions < rows.references, config, engine, progress), positions, config)


def in_pairs(pairs: Pairs) -> np.ndarray:
    """The positions of rows that some pair at or above the threshold has, ascending."""
    met = np.zeros(len(pairs.alike.texts.keys), bool)
    over = pairs.alike.same | (pairs.alike.score >= pairs.config.threshold)
    group = pairs.alike.group()
    met[group[pairs.alike.a[over]]] = True
    met[group[pairs.alike.b[over]]] = True
    shared = np.bincount(pairs.alike.texts.of_position, minlength=len(met)) > 1
    return pairs.positions[(met[group] | shared)[pairs.alike.texts.of_position]]


def meaning_of(rows: Rows, pairs: Pairs, positions: np.ndarray) -> Meaning:
    """What the cover of some rows (ascending positions, all of them compared) has to know of their meaning."""
    alike = pairs.alike
    place = np.searchsorted(pairs.positions, positions)
    inside = (place < len(pairs.positions)) & (
        pairs.positions[np.minimum(place, len(pairs.positions) - 1)] == positions
    )
    vector = np.full(len(positions), -1, np.int64)
    vector[inside] = alike.group()[alike.texts.of_position[place[inside]]]
    count = len(alike.texts.keys)
    over = ~alike.same & (alike.score >= pairs.config.threshold)
    a, b, score = alike.a[over].astype(np.int64), alike.b[over].astype(np.int64), alike.score[over]
    itself = np.unique(vector[inside])
    one = np.concatenate([a, b, itself])
    other = np.concatenate([b, a, itself])
    order = np.lexsort((other, one))
    of_row = vector.astype(np.int32)
    told = np.zeros(len(positions), np.uint64)
    if pairs.config.same_numbers:
        said = [rows.text(position).decode("utf-8", "replace") for position in positions[inside].tolist()]
        told[inside] = numbers.signatures(said)
    return Meaning(
        of_row,
        np.concatenate([[0], np.cumsum(np.bincount(vector[inside], minlength=count))]).astype(np.int64),
        np.concatenate([[0], np.cumsum(np.bincount(one, minlength=count))]).astype(np.int64),
        other[order].astype(np.int32),
        np.concatenate([score, score, np.ones(len(itself))])[order],
        told,
    )


def told(rows: Rows, pairs: Pairs, cover: Cover) -> dict[str, Any]:
    """What the stage says of it: how vectors came to be, the pairs by score, examples to choose a threshold by."""
    alike, threshold = pairs.alike, pairs.config.threshold
    near = np.flatnonzero(np.abs(alike.score - threshold) <= BORDER)
    return {
        **alike.told,
        "threshold": threshold,
        "same_numbers": pairs.config.same_numbers,
        "pairs": len(alike.a),
        "pairs_at_threshold": int(np.count_nonzero(alike.score >= threshold)),
        "alike": cover.alike,
        "kept_apart_by_numbers": cover.other_numbers,
        "histogram": _histogram(alike.score, float(alike.told["floor"])),
        "bands": _bands(rows, pairs),
        "borderline": {
            "within": BORDER,
            "pairs": len(near),
            "shown": [_pair(rows, pairs, k, short=True) for k in near[_by_chance(alike, near)][:BORDERLINE].tolist()],
        },
    }


def _histogram(score: np.ndarray, floor: float) -> list[list[float | int]]:
    """[lower end, pairs] of every bin from the floor to 1."""
    low = int(np.floor(floor / BIN + 1e-9))
    count = np.bincount(np.minimum((score / BIN + 1e-9).astype(np.int64), round(1 / BIN)) - low)
    return [[round((low + k) * BIN, 6), int(n)] for k, n in enumerate(count.tolist())]


def _bands(rows: Rows, pairs: Pairs) -> list[dict[str, Any]]:
    """Some pairs of each band of scores, the highest band first; which ones is chance that content decides."""
    score, bands = pairs.alike.score, []
    edges = np.round(np.arange(1.0, float(pairs.alike.told["floor"]) - BAND, -BAND), 6)
    for low in np.maximum(edges - BAND, 0.0).tolist():
        high = round(low + BAND, 6)
        here = np.flatnonzero((score >= low) & ((score < high) if high < 1 else True))
        if not len(here):
            continue
        picked = here[_by_chance(pairs.alike, here)][:SAMPLES]
        picked = picked[np.argsort(-score[picked], kind="stable")]
        bands.append(
            {
                "from": round(low, 6),
                "to": high,
                "pairs": len(here),
                "shown": [_pair(rows, pairs, k) for k in picked.tolist()],
            }
        )
    return bands


def _by_chance(alike: Alike, some: np.ndarray) -> np.ndarray:
    """An order of some pairs that is random but the same for the same texts, however their rows are ordered."""
    words = as_words(alike.texts.keys)[:, 1] if len(alike.texts.keys) else np.zeros(0, np.uint64)
    return np.argsort(words[alike.a[some]] ^ words[alike.b[some]], kind="stable")


def _pair(rows: Rows, pairs: Pairs, k: int, *, short: bool = False) -> dict[str, Any]:
    positions = [pairs.first(int(pairs.alike.a[k])), pairs.first(int(pairs.alike.b[k]))]
    said = [rows.text(position).decode("utf-8", "replace") for position in positions]
    told: dict[str, Any] = {
        "score": round(float(pairs.alike.score[k]), 6),
        "record_ids": [rows.ids[position].tobytes().hex() for position in positions],
        "same_numbers": numbers.numbers_in(said[0]) == numbers.numbers_in(said[1]),
    }
    return told if short else {**told, "texts": list(differing(*said))}
