"""Rows that are equal: byte for byte, or after lower-casing and collapsing white space.

Grouping is by a hash of the token sequence, which equal rows share by construction; inside such a group digests of the
bytes (record ids, where they are of those bytes, else BLAKE2b, 128 bits), then of the normal forms are compared, so a
collision of the cheap hash merges nothing and a million copies need no text in memory. Rows without a single word
("!!!", an emoji) are equal only byte for byte; rows of nothing but white space hold no text and are never matched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice

import numpy as np

from lpt_data.dedup.lsh import repeated
from lpt_data.text import normal_form

_PIECE = 1 << 14  # digests held as Python objects at a time


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
    texts: Callable[[np.ndarray], Iterable[bytes]],
    group: np.ndarray | None = None,
    contents: Callable[[np.ndarray], np.ndarray | None] = lambda rows: None,
) -> Classes:
    """Group rows by equality; ``rank(rows)`` gives each its place in the declared order, ``texts(rows)`` the UTF-8
    bytes of each, the rows being asked for in ascending order.

    Rows of different ``group`` (int64 [n]) are never equal; ``sequence`` must tell them apart already.
    ``contents(rows)`` may give digests of the bytes (uint64 [n, 2]), which then are not read.

    Only rows that share a token sequence are read back, so a corpus without repeats costs a table of n hashes.
    """
    empty = np.zeros(len(sequence), bool)
    wordless = np.flatnonzero(tokens == 0)
    empty[wordless] = [not text.decode("utf-8", "replace").strip() for text in texts(wordless)]
    leader = np.arange(len(sequence), dtype=np.int64)
    same_bytes = np.ones(len(sequence), bool)
    rows = np.flatnonzero(~empty)
    rows = rows[repeated(sequence[rows])]
    if not len(rows):
        return Classes(leader, same_bytes, empty)
    words = [sequence[rows]] if group is None else [sequence[rows], group[rows]]
    ranks, known = rank(rows), contents(rows)
    first = _firsts([*words, *(_digests(texts(rows), len(rows)) if known is None else known.T)], ranks)
    leader[rows] = rows[first]
    # Contents that share their words: compared again by their normal form, one row of each content.
    alone = np.flatnonzero((first == np.arange(len(rows))) & (tokens[rows] > 0))
    alone = alone[repeated(sequence[rows[alone]])]
    if len(alone):
        forms = _digests((_normal(text) for text in texts(rows[alone])), len(alone))
        heads = np.arange(len(sequence))
        heads[rows[alone]] = rows[alone[_firsts([w[alone] for w in words] + forms, ranks[alone])]]
        same_bytes[rows] = heads[leader[rows]] == leader[rows]
        leader[rows] = heads[leader[rows]]
    return Classes(leader, same_bytes, empty)


def _normal(text: bytes) -> bytes:
    return normal_form(text.decode("utf-8", "replace")).encode()


def _digests(texts: Iterable[bytes], count: int) -> list[np.ndarray]:
    """The BLAKE2b digests of some texts, as two uint64 [n]."""
    found, rest = np.empty((count, 2), np.uint64), iter(texts)
    for start in range(0, count, _PIECE):
        packed = b"".join(blake2b(text, digest_size=16).digest() for text in islice(rest, _PIECE))
        found[start : start + _PIECE] = np.frombuffer(packed, np.uint64).reshape(-1, 2)
    return list(found.T)


def _firsts(keys: list[np.ndarray], ranks: np.ndarray) -> np.ndarray:
    """For each item the one of least rank among those with the same keys, int64 [n]."""
    order = np.lexsort((ranks, *keys))
    new = np.ones(len(order), bool)
    new[1:] = np.any([key[order[1:]] != key[order[:-1]] for key in keys], axis=0)
    first = np.empty(len(order), np.int64)
    first[order] = order[np.flatnonzero(new)][np.cumsum(new) - 1]
    return first
