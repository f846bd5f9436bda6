"""The index of benchmark items: which windows of words occur where, and how items too short for them are found.

Each item has two *parts*: its question (part ``2 * item``) and its answer (``2 * item + 1``).

| part | found by |
|---|---|
| 8 words or more | its 8-grams |
| question of 4 to 7 words | the whole question as a run of tokens inside a row |
| question of 1 to 3 words | a row that says the question and nothing else |
| question without words | nothing |
| shorter answer | nothing: an answer of a few words is in every corpus |

Tokens are words without their layout and punctuation, so code wrapped or indented otherwise is the same code. Programs
are looked for once more with their names renamed (`lpt_data.contamination.code`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numba import njit

from lpt_data.contamination.code import CodeIndex, build_code_index
from lpt_data.contamination.items import Benchmarks
from lpt_data.contamination.plain import plain
from lpt_data.contamination.windows import Table, char_windows, make_table, run_hash, windows
from lpt_data.text import WEIGHT, buffers, tables, tokens_of

NGRAM, LEGACY = 8, 13  # words
SHORTEST = 4  # words; a shorter question inside a sentence says nothing
STOP_AT_LEAST, STOP_AT_MOST = 10, 50  # items: bounds of what `stop_items` works out to
LONG, SHORT, TINY, EMPTY = range(4)


class Grams(NamedTuple):
    """Windows and their occurrences: gram g occurs at ``starts[g]:starts[g + 1]`` of ``part`` and ``end``."""

    table: Table
    lengths: np.ndarray  # int32 [grams], tokens
    starts: np.ndarray  # int64 [grams + 1]
    part: np.ndarray  # int32
    end: np.ndarray  # int64, the last token, an index into Index.tokens


@dataclass(frozen=True)
class Index:
    """All that a scan compares rows with."""

    offsets: np.ndarray  # int64 [parts + 1] into tokens
    tokens: np.ndarray  # uint64
    weights: np.ndarray  # int64 [tokens + 1], running sum in quarter words
    sort: np.ndarray  # int8 [parts]: LONG, SHORT, TINY, EMPTY
    grams: Grams  # NGRAM windows of the long parts
    legacy: Grams  # LEGACY windows of the long questions
    short: Grams  # the first SHORTEST tokens of short questions
    tiny: Grams  # whole tiny questions
    tiny_longest: int  # tokens, 0 without tiny questions
    chars: Grams | None  # CHARS-character windows of questions; `end` is not used; None: they are not looked for
    stop: np.ndarray  # bool [grams of `grams`], windows that are in many items
    code: CodeIndex | None = None  # the programs of the items, where some have one

    @property
    def parts(self) -> int:
        """Twice the number of items."""
        return len(self.sort)


def words_of(index: Index) -> np.ndarray:
    """Length of each part in words, float64 [parts]."""
    return np.diff(index.weights[index.offsets]) / WEIGHT


def build_index(benchmarks: Benchmarks, stop_items: float, *, chars: bool = True) -> Index:
    """Index the items; a window in at least the share `stop_items` of the items of a benchmark becomes a stop.

    Without `chars` no 50-character strings are looked for: they are told and decide nothing, and take half of the scan.
    """
    texts = plain(pa.array([t for i in benchmarks.items for t in (i.question, i.answer)], pa.large_string()))
    offsets, tokens = tokenise(texts)
    light = (tokens & np.uint64(1)).astype(np.int64)
    weights = np.concatenate([[0], np.cumsum(WEIGHT - (WEIGHT - 1) * light)]).astype(np.int64)
    heavy = np.diff(weights[offsets])
    sort = np.where(heavy >= NGRAM * WEIGHT, LONG, np.where(heavy >= SHORTEST * WEIGHT, SHORT, TINY))
    sort[np.diff(offsets) == 0] = EMPTY
    question = np.arange(len(sort)) % 2 == 0
    long_, short, tiny = (
        np.flatnonzero(m) for m in (sort == LONG, (sort == SHORT) & question, (sort == TINY) & question)
    )
    grams = _windowed(tokens, offsets, long_, NGRAM)
    heads = [run_hash(tokens, offsets[p], offsets[p] + SHORTEST) for p in short]
    whole = [run_hash(tokens, offsets[p], offsets[p + 1]) for p in tiny]
    return Index(
        offsets=offsets,
        tokens=tokens,
        weights=weights,
        sort=sort.astype(np.int8),
        grams=grams,
        legacy=_windowed(tokens, offsets, long_[question[long_]], LEGACY),
        short=_grams(np.array(heads, np.uint64), short, np.zeros(len(short), np.int64), np.zeros(len(short), np.int32)),
        tiny=_grams(np.array(whole, np.uint64), tiny, np.zeros(len(tiny), np.int64), np.zeros(len(tiny), np.int32)),
        tiny_longest=int(np.diff(offsets)[tiny].max(initial=0)),
        chars=_three_strings(texts) if chars else None,
        stop=_in_many_items(grams, benchmarks, stop_items),
        code=build_code_index([i.code for i in benchmarks.items], [i.question for i in benchmarks.items]),
    )


def tokenise(texts: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Token hashes of plain texts: offsets int64 [n + 1] and uint64 tokens."""
    starts, data = buffers(texts)
    found = tables()
    return _tokenise(starts, data, found.ascii, found.unicode)


