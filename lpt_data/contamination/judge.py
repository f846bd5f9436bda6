"""From matched windows to evidence: how much of which part one row holds, and which rows go.

For a pair of a row and a part, over the windows that are no stops:

    coverage   = words of the part inside windows that the row has / words of the part inside any window
    longest    = words of the longest piece of the part that stands in the row in one piece

A part's template, where it has one, is in no window that counts, so it neither helps nor hinders. A row goes when

1. it covers at least `coverage` (0.5) of a question: Tulu 3 calls an item matched when more than half of its tokens lie
   in 8-grams of one training row (arXiv 2411.15124); PaLM drew the line at 70 % of the 8-grams; or
2. a piece of `longest` (13) words of a question stands in it, and it covers `longest_coverage` (0.3) of the question:
   the 13 words are GPT-3's, the longest match is what predicts inflated scores best (ConTAM, arXiv 2411.03923), and
   the share keeps a formula or a stock phrase in a long question from being enough, which is what makes the plain
   13-gram rule hit mostly innocent rows; or
3. it holds a question of 4 to 7 words whole, or is a shorter question and nothing else; or
4. it covers ANSWER_COVERAGE of an answer of at least ANSWER_WORDS words. Shorter answers never decide: "the answer is
   12" is not contamination; or
5. it covers CODE_COVERAGE of the program of an item, its names renamed (`lpt_data.contamination.code`).

Sharing by single rows only: words gathered from many rows are a language, not a leak.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from lpt_data.config import DecontaminateConfig
from lpt_data.contamination.code import CODE_COVERAGE, code_pairs
from lpt_data.contamination.index import LONG, Index, words_of
from lpt_data.contamination.scan import Finds
from lpt_data.text import WEIGHT

ANSWER_WORDS, ANSWER_COVERAGE = 50, 0.8
COPY = 0.9  # coverage from which a row is a copy of an item, which must never turn the item into a template
STOP_ROWS_AT_LEAST = 20
CRITERIA = ("coverage", "longest_match", "short_item", "long_answer", "code")
_AT_A_TIME = 4_000_000  # occurrences expanded at once, about 100 bytes each


@dataclass(frozen=True)
class Pairs:
    """Evidence for pairs of a row and a part, in the order of rows, then parts."""

    row: np.ndarray  # int64
    part: np.ndarray  # int64
    coverage: np.ndarray  # float64, 0..1
    longest: np.ndarray  # float64, words
    exact: np.ndarray  # bool: a short question, whole
    code: np.ndarray  # bool: `coverage` is that of a program, its names renamed


@dataclass(frozen=True)
class Stops:
    """What is no evidence: windows, and short questions."""

    gram: np.ndarray  # bool [grams]: in many items, or in many rows
    exact: np.ndarray  # bool [parts]: a short question that many rows hold
    in_rows: int  # of `gram`, those that are there for the rows
    countable: np.ndarray  # int64 [parts], quarter words of each part inside windows that are evidence


@dataclass(frozen=True)
class _Chunk:
    find: np.ndarray  # int64 [occurrences], which find it came from
    part: np.ndarray  # int64
    end: np.ndarray  # int64, last token of the window in Index.tokens
    row: np.ndarray  # int64


def pairs_of(finds: Finds, index: Index, stops: Stops) -> Pairs:
    """Return the evidence of all pairs that share a window which counts, or a short question."""
    found = [_measured(chunk, finds, index, stops.countable)[0] for chunk in _chunks(finds, index, stops.gram)]
    keep = ~stops.exact[finds.exact_part]
    both = np.unique(np.stack([finds.exact_row[keep], finds.exact_part[keep]], axis=1), axis=0)
    words = words_of(index)[both[:, 1]]
    whole = np.ones(len(both), bool)
    found.append(Pairs(both[:, 0], both[:, 1], np.ones(len(both)), words, whole, ~whole))
    if index.code is not None:
        row, item, coverage = code_pairs(finds.code_row, finds.code_gram, finds.code_end, index.code)
        no = np.zeros(len(row), bool)
        found.append(Pairs(row, 2 * item + 1, coverage, np.zeros(len(row)), no, ~no))
    columns = [np.concatenate([getattr(p, name) for p in found]) for name in Pairs.__dataclass_fields__]
    order = np.lexsort((columns[1], columns[0]))
    return Pairs(*(column[order] for column in columns))


def removes(pairs: Pairs, index: Index, config: DecontaminateConfig) -> np.ndarray:
    """Which rule a pair meets, int64: 0 for none, else 1 + a place in CRITERIA."""
    question = pairs.part % 2 == 0
    long_answer = (
        ~question & ~pairs.code & (words_of(index)[pairs.part] >= ANSWER_WORDS) & (pairs.coverage >= ANSWER_COVERAGE)
    )
    piece = question & (pairs.longest >= config.longest) & (pairs.coverage >= config.longest_coverage)
    covered = question & (pairs.coverage >= config.coverage)
    program = pairs.code & (pairs.coverage >= CODE_COVERAGE)
    return np.select([pairs.exact, covered, piece, long_answer, program], [3, 1, 2, 4, 5], 0)


def find_stops(finds: Finds, index: Index, distinct: np.ndarray, share: float) -> Stops:
    """Return the stops: windows of many items, and windows and short questions in more than a share of distinct rows.

    `distinct` (bool [rows]) marks the first row of each record id. Rows that hold COPY of an item do not count for
    the windows of that item: a question copied a thousand times is no template.
    """
    limit = max(STOP_ROWS_AT_LEAST, share * int(distinct.sum()))
    held = np.unique(np.stack([finds.exact_part, finds.exact_row], axis=1)[distinct[finds.exact_row]], axis=0)
    exact = np.bincount(held[:, 0], minlength=index.parts) > limit
    first = distinct[finds.row] & ~index.stop[finds.gram]
    countable = _countable(index, index.stop)
    if not (np.bincount(finds.gram[first], minlength=1) > limit).any():
        return Stops(index.stop, exact, 0, countable)
    for chunk in _chunks(finds, index, index.stop):
        pairs, group = _measured(chunk, finds, index, countable)
        first[chunk.find[pairs.coverage[group] >= COPY]] = False
    seen = np.unique(np.stack([finds.gram, finds.row], axis=1)[first], axis=0)
    often = np.bincount(seen[:, 0], minlength=len(index.stop)) > limit
    stop = index.stop | often
    return Stops(stop, exact, int(often.sum()), _countable(index, stop))


def undetectable(index: Index, stops: Stops) -> dict[int, str]:
    """Items that no row with more in it can be seen to repeat, and why: {item: reason}."""
    found: dict[int, str] = {}
    for item in range(index.parts // 2):
        sort = index.sort[2 * item]
        if sort == LONG and stops.countable[2 * item] == 0:
            found[item] = "only_stop_ngrams"
        elif sort > LONG + 1:
            found[item] = "too_short" if sort == LONG + 2 else "empty_question"
        elif stops.exact[2 * item]:
            found[item] = "in_many_rows"
    return found


def spans(finds: Finds, index: Index, stops: Stops, row: int, part: int) -> tuple[list[list[int]], list[list[int]]]:
    """Matched tokens of a pair as half-open ranges: (in the row, in the part)."""
    base = index.offsets[part]
    if index.sort[part] != LONG:
        size = int(index.offsets[part + 1] - base)
        ends = finds.exact_end[(finds.exact_row == row) & (finds.exact_part == part)]
        return [[int(e) - size + 1, int(e) + 1] for e in ends], [[0, size]]
    here = slice(*np.searchsorted(finds.row, [row, row + 1]))
    in_row, in_part = [], []
    for gram, end in zip(finds.gram[here], finds.end[here], strict=True):
        if stops.gram[gram]:
            continue
        places = slice(index.grams.starts[gram], index.grams.starts[gram + 1])
        mine = index.grams.end[places][index.grams.part[places] == part]
        length = int(index.grams.lengths[gram])
        if len(mine):
            in_row.append((int(end) - length + 1, int(end) + 1))
            in_part += [(int(e - base) - length + 1, int(e - base) + 1) for e in mine]
    return _merged(in_row), _merged(in_part)


def _merged(ranges: list[tuple[int, int]]) -> list[list[int]]:
    merged: list[list[int]] = []
    for start, end in sorted(ranges):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    return merged


def _chunks(finds: Finds, index: Index, stop: np.ndarray) -> Iterator[_Chunk]:
    """All occurrences in the items of the windows found, some rows at a time."""
    grams = index.grams
    counts = np.where(stop[finds.gram], 0, np.diff(grams.starts)[finds.gram])
    total = np.cumsum(counts)
    at = 0
    while at < len(counts):
        goal = (total[at - 1] if at else 0) + _AT_A_TIME
        last = max(at, int(np.searchsorted(total, goal, side="right")) - 1)
        end = int(np.searchsorted(finds.row, finds.row[last], side="right"))  # a row is never cut
        find = np.repeat(np.arange(at, end), counts[at:end])
        before = np.repeat(total[at:end] - counts[at:end], counts[at:end])
        place = np.arange(len(find)) + (total[at - 1] if at else 0) - before + grams.starts[finds.gram[find]]
        yield _Chunk(find, grams.part[place].astype(np.int64), grams.end[place], finds.row[find])
        at = end


def _measured(chunk: _Chunk, finds: Finds, index: Index, countable: np.ndarray) -> tuple[Pairs, np.ndarray]:
    """The pairs of a chunk and, for each occurrence, the number of its pair."""
    start = chunk.end - index.grams.lengths[finds.gram[chunk.find]] + 1
    key = chunk.row * index.parts + chunk.part
    distinct, group = np.unique(key, return_inverse=True)
    part = distinct % index.parts
    order = np.lexsort((chunk.end, group))
    covered = _union(group[order], start[order], chunk.end[order], index.weights, len(distinct))
    diagonal = chunk.end - finds.end[chunk.find]
    order = np.lexsort((chunk.end, diagonal, group))
    longest = _longest(group[order], diagonal[order], start[order], chunk.end[order], index.weights, len(distinct))
    no = np.zeros(len(distinct), bool)
    pairs = Pairs(distinct // index.parts, part, covered / countable[part], longest / WEIGHT, no, no)
    return pairs, group


def _countable(index: Index, stop: np.ndarray) -> np.ndarray:
    """Quarter words of each part inside windows that count, int64 [parts]."""
    gram = np.repeat(np.arange(len(stop)), np.diff(index.grams.starts))
    keep = ~stop[gram]
    part, end = index.grams.part[keep].astype(np.int64), index.grams.end[keep]
    start = end - index.grams.lengths[gram[keep]] + 1
    order = np.lexsort((end, part))
    return _union(part[order], start[order], end[order], index.weights, index.parts)


def _union(group: np.ndarray, start: np.ndarray, end: np.ndarray, weights: np.ndarray, groups: int) -> np.ndarray:
    """Weight of the union of windows [start, end] of each group; sorted by group and end."""
    if not len(group):
        return np.zeros(groups, np.int64)
    same = np.concatenate([[False], group[1:] == group[:-1]])
    before = np.where(same, np.concatenate([[0], end[:-1] + 1]), 0)
    added = weights[end + 1] - weights[np.maximum(start, before)]
    return np.bincount(group, np.maximum(added, 0), groups).astype(np.int64)


def _longest(
    group: np.ndarray, diagonal: np.ndarray, start: np.ndarray, end: np.ndarray, weights: np.ndarray, groups: int
) -> np.ndarray:
    """Weight of the longest unbroken run of windows on one diagonal, int64 [groups]; sorted by group, diagonal, end.

    Windows that overlap or touch on one diagonal match as one piece, also across a stop between them.
    """
    found = np.zeros(groups, np.int64)
    if len(group):
        joins = (group[1:] == group[:-1]) & (diagonal[1:] == diagonal[:-1]) & (start[1:] <= end[:-1] + 1)
        first = np.flatnonzero(np.concatenate([[True], ~joins]))
        last = np.concatenate([first[1:] - 1, [len(group) - 1]])
        np.maximum.at(found, group[first], weights[end[last] + 1] - weights[start[first]])
    return found
