"""Words of a text, in one pass over its UTF-8 bytes: a hash, the length and the ends of each, and what is counted.

A *word* is a run of characters that are no white space; in scripts written without spaces (`lpt_data.text`) every
letter is a word of its own, and of the light ones (Thai, Lao, Khmer, Myanmar) four are. Words of ASCII alone, nearly
all, are cut out of windows of 64 bytes by masks and hashed eight bytes at a time; the others are read by the character,
with the same results.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numba import njit

from lpt_data.text import _ALONE, _LIGHT, decode, fmix64, fold, tables
from lpt_data.wide import WIDTH, byte_mask, count_bits, high_mask, letter_mask, load64, lowest, range_mask, reverse64

STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")  # Gopher's eight
TERMINAL = ".!?\"'\u201d\u2019\u2026\u3002\uff01\uff1f\u300d\u300f\u061f\u06d4\u0964\u0965\u0589\u1362"
SENTENCE_ENDS = ".!?\u2026\u3002\uff01\uff1f\u061f\u06d4\u0964\u0965\u0589\u1362"
BULLETS = "-*\u2022\u2023\u25b6\u25c0\u25e6\u25a0\u25a1\u25aa\u25ab\u2013\u00b7\u25cf"

_SPACE, _ALPHA, _TERMINAL, _END, _BULLET, _OWN, _QUARTER, _DOTS = (np.uint8(1 << n) for n in range(8))
_START = np.uint64(0x9E3779B97F4A7C15)
_0, _1, _2, _3, _4 = (np.uint64(n) for n in range(5))
_LINE_FEED, _DOT, _ELLIPSIS = 10, 46, 0x2026


@cache
def classes() -> np.ndarray:
    """What each code point is, read off the running Python: uint8 [0x40000]."""
    table = tables().unicode
    found = np.zeros(len(table), np.uint8)
    everything = np.arange(len(table), dtype=np.uint32).view("U1")  # NumPy asks the tables of the running Python
    found[np.strings.isspace(everything)] |= _SPACE
    found[np.strings.isalpha(everything)] |= _ALPHA
    for bit, members in ((_TERMINAL, TERMINAL), (_END, SENTENCE_ENDS), (_BULLET, BULLETS)):
        found[[ord(c) for c in members]] |= bit
    found[(table & _ALONE) != 0] |= _OWN
    found[(table & _LIGHT) != 0] |= _QUARTER
    return found


@cache
def stop_words() -> np.ndarray:
    """The stop words, at most four letters each, as big-endian numbers."""
    return np.array([int.from_bytes(word.encode()) for word in STOP_WORDS], np.uint64)


@njit(nogil=True, cache=True)
def grown(found: np.ndarray) -> np.ndarray:
    """An array of twice the size with the same beginning."""
    bigger = np.empty(2 * len(found) + 16, found.dtype)
    bigger[: len(found)] = found
    return bigger


@njit(nogil=True, cache=True)
def _stop_bit(data: np.ndarray, begin: int, size: int, stops: np.ndarray) -> int:
    """The bit of the stop word that the ASCII letters from `begin` on are, 0 where they are none."""
    letters = np.uint64(0)
    for k in range(begin, begin + size):
        letters = (letters << np.uint64(8)) | np.uint64(data[k] | 32)
    for k in range(len(stops)):
        if letters == stops[k]:
            return 1 << k
    return 0


@njit(nogil=True, cache=True)
def _add(h: np.uint64, w: np.uint64, size: int, code: np.uint32) -> tuple[np.uint64, np.uint64]:
    """Add the character that makes a word `size` long to its hash; `w` holds those that are not folded yet."""
    if code >= 128:
        return fold(h, (w << np.uint64(21)) | np.uint64(code)), np.uint64(0)
    w = (w << np.uint64(8)) | np.uint64(code)
    return (fold(h, w), np.uint64(0)) if size & 7 == 0 else (h, w)


@njit(nogil=True, cache=True)
def _past_letters(
    data: np.ndarray, i: int, end: int, h: np.uint64, w: np.uint64, size: int
) -> tuple[int, np.uint64, np.uint64, int]:
    """Add the ASCII letters from i on, nearly every character, to a word."""
    while i < end:
        low = data[i] | np.uint8(32)
        if low < 97 or low > 122:
            break
        size += 1
        h, w = _add(h, w, size, np.uint32(data[i]))
        i += 1
    return i, h, w, size


@njit(nogil=True, cache=True)
def _ascii_hash(data: np.ndarray, i: int, size: int) -> np.uint64:
    """The hash of a word of ASCII, eight bytes at a time."""
    h, w = _START, _0
    while size >= 8:
        h = fold(h, reverse64(load64(data, i)))
        i, size = i + 8, size - 8
    if size:
        w = reverse64(load64(data, i)) >> np.uint64(64 - 8 * size)
    return fold(h, w)


@njit(nogil=True, cache=True)
def _stops_among(data: np.ndarray, i: int, letters: np.uint64, stops: np.ndarray) -> int:
    """The bits of the stop words among runs of letters, the window they are in beginning at i."""
    found = 0
    short = letters & ~(letters << _1)
    short &= ~((letters >> _1) & (letters >> _2) & (letters >> _3) & (letters >> _4))
    while short:
        first = lowest(short)
        found |= _stop_bit(data, i + first, lowest(~(letters >> np.uint64(first))), stops)
        short &= short - _1
    return found


@njit(nogil=True, cache=True)
def _ascii_words(
    data: np.ndarray, i: int, classes: np.ndarray, stops: np.ndarray, counts: np.ndarray, before: int, count: int,
    words: np.ndarray, sizes: np.ndarray, ends: np.ndarray, feeds: np.ndarray,
) -> tuple[int, int, int]:  # fmt: skip
    """Enter the words that end in the 64 bytes from i on, as `scan` does, up to the first that is not ASCII alone.

    Returns where the rest begins, the number of words, and the line feeds before the next one.
    """
    line_feeds = byte_mask(data, i, _LINE_FEED)
    spaces = byte_mask(data, i, 32) | range_mask(data, i, 9, 5) | range_mask(data, i, 28, 4)
    high, letters, dots = high_mask(data, i), letter_mask(data, i), byte_mask(data, i, _DOT)
    stop, at = spaces | high, 0
    while at < WIDTH:
        blanks = lowest(~(spaces >> np.uint64(at)))
        run = line_feeds >> np.uint64(at)
        if blanks and run & _1 or blanks > 1:
            before += count_bits(run & ((_1 << np.uint64(blanks)) - _1)) if blanks < WIDTH else count_bits(run)
        at += blanks
        size = lowest(stop >> np.uint64(at)) if at < WIDTH else WIDTH
        if at + size >= WIDTH or (high >> np.uint64(at + size)) & _1:
            break
        mine = ((_1 << np.uint64(size)) - _1) << np.uint64(at)
        kind = (classes[data[i + at]] & _BULLET) | (classes[data[i + at + size - 1]] & (_TERMINAL | _END))
        kind |= _ALPHA if letters & mine else np.uint8(0)
        if dots & mine:
            three = dots & mine
            three &= (three << _1) & (three << _2)
            counts[4] += count_bits(three & ~(three << _1))
            kind |= _DOTS if three >> np.uint64(at + size - 1) else np.uint8(0)
        words[count] = fmix64(_ascii_hash(data, i + at, size) + np.uint64(size))
        sizes[count], ends[count], feeds[count] = size, kind, before
        count, before, at = count + 1, 0, at + size
    at = min(at, WIDTH)
    read = (_1 << np.uint64(at)) - _1 if at < WIDTH else ~_0
    counts[0] += at
    counts[1] += count_bits(line_feeds & read)
    counts[2] += count_bits(byte_mask(data, i, 35) & read)
    counts[3] += count_bits(byte_mask(data, i, 123) & read)
    if counts[5] != (1 << len(stops)) - 1:  # in English all of them are found soon
        counts[5] |= _stops_among(data, i, letters & read, stops)
    return i + at, count, before


@njit(nogil=True, cache=True)
def scan(data: np.ndarray, classes: np.ndarray, stops: np.ndarray) -> tuple[np.ndarray, ...]:
    """Read the characters once.

    Returns counts int64 [6] (characters, line feeds, hash signs, curly brackets, ellipses, bits of stop words) and of
    each word: hash uint64, characters int64, what its ends are uint8, line feeds before it int32.
    """
    counts = np.zeros(6, np.int64)
    room = len(data) // 4 + WIDTH
    words, sizes = np.empty(room, np.uint64), np.empty(room, np.int64)
    ends, feeds = np.empty(room, np.uint8), np.empty(room, np.int32)
    count = chars = dots = letters = letter_count = before = 0
    h, w, size = _START, _0, 0
    first, last, alpha = np.uint8(0), np.uint8(0), np.uint8(0)
    i, end = 0, len(data)
    while i <= end:
        if count + WIDTH > len(words):
            words, sizes, ends, feeds = grown(words), grown(sizes), grown(ends), grown(feeds)
        if size == 0 and i + WIDTH + 8 <= end and data[i] < 128:
            past = i
            i, count, before = _ascii_words(data, i, classes, stops, counts, before, count, words, sizes, ends, feeds)
            if i > past:
                continue
        begin = i
        i, h, w, size = _past_letters(data, i, end, h, w, size)
        if i > begin:
            first = _ALPHA if size == i - begin else first
            last, alpha, dots = _ALPHA, _ALPHA, 0
            chars += i - begin
            letter_count += i - begin
            letters = begin
        chars += i < end
        code, i = decode(data, i, end) if i < end else (np.uint32(_LINE_FEED), i + 1)
        kind = classes[code] if code < len(classes) else np.uint8(0)
        if kind & (_ALPHA | _OWN) == _ALPHA:
            first = kind if size == 0 else first
            last, alpha, dots = kind, _ALPHA, 0
            size += 1
            h, w = _add(h, w, size, code)
            letter_count += 9  # longer than any stop word
            continue
        if 0 < letter_count <= 4:
            counts[5] |= _stop_bit(data, letters, letter_count, stops)
        letter_count = 0
        if kind & (_SPACE | _OWN):
            if size:
                words[count], sizes[count], feeds[count] = fmix64(fold(h, w) + np.uint64(size)), size, before
                ends[count] = (first & _BULLET) | (last & (_TERMINAL | _END)) | alpha
                ends[count] |= _DOTS if dots >= 3 else np.uint8(0)
                count += 1
                h, w, size, before, alpha = _START, np.uint64(0), 0, 0, np.uint8(0)
            dots = 0
            if kind & _OWN:
                words[count] = fmix64(fold(_START, np.uint64(code)) + np.uint64(1))
                sizes[count], feeds[count] = 1, before
                ends[count] = kind & (_OWN | _QUARTER | _ALPHA)
                count, before = count + 1, 0
            elif code == _LINE_FEED:
                before += 1
                counts[1] += 1
            continue
        first, last, size = kind if size == 0 else first, kind, size + 1
        h, w = _add(h, w, size, code)
        dots = dots + 1 if code == _DOT else (3 if code == _ELLIPSIS else 0)
        counts[4] += dots == 3
        counts[2] += code == 35
        counts[3] += code == 123
    counts[0] += chars
    counts[1] -= 1  # the one that was added to end the last word
    return counts, words[:count], sizes[:count], ends[:count], feeds[:count]
