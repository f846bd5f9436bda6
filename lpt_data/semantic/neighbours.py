"""All pairs of vectors at or above a score: exact blocks up to a size, an index with measured recall beyond it.

A block of products is computed, the few at or above the threshold are scored and laid down, the block is forgotten:
memory is that of two blocks of vectors, as large as the room allows, and of the products of two small ones. Blocks run
in float32 (CPU) or on the tensor cores (GPU) and only *propose*: everything within MARGIN below the threshold is scored
in float64 from the stored vectors. So scores are a function of two stored vectors, whatever computed the blocks,
however they were cut and wherever the vectors lie.

Vectors 0..queries-1 are compared with each other (``within``) and with all others; the others are not compared among
themselves. Rows of a reference, or rows beside benchmark items, are such others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lpt_data.semantic.models import missing
from lpt_data.semantic.pile import Pile, Scored
from lpt_data.semantic.room import PASS, Picked, Room, Rows, passes
from manifests.errors import BadInputError

MARGIN = 2e-3  # float16 products and rounded lengths differ less than this from the score
EXACT_CPU, EXACT_GPU = 200_000, 1_000_000  # vectors up to which every pair is looked at
MOST_PAIRS = 50_000_000  # kept, 16 bytes each
_BLOCK = 1024  # vectors a side whose products are computed at once, CPU: 4 MB of them stay in the cache
_LISTS_A_ROOT, _PROBES = 4, 64  # inverted lists: 4 * sqrt(n), of which 64 are searched
_A_LIST = 64  # vectors a list that the centres are found from
_QUERIES = 256  # asked of an index at once
_SAMPLE = 1000  # vectors on which the recall of an index is measured
Tell = Callable[[int, int], None]


@dataclass(frozen=True)
class Found:
    """Pairs a < b (positions), each once."""

    pile: Pile
    how: dict[str, Any] = field(default_factory=dict)  # method, device, and of an index the measured recall

    def parts(self) -> Iterator[Scored]:
        """Pairs in the order of a, then b, as many at a time as memory takes."""
        return self.pile.parts()

    def whole(self) -> Scored:
        """All pairs at once."""
        parts = [Scored(np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0)), *self.parts()]
        return Scored(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def limit(asked: int | None, device: str) -> int:
    """How many vectors are compared exactly: what was asked for, else what the device does in reasonable time."""
    return asked if asked is not None else (EXACT_GPU if device == "cuda" else EXACT_CPU)


def all_pairs(
    vectors: Rows,
    floor: float,
    *,
    queries: int | None = None,
    within: bool = True,
    device: str = "cpu",
    exact_limit: int | None = None,
    room: Room | None = None,
    tell: Tell = lambda done, total: None,
) -> Found:
    """Find the pairs with cosine >= floor among float16 unit vectors [n, d], in the memory that ``room`` gives.

    Raises BadInputError for more than MOST_PAIRS pairs, where the floor is too low to be of use, and for an index that
    does not fit.
    """
    room = room or Room()
    total = len(vectors)
    first = total if queries is None else queries
    most = limit(exact_limit, device)
    threshold = floor - MARGIN
    how: dict[str, Any] = {"vectors": total, "floor": floor, "device": device, "method": "exact"}
    pile = Pile(first, room)
    repeats = 1  # times that a pair may be met
    if total > most:
        lists, probes = lists_for(total)
        how |= {"method": "ivf", "exact_limit": most, "lists": lists, "probes": probes, "recall": None}
        proposed = _index(vectors, threshold, first, within, room, tell)
        repeats = 2
    elif device == "cuda":
        from lpt_data.semantic import neighbours_gpu

        proposed = neighbours_gpu.blocks(vectors, threshold, first, within, tell)
    else:
        proposed = _blocks(vectors, threshold, first, within, room, tell)
    for pairs in proposed:
        pile.add(pairs.chosen(pairs.score >= floor))
        if pile.added > repeats * MOST_PAIRS:
            raise too_many(pile.added // repeats, floor)
    if "recall" in how:
        how["recall"] = _recall(vectors, floor, first, within, pile)
    return Found(pile, how)


def lengths_of(vectors: Rows) -> np.ndarray:
    """The length of each vector in float64, infinite for one of zeros: float64 [n]."""
    lengths = np.empty(len(vectors))
    for here, some in passes(vectors, PASS // 4):
        wide = some.astype(np.float64)
        lengths[here] = np.sqrt((wide * wide).sum(1))
    lengths[lengths == 0] = np.inf
    return lengths


def scores(
    vectors: Rows, a: np.ndarray, b: np.ndarray, at_a_time: int | None = None, lengths: np.ndarray | None = None
) -> np.ndarray:
    """Cosine of pairs of stored vectors in float64, at most 1; 0 where a vector has no length."""
    lengths = lengths_of(vectors) if lengths is None else lengths
    return _cosines(vectors, a, vectors, b, lengths[a] * lengths[b], at_a_time)


def _cosines(
    one: Rows, a: np.ndarray, other: Rows, b: np.ndarray, lengths: np.ndarray, at_a_time: int | None = None
) -> np.ndarray:
    """Products of rows in float64 by the product of their lengths, a piece at a time."""
    count = at_a_time or max(1, PASS // (8 * max(one.shape[1], 1)))
    found = np.empty(len(a))
    for at in range(0, len(a), count):
        here = slice(at, at + count)
        products = one[a[here]].astype(np.float64)
        products *= other[b[here]]
        found[here] = products.sum(1) / lengths[here]
    return np.minimum(found, 1.0)


def too_many(found: int, floor: float) -> BadInputError:
    """Return the error for a floor that lets too much through."""
    return BadInputError(
        "more pairs lie above the floor than can be kept",
        seen=f"over {found:,} pairs at or above {floor:g}, at most {MOST_PAIRS:,}",
        next="a higher --floor, or exact,minhash before semantic to take out templates first",
    )


def _sizes(width: int, room: int) -> tuple[int, int]:
    """How many vectors stay while all others pass by, and how many are multiplied at once, in so many bytes."""
    small = _BLOCK
    while small > 16 and 2 * small * (6 * width + 7 * small) > room:
        small //= 2
    stay = (room - small * (6 * width + 7 * small)) // (4 * width + 16)
    return max(small, stay), small


def _blocks(vectors: Rows, threshold: float, queries: int, within: bool, room: Room, tell: Tell) -> Iterator[Scored]:
    """Products of block by block in float32; of the square of the queries only the upper half."""
    total, width = len(vectors), vectors.shape[1]
    lengths = lengths_of(vectors)
    stay, small = _sizes(width, room.left() // 2)
    for row in range(0, queries, stay):
        rows = _wide(vectors, row, min(row + stay, queries))
        for column in range(row if within else queries, total, small):
            end = min(column + small, total)
            mine = column >= row and end <= row + len(rows)
            columns = rows[column - row : end - row] if mine else _wide(vectors, column, end)
            tell(row + len(rows) * (column - row) // max(total - row, 1), queries)
            for at in range(0, min(len(rows), end - row), small):
                block = rows[at : at + small] @ columns.T
                flat = np.flatnonzero(block >= threshold)
                if len(flat):
                    a, b = np.divmod(flat, block.shape[1])
                    upper = a + (row + at) < b + column
                    a, b = a[upper] + at, b[upper]
                    score = _cosines(rows, a, columns, b, lengths[a + row] * lengths[b + column])
                    yield Scored((a + row).astype(np.int32), (b + column).astype(np.int32), score)


def _wide(vectors: Rows, start: int, end: int) -> np.ndarray:
    """Some vectors in float32, made a piece at a time."""
    wide = np.empty((end - start, vectors.shape[1]), np.float32)
    for here, some in passes(Picked(vectors, np.arange(start, end))):
        wide[here] = some
    return wide


def lists_for(total: int) -> tuple[int, int]:
    """The lists of an index of so many vectors, and how many of them a query looks into."""
    lists = max(1, min(int(_LISTS_A_ROOT * total**0.5), total // 39))
    return lists, min(_PROBES, lists)


def _sample(total: int) -> np.ndarray:
    """The vectors that the centres of the lists are found from."""
    return np.arange(0, total, max(1, total // (lists_for(total)[0] * _A_LIST)))


def index_bytes(total: int, width: int) -> int:
    """Bytes that an index takes at most: what its centres are found from, then its lists, which grow by halves."""
    lists = lists_for(total)[0]
    return max(len(_sample(total)) * 4 * width, int(total * (2 * width + 8) * 1.4)) + 8 * lists * width + (32 << 20)


def _index(vectors: Rows, threshold: float, queries: int, within: bool, room: Room, tell: Tell) -> Iterator[Scored]:
    """Inverted lists of FAISS: each query looks into the lists whose centres are nearest.

    The lists hold the float16 numbers that are stored. A pair may be met from both sides, or from one alone, where
    the other's lists were not searched.
    """
    try:
        import faiss
    except ImportError:
        raise missing("so many vectors need faiss, which is not installed", seen=f"{len(vectors):,} vectors") from None
    total, width = vectors.shape
    lists, probes = lists_for(total)
    sample = _sample(total)
    instead = f"--exact-limit {total} (every pair, block by block: slower)"
    room.claim(index_bytes(total, width), f"an index of {total:,} vectors", instead)
    index = faiss.IndexIVFScalarQuantizer(
        faiss.IndexFlatIP(width), width, lists, faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT, False
    )
    index.cp.seed = 1234
    wide = np.empty((len(sample), width), np.float32)
    for here, some in passes(Picked(vectors, sample)):
        wide[here] = some
    index.train(wide)
    del wide
    for _, some in passes(vectors):
        index.add(some.astype(np.float32))
    index.nprobe = probes
    lengths = lengths_of(vectors)
    for row in range(0, queries, _QUERIES):
        tell(row, queries)
        end = min(row + _QUERIES, queries)
        ends, _, other = index.range_search(vectors[row:end].astype(np.float32), threshold)
        limits = ends.astype(np.int64)
        a = np.repeat(np.arange(row, end), limits[1:] - limits[:-1])
        keep = (a != other) if within else (other >= queries)
        low, high = np.minimum(a, other)[keep], np.maximum(a, other)[keep]
        score = scores(vectors, low, high, lengths=lengths)
        yield Scored(low.astype(np.int32), high.astype(np.int32), score)


def _recall(vectors: Rows, floor: float, queries: int, within: bool, pile: Pile) -> dict[str, int | float | None]:
    """Look at all pairs of a sample of queries, evenly spread, and count those that the index had found."""
    sample = np.unique(np.linspace(0, queries - 1, min(_SAMPLE, queries)).astype(np.int64))
    picked = vectors[sample].astype(np.float32)
    true = []
    for here, some in passes(vectors, _BLOCK * 4 * 2 * vectors.shape[1]):
        if here.stop <= (0 if within else queries):
            continue
        row, other = np.nonzero(picked @ some.astype(np.float32).T >= floor - MARGIN)
        other += here.start
        keep = (sample[row] != other) & (other >= (0 if within else queries))
        true.append(np.stack([sample[row], other], axis=1)[keep])
    pairs = np.concatenate(true)
    pairs = pairs[scores(vectors, pairs[:, 0], pairs[:, 1]) >= floor]
    low, high = pairs.min(1, initial=len(vectors)), pairs.max(1, initial=0)
    wanted = np.unique(low * len(vectors) + high)
    had = 0
    for part in pile.parts() if len(wanted) else ():
        key = part.a.astype(np.int64) * len(vectors) + part.b
        had += int(np.count_nonzero(wanted[np.minimum(np.searchsorted(wanted, key), len(wanted) - 1)] == key))
    share = round(had / len(wanted), 6) if len(wanted) else None
    return {"queries": len(sample), "pairs": len(wanted), "found": had, "recall": share}
