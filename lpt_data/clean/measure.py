"""What the quality rules count, in one pass over the UTF-8 bytes of a text, with the GIL released.

What a word is, `lpt_data.clean.words` says. A *line* is a stretch between line feeds that says something, a *paragraph*
a run of such lines. Lines and paragraphs are compared by a 64-bit hash of their characters, white space collapsed;
n-grams by a hash of their words. Shares are of characters, not of bytes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from lpt_data.clean.words import (
    _ALPHA,
    _BULLET,
    _DOTS,
    _END,
    _OWN,
    _QUARTER,
    _START,
    _TERMINAL,
    classes,
    grown,
    scan,
    stop_words,
)
from lpt_data.text import fmix64, fold

SHORT_LINE = 30  # characters; FineWeb's
TOP_NGRAMS, DUPLICATE_NGRAMS = (2, 3, 4), (5, 6, 7, 8, 9, 10)


class Facts(NamedTuple):
    """Counts of one text."""

    chars: int
    words: int
    word_chars: int  # characters that are no white space
    alphabetic_words: int  # with at least one letter
    hashes: int  # "#"
    ellipses: int  # "..." or its one character
    lines: int
    bullet_lines: int
    ellipsis_lines: int  # that end with an ellipsis
    terminal_lines: int  # that end with terminal punctuation
    short_lines: int  # of at most SHORT_LINE characters
    line_feeds: int
    duplicate_lines: int  # that repeat an earlier one
    duplicate_line_chars: int
    paragraphs: int
    duplicate_paragraphs: int
    duplicate_paragraph_chars: int
    stop_words: int  # different ones of STOP_WORDS
    sentences: int
    curly_brackets: int  # "{"
    unspaced_words: int  # letters of scripts without spaces


class Repeats(NamedTuple):
    """Characters of a text in repeated n-grams of words, one number for each n."""

    top: tuple[int, ...]  # in the most frequent n-gram, n of TOP_NGRAMS, 0 where none occurs twice
    duplicate: tuple[int, ...]  # in n-grams seen before, n of DUPLICATE_NGRAMS


def as_bytes(text: str) -> np.ndarray:
    """Return the UTF-8 of a text, uint8 [bytes]; a lone surrogate, which no row has, reads as U+003F."""
    return np.frombuffer(text.encode("utf-8", "replace"), np.uint8)


def measure(data: np.ndarray) -> tuple[Facts, np.ndarray, np.ndarray]:
    """Count what the quality rules ask for in the UTF-8 bytes of one text.

    Returns the facts, and a hash and the number of characters of each word, uint64 and int64 [words].
    """
    counts, words, sizes = _measure(data, classes(), stop_words())
    return Facts(*counts.tolist()), words, sizes


def repeats(words: np.ndarray, sizes: np.ndarray) -> Repeats:
    """Count the characters in repeated n-grams, as Gopher does (Rae et al. 2021, table A1)."""
    chars = _repeats(words, sizes).tolist()
    return Repeats(tuple(chars[n] for n in TOP_NGRAMS), tuple(chars[n] for n in DUPLICATE_NGRAMS))


@njit(nogil=True, cache=True)
def _repeated(hashes: np.ndarray, sizes: np.ndarray, count: int) -> tuple[int, int]:
    """How many of the hashes were seen before, and the characters behind those."""
    room = 4
    while room < 2 * count:
        room *= 2
    seen = np.zeros(room, np.uint64)
    mask = np.uint64(room - 1)
    again, chars = 0, 0
    for i in range(count):
        value = hashes[i] | np.uint64(1)  # 0 is an empty place
        place = (value >> np.uint64(7)) & mask
        while seen[place] != 0 and seen[place] != value:
            place = (place + np.uint64(1)) & mask
        if seen[place] == value:
            again += 1
            chars += sizes[i]
        seen[place] = value
    return again, chars


@njit(nogil=True, cache=True)
def _lines(words: np.ndarray, sizes: np.ndarray, ends: np.ndarray, feeds: np.ndarray, out: np.ndarray) -> None:
    """Fill in what `Facts` says about words, lines and paragraphs, int64 [21]."""
    line_hash, line_size = np.empty(64, np.uint64), np.empty(64, np.int64)
    par_hash, par_size = np.empty(64, np.uint64), np.empty(64, np.int64)
    lines = pars = light = 0
    lh, lsize, ph, psize = _START, 0, _START, 0
    total = len(words)
    for i in range(total):
        kind = ends[i]
        if lsize == 0:
            out[7] += (kind & _BULLET) != 0
        if kind & _QUARTER:
            light += 1
        else:
            out[1] += 1
            out[3] += (kind & (_ALPHA | _OWN)) != 0
        out[2] += sizes[i]
        out[18] += (kind & _END) != 0
        out[20] += (kind & _OWN) != 0
        lh = fold(lh, words[i])
        lsize += sizes[i] + (lsize > 0)
        if i + 1 < total and feeds[i + 1] == 0:
            continue
        if lines + 1 >= len(line_hash):
            line_hash, line_size = grown(line_hash), grown(line_size)
            par_hash, par_size = grown(par_hash), grown(par_size)
        line_hash[lines], line_size[lines] = fmix64(lh), lsize
        lines += 1
        out[8] += (kind & _DOTS) != 0
        out[9] += (kind & _TERMINAL) != 0
        out[10] += lsize <= SHORT_LINE
        ph, psize = fold(ph, lh), psize + lsize
        lh, lsize = _START, 0
        if i + 1 == total or feeds[i + 1] > 1:
            par_hash[pars], par_size[pars] = fmix64(ph), psize
            pars += 1
            ph, psize = _START, 0
    out[1] += (light + 3) // 4
    out[3] += (light + 3) // 4
    out[6], out[14] = lines, pars
    out[12], out[13] = _repeated(line_hash, line_size, lines)
    out[15], out[16] = _repeated(par_hash, par_size, pars)


@njit(nogil=True, cache=True)
def _measure(data: np.ndarray, kinds: np.ndarray, stops: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The numbers of `Facts`, int64 [21], and the words."""
    counts, words, sizes, ends, feeds = scan(data, kinds, stops)
    out = np.zeros(21, np.int64)
    out[0], out[11], out[4], out[19], out[5] = counts[0], counts[1], counts[2], counts[3], counts[4]
    for k in range(len(stops)):
        out[17] += (counts[5] >> k) & 1
    _lines(words, sizes, ends, feeds, out)
    return out, words, sizes


