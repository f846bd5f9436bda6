"""How a measurement of minutes tells how far it is."""

from __future__ import annotations

from collections.abc import Callable

Watch = Callable[[int, int, str], None]  # watch(done, of how many, of what)


def unwatched(done: int, total: int, label: str) -> None:
    """Tell nothing."""
