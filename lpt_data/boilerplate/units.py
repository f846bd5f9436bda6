"""Lines and paragraphs that many documents hold.

A line ends at a line feed; a paragraph is a run of lines that are not blank. Two of them are the same when they are
after every run of white space has become one blank and those at the ends are gone, so line ends and wrapping do not
matter; with ``fold`` also when they differ in case and digits alone, as CCNet compares them (Wenzek et al., 2020).
Grouping is by a hash of that form; inside a group the forms themselves are compared.

Llama 3 (Dubey et al., 2024, section 3.1.1) removes lines that occur more than six times in 30 million documents, hence
seven documents here. Short lines do not count, because "return None" and "Example:" are no boilerplate. FineWeb
(Penedo et al., 2024) found that removing repeated lines from every crawl made its models no better: look at the report
before the cut texts are trained on.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from functools import cache

import numpy as np
from numba import njit

from lpt_data.boilerplate.cuts import Cuts
from lpt_data.boilerplate.documents import Documents, characters, decoded
from lpt_data.text import WEIGHT, decode, fmix64, fold, token_hashes

EXCERPT = 160  # characters
BYTES_A_BYTE = 1.5  # held beside the text: 60 for each line or paragraph, of 40 bytes or more on average

_SPACE = np.uint32(32)
_LINE_FEED = np.uint8(10)
_CODE_POINTS = 0x40000
_START = np.uint64(0x9E3779B97F4A7C15)
_U0, _U8, _U32 = np.uint64(0), np.uint64(8), np.uint64(32)
_DONE = np.uint32(0xFFFFFFFF)


@dataclass(frozen=True)
class Units:
    """The lines or paragraphs of all documents that are not blank, in the order of `Documents.order`."""

    document: np.ndarray  # int64 [u]
    starts: np.ndarray  # int64 [u], in Documents.data, first visible character
    ends: np.ndarray  # int64 [u]
    leader: np.ndarray  # int64 [u]: the first unit that is the same
    documents: np.ndarray  # int64 [u]: how many documents hold it; at leaders alone


def find(
    documents: Documents, *, paragraphs: bool, least_documents: int, least_words: int, fold_text: bool, drop_all: bool
) -> Cuts:
    """Cut the units of ``least_words`` that ``least_documents`` hold from all of them but the first in their order."""
    units = split(documents, paragraphs=paragraphs, fold_text=fold_text)
    frequent = np.flatnonzero(units.documents >= least_documents)
    texts = [decoded(documents.data, units.starts[u], units.ends[u]) for u in frequent.tolist()]
    long_enough = [weight(text) >= least_words * WEIGHT for text in texts]
    passages = frequent[np.array(long_enough, bool)]
    passage_of = np.full(len(units.leader), -1, np.int64)
    passage_of[passages] = np.arange(len(passages))
    passage = passage_of[units.leader]
    keeper = units.document[units.leader]
    cut = (passage >= 0) & (drop_all | (keeper != units.document))
    return Cuts(
        document=units.document[cut],
        keeper=np.full(cut.sum(), -1) if drop_all else keeper[cut],
        chars=characters(documents.data, units.starts[cut], units.ends[cut]),
        passage=passage[cut],
        excerpts=[text[:EXCERPT] for text, chosen in zip(texts, long_enough, strict=True) if chosen],
        documents=units.documents[passages],
        left=_left(documents, units, cut),
    )


def weight(text: str) -> int:
    """The words of a text in quarters: a letter of Chinese or Japanese is a word, one of Thai a quarter of one."""
    hashes = token_hashes(text)
    return int(WEIGHT * len(hashes) - (WEIGHT - 1) * np.count_nonzero(hashes & np.uint64(1)))


def split(documents: Documents, *, paragraphs: bool, fold_text: bool) -> Units:
    """Find the units of all documents and group those that are the same."""
    table = forms(fold_text)
    room = int(np.count_nonzero(documents.data == _LINE_FEED)) + len(documents.starts)
    document, starts, ends = np.empty((3, room), np.int64)
    hashes = np.empty(room, np.uint64)
    count = _scan(
        documents.data,
        documents.starts,
        documents.ends,
        documents.order,
        table,
        paragraphs,
        document,
        starts,
        ends,
        hashes,
    )
    document, starts, ends, hashes = document[:count], starts[:count], ends[:count], hashes[:count]
    order = np.argsort(hashes, kind="stable")
    leader, held_by = _grouped(documents.data, document, starts, ends, hashes, order, table)
    return Units(document, starts, ends, leader, held_by)


@cache
def forms(fold_text: bool) -> np.ndarray:
    """What each code point counts as, uint32 [0x40000]: white space a blank; folded, small letters and the digit 0."""
    table = np.arange(_CODE_POINTS, dtype=np.uint32)
    for code in range(_CODE_POINTS):
        char = chr(code)
        if char.isspace():
            table[code] = _SPACE
        elif fold_text:
            small = char.lower()
            if unicodedata.category(char) == "Nd":
                table[code] = ord("0")
            elif len(small) == 1:
                table[code] = ord(small)
    return table


@njit(nogil=True, cache=True)
def _form(data: np.ndarray, i: int, end: int, table: np.ndarray) -> tuple[np.uint32, int]:
    """The next character of the normal form and the byte after what it stands for; _DONE at the end."""
    spaces = False
    while i < end:
        code, after = decode(data, i, end)
        if code < len(table):
            code = table[code]
        if code != _SPACE:
            return (_SPACE, i) if spaces else (code, after)
        spaces = True
        i = after
    return _DONE, end


@njit(nogil=True, cache=True)
def _visible(data: np.ndarray, i: int, end: int, table: np.ndarray) -> int:
    """The first byte of the first character that is no white space, or ``end``."""
    while i < end:
        code, after = decode(data, i, end)
        if code >= len(table) or table[code] != _SPACE:
            return i
        i = after
    return end


@njit(nogil=True, cache=True)
def _line_end(data: np.ndarray, i: int, end: int) -> int:
    while i < end and data[i] != _LINE_FEED:
        i += 1
    return i


@njit(nogil=True, cache=True)
def _is_space(byte: int) -> bool:
    return byte == 32 or 9 <= byte <= 13 or 28 <= byte <= 31


@njit(nogil=True, cache=True)
def _unit(data: np.ndarray, i: int, end: int, table: np.ndarray, paragraphs: bool) -> tuple[int, int, int]:
    """The next unit at or after byte i: (start, end, where to go on); start is ``end`` when there is none."""
    while i < end:
        stop = _line_end(data, i, end)
        start = _visible(data, i, stop, table)
        i = stop + 1
        if start == stop:
            continue
        while paragraphs and i < end:
            after = _line_end(data, i, end)
            if _visible(data, i, after, table) == after:
                break
            stop, i = after, after + 1
        while _is_space(data[stop - 1]):
            stop -= 1
        return start, stop, i
    return end, end, end


@njit(nogil=True, cache=True)
def _hash(data: np.ndarray, i: int, end: int, table: np.ndarray) -> np.uint64:
    """A hash of the normal form: eight ASCII characters at a time, any other one alone."""
    h, word, held = _START, _U0, 0
    spaces = False
    while i < end:
        code, after = np.uint32(data[i]), i + 1
        if code >= 128:
            code, after = decode(data, i, end)
        if code < len(table):
            code = table[code]
        i = after
        if code == _SPACE:
            spaces = True
            continue
        if spaces:
            word, held, spaces = (word << _U8) | np.uint64(_SPACE), held + 1, False
            if held == 8:
                h, word, held = fold(h, word), _U0, 0
        if code < 128:
            word, held = (word << _U8) | np.uint64(code), held + 1
            if held == 8:
                h, word, held = fold(h, word), _U0, 0
        else:
            h, word, held = fold(fold(h, word), np.uint64(code) << _U32), _U0, 0
    return fmix64(fold(h, word))


@njit(nogil=True, cache=True)
def _scan(
    data: np.ndarray,
    starts: np.ndarray,
    ends: np.ndarray,
    order: np.ndarray,
    table: np.ndarray,
    paragraphs: bool,
    document: np.ndarray,
    first: np.ndarray,
    last: np.ndarray,
    hashes: np.ndarray,
) -> int:
    """Fill the last four arrays with every unit; return how many they are."""
    count = 0
    for doc in order:
        i, end = starts[doc], ends[doc]
        while True:
            start, stop, i = _unit(data, i, end, table, paragraphs)
            if start == end:
                break
            document[count], first[count], last[count] = doc, start, stop
            hashes[count] = _hash(data, start, stop, table)
            count += 1
    return count


@njit(nogil=True, cache=True)
def _same(data: np.ndarray, a: int, a_end: int, b: int, b_end: int, table: np.ndarray) -> bool:
    if a_end - a == b_end - b:
        differs = 0
        for i in range(a_end - a):
            differs |= data[a + i] ^ data[b + i]
        if not differs:
            return True
    while True:
        x, a = _form(data, a, a_end, table)
        y, b = _form(data, b, b_end, table)
        if x != y:
            return False
        if x == _DONE:
            return True


@njit(nogil=True, cache=True)
def _grouped(
    data: np.ndarray,
    document: np.ndarray,
    starts: np.ndarray,
    ends: np.ndarray,
    hashes: np.ndarray,
    order: np.ndarray,
    table: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """The leader of each unit and, at leaders, how many documents hold it; ``order`` sorts by hash, stably."""
    leader = np.arange(len(order))
    held_by = np.zeros(len(order), np.int64)
    last = np.full(len(order), -1, np.int64)  # at leaders: the last document counted
    first = 0
    for at in range(len(order)):
        unit = order[at]
        if hashes[unit] != hashes[order[first]]:
            first = at
        for before in range(first, at):  # the first is the same, short of a collision of hashes
            other = order[before]
            if leader[other] == other and _same(data, starts[unit], ends[unit], starts[other], ends[other], table):
                leader[unit] = other
                break
        lead = leader[unit]
        if last[lead] != document[unit]:
            last[lead] = document[unit]
            held_by[lead] += 1
    return leader, held_by


def _left(documents: Documents, units: Units, cut: np.ndarray) -> dict[int, str]:
    """The texts of the documents that lost a unit."""
    edges = np.flatnonzero(np.diff(units.document, prepend=-1, append=-1)) if len(cut) else np.zeros(1, np.int64)
    lost = np.concatenate([[0], np.cumsum(cut)])
    losses = lost[edges[1:]] - lost[edges[:-1]]
    left = dict.fromkeys(units.document[edges[:-1][losses == np.diff(edges)]].tolist(), "") if len(cut) else {}
    touched = np.flatnonzero((losses > 0) & (losses < np.diff(edges)))
    for first, after in zip(edges[touched].tolist(), edges[touched + 1].tolist(), strict=True):
        document = int(units.document[first])
        begin, end = int(documents.starts[document]), int(documents.ends[document])
        out = np.empty(end - begin, np.uint8)
        here = slice(first, after)
        size = _joined(documents.data, begin, end, units.starts[here], units.ends[here], cut[here], out)
        left[document] = decoded(out, 0, size)
    return left


@njit(nogil=True, cache=True)
def _feeds(data: np.ndarray, start: int, end: int) -> tuple[int, int, int]:
    """How many line feeds lie in a gap, where the first is and the byte after the last (``start`` without any)."""
    count, first, after = 0, start, start
    for i in range(start, end):
        if data[i] == _LINE_FEED:
            first = i if count == 0 else first
            count += 1
            after = i + 1
    return count, first, after


@njit(nogil=True, cache=True)
def _copy(data: np.ndarray, start: int, end: int, out: np.ndarray, at: int) -> int:
    out[at : at + end - start] = data[start:end]
    return at + end - start


@njit(nogil=True, cache=True)
def _joined(
    data: np.ndarray, begin: int, end: int, starts: np.ndarray, ends: np.ndarray, cut: np.ndarray, out: np.ndarray
) -> int:
    """Write the units that stay; between two: what ended the first, the larger gap, the second's indentation."""
    at, kept = 0, -1
    for unit in range(len(starts)):
        if cut[unit]:
            continue
        feeds, first, after = _feeds(data, ends[unit - 1] if unit else begin, starts[unit])
        if kept < 0:
            at = _copy(data, after if unit else begin, starts[unit], out, at)
        else:
            others, of_kept, last = _feeds(data, ends[kept], starts[kept + 1])
            at = _copy(data, ends[kept], of_kept, out, at)
            at = _copy(data, of_kept, last, out, at) if others > feeds else _copy(data, first, after, out, at)
            at = _copy(data, after, starts[unit], out, at)
        at = _copy(data, starts[unit], ends[unit], out, at)
        kept = unit
    return at if kept < 0 else _copy(data, ends[-1], end, out, at)
