"""How a long operation tells how far it is."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Called as ``progress(done, total, label)``; total is None while it is not known."""

    def __call__(self, done: int, total: int | None, label: str) -> None:
        """Report that ``done`` of ``total`` units of the work called ``label`` are finished."""


def silent(done: int, total: int | None, label: str) -> None:
    """Report nothing."""
