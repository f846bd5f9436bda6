"""The rows of a stage in memory: their texts as Arrow buffers and what the kernels keep of each.

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
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np
import pyarrow as pa

from lpt_data.dataset import TextBatch
from lpt_data.dedup.lsh import Bands, Sketch, sketch
from lpt_data.dedup.minhash import Scheme
from lpt_data.dedup.shingles import ShingleSets, concat, shingle_sets
from lpt_data.text import buffers
from manifests.errors import BadInputError

BESIDE_TEXT = 68  # bytes a row beside its text and its band keys: offset, record id, row, sketch


@dataclass(frozen=True)
class Rows:
    """All rows that could be read, at positions 0..n-1 in input order."""

    texts: list[pa.Array]  # large_string, one array for each batch
    starts: np.ndarray  # int64 [batches + 1]: the first position of each batch
    rows: np.ndarray  # int64 [n]: row in the input
    ids: np.ndarray  # uint8 [n, 32]
    sketch: Sketch

    def check_room(self, more: int, memory: int | None) -> None:
        """Raise BadInputError when the rows and ``more`` bytes do not fit in ``memory`` bytes."""
        _check_room(
            sum(map(held, self.texts, [self.sketch.keys.shape[1]] * len(self.texts))) + more, len(self.rows), memory
        )

    def text(self, position: int) -> bytes:
        """The UTF-8 bytes of one row."""
        firsts, views = self._views
        batch = bisect_right(firsts, position) - 1
        offsets, data = views[batch]
        at = position - firsts[batch]
        return data[offsets[at] : offsets[at + 1]].tobytes()

    @cached_property
    def _views(self) -> tuple[list[int], list[tuple[np.ndarray, np.ndarray]]]:
        return self.starts.tolist(), [buffers(texts) for texts in self.texts]

    def shingle_sets(self, positions: np.ndarray, ngram: int, run: Run) -> ShingleSets:
        """The shingle sets of some rows (ascending positions), computed again from their texts."""
        cuts = np.searchsorted(positions, self.starts)

        def of_batch(batch: int) -> ShingleSets:
            wanted = positions[cuts[batch] : cuts[batch + 1]] - self.starts[batch]
            return shingle_sets(self.texts[batch].take(pa.array(wanted)), ngram)

        return concat(list(run(of_batch, range(len(self.texts)))))


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
    kept: list[TextBatch] = []
    used = 0

    def note(batch: TextBatch) -> TextBatch:
        nonlocal used
        kept.append(batch)
        used += held(batch.texts, bands.bands if bands else 0)
        _check_room(used, sum(len(b.rows) for b in kept), memory)
        return batch

    sketches: list[Sketch] = []
    done = 0
    for part in run(lambda batch: sketch(batch.texts, scheme, bands), map(note, batches)):
        sketches.append(part)
        done += len(part.tokens)
        progress(done)
    if not kept:
        sketches = [sketch(pa.array([], pa.large_string()), scheme, bands)]
    starts = np.cumsum([0, *(len(batch.rows) for batch in kept)])
    columns = {name: np.concatenate([getattr(part, name) for part in sketches]) for name in Sketch.__dataclass_fields__}
    return Rows(
        [batch.texts for batch in kept],
        starts.astype(np.int64),
        np.concatenate([np.zeros(0, np.int64), *(batch.rows for batch in kept)]),
        np.concatenate([np.zeros((0, 32), np.uint8), *(batch.ids for batch in kept)]),
        Sketch(**columns),
    )


def held(texts: pa.Array, bands: int) -> int:
    """Bytes that a batch of rows takes while the stage runs."""
    return len(texts) * (BESIDE_TEXT + 8 * bands) + texts.nbytes


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
