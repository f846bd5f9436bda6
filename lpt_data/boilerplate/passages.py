"""Exact passages of a least length that several documents hold, found and cut in one pass over the documents.

After Lee et al. (2022, "Deduplicating Training Data Makes Language Models Better"), who cut every passage of 50 tokens
that a suffix array finds twice; 50 tokens of English are about 200 characters. Here documents are taken from the first
of their order to the last, and each is compared with what was left of those before it:

    a passage of a document goes when an earlier one, as it was left, holds it

so whatever is cut is still there, in one piece, in the witness; when all is done no two documents share a passage of
that length, and a second run cuts nothing. A suffix array knows the texts as they were, not as they are left: where it
cuts, what meets at the seam may be a repetition again.

Candidates come by winnowing (Schleimer et al., 2003): of every ``w`` neighbouring hashes of ``k`` bytes the smallest is
an anchor, with ``k + w - 1`` the least length; so two equal passages of that length have an anchor at the same place,
and one byte in (w + 1) / 2 is one. Bytes decide: a match is extended both ways as far as it goes. It is then drawn in
to where both texts may be parted: never inside a character, before a mark that belongs to the one in front, between a
carriage return and its line feed, nor inside a word. That is the passage whose length counts; what parts it from the
text in front (white space, and punctuation where two words would meet) is left standing.

Of anchors with one hash the first CHAIN are remembered, and a document whose comparisons exceed BUDGET bytes for each
of its own is not compared further (their number is reported): crafted text costs linear time too.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from functools import cache

import numpy as np
from numba import njit

from lpt_data.boilerplate.cuts import Cuts
from lpt_data.boilerplate.documents import BETWEEN, Documents, decoded
from lpt_data.text import _ALONE, decode, fmix64, tables

CHAIN = 32
BUDGET = 64
HEAD = 4  # characters of white space or punctuation that a cut leaves standing
ROUNDS = 64  # over one document, which is looked at again after it was cut
EXCERPT = 160  # characters

OTHER, WORD, LONE, MARK, JOINER, FLAG, SPACE = range(7)
_BASE = np.uint64(0x9E3779B97F4A7C15)
_U0 = np.uint64(0)
_PER_CALL = 1 << 26  # bytes of text between two calls of progress


def window(length: int) -> tuple[int, int]:
    """Bytes of an anchor and hashes that it is chosen of: (k, w)."""
    w = length // 4 + 1
    return length - w + 1, w


def bytes_beside(length: int) -> float:
    """Bytes of the table of anchors for each byte of text, while it grows: 16 an entry, a quarter full, and the old."""
    return 2 / (window(length)[1] + 1) * 16 * 6


def find(documents: Documents, length: int, progress: Callable[[int], None]) -> Cuts:
    """Cut passages of ``length`` characters, at least 8; `Documents.data` is written to."""
    data, starts = documents.data, documents.starts
    ends = documents.ends.copy()
    k, w = window(length)
    rank = np.empty(len(starts), np.int64)
    rank[documents.order] = np.arange(len(starts))
    hashes, places = np.zeros(1 << 12, np.uint64), np.zeros(1 << 12, np.int64)
    used, given_up = 0, 0
    found: list[np.ndarray] = [np.zeros((0, 4), np.int64)]
    done = 0
    for part in _parts(documents):
        hashes, places, used, cuts, lost = _cut_all(
            data, starts, ends, part, rank, length, k, w, hashes, places, used, kinds()
        )
        found.append(cuts)
        given_up += lost
        done += len(part)
        progress(done)
    document, source, size, chars = np.concatenate(found).T
    keeper = np.searchsorted(starts, source, side="right") - 1
    passage, texts, held_by = _passages(data, document, source, size)
    left = {doc: decoded(data, starts[doc], ends[doc]) for doc in np.unique(document).tolist()}
    return Cuts(document, keeper, chars, passage, texts, held_by, left, given_up)


def _parts(documents: Documents) -> list[np.ndarray]:
    """The order in runs of some megabytes of text."""
    sizes = (documents.ends - documents.starts)[documents.order]
    cuts = np.flatnonzero(np.diff(np.cumsum(sizes) // _PER_CALL)) + 1
    return [part for part in np.split(documents.order, cuts) if len(part)]


def _passages(
    data: np.ndarray, document: np.ndarray, source: np.ndarray, size: np.ndarray
) -> tuple[np.ndarray, list[str], np.ndarray]:
    """Cuts whose sources overlap are of one passage: (passage of each cut, beginnings, documents that held them)."""
    order = np.lexsort((size, source))
    passage = np.zeros(len(order), np.int64)
    starts: list[int] = []
    ends: list[int] = []
    for cut in order.tolist():
        if not starts or source[cut] >= ends[-1]:
            starts.append(int(source[cut]))
            ends.append(0)
        ends[-1] = max(ends[-1], int(source[cut] + size[cut]))
        passage[cut] = len(starts) - 1
    pairs = np.unique(np.stack([passage, document]), axis=1)[0]
    held_by = np.bincount(pairs, minlength=len(starts)) + 1
    texts = [decoded(data, at, min(end, at + 4 * EXCERPT))[:EXCERPT] for at, end in zip(starts, ends, strict=True)]
    return passage, texts, held_by


@cache
def kinds() -> np.ndarray:
    """What a character is to its neighbours, uint8 [0x110000]; a LONE letter is a word by itself."""
    kind = np.zeros(0x110000, np.uint8)
    letters = tables().unicode
    kind[: len(letters)][letters != 0] = np.where(letters & _ALONE, LONE, WORD)[letters != 0]
    for code in (*range(0x40000), *range(0xE0000, 0xE0200)):
        char = chr(code)
        if unicodedata.category(char)[0] == "M":
            kind[code] = MARK
        elif char.isspace():
            kind[code] = SPACE
    kind[0x1F3FB:0x1F400] = MARK  # skin tones
    kind[0xE0020:0xE0080] = MARK  # tags of flags
    kind[0x1F1E6:0x1F200] = FLAG  # letters that are flags in pairs
    kind[0x200C] = MARK
    kind[0x200D] = JOINER
    return kind


@njit(nogil=True, cache=True)
def _anchors(
    data: np.ndarray, start: int, end: int, k: int, w: int, places: np.ndarray, hashes: np.ndarray, ring: np.ndarray
) -> int:
    """Winnow one text: the place and hash of each anchor, in order; return how many they are."""
    if end - start < k + w - 1:
        return 0
    power = np.uint64(1)
    for _ in range(k):
        power *= _BASE
    h = _U0
    for i in range(start, start + k):
        h = h * _BASE + np.uint64(data[i]) + np.uint64(1)
    count, least, best = 0, start, fmix64(h)
    ring[0] = best
    slot = 0
    for at in range(start + 1, end - k + 1):
        h = h * _BASE + np.uint64(data[at + k - 1]) + np.uint64(1) - power * (np.uint64(data[at - 1]) + np.uint64(1))
        value = fmix64(h)
        slot = slot + 1 if slot + 1 < w else 0
        ring[slot] = value
        if value <= best:
            least, best = at, value
        elif least <= at - w:
            least, best = at, value
            for back in range(1, w):
                other = ring[slot - back if slot >= back else slot - back + w]
                if other < best:
                    least, best = at - back, other
        if at - start >= w - 1 and (count == 0 or places[count - 1] != least):
            places[count], hashes[count] = least, best
            count += 1
    if count == 0:
        places[0], hashes[0] = least, best
        count = 1
    return count


@njit(nogil=True, cache=True)
def _grown(hashes: np.ndarray, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    new_hashes, new_places = np.zeros(2 * len(hashes), np.uint64), np.zeros(2 * len(hashes), np.int64)
    mask = np.uint64(len(new_hashes) - 1)
    for i in range(len(hashes)):
        if places[i]:
            slot = hashes[i] & mask
            while new_places[slot]:
                slot = (slot + np.uint64(1)) & mask
            new_hashes[slot], new_places[slot] = hashes[i], places[i]
    return new_hashes, new_places


@njit(nogil=True, cache=True)
def _remember(hashes: np.ndarray, places: np.ndarray, value: np.uint64, place: int) -> int:
    """Enter an anchor unless CHAIN of its hash are there; return how many were added."""
    mask = np.uint64(len(hashes) - 1)
    slot, same = value & mask, 0
    while places[slot]:
        if hashes[slot] == value:
            same += 1
            if same == CHAIN:
                return 0
        slot = (slot + np.uint64(1)) & mask
    hashes[slot], places[slot] = value, place
    return 1


@njit(nogil=True, cache=True)
def _kind_before(data: np.ndarray, at: int, kind: np.ndarray) -> int:
    """The kind of the character that ends before byte ``at``."""
    start = at - 1
    while (data[start] & 0xC0) == 0x80:
        start -= 1
    return kind[decode(data, start, at)[0]]


@njit(nogil=True, cache=True)
def _may_part(data: np.ndarray, at: int, kind: np.ndarray) -> bool:
    """Whether a text may be parted before byte ``at``; at its own ends it may."""
    if data[at] == BETWEEN or data[at - 1] == BETWEEN:
        return True
    if (data[at] & 0xC0) == 0x80 or (data[at] == 10 and data[at - 1] == 13):
        return False
    here, before = kind[decode(data, at, len(data))[0]], _kind_before(data, at, kind)
    if here in (MARK, JOINER) or before == JOINER:
        return False
    return not (here == before and here in (WORD, FLAG))


@njit(nogil=True, cache=True)
def _drawn_in(data: np.ndarray, left: int, right: int, away: int, kind: np.ndarray) -> tuple[int, int, int]:
    """The part of a match, and of the same bytes ``away`` bytes further on, that both may lose; and its characters."""
    while left < right and not (_may_part(data, left, kind) and _may_part(data, left + away, kind)):
        left += 1
    while right > left and not (_may_part(data, right, kind) and _may_part(data, right + away, kind)):
        right -= 1
    chars = 0
    for i in range(left, right):
        chars += (data[i] & 0xC0) != 0x80
    return left, right, chars


@njit(nogil=True, cache=True)
def _after_head(data: np.ndarray, left: int, right: int, kind: np.ndarray) -> int:
    """Where the cut of a match starts: white space at its head stays where text follows, punctuation where words meet.

    At most HEAD characters stay.
    """
    if data[left - 1] == BETWEEN or data[right] == BETWEEN:
        return left
    words = _kind_before(data, left, kind) == WORD and kind[decode(data, right, len(data))[0]] == WORD
    for _ in range(HEAD):
        code, after = decode(data, left, right)
        if left == right or not (kind[code] == SPACE or (words and kind[code] == OTHER)):
            break
        left = after
    return left


@njit(nogil=True, cache=True)
def _earlier(a: int, b: int, starts: np.ndarray, rank: np.ndarray) -> bool:
    """Whether the document at byte ``a`` comes before that at ``b`` in the order, or the place in one document."""
    x, y = np.searchsorted(starts, a, side="right") - 1, np.searchsorted(starts, b, side="right") - 1
    return a < b if x == y else rank[x] < rank[y]


@njit(nogil=True, cache=True)
def _best_match(
    data: np.ndarray,
    place: int,
    value: np.uint64,
    k: int,
    last: int,
    end: int,
    length: int,
    hashes: np.ndarray,
    places: np.ndarray,
    kind: np.ndarray,
    starts: np.ndarray,
    rank: np.ndarray,
) -> tuple[int, int, int, int, int]:
    """The longest cut at an anchor, nothing before ``last``: (start, end, its source, characters, bytes compared)."""
    mask = np.uint64(len(hashes) - 1)
    slot, spent = value & mask, 0
    best_left, best_right, source, most = 0, 0, 0, 0
    while places[slot]:
        if hashes[slot] == value:
            other, left = places[slot], place
            while left > last and data[left - 1] == data[left - 1 + other - place]:
                left -= 1
            right = place
            while right < end and data[right] == data[right + other - place]:
                right += 1
            spent += right - left + 1
            if right >= place + k and right - left >= length:
                spent += 4 * (right - left)  # drawing in costs more than comparing
                cut, after, chars = _drawn_in(data, left, right, other - place, kind)
                from_there = cut + other - place
                if chars >= length and (chars > most or (chars == most and _earlier(from_there, source, starts, rank))):
                    best_left, best_right, source, most = cut, after, from_there, chars
        slot = (slot + np.uint64(1)) & mask
    return best_left, best_right, source, most, spent


@njit(nogil=True, cache=True)
def _cut_all(
    data: np.ndarray,
    starts: np.ndarray,
    ends: np.ndarray,
    order: np.ndarray,
    rank: np.ndarray,
    length: int,
    k: int,
    w: int,
    hashes: np.ndarray,
    places: np.ndarray,
    used: int,
    kind: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, int, np.ndarray, int]:
    """Cut some documents, in their order, against those remembered: the table, cuts [n, 4] and how many gave up."""
    longest = 0
    for doc in order:
        longest = max(longest, ends[doc] - starts[doc])
    anchor_places, anchor_hashes = np.empty(longest + 1, np.int64), np.empty(longest + 1, np.uint64)
    ring = np.empty(w, np.uint64)
    cuts, count, given_up = np.empty((1024, 4), np.int64), 0, 0
    for doc in order:
        start, spent, rounds = starts[doc], 0, 0
        budget = BUDGET * (ends[doc] - start) + (1 << 20)
        while True:
            end = ends[doc]
            anchors = _anchors(data, start, end, k, w, anchor_places, anchor_hashes, ring)
            last = written = start
            for i in range(anchors):
                place = anchor_places[i]
                if place < last or spent > budget or rounds == ROUNDS:
                    continue
                left, right, source, chars, cost = _best_match(
                    data, place, anchor_hashes[i], k, last, end, length, hashes, places, kind, starts, rank
                )
                spent += cost
                first = _after_head(data, left, right, kind) if chars else right
                if first == right:
                    continue
                for i_head in range(left, first):
                    chars -= (data[i_head] & 0xC0) != 0x80
                source, left = source + first - left, first
                if count == len(cuts):
                    cuts = np.concatenate((cuts, np.empty_like(cuts)))
                cuts[count, 0], cuts[count, 1], cuts[count, 2], cuts[count, 3] = doc, source, right - left, chars
                count += 1
                for byte in range(last, left):
                    data[written] = data[byte]
                    written += 1
                last = right
            if last == start:
                break
            for byte in range(last, end):
                data[written] = data[byte]
                written += 1
            data[written] = BETWEEN
            ends[doc] = written
            rounds += 1
        given_up += spent > budget or rounds == ROUNDS
        for i in range(anchors):
            if 2 * used > len(places):
                hashes, places = _grown(hashes, places)
            used += _remember(hashes, places, anchor_hashes[i], anchor_places[i])
    return hashes, places, used, cuts[:count].copy(), given_up
