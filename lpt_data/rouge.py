"""ROUGE-L between short texts: exact, over all pairs that can reach a threshold.

    F1(a, b) = 2 LCS(a, b) / (|a| + |b|)        LCS: longest common subsequence of words

as in Lin, "ROUGE: a package for automatic evaluation of summaries" (2004), with precision and recall weighed alike, as
the rouge_score package does. Self-Instruct (Wang et al., 2022) keeps an instruction whose ROUGE-L to all others is
under 0.7. Pairs are found by a prefix filter: the LCS is at most the number of words in common, so two texts that reach
the threshold share one of their rarest words, and only those are compared: first by the bits in which two signatures
differ, then by the words in common, then bit-parallel (Hyyrö, 2004), 64 words at a time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numba import njit

MAX_WORDS = 512  # of a text, from its start: an instruction is shorter, and a hostile row is not compared at length


@dataclass(frozen=True)
class Words:
    """Texts as runs of word numbers: text i is ``numbers[starts[i]:starts[i + 1]]``; 0 … vocabulary - 1."""

    starts: np.ndarray  # int64 [n + 1]
    numbers: np.ndarray  # int32
    vocabulary: int

    def __len__(self) -> int:
        return len(self.starts) - 1


@dataclass(frozen=True)
class Nearest:
    """For each text the best F1 that was found, and with which text: -1 where none reaches the threshold."""

    score: np.ndarray  # float64 [n]
    other: np.ndarray  # int64 [n]


def number(texts: Sequence[np.ndarray]) -> Words:
    """Number the words (any integers) of texts, the rarest first; a text is cut to MAX_WORDS."""
    cut = [text[:MAX_WORDS] for text in texts]
    starts = np.concatenate([[0], np.cumsum([len(text) for text in cut], dtype=np.int64)]).astype(np.int64)
    flat = np.concatenate(cut) if cut else np.empty(0, np.uint32)
    distinct, inverse, counts = np.unique(flat, return_inverse=True, return_counts=True)
    rank = np.empty(len(distinct), np.int32)
    rank[np.lexsort((distinct, counts))] = np.arange(len(distinct), dtype=np.int32)
    return Words(starts, rank[inverse.reshape(-1)] if len(flat) else np.empty(0, np.int32), len(distinct))


def nearest_within(words: Words, order: np.ndarray, threshold: float) -> Nearest:
    """Return for each text another one whose F1 is at least the threshold (exact), if there is any.

    `order` int64 [n] ranks the texts by content, so that nothing depends on where they stand. A text that has found one
    is compared with those alone that have not, so templates cost no square.
    """
    lengths = np.diff(words.starts)
    by_length = np.lexsort((order, lengths)).astype(np.int64)
    bags = _sorted(words.starts, words.numbers)
    prefix = np.array([_prefix(int(n), threshold) for n in range(MAX_WORDS + 1)], np.int64)
    score, other = _join(words.starts, words.numbers, bags, words.vocabulary, by_length, prefix, float(threshold))
    return Nearest(score, other)


def nearest_among(texts: Sequence[np.ndarray], others: Sequence[np.ndarray]) -> Nearest:
    """Return for each text the best F1 to any of the others, and which; the first of equals; -1 where all are 0."""
    words = number([*texts, *others])
    score, other = _all_pairs(words.starts, words.numbers, words.vocabulary, len(texts))
    return Nearest(score, other)


def _prefix(length: int, threshold: float) -> int:
    """How many of its rarest words a text must be looked up by: it shares t/(2 - t) of its words at the least."""
    return length - math.ceil(threshold * length / (2 - threshold) - 1e-9) + 1 if length else 0


@njit(cache=True)
def _sorted(starts: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """The words of each text sorted, rarest first."""
    found = numbers.copy()
    for i in range(len(starts) - 1):
        found[starts[i] : starts[i + 1]].sort()
    return found


@njit(cache=True)
def _fill(numbers: np.ndarray, start: int, end: int, slot: np.ndarray, masks: np.ndarray) -> int:
    """Set the match masks of one text; `slot[word]` is 1 + its row in `masks`. Returns how many words it has."""
    used = 0
    for k in range(start, end):
        word = numbers[k]
        if slot[word] == 0:
            used += 1
            slot[word] = used
            masks[used - 1, :] = 0
        masks[slot[word] - 1, (k - start) >> 6] |= np.uint64(1) << np.uint64((k - start) & 63)
    return used


@njit(cache=True)
def _clear(numbers: np.ndarray, start: int, end: int, slot: np.ndarray) -> None:
    for k in range(start, end):
        slot[numbers[k]] = 0


@njit(cache=True)
def _lcs(
    numbers: np.ndarray, start: int, end: int, slot: np.ndarray, masks: np.ndarray, length: int, v: np.ndarray
) -> int:
    """LCS of the text whose masks are set (`length` words) and another."""
    blocks = (length + 63) >> 6
    for b in range(blocks):
        v[b] = ~np.uint64(0)
    for k in range(start, end):
        row = slot[numbers[k]]
        if row == 0:
            continue
        carry = np.uint64(0)
        for b in range(blocks):
            u = v[b] & masks[row - 1, b]
            low = v[b] + u
            total = low + carry
            carry = np.uint64(1) if (low < u or total < carry) else np.uint64(0)
            v[b] = total | (v[b] & ~u)
    count = 0
    for at in range(length):
        if not (v[at >> 6] >> np.uint64(at & 63)) & np.uint64(1):
            count += 1
    return count


@njit(cache=True)
def _signatures(starts: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """256 bits of each text, one toggled by each word: two texts that differ in k words differ in at most k bits."""
    found = np.zeros((len(starts) - 1, 4), np.uint64)
    for i in range(len(starts) - 1):
        for k in range(starts[i], starts[i + 1]):
            bit = (np.uint64(numbers[k]) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(56)
            found[i, bit >> np.uint64(6)] ^= np.uint64(1) << (bit & np.uint64(63))
    return found


@njit(cache=True, inline="always")
def _apart(a: np.ndarray, b: np.ndarray) -> int:
    """How many bits two signatures differ in."""
    count = 0
    for k in range(4):
        left = a[k] ^ b[k]
        while left:  # the compiler makes one instruction of it
            left &= left - np.uint64(1)
            count += 1
    return count


@njit(cache=True)
def _common(a: np.ndarray, b: np.ndarray, needed: int) -> bool:
    """Whether two sorted runs share at least so many words, repeats counted."""
    i = j = found = 0
    while i < len(a) and j < len(b):
        if found + min(len(a) - i, len(b) - j) < needed:
            return False
        if a[i] == b[j]:
            found += 1
            i += 1
            j += 1
        elif a[i] < b[j]:
            i += 1
        else:
            j += 1
    return found >= needed


@njit(cache=True, inline="always")
def _f1(
    i: int,
    j: int,
    starts: np.ndarray,
    numbers: np.ndarray,
    bags: np.ndarray,
    signs: np.ndarray,
    slot: np.ndarray,
    masks: np.ndarray,
    v: np.ndarray,
    threshold: float,
) -> float:
    """F1 of text i, whose masks are set, and text j; 0 where it is under the threshold."""
    length, theirs = starts[i + 1] - starts[i], starts[j + 1] - starts[j]
    needed = math.ceil(threshold * (length + theirs) / 2 - 1e-9)
    if length + theirs - _apart(signs[i], signs[j]) < 2 * needed:
        return 0.0
    if not _common(bags[starts[i] : starts[i + 1]], bags[starts[j] : starts[j + 1]], needed):
        return 0.0
    lcs = _lcs(numbers, starts[j], starts[j + 1], slot, masks, length, v)
    return 2.0 * lcs / (length + theirs) if lcs >= needed else 0.0


@njit(cache=True)
def _note(i: int, j: int, found: float, score: np.ndarray, other: np.ndarray) -> None:
    if found > score[i]:
        score[i], other[i] = found, j
    if found > score[j]:
        score[j], other[j] = found, i


@njit(cache=True)
def _join(
    starts: np.ndarray,
    numbers: np.ndarray,
    bags: np.ndarray,
    vocabulary: int,
    by_length: np.ndarray,
    prefix: np.ndarray,
    threshold: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Shortest texts first: look each up under its rarest words among those before it, then add it to them.

    `every` lists, under a word, the texts so far; `alone` those of them that have found no other one.
    """
    n = len(by_length)
    score, other = np.zeros(n), np.full(n, -1, np.int64)
    sizes = np.zeros(vocabulary + 1, np.int64)
    for i in range(n):
        for k in range(prefix[starts[i + 1] - starts[i]]):
            sizes[bags[starts[i] + k] + 1] += 1
    first = np.cumsum(sizes)
    every, alone = np.empty(first[-1] + 1, np.int64), np.empty(first[-1] + 1, np.int64)
    filled, left, skip = first[:-1].copy(), first[:-1].copy(), first[:-1].copy()
    seen = np.full(n, -1, np.int64)
    signs = _signatures(starts, numbers)
    slot = np.zeros(vocabulary + 1, np.int32)
    masks = np.zeros((MAX_WORDS, MAX_WORDS // 64), np.uint64)
    v = np.zeros(MAX_WORDS // 64, np.uint64)
    for i in by_length:
        length = starts[i + 1] - starts[i]
        words = bags[starts[i] : starts[i] + prefix[length]]
        _fill(numbers, starts[i], starts[i + 1], slot, masks)
        shortest = math.ceil(length * threshold / (2 - threshold) - 1e-9)
        for word in words:
            while skip[word] < filled[word]:
                j = every[skip[word]]
                if starts[j + 1] - starts[j] >= shortest:
                    break
                skip[word] += 1  # the texts to come are no shorter than this one
            for p in range(skip[word], filled[word]):
                j = every[p]
                if other[i] < 0 and seen[j] != i:
                    seen[j] = i
                    _note(i, j, _f1(i, j, starts, numbers, bags, signs, slot, masks, v, threshold), score, other)
            if other[i] >= 0:
                break
        for word in words if other[i] >= 0 else words[:0]:
            kept = first[word]
            for p in range(first[word], left[word]):
                j = alone[p]
                if other[j] < 0 and seen[j] != i and starts[j + 1] - starts[j] >= shortest:
                    seen[j] = i
                    _note(i, j, _f1(i, j, starts, numbers, bags, signs, slot, masks, v, threshold), score, other)
                if other[j] < 0:
                    alone[kept] = j
                    kept += 1
            left[word] = kept
        _enter(i, words, every, filled)
        if other[i] < 0:
            _enter(i, words, alone, left)
        _clear(numbers, starts[i], starts[i + 1], slot)
    return score, other


@njit(cache=True)
def _enter(i: int, words: np.ndarray, lists: np.ndarray, ends: np.ndarray) -> None:
    for k in range(len(words)):
        if k == 0 or words[k] != words[k - 1]:
            lists[ends[words[k]]] = i
            ends[words[k]] += 1


@njit(cache=True)
def _all_pairs(starts: np.ndarray, numbers: np.ndarray, vocabulary: int, texts: int) -> tuple[np.ndarray, np.ndarray]:
    n = len(starts) - 1
    score, other = np.zeros(texts), np.full(texts, -1, np.int64)
    slot = np.zeros(vocabulary + 1, np.int32)
    masks = np.zeros((MAX_WORDS, MAX_WORDS // 64), np.uint64)
    v = np.zeros(MAX_WORDS // 64, np.uint64)
    for i in range(texts):
        length = starts[i + 1] - starts[i]
        if length == 0:
            continue
        _fill(numbers, starts[i], starts[i + 1], slot, masks)
        for j in range(texts, n):
            theirs = starts[j + 1] - starts[j]
            if theirs == 0 or 2.0 * min(length, theirs) / (length + theirs) <= score[i]:
                continue
            found = 2.0 * _lcs(numbers, starts[j], starts[j + 1], slot, masks, length, v) / (length + theirs)
            if found > score[i]:
                score[i], other[i] = found, j - texts
        _clear(numbers, starts[i], starts[i + 1], slot)
    return score, other
