"""A sample of rows that depends on their content alone: those with the smallest record ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lpt_data.contracts.common import Record

SIZE = 1000  # rows: a share of 2 % is then told within 0.9 points (95 %)


class Sample:
    """The texts of the `size` smallest record ids, whatever the order in which the rows come."""

    def __init__(self, text: Callable[[Record], str], size: int = SIZE) -> None:
        self._text, self._size = text, size
        self._limit = b"\xff" * 33
        self._kept: list[tuple[bytes, int, str]] = []

    def add(self, start: int, ids: Sequence[bytes], records: Sequence[Any]) -> None:
        """Look at the next rows, the first of which has the position `start`."""
        limit = self._limit
        self._kept += [(name, start + i, self._text(records[i])) for i, name in enumerate(ids) if name < limit]
        if len(self._kept) > 2 * self._size:
            self._cut()

    def _cut(self) -> None:
        self._kept = sorted(self._kept)[: self._size]
        self._limit = self._kept[-1][0]

    def texts(self) -> list[tuple[int, str]]:
        """Return (position, text), by position."""
        return sorted((position, text) for _, position, text in sorted(self._kept)[: self._size])