@njit(nogil=True, cache=True)
def _tokenise(
    starts: np.ndarray, data: np.ndarray, small: np.ndarray, table: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    rows = len(starts) - 1
    out = np.empty((starts[rows] - starts[0]) // 2 + rows + 1, np.uint64)
    offsets = np.zeros(rows + 1, np.int64)
    for row in range(rows):
        count, _ = tokens_of(data, starts[row], starts[row + 1], small, table, out[offsets[row] :])
        offsets[row + 1] = offsets[row] + max(count, 0)
    return offsets, out[: offsets[rows]]


def _windowed(tokens: np.ndarray, offsets: np.ndarray, parts: np.ndarray, words: int) -> Grams:
    hashes, lengths = np.zeros(len(tokens), np.uint64), np.zeros(len(tokens), np.int32)
    of_part = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    for part in parts:
        here = slice(offsets[part], offsets[part + 1])
        windows(tokens[here], here.stop - here.start, words * WEIGHT, hashes[here], lengths[here])
    ends = np.flatnonzero(hashes)
    return _grams(hashes[ends], of_part[ends], ends, lengths[ends])


def _grams(keys: np.ndarray, parts: np.ndarray, ends: np.ndarray, lengths: np.ndarray) -> Grams:
    """Group occurrences by key; one key has one length."""
    distinct, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    order = np.lexsort((ends, parts, inverse))
    starts = np.concatenate([[0], np.cumsum(np.bincount(inverse, minlength=len(distinct)))])
    return Grams(
        make_table(distinct),
        lengths[first].astype(np.int32),
        starts.astype(np.int64),
        parts[order].astype(np.int32),
        ends[order].astype(np.int64),
    )


def _three_strings(texts: pa.Array) -> Grams:
    """The first, the middle and the last CHARS characters of each question: GPT-4's three, at fixed places."""
    starts, data = buffers(texts)
    found = tables()
    marks, hashes = np.empty((2, int(np.diff(starts).max(initial=0)) + 1), np.uint64)
    keys, parts = [], []
    for part in range(0, len(starts) - 1, 2):
        count = char_windows(data, starts[part], starts[part + 1], found.ascii, found.unicode, marks, hashes)
        for place in sorted({0, (count - 1) // 2, count - 1}) if count else ():
            keys.append(hashes[place])
            parts.append(part)
    none = np.zeros(len(keys), np.int64)
    return _grams(np.array(keys, np.uint64), np.array(parts, np.int64), none, none)


def _in_many_items(grams: Grams, benchmarks: Benchmarks, share: float) -> np.ndarray:
    gram = np.repeat(np.arange(len(grams.lengths)), np.diff(grams.starts))
    items = len(benchmarks.items)
    pairs = np.unique(gram * items + grams.part // 2)
    of_item = np.array([item.benchmark for item in benchmarks.items], np.int64)
    limits = np.array([min(max(STOP_AT_LEAST, share * b.count), STOP_AT_MOST) for b in benchmarks.benchmarks])
    width = len(limits)
    counted, times = np.unique(pairs // items * width + of_item[pairs % items], return_counts=True)
    stop = np.zeros(len(grams.lengths), bool)
    stop[counted[times >= limits[counted % width]] // width] = True
    return stop
