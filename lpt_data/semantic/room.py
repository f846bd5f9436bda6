"""Vectors in bounded memory: in an array where they fit, else in the spill file, read a block at a time.

Whoever compares vectors asks for slices and for rows and gets arrays either way, so what is found is the same.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol, overload

import numpy as np

from lpt_data.spill import Spill

PASS = 8 << 20  # bytes of vectors that are looked at in one go where each is needed once


@dataclass(frozen=True)
class Room:
    """How much memory is free, and the file for what does not fit; without a cap all of it."""

    spill: Spill = field(default_factory=Spill)
    left: Callable[[], int] = lambda: sys.maxsize  # bytes that may still be taken, as of now
    # Makes so many bytes free for what is named, or raises BadInputError with the cap that is needed, and with what
    # can be done instead.
    claim: Callable[[int, str, str], None] = lambda size, what, instead: None


class Rows(Protocol):
    """Vectors that are read by slices and by positions: an array, a `Matrix`, or some rows of one."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(rows, width)."""
        ...

    def __len__(self) -> int: ...
    def __getitem__(self, some: slice | np.ndarray) -> np.ndarray: ...


class Matrix:
    """Vectors by row, float16 [n, d], zeros until they are put; d is 0 before the first ones are."""

    def __init__(self, count: int, room: Room) -> None:
        self.shape: tuple[int, int] = (count, 0)
        self._room = room
        self._array: np.ndarray | None = np.zeros((count, 0), np.float16)
        self._start = 0  # in the spill file, where it lies there

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def bytes(self) -> int:
        """Of all vectors."""
        return 2 * self.shape[0] * self.shape[1]

    @property
    def spilled(self) -> bool:
        """Whether they lie in the spill file."""
        return self._array is None

    def put(self, at: np.ndarray, vectors: np.ndarray) -> None:
        """Set the vectors of some rows (ascending positions)."""
        if not self.shape[1]:
            self._open(vectors.shape[1])
        if self._array is not None:
            self._array[at] = vectors
            return
        for here, rows in _runs(at):
            self._room.spill.write(self._place(rows.start), np.ascontiguousarray(vectors[here]))

    def evict(self) -> None:
        """Move what is in memory to the spill file."""
        if self._array is not None and self.bytes:
            self._start = self._room.spill.append([self._array])
            self._array = None

    def __getitem__(self, some: slice | np.ndarray) -> np.ndarray:
        if self._array is not None:
            return self._array[some]
        if isinstance(some, slice):
            start, stop, _ = some.indices(len(self))
            return self._read(range(start, max(start, stop)))
        wanted, back = np.unique(some, return_inverse=True)
        found = np.empty((len(wanted), self.shape[1]), np.float16)
        for here, rows in _runs(wanted):
            found[here] = self._read(rows)
        return found[back]

    def _open(self, width: int) -> None:
        """Choose the place, once it is known how large they are: half of what is free, the other half compares them."""
        self.shape = (self.shape[0], width)
        if self.bytes <= self._room.left() // 2:
            self._array = np.empty(self.shape, np.float16)
            self._array.fill(0)  # taken at once, so that it counts as taken
        else:
            self._array, self._start = None, self._room.spill.reserve(self.bytes)

    def _place(self, row: int) -> int:
        return self._start + 2 * self.shape[1] * row

    def _read(self, rows: range) -> np.ndarray:
        found: np.ndarray = self._room.spill.read(self._place(rows.start), np.float16, len(rows) * self.shape[1])
        return found.reshape(len(rows), self.shape[1])


class Picked:
    """Some rows of others (ascending positions), read when they are asked for."""

    def __init__(self, rows: Rows, positions: np.ndarray) -> None:
        self.shape = (len(positions), rows.shape[1])
        self._rows, self._positions = rows, positions

    def __len__(self) -> int:
        return self.shape[0]

    @overload
    def __getitem__(self, some: slice) -> np.ndarray: ...
    @overload
    def __getitem__(self, some: np.ndarray) -> np.ndarray: ...
    def __getitem__(self, some: slice | np.ndarray) -> np.ndarray:
        return self._rows[self._positions[some]]


def passes(rows: Rows, size: int = PASS) -> Iterator[tuple[slice, np.ndarray]]:
    """All rows once, some at a time: their places and the vectors."""
    count = max(1, size // max(2 * rows.shape[1], 1))
    for at in range(0, len(rows), count):
        here = slice(at, min(at + count, len(rows)))
        yield here, rows[here]


def _runs(at: np.ndarray) -> Iterator[tuple[slice, range]]:
    """The runs of consecutive numbers in ascending ones: their places, and the numbers."""
    cuts = np.flatnonzero(np.diff(at) != 1) + 1
    edges = np.concatenate([[0], cuts, [len(at)]]).tolist()
    for start, end in zip(edges, edges[1:], strict=False):
        if end > start:
            yield slice(start, end), range(int(at[start]), int(at[end - 1]) + 1)
