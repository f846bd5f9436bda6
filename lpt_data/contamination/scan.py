"""The scan: every window of every row looked up in the index. Only what matched is kept, 24 bytes a window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numba import njit

from lpt_data.contamination.code import scan_code
from lpt_data.contamination.index import LEGACY, NGRAM, SHORTEST, Grams, Index
from lpt_data.contamination.plain import plain
from lpt_data.contamination.windows import char_windows, find, likely, run_hash, windows
from lpt_data.text import WEIGHT, buffers, tables, tokens_of

# Kinds of finds, a column of what the kernel writes.
_GRAM, _LEGACY, _EXACT, _CHARS = range(4)


@dataclass(frozen=True)
class Finds:
    """What a scan found; rows are positions 0..n-1 of the rows scanned, ascending in every array.

    ``*_gram`` are numbers of windows, ``exact_part`` parts, ``ends`` the last token of a match in its row.
    """

    rows: int
    row: np.ndarray  # int64, NGRAM windows
    gram: np.ndarray  # int64
    end: np.ndarray  # int64
    legacy_row: np.ndarray  # int64, LEGACY windows
    legacy_gram: np.ndarray
    exact_row: np.ndarray  # int64, whole short questions
    exact_part: np.ndarray
    exact_end: np.ndarray
    chars_row: np.ndarray  # int64, exact matches of CHARS characters
    chars_gram: np.ndarray
    code_row: np.ndarray  # windows of programs, their names renamed
    code_gram: np.ndarray
    code_end: np.ndarray

    def of(self, rows: np.ndarray) -> Finds:
        """Return the finds of some rows (bool [rows]), numbered anew."""
        number = np.cumsum(rows) - 1
        kept: dict[str, np.ndarray] = {}
        for row, *others in _GROUPS:
            mine = rows[getattr(self, row)]
            kept[row] = number[getattr(self, row)[mine]]
            kept |= {name: getattr(self, name)[mine] for name in others}
        return Finds(int(rows.sum()), **kept)


# The arrays of one kind of find, its rows first.
_GROUPS = (
    ("row", "gram", "end"),
    ("legacy_row", "legacy_gram"),
    ("exact_row", "exact_part", "exact_end"),
    ("chars_row", "chars_gram"),
    ("code_row", "code_gram", "code_end"),
)


def scan(texts: pa.Array, index: Index) -> Finds:
    """Scan the rows of a string array; computed with the GIL released."""
    starts, data = buffers(plain(texts))
    found, table = _scan(starts, data, index), tables()
    longest = int(np.diff(starts).max(initial=0))
    if index.chars is not None and len(index.chars.lengths):
        chars = _scan_chars(starts, data, table.ascii, table.unicode, index.chars, longest)
        found = np.concatenate([found, chars])
    code = np.zeros((0, 3), np.int64) if index.code is None else scan_code(texts, index.code)
    by_kind = [found[found[:, 0] == kind] for kind in (_GRAM, _LEGACY, _EXACT, _CHARS)]
    grams, legacy, exact, chars = by_kind
    return Finds(
        len(texts), grams[:, 1], grams[:, 2], grams[:, 3], legacy[:, 1], legacy[:, 2],
        exact[:, 1], exact[:, 2], exact[:, 3], chars[:, 1], chars[:, 2], code[:, 0], code[:, 1], code[:, 2],
    )  # fmt: skip


def joined(parts: Sequence[Finds]) -> Finds:
    """The finds of several batches as one, rows numbered on."""
    firsts = np.cumsum([0, *(part.rows for part in parts)])
    names = [name for name in Finds.__dataclass_fields__ if name != "rows"]
    none = np.zeros(0, np.int64)
    columns = {
        name: np.concatenate(
            [
                none,
                *(getattr(p, name) + (f if name.endswith("row") else 0) for p, f in zip(parts, firsts, strict=False)),
            ]
        )
        for name in names
    }
    return Finds(int(firsts[-1]), **columns)


def _scan(starts: np.ndarray, data: np.ndarray, index: Index) -> np.ndarray:
    table = tables()
    return _scan_tokens(
        starts, data, table.ascii, table.unicode, index.tokens, index.offsets,
        index.grams, index.legacy, index.short, index.tiny, index.tiny_longest,
    )  # fmt: skip


@njit(nogil=True, cache=True)
def _keep(out: np.ndarray, used: int, kind: int, row: int, number: int, end: int) -> np.ndarray:
    """Write one find; the array grows where it is full."""
    if used == len(out):
        more = np.empty((2 * used, 4), np.int64)
        more[:used] = out
        out = more
    out[used, 0] = kind
    out[used, 1] = row
    out[used, 2] = number
    out[used, 3] = end
    return out


@njit(nogil=True, cache=True)
def _windows_found(
    out: np.ndarray,
    used: int,
    kind: int,
    row: int,
    grams: Grams,
    hashes: np.ndarray,
    ends: tuple[int, int],
    places: np.ndarray,
) -> tuple[np.ndarray, int]:
    """Look up ``hashes[first:last]`` of one row, ``ends`` being (first, last)."""
    for k in range(likely(grams.table, hashes, ends[0], ends[1], places)):
        gram = find(grams.table, hashes[places[k]])
        if gram >= 0:
            out = _keep(out, used, kind, row, gram, places[k])
            used += 1
    return out, used


@njit(nogil=True, cache=True)
def _short_found(
    out: np.ndarray,
    used: int,
    row: int,
    tokens: np.ndarray,
    count: int,
    short: Grams,
    item_tokens: np.ndarray,
    item_offsets: np.ndarray,
    hashes: np.ndarray,
    places: np.ndarray,
) -> tuple[np.ndarray, int]:
    """Short questions inside one row: their first tokens by hash, then all of them one by one."""
    for first in range(count + 1 - SHORTEST):
        hashes[first] = run_hash(tokens, first, first + SHORTEST)
    for place in range(likely(short.table, hashes, 0, count + 1 - SHORTEST, places)):
        first = places[place]
        head = find(short.table, hashes[first])
        if head < 0:
            continue
        for k in range(short.starts[head], short.starts[head + 1]):
            start = item_offsets[short.part[k]]
            size = item_offsets[short.part[k] + 1] - start
            same = first + size <= count
            m = SHORTEST
            while same and m < size:
                same = tokens[first + m] == item_tokens[start + m]
                m += 1
            if same:
                out = _keep(out, used, _EXACT, row, short.part[k], first + size - 1)
                used += 1
    return out, used


@njit(nogil=True, cache=True)
def _scan_tokens(
    starts: np.ndarray,
    data: np.ndarray,
    small: np.ndarray,
    table: np.ndarray,
    item_tokens: np.ndarray,
    item_offsets: np.ndarray,
    grams: Grams,
    legacy: Grams,
    short: Grams,
    tiny: Grams,
    tiny_longest: int,
) -> np.ndarray:
    rows = len(starts) - 1
    longest = 0
    for row in range(rows):
        longest = max(longest, starts[row + 1] - starts[row])
    tokens = np.empty(longest // 2 + 1, np.uint64)
    hashes = np.empty(longest // 2 + 1, np.uint64)
    lengths = np.empty(longest // 2 + 1, np.int32)
    places = np.empty(longest // 2 + 1, np.int64)
    out = np.empty((4096, 4), np.int64)
    used = 0
    for row in range(rows):
        count, _ = tokens_of(data, starts[row], starts[row + 1], small, table, tokens)
        windows(tokens, count, NGRAM * WEIGHT, hashes, lengths)
        before = used
        out, used = _windows_found(out, used, _GRAM, row, grams, hashes, (NGRAM - 1, count), places)
        if used > before and len(legacy.lengths):
            windows(tokens, count, LEGACY * WEIGHT, hashes, lengths)
            out, used = _windows_found(out, used, _LEGACY, row, legacy, hashes, (LEGACY - 1, count), places)
        if len(short.lengths):
            out, used = _short_found(out, used, row, tokens, count, short, item_tokens, item_offsets, hashes, places)
        if 0 < count <= tiny_longest:
            whole = find(tiny.table, run_hash(tokens, 0, count))
            if whole >= 0:
                for k in range(tiny.starts[whole], tiny.starts[whole + 1]):
                    out = _keep(out, used, _EXACT, row, tiny.part[k], count - 1)
                    used += 1
    return out[:used]


@njit(nogil=True, cache=True)
def _scan_chars(
    starts: np.ndarray, data: np.ndarray, small: np.ndarray, table: np.ndarray, chars: Grams, longest: int
) -> np.ndarray:
    marks = np.empty(longest + 1, np.uint64)
    hashes = np.empty(longest + 1, np.uint64)
    places = np.empty(longest + 1, np.int64)
    out = np.empty((1024, 4), np.int64)
    used = 0
    for row in range(len(starts) - 1):
        count = char_windows(data, starts[row], starts[row + 1], small, table, marks, hashes)
        out, used = _windows_found(out, used, _CHARS, row, chars, hashes, (0, count), places)
    return out[:used]
