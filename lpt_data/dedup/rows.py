"""The rows of a stage: what the kernels keep of each, and their texts, in memory or in the spill file.

Bytes a row in memory: 32 record id + 8 row + 24 counts and hash. Band keys (8 for each band, 14 bands at threshold 0.8)
and bitmaps (64) are in memory too while they fit (`store`), and so are texts (UTF-8, as read, 8 for the offset) unless
they can be read again where they came from (12). Rows that may have a near duplicate add their shingle sets while they
are verified, 8 bytes for each distinct shingle, about 10 bytes a word, some components at a time. No Python object is
made for a row.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Protocol, overload

import numpy as np

from lpt_data.dataset import TextBatch
from lpt_data.dedup.lsh import BITMAP, Bands, Sketch, sketch
from lpt_data.dedup.memory import give_back
from lpt_data.dedup.minhash import Scheme
from lpt_data.dedup.shingles import NOTHING, ShingleSets, fill
from lpt_data.dedup.store import Growing, Table, Text, Texts
from lpt_data.spill import Spill

Run = Callable[[Callable, Iterable], Iterator]  # map over threads, results in order


class Room(Protocol):
    """Says how many bytes the rows may take (`memory.Budget`)."""

    def room(self, rows: int) -> int:
        """Bytes of texts, signatures and shingle sets while rows are compared."""
        ...

    def hold(self, rows: int, *, at_least: bool = False) -> int:
        """Bytes of texts and signatures that may stay to the end; BadInputError where the rest is not enough."""
        ...

    def row(self, size: int) -> None:
        """BadInputError for a row that is too large."""
        ...

    def left(self, rows: int) -> int:
        """Bytes that are free as of now, while meanings are compared."""
        ...

    def claim(self, size: int, rows: int, what: str, instead: str) -> None:
        """BadInputError where so many bytes are not free, with the cap that is needed and what else would do."""
        ...


@dataclass(frozen=True)
class Chosen(Sequence[bytes]):
    """The UTF-8 bytes of some rows (ascending positions), fetched when they are asked for: nothing is held twice."""

    texts: Texts
    positions: np.ndarray  # int64 [n]

    def __len__(self) -> int:
        return len(self.positions)

    def __iter__(self) -> Iterator[bytes]:
        return map(bytes, self.texts.some(self.positions))

    @overload
    def __getitem__(self, at: int) -> bytes: ...
    @overload
    def __getitem__(self, at: slice) -> Chosen: ...
    def __getitem__(self, at: int | slice) -> bytes | Chosen:
        found = self.positions[at]
        return Chosen(self.texts, found) if isinstance(at, slice) else self.texts.one(int(found))


@dataclass(frozen=True)
class Rows:
    """All rows that could be read, at positions 0..n-1 in input order, those of a reference first."""

    texts: Texts
    rows: np.ndarray  # int64 [n]: row in the input, or in the reference
    ids: np.ndarray  # uint8 [n, 32]
    sequence: np.ndarray  # uint64 [n], a hash of the whole token sequence, and of the group
    tokens: np.ndarray  # int32 [n]
    shingles: np.ndarray  # int32 [n], see `lsh.Sketch`
    chars: np.ndarray  # int32 [n]
    keys: Table  # [n, bands]
    bitmaps: Table  # [n, BITMAP]
    references: int = 0  # rows of the reference
    group: np.ndarray | None = None  # int64 [n]: rows of different groups are no duplicates; None: all in one
    salt: np.ndarray | None = None  # uint64 [n], by group: what tells band keys of different groups apart
    quality: np.ndarray | None = None  # float64 [n]: the highest is kept, NaN last
    told_by_id: bool = False  # rows have one text exactly where they have one record id
    left_out: np.ndarray = field(default_factory=lambda: NOTHING)  # table of the shingles that count for nothing

    @property
    def held(self) -> int:
        """Bytes of texts and signatures that are in memory."""
        return self.texts.held + self.keys.held + self.bitmaps.held

    def evict(self) -> None:
        """Move all that can lie in the spill file there."""
        for stored in (self.texts, self.keys, self.bitmaps):
            stored.evict()

    def text(self, position: int) -> bytes:
        """The UTF-8 bytes of one row."""
        return self.texts.one(position)

    def every_piece(self) -> Iterator[np.ndarray]:
        """The positions of all rows, some texts at a time."""
        every = np.arange(len(self.rows))
        return (every[piece] for piece in self.texts.pieces(every))

    def texts_of(self, positions: np.ndarray) -> Chosen:
        """The UTF-8 bytes of some rows (ascending positions)."""
        return Chosen(self.texts, positions)

    def contents_of(self, positions: np.ndarray) -> np.ndarray | None:
        """128 bits of what tells the texts of some rows apart, uint64 [k, 2], where no text must be read for it."""
        return self.ids[positions, :16].view(np.uint64) if self.told_by_id else None

    def band(self, number: int) -> Iterator[tuple[int, np.ndarray]]:
        """The keys of one band, uint64, block by block, each with its first position."""
        for first, keys in self.keys.column(number):
            yield first, keys if self.salt is None else keys ^ self.salt[first : first + len(keys)]

    def keys_of(self, positions: np.ndarray) -> np.ndarray:
        """The band keys of some rows (ascending positions), uint64 [k, bands]."""
        keys = self.keys.take(positions)
        return keys if self.salt is None else keys ^ self.salt[positions][:, None]

    def shingle_sets(self, positions: np.ndarray, ngram: int, run: Run) -> ShingleSets:
        """The shingle sets of some rows (ascending positions), computed again from their texts."""
        room = np.concatenate([[0], np.cumsum(self.shingles[positions], dtype=np.int64)])
        values = np.empty(int(room[-1]), np.uint64)
        starts, ends = np.empty((2, len(positions)), np.int64)

        def of_piece(here: slice) -> None:
            first, count = room[here.start], here.stop - here.start
            text = self.texts.gather(positions[here])
            found = fill(*text, np.arange(count), ngram, values[first : room[here.stop]], self.left_out)
            starts[here], ends[here] = found[0] + first, found[1] + first

        deque(run(of_piece, self.texts.pieces(positions)), maxlen=0)
        return ShingleSets(starts, ends, values)


def read(
    batches: Iterable[TextBatch],
    scheme: Scheme,
    bands: Bands | None,
    run: Run,
    *,
    spill: Spill | None = None,
    budget: Room | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> Rows:
    """Sketch the batches as they come and keep their texts: in memory while ``budget`` has room, then in the file.

    Raises BadInputError when the budget does not hold the books of the rows, or the disk not the rest.
    """
    spill = spill or Spill()
    texts, made = Texts(spill), _Sketches(bands, spill)
    rows, ids = Growing(np.int64), Growing(np.uint8, 32)
    done = 0

    def keep(batch: TextBatch) -> Text:
        nonlocal done
        kept = texts.keep(batch)
        if budget is not None:
            budget.row(int(np.diff(kept[0]).max(initial=0)))
        rows.add(batch.rows)
        ids.add(batch.ids)
        done += len(batch.rows)
        return kept

    def sketched(kept: Text) -> Sketch:
        return sketch(*kept, scheme, bands)

    for part in run(sketched, map(keep, batches)):
        made.add(part)
        if budget is not None and texts.held + made.held > budget.hold(done, at_least=True):
            texts.evict()
            made.evict()
            give_back()
        progress(done)
    return Rows(texts, rows.done(), ids.done(), *made.done())


def sketched_again(
    rows: Rows, left_out: np.ndarray, scheme: Scheme, bands: Bands | None, run: Run, spill: Spill, budget: Room | None
) -> Rows:
    """The rows with sketches that leave some shingles out, made of the texts that were kept."""
    made = _Sketches(bands, spill)

    def sketched(text: Text) -> Sketch:
        return sketch(*text, scheme, bands, left_out)

    for part in run(sketched, map(rows.texts.gather, rows.every_piece())):
        made.add(part)
        if budget is not None and rows.texts.held + made.held > budget.hold(len(rows.rows)):
            rows.texts.evict()
            made.evict()
            give_back()
    sequence, tokens, shingles, chars, keys, bitmaps = made.done()
    return replace(
        rows, sequence=sequence, tokens=tokens, shingles=shingles, chars=chars, keys=keys, bitmaps=bitmaps,
        left_out=left_out,
    )  # fmt: skip


class _Sketches:
    """The sketches of batches, joined as they come."""

    def __init__(self, bands: Bands | None, spill: Spill) -> None:
        self._numbers = (Growing(np.uint64), Growing(np.int32), Growing(np.int32), Growing(np.int32))
        self._tables = (
            Table(bands.bands if bands else 0, spill, by_column=True),
            Table(BITMAP if bands else 0, spill, by_column=False),
        )

    @property
    def held(self) -> int:
        return sum(table.held for table in self._tables)

    def add(self, part: Sketch) -> None:
        for joined, values in zip(self._numbers, (part.sequence, part.tokens, part.shingles, part.chars), strict=True):
            joined.add(values)
        for table, values in zip(self._tables, (part.keys, part.bitmaps), strict=True):
            if table.width:
                table.add(values)

    def evict(self) -> None:
        for table in self._tables:
            table.evict()

    def done(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, Table, Table]:
        for table in self._tables:
            table.close_block()
        sequence, tokens, shingles, chars = (joined.done() for joined in self._numbers)
        return sequence, tokens, shingles, chars, *self._tables


def thread_count(workers: int | None) -> int:
    """How many threads are meant; None: one a core."""
    return workers or len(os.sched_getaffinity(0))


def threads(workers: int | None) -> tuple[Run, Callable[[], None]]:
    """An ordered map over ``workers`` threads (None: one a core), at most twice as many ahead, and its closing."""
    count = thread_count(workers)
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
