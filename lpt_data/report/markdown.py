"""Markdown in which data stays data: no row, name or reason can become a link, an image, a heading or markup."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from lpt_data.report import words
from manifests.html import code_points

_MARKUP = str.maketrans({c: f"\\{c}" for c in "\\`*_{}[]<>()#+|!~&"})


def said(value: Any) -> str:
    """Return a value as text on one line."""
    shown = value if isinstance(value, str) else words.value(value)
    return " ".join(code_points(shown).split()).translate(_MARKUP)


def code(value: Any) -> str:
    """Return a value as code on one line, in a fence longer than any run of its backticks."""
    shown = " ".join(code_points(str(value)).split()) or "–"
    fence = "`" * (1 + _longest_run(shown))
    pad = " " if shown.startswith("`") or shown.endswith("`") else ""
    return f"{fence}{pad}{shown}{pad}{fence}"


def block(value: str, name: str = "") -> list[str]:
    """Return lines of a code block that no text can close."""
    shown = code_points(value)
    fence = "`" * max(3, 1 + _longest_run(shown))
    return [f"{fence}{name}", *shown.split("\n"), fence]


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return a table; cells are Markdown already, and numbers stand to the right by their column's `:` in the head."""
    names = [head.removesuffix(":") for head in heads]
    rule = ["---:" if head.endswith(":") else "---" for head in heads]
    lines = [f"| {' | '.join(names)} |", f"|{'|'.join(rule)}|"]
    # A bar inside code ends the cell all the same: GitHub wants it escaped there too.
    return [*lines, *(f"| {' | '.join(_barred(cell) for cell in row)} |" for row in rows), ""]


def _barred(cell: str) -> str:
    return cell.replace("|", "\\|") if cell.startswith("`") else cell


def _longest_run(text: str) -> int:
    longest = run = 0
    for c in text:
        run = run + 1 if c == "`" else 0
        longest = max(longest, run)
    return longest
