"""Where the texts and signatures of the rows lie, in order: in memory while there is room, else in the spill file.

Texts that can be read again where they came from are not held at all (`lpt_data.io.spans`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise

import numpy as np
from numba import njit

from lpt_data.batches import TextBatch
from lpt_data.io.chunks import Spans
from lpt_data.io.spans import lines_around, read_again
from lpt_data.spill import Spill
from lpt_data.text import buffers

Text = tuple[np.ndarray, np.ndarray]  # offsets int64 [n + 1] and UTF-8 bytes, as in an Arrow large_string array

BLOCK = 64 << 20  # bytes of text in one allocation
PIECE = 1 << 20  # bytes of text that are fetched at a time, where no single one has more
TABLE_BLOCK = 8 << 20  # bytes of a block of a table


class Growing:
    """An array that grows in place: joining parts at the end would hold everything twice."""

    def __init__(self, dtype: np.dtype | type, width: int = 0) -> None:
        self._shape = (width,) if width else ()
        self._array = np.empty((0, *self._shape), dtype)
        self._used = 0

    def add(self, values: np.ndarray) -> None:
        """Append values."""
        end = self._used + len(values)
        if end > len(self._array):
            self._array.resize((end + end // 8 + 1024, *self._shape), refcheck=False)
        self._array[self._used : end] = values
        self._used = end

    def so_far(self) -> np.ndarray:
        """The values appended until now."""
        return self._array[: self._used]

    def done(self) -> np.ndarray:
        """The values; nothing can be added any more."""
        self._array.resize((self._used, *self._shape), refcheck=False)
        return self._array


class Texts:
    """The texts of all rows, batch by batch as they were read."""

    def __init__(self, spill: Spill) -> None:
        self.bytes = 0  # of text
        self.bytes_held = 0  # of them in memory or in the spill file: those that cannot be read again
        self.held = 0  # bytes in memory that can be evicted
        self._spill = spill
        self._spilling = False
        self._firsts = [0]  # the first position of each batch, and one past the last row
        self._parts: list[Text | int | Spans] = []  # buffers, or where they begin in the spill file, or in the input
        self._sizes = Growing(np.uint32)  # bytes of each row
        self._block = np.empty(0, np.uint8)
        self._used = 0

    def keep(self, batch: TextBatch) -> Text:
        """Take the texts of a batch into the store; returns their buffers, with offsets that start at 0."""
        offsets, data = buffers(batch.texts)
        text = (offsets - offsets[0], data[offsets[0] : offsets[-1]])
        if batch.spans is not None:
            self._parts.append(batch.spans)
        elif self._spilling:
            self._parts.append(self._spill.append(text))
            self.bytes_held += len(text[1])
        else:
            text = (text[0], self._copied(text[1]))
            self._parts.append(text)
            self.held += len(text[1]) + 8 * len(offsets)
            self.bytes_held += len(text[1])
        self._sizes.add(np.diff(offsets))
        self._firsts.append(self._firsts[-1] + len(offsets) - 1)
        self.bytes += len(text[1])
        return text

    def evict(self) -> None:
        """Move all texts that are in memory to the spill file, and those to come."""
        self._spilling = True
        self._parts = [self._spill.append(part) if isinstance(part, tuple) else part for part in self._parts]
        self._block, self._used, self.held = np.empty(0, np.uint8), 0, 0

    def pieces(self, positions: np.ndarray) -> list[slice]:
        """Cut some rows (ascending positions) into runs of about PIECE bytes of text."""
        number = np.cumsum(self._sizes.so_far()[positions], dtype=np.int64) // PIECE
        cuts = [0, *(np.flatnonzero(number[1:] != number[:-1]) + 1).tolist(), len(positions)]
        return [slice(start, end) for start, end in pairwise(cuts) if start < end]

    def gather(self, positions: np.ndarray) -> Text:
        """The texts of some rows (ascending positions), one after the other."""
        return joined([read_again(part) if isinstance(part, Spans) else part for part in self._parts_of(positions)])

    def some(self, positions: np.ndarray) -> Iterator[memoryview]:
        """The UTF-8 bytes of some rows (ascending positions), one after the other."""
        for piece in self.pieces(positions):
            offsets, data = self.gather(positions[piece])
            view = data.data
            for start, end in pairwise(offsets.tolist()):
                yield view[start:end]

    def lines(self, positions: np.ndarray) -> Iterator[bytes] | None:
        """The lines that some rows (ascending positions) are in the input, or None where not all can be read again."""
        batches = np.unique(np.searchsorted(self._firsts, positions, side="right") - 1)
        if not all(isinstance(self._parts[batch], Spans) for batch in batches):
            return None
        parts = chain.from_iterable(self._parts_of(positions[piece]) for piece in self.pieces(positions))
        return chain.from_iterable(lines_around(part) for part in parts if isinstance(part, Spans))

    def one(self, position: int) -> bytes:
        """The UTF-8 bytes of one row."""
        return self.gather(np.array([position]))[1].tobytes()

    def _parts_of(self, positions: np.ndarray) -> list[Text | Spans]:
        """Where some rows (ascending positions) lie; spans of neighbours, which are read together, are one."""
        parts: list[Text | list[Spans]] = []
        at = 0
        while at < len(positions):
            batch = bisect_right(self._firsts, positions[at]) - 1
            end = at + int(np.searchsorted(positions[at:], self._firsts[batch + 1]))
            part, mine = self._parts[batch], positions[at:end] - self._firsts[batch]
            at = end
            if isinstance(part, Spans):
                spans, before = part.take(mine), parts[-1] if parts else None
                # A file that is read twice, as reference and as data, begins anew in between.
                if isinstance(before, list) and before[-1].goes_on(spans):
                    before.append(spans)
                else:
                    parts.append([spans])
            else:
                parts.append(_picked(*part, mine) if isinstance(part, tuple) else self._fetched(part, batch, mine))
        return [_as_one(part) if isinstance(part, list) else part for part in parts]

    def _fetched(self, part: int, batch: int, places: np.ndarray) -> Text:
        """Some rows of a batch that lies in the spill file."""
        first, last = int(places[0]), int(places[-1])
        offsets = self._spill.read(part + 8 * first, np.int64, last - first + 2)
        texts = part + 8 * (self._firsts[batch + 1] - self._firsts[batch] + 1)
        data = self._spill.read(texts + int(offsets[0]), np.uint8, int(offsets[-1] - offsets[0]))
        return _picked(offsets - offsets[0], data, places - first)

    def _copied(self, data: np.ndarray) -> np.ndarray:
        """The bytes in a large block. Small arrays kept by the thousand cost more in fresh pages than this copy."""
        if self._used + len(data) > len(self._block):
            self._block, self._used = np.empty(max(len(data), BLOCK), np.uint8), 0
        kept = self._block[self._used : self._used + len(data)]
        kept[:] = data
        self._used += len(data)
        return kept


def _as_one(spans: Sequence[Spans]) -> Spans:
    starts, sizes = (np.concatenate([getattr(one, name) for one in spans]) for name in ("starts", "sizes"))
    return Spans(spans[0].path, spans[0].mark, starts, sizes)


def _picked(offsets: np.ndarray, data: np.ndarray, places: np.ndarray) -> Text:
    starts, ends = offsets[places], offsets[places + 1]
    return np.append(0, np.cumsum(ends - starts)), gathered(data, starts, ends)


def joined(texts: Sequence[Text]) -> Text:
    """Several texts as one."""
    if len(texts) == 1:
        return texts[0]
    sizes = np.concatenate([np.zeros(0, np.int64), *(np.diff(offsets) for offsets, _ in texts)])
    return np.append(0, np.cumsum(sizes)), np.concatenate([np.zeros(0, np.uint8), *(data for _, data in texts)])


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


class Table:
    """Numbers of all rows, uint64, in blocks: ``by_column`` of whole columns [width, n], so that one column is read
    without the others, else of whole rows [n, width].
    """

    def __init__(self, width: int, spill: Spill, *, by_column: bool) -> None:
        self.width = width
        self.held = 0  # bytes in memory
        self._firsts = [0]  # the first position of each block, and one past the last row
        self._rows = int(by_column)  # the axis of the rows
        self._spill = spill
        self._spilling = False
        self._blocks: list[np.ndarray | int] = []  # or their place in the file
        self._fresh: list[np.ndarray] = []
        self._waiting = 0

    def add(self, values: np.ndarray) -> None:
        """Append rows, uint64 [width, m] or [m, width]."""
        self._fresh.append(values)
        self._waiting += values.nbytes
        if self._waiting >= TABLE_BLOCK:
            self.close_block()

    def close_block(self) -> None:
        """Make a block of the rows that wait for one; the last call ends the table."""
        if not self._fresh:
            return
        block = np.concatenate(self._fresh, axis=self._rows)
        self._fresh, self._waiting = [], 0
        self._firsts.append(self._firsts[-1] + block.shape[self._rows])
        self._blocks.append(self._spill.append([block]) if self._spilling else block)
        self.held += 0 if self._spilling else block.nbytes

    def evict(self) -> None:
        """Move all blocks to the spill file, and those to come."""
        self._spilling = True
        self._blocks = [block if isinstance(block, int) else self._spill.append([block]) for block in self._blocks]
        self.held = 0

    def column(self, number: int) -> Iterator[tuple[int, np.ndarray]]:
        """One column of a table by columns, block by block, each with its first position."""
        for block, (first, end) in zip(self._blocks, pairwise(self._firsts), strict=True):
            if isinstance(block, int):
                yield first, self._spill.read(block + 8 * (end - first) * number, np.uint64, end - first)
            else:
                yield first, block[number]

    def take(self, positions: np.ndarray) -> np.ndarray:
        """The rows at some positions (ascending), uint64 [k, width]."""
        found = np.empty((len(positions), self.width), np.uint64)
        cuts = np.searchsorted(positions, self._firsts)
        for number, block in enumerate(self._blocks):
            here = slice(cuts[number], cuts[number + 1])
            if here.start == here.stop:
                continue
            first, end = self._firsts[number : number + 2]
            if isinstance(block, int):
                shape = (self.width, end - first) if self._rows else (end - first, self.width)
                block = self._spill.read(block, np.uint64, self.width * (end - first)).reshape(shape)
            chosen = block.take(positions[here] - first, axis=self._rows)
            found[here] = chosen.T if self._rows else chosen
        return found
