"""All pairs of vectors at or above a score: exact blocks up to a size, an index with measured recall beyond it.

A block of products is computed, the few at or above the threshold are kept, the block is forgotten: memory is that of
the vectors, one block and the pairs. Blocks run in float32 (CPU) or on the tensor cores (GPU) and only *propose*:
everything within MARGIN below the threshold is kept, and every pair is scored again in float64 from the stored vectors.
So scores are a function of two stored vectors, whatever computed the blocks and however they were cut.

Vectors 0..queries-1 are compared with each other (``within``) and with all others; the others are not compared among
themselves. Rows of a reference, or rows beside benchmark items, are such others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lpt_data.semantic.models import missing
from manifests.errors import BadInputError

MARGIN = 2e-3  # float16 products and rounded lengths differ less than this from the score
EXACT_CPU, EXACT_GPU = 200_000, 1_000_000  # vectors up to which every pair is looked at
MOST_PAIRS = 50_000_000  # kept, 16 bytes each
_BLOCK = 4096  # vectors a side, CPU
_LISTS_A_ROOT, _PROBES = 4, 64  # inverted lists: 4 * sqrt(n), of which 64 are searched
_SAMPLE = 1000  # vectors on which the recall of an index is measured
Tell = Callable[[int, int], None]


@dataclass(frozen=True)
class Found:
    """Pairs a < b (positions), each once, in the order of a, then b."""

    a: np.ndarray  # int32 [k]
    b: np.ndarray  # int32 [k]
    score: np.ndarray  # float64 [k], cosine, at most 1
    how: dict[str, Any] = field(default_factory=dict)  # method, device, and of an index the measured recall


def limit(asked: int | None, device: str) -> int:
    """How many vectors are compared exactly: what was asked for, else what the device does in reasonable time."""
    return asked if asked is not None else (EXACT_GPU if device == "cuda" else EXACT_CPU)


def all_pairs(
    vectors: np.ndarray,
    floor: float,
    *,
    queries: int | None = None,
    within: bool = True,
    device: str = "cpu",
    exact_limit: int | None = None,
    tell: Tell = lambda done, total: None,
) -> Found:
    """Find the pairs with cosine >= floor among float16 unit vectors [n, d].

    Raises BadInputError for more than MOST_PAIRS pairs: the floor is too low to be of use.
    """
    total = len(vectors)
    first = total if queries is None else queries
    most = limit(exact_limit, device)
    threshold = floor - MARGIN
    how: dict[str, Any] = {"vectors": total, "floor": floor, "device": device}
    if total > most:
        a, b, more = _index(vectors, threshold, first, within, tell)
        how |= {"method": "ivf", "exact_limit": most, **more}
    elif device == "cuda":
        from lpt_data.semantic import neighbours_gpu

        a, b = neighbours_gpu.blocks(vectors, threshold, first, within, MOST_PAIRS, too_many, tell)
        how["method"] = "exact"
    else:
        a, b = _blocks(vectors, threshold, first, within, tell)
        how["method"] = "exact"
    if device == "cuda":
        from lpt_data.semantic import neighbours_gpu

        score = neighbours_gpu.scores(vectors, a, b)
    else:
        score = scores(vectors, a, b)
    keep = np.flatnonzero(score >= floor)
    order = keep[np.lexsort((b[keep], a[keep]))]
    if "recall" in how:
        how["recall"] = _recall(vectors, floor, first, within, a[order], b[order])
    return Found(a[order], b[order], score[order], how)


def scores(vectors: np.ndarray, a: np.ndarray, b: np.ndarray, at_a_time: int = 8192) -> np.ndarray:
    """Cosine of pairs of stored vectors in float64, at most 1; 0 where a vector has no length."""
    lengths = np.empty(len(vectors))
    for at in range(0, len(vectors), at_a_time):
        some = vectors[at : at + at_a_time].astype(np.float64)
        lengths[at : at + at_a_time] = np.sqrt((some * some).sum(1))
    lengths[lengths == 0] = np.inf
    found = np.empty(len(a))
    for at in range(0, len(a), at_a_time):
        here = slice(at, at + at_a_time)
        products = vectors[a[here]].astype(np.float64)
        products *= vectors[b[here]]
        found[here] = products.sum(1) / (lengths[a[here]] * lengths[b[here]])
    return np.minimum(found, 1.0)


def too_many(found: int, floor: float) -> BadInputError:
    """Return the error for a floor that lets too much through."""
    return BadInputError(
        "more pairs lie above the floor than can be kept",
        seen=f"over {found:,} pairs at or above {floor + MARGIN:g}, at most {MOST_PAIRS:,}",
        next="a higher --floor, or exact,minhash before semantic to take out templates first",
    )


def _blocks(
    vectors: np.ndarray, threshold: float, queries: int, within: bool, tell: Tell
) -> tuple[np.ndarray, np.ndarray]:
    """Products of block by block in float32; of the square of the queries only the upper half."""
    total = len(vectors)
    wide = vectors.astype(np.float32)
    kept_a, kept_b = [np.zeros(0, np.int32)], [np.zeros(0, np.int32)]
    count = 0
    for row in range(0, queries, _BLOCK):
        rows = wide[row : min(row + _BLOCK, queries)]
        tell(row, queries)
        for column in range(row if within else queries, total, _BLOCK):
            block = rows @ wide[column : column + _BLOCK].T
            flat = np.flatnonzero(block >= threshold)
            if len(flat):
                a, b = np.divmod(flat, block.shape[1])
                a, b = a + row, b + column
                upper = a < b
                kept_a.append(a[upper].astype(np.int32))
                kept_b.append(b[upper].astype(np.int32))
                count += len(kept_a[-1])
                if count > MOST_PAIRS:
                    raise too_many(count, threshold)
    return np.concatenate(kept_a), np.concatenate(kept_b)


def _index(
    vectors: np.ndarray, threshold: float, queries: int, within: bool, tell: Tell
) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    """Inverted lists of FAISS: each query looks into the lists whose centres are nearest."""
    try:
        import faiss
    except ImportError:
        raise missing("so many vectors need faiss, which is not installed", seen=f"{len(vectors):,} vectors") from None
    wide = vectors.astype(np.float32)
    lists = max(1, min(int(_LISTS_A_ROOT * len(vectors) ** 0.5), len(vectors) // 39))
    index = faiss.IndexIVFFlat(faiss.IndexFlatIP(wide.shape[1]), wide.shape[1], lists, faiss.METRIC_INNER_PRODUCT)
    index.cp.seed = 1234
    index.train(wide[:: max(1, len(wide) // (lists * 64))])
    index.add(wide)
    index.nprobe = min(_PROBES, lists)
    kept_a, kept_b = [np.zeros(0, np.int32)], [np.zeros(0, np.int32)]
    count = 0
    for row in range(0, queries, _BLOCK):
        tell(row, queries)
        end = min(row + _BLOCK, queries)
        ends, _, other = index.range_search(wide[row:end], threshold)
        limits = ends.astype(np.int64)
        a = np.repeat(np.arange(row, end), limits[1:] - limits[:-1])
        # A pair of queries may be met from one side alone, where the other's lists were not searched.
        keep = (a != other) if within else (other >= queries)
        kept_a.append(np.minimum(a, other)[keep].astype(np.int32))
        kept_b.append(np.maximum(a, other)[keep].astype(np.int32))
        count += len(kept_a[-1])
        if count > 2 * MOST_PAIRS:
            raise too_many(count // 2, threshold)
    key = np.unique(np.concatenate(kept_a).astype(np.int64) * len(vectors) + np.concatenate(kept_b))
    a, b = np.divmod(key, len(vectors))
    return a.astype(np.int32), b.astype(np.int32), {"lists": lists, "probes": index.nprobe, "recall": None}


def _recall(
    vectors: np.ndarray, floor: float, queries: int, within: bool, a: np.ndarray, b: np.ndarray
) -> dict[str, int | float | None]:
    """Look at all pairs of a sample of queries, evenly spread, and count those that the index had found."""
    sample = np.unique(np.linspace(0, queries - 1, min(_SAMPLE, queries)).astype(np.int64))
    picked = vectors[sample].astype(np.float32)
    true = []
    for column in range(0 if within else queries, len(vectors), _BLOCK):
        block = picked @ vectors[column : column + _BLOCK].astype(np.float32).T
        row, other = np.nonzero(block >= floor - MARGIN)
        true.append(np.stack([sample[row], other + column], axis=1))
    pairs = np.concatenate(true)
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    pairs = pairs[scores(vectors, pairs[:, 0], pairs[:, 1]) >= floor]
    low, high = pairs.min(1, initial=len(vectors)), pairs.max(1, initial=0)
    wanted = np.unique(low * len(vectors) + high)
    had = int(np.isin(wanted, a.astype(np.int64) * len(vectors) + b).sum())
    share = round(had / len(wanted), 6) if len(wanted) else None
    return {"queries": len(sample), "pairs": len(wanted), "found": had, "recall": share}
