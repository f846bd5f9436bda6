"""How what takes minutes tells how far it is.

A run's progress is called after each step. Besides it may have `begin(line, notes)`, told before the first step what
trains and what there is to say of its rows; `watch`, how far what comes before that step is; and `waiting(text)`, a
context around what takes long then.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

Watch = Callable[[int, int, str], None]  # watch(done, of how many, of what)
FIRST = "measuring the evaluation split before the first step …"


def unwatched(done: int, total: int, label: str) -> None:
    """Tell nothing."""


def begins(progress: Any, line: str, notes: Sequence[str]) -> None:
    """Tell a progress that lets itself be told what a run begins with."""
    if (begin := getattr(progress, "begin", None)) is not None:
        begin(line, notes)


def waits(progress: Any, text: str) -> contextlib.AbstractContextManager[None]:
    """Around what takes long: a progress that has a place for it says so."""
    waiting = getattr(progress, "waiting", None)
    return waiting(text) if waiting is not None else contextlib.nullcontext()


def watch_of(progress: Any) -> Watch:
    """Where a progress shows how far something is that comes before the first step."""
    return getattr(progress, "watch", unwatched)
