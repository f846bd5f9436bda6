"""The rows of a stage in memory: their texts, laid out as Arrow buffers, and what the kernels keep of each.

Bytes a row: the text itself (UTF-8, as read) + 8 offset + 32 record id + 8 row + 20 sketch + 8 for each band (18 bands
at threshold 0.8, so 144): about 210 beside the text. Rows that share a band with another one add their shingle sets
while they are verified, 8 bytes for each distinct shingle, about 10 bytes a word. No Python object is made for a row.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np
import pyarrow as pa

from lpt_data.dataset import TextBatch
from lpt_data.dedup.lsh import Bands, Sketch, sketch
from lpt_data.dedup.minhash import Scheme
from lpt_data.dedup.shingles import NOTHING, ShingleSets, fill
from lpt_data.text import buffers
from manifests.errors import BadInputError

Texts = tuple[np.ndarray, np.ndarray]  # offsets int64 [n + 1] and UTF-8 bytes, as in an Arrow large_string array

BLOCK = 64 << 20  # bytes of text in one allocation
BESIDE_TEXT = 68  # bytes a row beside its text and its band keys: offset, record id, row, sketch


@dataclass(frozen=True)
class Rows:
    """All rows that could be read, at positions 0..n-1 in input order, those of a reference first."""

    texts: list[Texts]  # one for each batch
    firsts: list[int]  # [batches + 1]: the first position of each batch
    rows: np.ndarray  # int64 [n]: row in the input, or in the reference
    ids: np.ndarray  # uint8 [n, 32]
    sketch: Sketch
    references: int = 0  # rows of the reference
    group: np.ndarray | None = None  # int64 [n]: rows of different groups are no duplicates; None: all in one
    quality: np.ndarray | None = None  # float64 [n]: the highest is kept, NaN last
    left_out: np.ndarray = field(default_factory=lambda: NOTHING)  # table of the shingles that count for nothing

    def check_room(self, more: int, memory: int | None) -> None:
        """Raise BadInputError when the rows and ``more`` bytes do not fit in ``memory`` bytes."""
        bands = self.sketch.keys.shape[1]
        _check_room(sum(held(texts, bands) for texts in self.texts) + more, len(self.rows), memory)

    def text(self, position: int) -> bytes:
        """The UTF-8 bytes of one row."""
        batch = bisect_right(self.firsts, position) - 1
        offsets, data = self.texts[batch]
        at = position - self.firsts[batch]
        return data[offsets[at] : offsets[at + 1]].tobytes()

    def shingle_sets(self, positions: np.ndarray, ngram: int, run: Run) -> ShingleSets:
        """The shingle sets of some rows (ascending positions), computed again from their texts."""
        room = np.concatenate([[0], np.cumsum(self.sketch.shingles[positions], dtype=np.int64)])
        values = np.empty(int(room[-1]), np.uint64)
        starts, ends = np.empty((2, len(positions)), np.int64)
        cuts = np.searchsorted(positions, self.firsts)

        def of_batch(batch: int) -> None:
            here = slice(cuts[batch], cuts[batch + 1])
            first = room[here.start]
            found = fill(
                *self.texts[batch],
                positions[here] - self.firsts[batch],
                ngram,
                values[first : room[here.stop]],
                self.left_out,
            )
            starts[here], ends[here] = found[0] + first, found[1] + first

        deque(run(of_batch, range(len(self.texts))), maxlen=0)
        return ShingleSets(starts, ends, values)


class Arena:
    """Texts copied into large blocks. Small arrays kept by the thousand cost more in fresh pages than this copy."""

    def __init__(self) -> None:
        self._block = np.empty(0, np.uint8)
        self._used = 0

    def keep(self, texts: pa.Array) -> Texts:
        """Copy the buffers of a large_string array; the offsets start at 0."""
        offsets, data = buffers(texts)
        size = int(offsets[-1] - offsets[0])
        if self._used + size > len(self._block):
            self._block, self._used = np.empty(max(size, BLOCK), np.uint8), 0
        kept = self._block[self._used : self._used + size]
        kept[:] = data[offsets[0] : offsets[-1]]
        self._used += size
        return offsets - offsets[0], kept


Run = Callable[[Callable, Iterable], Iterator]  # map over threads, results in order


def read(
    batches: Iterable[TextBatch],
    scheme: Scheme,
    bands: Bands | None,
    run: Run,
    *,
    memory: int | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> Rows:
    """Sketch the batches as they come and keep their texts; BadInputError when ``memory`` bytes are not enough."""
    arena, width = Arena(), bands.bands if bands else 0
    texts: list[Texts] = []
    rows = [np.zeros(0, np.int64)]
    ids = [np.zeros((0, 32), np.uint8)]
    used = done = 0

    def keep(batch: TextBatch) -> Texts:
        nonlocal used, done
        texts.append(arena.keep(batch.texts))
        rows.append(batch.rows)
        ids.append(batch.ids)
        used += held(texts[-1], width)
        done += len(batch.rows)
        _check_room(used, done, memory)
        return texts[-1]

    def sketched(kept: Texts) -> Sketch:
        offsets, data = kept
        return sketch(offsets, data, scheme, bands)

    sketches = [sketch(np.zeros(1, np.int64), np.zeros(0, np.uint8), scheme, bands)]
    for part in run(sketched, map(keep, batches)):
        sketches.append(part)
        progress(done)
    firsts = np.cumsum([0, *(len(offsets) - 1 for offsets, _ in texts)]).tolist()
    return Rows(texts, firsts, np.concatenate(rows), np.concatenate(ids), _joined(sketches))


def sketched_again(rows: Rows, left_out: np.ndarray, scheme: Scheme, bands: Bands, run: Run) -> Rows:
    """The rows with sketches that leave some shingles out, made of the texts that are held."""

    def sketched(kept: Texts) -> Sketch:
        return sketch(*kept, scheme, bands, left_out)

    made = list(run(sketched, rows.texts))
    made.append(sketch(np.zeros(1, np.int64), np.zeros(0, np.uint8), scheme, bands))
    return replace(rows, sketch=_joined(made), left_out=left_out)


def _joined(sketches: list[Sketch]) -> Sketch:
    names = Sketch.__dataclass_fields__
    return Sketch(**{name: np.concatenate([getattr(part, name) for part in sketches]) for name in names})


def held(texts: Texts, bands: int) -> int:
    """Bytes that a batch of rows takes while the stage runs."""
    offsets, data = texts
    return (len(offsets) - 1) * (BESIDE_TEXT + 8 * bands) + len(data)


def _check_room(used: int, rows: int, memory: int | None) -> None:
    if memory is not None and used > memory:
        raise BadInputError(
            "the rows do not fit in the memory that was given",
            seen=f"{used:,} of {memory:,} bytes after {rows:,} rows",
            next="a larger --memory",
        )


def threads(workers: int | None) -> tuple[Run, Callable[[], None]]:
    """An ordered map over ``workers`` threads (None: one a core), at most twice as many ahead, and its closing."""
    count = workers or len(os.sched_getaffinity(0))
    if count == 1:
        return map, lambda: None
    pool = ThreadPoolExecutor(count)

    def run(function: Callable, items: Iterable) -> Iterator:
        waiting: deque[Future] = deque()
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > 2 * count:
                yield waiting.popleft().result()
        yield from (future.result() for future in chain(waiting))

    return run, lambda: pool.shutdown(cancel_futures=True)
