"""Pairs as they are found, laid into queues by their first vector: sorted a queue at a time, and spilled when many."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from lpt_data.semantic.room import Room
from lpt_data.spill import Queues

_QUEUES = 256
_MOST = 1 << 28  # bytes of pairs in memory, whatever is free
_PAIR = np.dtype([("a", np.int32), ("b", np.int32), ("score", np.float64)])


class Scored(NamedTuple):
    """Some pairs a < b of positions, each with its cosine."""

    a: np.ndarray  # int32 [k]
    b: np.ndarray  # int32 [k]
    score: np.ndarray  # float64 [k]

    def chosen(self, some: np.ndarray) -> Scored:
        """Return some of them, by index or by mask."""
        return Scored(self.a[some], self.b[some], self.score[some])


class Pile:
    """Pairs of ``count`` vectors, in any order and a pair more than once; they come out in order and once each."""

    def __init__(self, count: int, room: Room) -> None:
        self.added = 0  # repeats included
        self._width = max(1, -(-count // _QUEUES))
        self._queues = Queues(_QUEUES, np.uint8, room.spill, min(room.left() // 4, _MOST))

    def add(self, pairs: Scored) -> None:
        """Lay pairs down."""
        number = pairs.a // self._width
        order = np.argsort(number, kind="stable")
        packed = np.empty(len(order), _PAIR)
        packed["a"], packed["b"], packed["score"] = pairs.a[order], pairs.b[order], pairs.score[order]
        cuts = np.searchsorted(number[order], np.arange(_QUEUES + 1))
        for queue in np.flatnonzero(np.diff(cuts)).tolist():
            self._queues.add(queue, packed[cuts[queue] : cuts[queue + 1]].view(np.uint8))
        self.added += len(order)

    def parts(self) -> Iterator[Scored]:
        """All pairs in the order of a, then b, a queue at a time."""
        for queue in range(_QUEUES):
            found = self._queues.read(queue).view(_PAIR)
            if not len(found):
                continue
            key = found["a"].astype(np.int64) << 32 | found["b"]
            _, first = np.unique(key, return_index=True)
            yield Scored(*(np.ascontiguousarray(found[name][first]) for name in ("a", "b", "score")))
