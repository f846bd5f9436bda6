"""Texts joined by near-duplication: the connected components of the pairs that are verified, closed over chains.

Where a removal needs a kept witness (`witness`), isolation needs the closure: of A ~ B ~ C, A and C belong together
even when they are no near-duplicates of each other. Bands propose pairs, the shingle sets decide; a pair whose texts
are joined already is not compared, so copies cost nothing. Recall at the threshold is that of the bands: 0.995 a pair.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain

import numpy as np
from numba import njit

from lpt_data.config import DedupConfig
from lpt_data.dataset import TextBatch
from lpt_data.dedup import exact, lsh, templates
from lpt_data.dedup.lsh import find_root
from lpt_data.dedup.memory import budget
from lpt_data.dedup.minhash import Scheme
from lpt_data.dedup.report import REFERENCE
from lpt_data.dedup.rows import read, sketched_again
from lpt_data.dedup.stage import Work, find
from lpt_data.dedup.witness import similarity, sizes_reach
from lpt_data.spill import Spill


def components(batches: Iterable[TextBatch], threshold: float, ngram: int = DedupConfig.ngram) -> np.ndarray:
    """Return for each text, in the order read, the position of one text of its component: int64 [n].

    Equal texts (case and spaces aside) are joined too. Raises UsageError for a threshold that no banding reaches.
    """
    bands = lsh.choose_bands(threshold)
    rows = read(_held(batches), Scheme(ngram, bands.num_perm, DedupConfig.seed), bands, map)
    same = exact.classes(rows.sequence, rows.tokens, lambda positions: positions, rows.texts_of)
    root = same.leader.copy()
    leads = np.flatnonzero((root == np.arange(len(root))) & (rows.shingles > 0))
    grouped = lsh.buckets(rows.keys_of(leads))
    meets = (grouped.of_row >= 0).any(axis=0)
    positions = leads[meets]
    sets = rows.shingle_sets(positions, ngram, map)
    of_row = np.ascontiguousarray(grouped.of_row[:, meets])
    joined = _join(
        of_row, np.concatenate([[0], np.cumsum(grouped.sizes)]), sets.starts, sets.ends, sets.values, threshold
    )
    root[positions] = positions[joined]
    return root[same.leader]


def nearest(
    before: Iterable[TextBatch], count: int, batches: Iterable[TextBatch], threshold: float, kind: str
) -> tuple[np.ndarray, np.ndarray]:
    """Return for each text which of the `count` texts before resembles it most, and how much: int64 and float64 [n].

    -1 where none reaches the threshold. The pairs are verified. What more than 5 % of the conversations share (`kind`
    is no plain text) is left out of the comparison, as `lpt data dedup` does.
    """
    config = DedupConfig(method=("minhash",), threshold=threshold, keep="first")
    bands = lsh.choose_bands(threshold)
    scheme = Scheme(config.ngram, bands.num_perm, config.seed)
    share = templates.share_for(None, kind, "prompt")
    with Spill(None) as file:
        work = Work(config, bands, scheme, map, file, budget(None))
        rows = read(
            _held(chain(before, batches)), scheme, None if share else bands, map, spill=file, budget=work.budget
        )
        if share:
            frame = templates.find(rows, share, scheme, map)
            rows = sketched_again(rows, frame.table, scheme, bands, map, file, work.budget)
        removals, _ = find(replace(rows, references=count), work)
    found = np.where(removals.reason == REFERENCE, removals.witness, -1)[count:]
    return found, removals.score[count:]


def _held(batches: Iterable[TextBatch]) -> Iterator[TextBatch]:
    """The batches as texts that stay in memory: an audit has them in hand, and a file may become another one."""
    return (replace(batch, spans=None) for batch in batches)


@njit(nogil=True, cache=True)
def _join(
    of_row: np.ndarray, first: np.ndarray, starts: np.ndarray, ends: np.ndarray, values: np.ndarray, threshold: float
) -> np.ndarray:
    """The smallest index of the component of each row: int64 [n]."""
    bands, rows = of_row.shape
    slots = np.empty(first[-1], np.int32)
    filled = np.zeros(len(first) - 1, np.int64)
    seen = np.full(rows, -1, np.int64)
    parent = np.arange(rows)
    for row in range(rows):
        for band in range(bands):
            bucket = of_row[band, row]
            if bucket < 0:
                continue
            for slot in range(first[bucket], first[bucket] + filled[bucket]):
                other = slots[slot]
                if seen[other] == row:
                    continue
                seen[other] = row
                a, b = find_root(parent, row), find_root(parent, other)
                if a == b or not sizes_reach(starts, ends, row, other, threshold):
                    continue
                if similarity(starts, ends, values, row, other) >= threshold:
                    parent[max(a, b)] = min(a, b)
            slots[first[bucket] + filled[bucket]] = row
            filled[bucket] += 1
    for row in range(rows):
        parent[row] = find_root(parent, row)
    return parent