@njit(nogil=True, cache=True)
def _repeats(words: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Characters in the most frequent n-gram (n up to 4) or in n-grams seen before (n from 5), int64 [11].

    An n-gram can only occur twice where both (n - 1)-grams inside it do: nothing else is hashed. Of single words, most
    of which occur twice, that would spare little.
    """
    total = len(words)
    out = np.zeros(11, np.int64)
    upto = np.zeros(total + 1, np.int64)
    for i in range(total):
        upto[i + 1] = upto[i] + sizes[i]
    grams = np.empty(total, np.uint64)
    for i in range(total):
        grams[i] = fold(_START, words[i])
    place = np.zeros(total, np.int32)
    again = np.ones(total + 1, np.bool_)  # the (n - 1)-gram here occurs more than once
    room = 4
    while room < 2 * total:
        room *= 2
    seen, counts = np.empty(room, np.uint64), np.empty(room, np.int32)
    candidates = total
    for n in range(2, 11):
        last = total - n + 1
        room = 4
        while room < 2 * candidates:
            room *= 2
        seen[:room] = 0
        counts[:room] = 0
        mask = np.uint64(room - 1)
        for i in range(last):
            place[i] = -1
            if again[i] and (n == 2 or again[i + 1]):
                grams[i] = fold(grams[i], words[i + n - 1])
                value = grams[i] | np.uint64(1)
                at = (value >> np.uint64(7)) & mask
                while seen[at] != 0 and seen[at] != value:
                    at = (at + np.uint64(1)) & mask
                seen[at] = value
                counts[at] += 1
                place[i] = np.int32(at)
        candidates = 0
        for i in range(last):
            again[i] = place[i] >= 0 and counts[place[i]] > 1
            candidates += again[i]
        again[max(last, 0) :] = False
        if candidates == 0:
            break
        if 2 <= n <= 4:
            out[n] = _top(upto, place, counts, again, n, last)
        elif n >= 5:
            out[n] = _seen_before(upto, place, counts, again, n, last)
    return out


@njit(nogil=True, cache=True)
def _top(upto: np.ndarray, place: np.ndarray, counts: np.ndarray, again: np.ndarray, n: int, last: int) -> int:
    """Characters in all occurrences of the n-gram with the most of them, the longer of equals."""
    most, chars = 0, 0
    for i in range(last):
        if again[i]:
            times = counts[place[i]]
            here = (upto[i + n] - upto[i] + n - 1) * times
            if times > most or (times == most and here > chars):
                most, chars = times, here
    return chars


@njit(nogil=True, cache=True)
def _seen_before(upto: np.ndarray, place: np.ndarray, counts: np.ndarray, again: np.ndarray, n: int, last: int) -> int:
    """Characters in n-grams that came before, none counted twice: after one the search goes on behind it.

    Marks what it has seen in `counts`, which is not used afterwards.
    """
    chars, i = 0, 0
    while i < last:
        if again[i] and counts[place[i]] < 0:
            chars += upto[i + n] - upto[i] + n - 1
            i += n
        else:
            if again[i]:
                counts[place[i]] = -1
            i += 1
    return chars


@njit(nogil=True, cache=True)
def tidied(data: np.ndarray) -> np.ndarray:
    """The UTF-8 bytes of a text with its white space in order: `lpt_data.clean.repair.white_space` says which."""
    out = np.empty(len(data), np.uint8)
    at = 0
    for i in range(len(data)):
        byte = data[i]
        if byte != 10 and byte != 13:
            out[at] = byte
            at += 1
            continue
        if byte == 10 and i > 0 and data[i - 1] == 13:
            continue  # the carriage return before it ended the line
        while at > 0 and (out[at - 1] == 32 or out[at - 1] == 9):
            at -= 1
        if at == 0 or (at > 2 and out[at - 1] == 10 and out[at - 2] == 10 and out[at - 3] == 10):
            continue
        out[at] = 10
        at += 1
    while at > 0 and (out[at - 1] == 32 or out[at - 1] == 9):
        at -= 1
    while at > 1 and out[at - 1] == 10 and out[at - 2] == 10:
        at -= 1
    return out[:at]
