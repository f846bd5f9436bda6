"""Where the texts and signatures of the rows lie: in memory while there is room, else in the spill file, in order."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from lpt_data.spill import Spill
from lpt_data.text import buffers

Text = tuple[np.ndarray, np.ndarray]  # offsets int64 [n + 1] and UTF-8 bytes, as in an Arrow large_string array

BLOCK = 64 << 20  # bytes of text in one allocation
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

    def done(self) -> np.ndarray:
        """The values; nothing can be added any more."""
        self._array.resize((self._used, *self._shape), refcheck=False)
        return self._array


class Texts:
    """The texts of all rows, batch by batch as they were read."""

    def __init__(self, spill: Spill) -> None:
        self.firsts = [0]  # the first position of each batch, and one past the last row
        self.bytes = 0  # of text
        self.held = 0  # bytes in memory
        self._spill = spill
        self._spilling = False
        self._parts: list[Text | int] = []  # buffers, or where they begin in the spill file
        self._sizes: list[int] = []
        self._block = np.empty(0, np.uint8)
        self._used = 0

    def __len__(self) -> int:
        return len(self._parts)

    def keep(self, texts: pa.Array) -> Text:
        """Copy the buffers of a large_string array into the store; return them with offsets that start at 0."""
        offsets, data = buffers(texts)
        size = int(offsets[-1] - offsets[0])
        text = (offsets - offsets[0], data[offsets[0] : offsets[-1]])
        if not self._spilling:
            text = (text[0], self._copied(text[1]))
        self._parts.append(self._spill.append(text) if self._spilling else text)
        self._sizes.append(size)
        self.firsts.append(self.firsts[-1] + len(offsets) - 1)
        self.bytes += size
        self.held += 0 if self._spilling else size + 8 * len(offsets)
        return text

    def evict(self) -> None:
        """Move all texts to the spill file, and those to come."""
        self._spilling = True
        self._parts = [part if isinstance(part, int) else self._spill.append(part) for part in self._parts]
        self._block, self._used, self.held = np.empty(0, np.uint8), 0, 0

    def load(self, batch: int) -> Text:
        """The offsets and bytes of a batch."""
        part = self._parts[batch]
        if not isinstance(part, int):
            return part
        rows = self.firsts[batch + 1] - self.firsts[batch]
        offsets = self._spill.read(part, np.int64, rows + 1)
        return offsets, self._spill.read(part + 8 * (rows + 1), np.uint8, self._sizes[batch])

    def some(self, positions: np.ndarray) -> Iterator[memoryview | bytes]:
        """The UTF-8 bytes of some rows (ascending positions), one after the other."""
        cuts = np.searchsorted(positions, self.firsts)
        for batch in np.flatnonzero(np.diff(cuts)).tolist():
            mine, part = positions[cuts[batch] : cuts[batch + 1]], self._parts[batch]
            if isinstance(part, int):  # few of a batch as a rule: the rest is not fetched
                yield from map(self.one, mine.tolist())
                continue
            offsets, places, view = part[0], mine - self.firsts[batch], part[1].data
            for start, end in zip(offsets[places].tolist(), offsets[places + 1].tolist(), strict=True):
                yield view[start:end]

    def one(self, position: int) -> bytes:
        """The UTF-8 bytes of one row."""
        batch = bisect_right(self.firsts, position) - 1
        part, at = self._parts[batch], position - self.firsts[batch]
        if not isinstance(part, int):
            return part[1][part[0][at] : part[0][at + 1]].tobytes()
        start, end = self._spill.read(part + 8 * at, np.int64, 2).tolist()
        texts = part + 8 * (self.firsts[batch + 1] - self.firsts[batch] + 1)
        return self._spill.read(texts + start, np.uint8, end - start).tobytes()

    def _copied(self, data: np.ndarray) -> np.ndarray:
        """The bytes in a large block. Small arrays kept by the thousand cost more in fresh pages than this copy."""
        if self._used + len(data) > len(self._block):
            self._block, self._used = np.empty(max(len(data), BLOCK), np.uint8), 0
        kept = self._block[self._used : self._used + len(data)]
        kept[:] = data
        self._used += len(data)
        return kept


class Table:
    """Numbers of all rows, uint64 [n, width], in blocks of whole columns, so that one column is read without others."""

    def __init__(self, width: int, spill: Spill) -> None:
        self.width = width
        self.firsts = [0]  # the first position of each block, and one past the last row
        self.held = 0  # bytes in memory
        self._spill = spill
        self._spilling = False
        self._blocks: list[np.ndarray | int] = []  # uint64 [width, rows of the block], or its place in the file
        self._fresh: list[np.ndarray] = []
        self._waiting = 0

    def add(self, values: np.ndarray) -> None:
        """Append rows, uint64 [m, width]."""
        self._fresh.append(values)
        self._waiting += values.nbytes
        if self._waiting >= TABLE_BLOCK:
            self.close_block()

    def close_block(self) -> None:
        """Make a block of the rows that wait for one; the last call ends the table."""
        if not self._fresh:
            return
        block = np.ascontiguousarray(np.concatenate(self._fresh).T)
        self._fresh, self._waiting = [], 0
        self.firsts.append(self.firsts[-1] + block.shape[1])
        self._blocks.append(self._spill.append([block]) if self._spilling else block)
        self.held += 0 if self._spilling else block.nbytes

    def evict(self) -> None:
        """Move all blocks to the spill file, and those to come."""
        self._spilling = True
        self._blocks = [block if isinstance(block, int) else self._spill.append([block]) for block in self._blocks]
        self.held = 0

    def column(self, number: int) -> Iterator[tuple[int, np.ndarray]]:
        """One column block by block, each with its first position."""
        for block, first in zip(self._blocks, self.firsts, strict=False):
            if isinstance(block, int):
                rows = self.firsts[bisect_right(self.firsts, first)] - first
                yield first, self._spill.read(block + 8 * rows * number, np.uint64, rows)
            else:
                yield first, block[number]

    def take(self, positions: np.ndarray) -> np.ndarray:
        """The rows at some positions (ascending), uint64 [k, width]."""
        found = np.empty((len(positions), self.width), np.uint64)
        cuts = np.searchsorted(positions, self.firsts)
        for number, block in enumerate(self._blocks):
            here = slice(cuts[number], cuts[number + 1])
            if here.start == here.stop:
                continue
            first = self.firsts[number]
            if isinstance(block, int):
                rows = self.firsts[number + 1] - first
                block = self._spill.read(block, np.uint64, rows * self.width).reshape(self.width, rows)
            found[here] = block[:, positions[here] - first].T
        return found
