"""Named layouts of raw rows, and how each becomes a canonical record."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Layout:
    """Columns that identify a layout and, per kind it can serve, the function row -> canonical record."""

    name: str
    columns: tuple[tuple[str, ...], ...]  # any one of these sets of columns identifies the layout
    convert: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]]  # kind -> function; the first is the default


LAYOUTS: dict[str, Layout] = {}


def detect(columns: list[str], kind: str | None = None) -> Layout:
    """The one layout that fits the columns (and the kind), or BadInputError with the columns seen."""
    return LAYOUTS["text"]
