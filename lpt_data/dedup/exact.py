"""Rows that are equal: byte for byte, or after lower-casing and collapsing white space.

Grouping is by a hash of the token sequence, which equal rows share by construction; inside such a group the bytes,
then the normal forms themselves are compared, so a hash collision merges nothing. Rows without a single word ("!!!",
an emoji) are equal only byte for byte; rows of nothing but white space hold no text and are never matched.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lpt_data.text import normal_form


@dataclass(frozen=True)
class Classes:
    """Rows by equality. A row alone in its class is its own leader."""

    leader: np.ndarray  # int64 [n]: the first row, in the declared order, of the rows with the same normal form
    same_bytes: np.ndarray  # bool [n]: the row has its leader's very bytes
    empty: np.ndarray  # bool [n]: nothing but white space


def classes(
    sequence: np.ndarray,
    tokens: np.ndarray,
    rank: Callable[[np.ndarray], np.ndarray],
    text: Callable[[int], bytes],
    group: np.ndarray | None = None,
) -> Classes:
    """Group rows by equality; ``rank(rows)`` gives each its place in the declared order, ``text(row)`` its UTF-8 bytes.

    Rows of different ``group`` (int64 [n]) are never equal; ``sequence`` must tell them apart already.

    Only rows that share a token sequence are read back, so a corpus without repeats costs a sort of n hashes.
    """
    empty = np.zeros(len(sequence), bool)
    for row in np.flatnonzero(tokens == 0).tolist():
        empty[row] = not text(row).decode("utf-8", "replace").strip()
    leader = np.arange(len(sequence), dtype=np.int64)
    same_bytes = np.ones(len(sequence), bool)
    alike = shared(sequence, np.flatnonzero(~empty))
    alike = alike[np.lexsort((rank(alike), sequence[alike]))]
    cuts = np.flatnonzero(np.diff(sequence[alike])) + 1
    apart = np.zeros(len(sequence), np.int64) if group is None else group
    for alike_rows in np.split(alike, cuts) if len(alike) else ():
        _lead(alike_rows.tolist(), tokens, text, apart, leader, same_bytes)
    return Classes(leader, same_bytes, empty)


def _lead(
    alike: list[int],
    tokens: np.ndarray,
    text: Callable[[int], bytes],
    group: np.ndarray,
    leader: np.ndarray,
    same_bytes: np.ndarray,
) -> None:
    by_bytes: dict[tuple[int, bytes], list[int]] = {}  # a dict compares the keys that its hashes bring together
    for row in alike:
        by_bytes.setdefault((int(group[row]), text(row)), []).append(row)
    by_form: dict[tuple[int, str], int] = {}
    for (part, content), rows in by_bytes.items():
        first = rows[0]
        if len(by_bytes) > 1 and tokens[first]:
            first = by_form.setdefault((part, normal_form(content.decode("utf-8", "replace"))), first)
        leader[rows] = first
        same_bytes[rows] = first == rows[0]


def shared(values: np.ndarray, among: np.ndarray) -> np.ndarray:
    """The rows whose value some other row has too."""
    order = among[np.argsort(values[among], kind="stable")]
    same = values[order[1:]] == values[order[:-1]]
    return order[np.concatenate([same, [False]]) | np.concatenate([[False], same])] if len(order) else order
