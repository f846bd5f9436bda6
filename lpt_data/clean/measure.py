"""What the quality rules count, in one pass over the UTF-8 bytes of a text, with the GIL released.

A *word* is a run of characters that are no white space; in scripts written without spaces (`lpt_data.text`) every
letter is a word of its own, and of the light ones (Thai, Lao, Khmer, Myanmar) four are. A *line* is a stretch between
line feeds that says something, a *paragraph* a run of such lines. Lines and paragraphs are compared by a 64-bit hash of
their characters, white space collapsed; n-grams by a hash of their words. Shares are of characters, not of bytes.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
from numba import njit

from lpt_data.text import _ALONE, _LIGHT, decode, fmix64, fold, tables
from lpt_data.wide import WIDTH, byte_mask, count_bits, high_mask, letter_mask, load64, lowest, range_mask, reverse64

STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")  # Gopher's eight
TERMINAL = ".!?\"'\u201d\u2019\u2026\u3002\uff01\uff1f\u300d\u300f\u061f\u06d4\u0964\u0965\u0589\u1362"
SENTENCE_ENDS = ".!?\u2026\u3002\uff01\uff1f\u061f\u06d4\u0964\u0965\u0589\u1362"
BULLETS = "-*\u2022\u2023\u25b6\u25c0\u25e6\u25a0\u25a1\u25aa\u25ab\u2013\u00b7\u25cf"
SHORT_LINE = 30  # characters; FineWeb's
TOP_NGRAMS, DUPLICATE_NGRAMS = (2, 3, 4), (5, 6, 7, 8, 9, 10)

_SPACE, _ALPHA, _TERMINAL, _END, _BULLET, _OWN, _QUARTER, _DOTS = (np.uint8(1 << n) for n in range(8))
_START = np.uint64(0x9E3779B97F4A7C15)
_0, _1, _2, _3, _4 = (np.uint64(n) for n in range(5))
_LINE_FEED, _DOT, _ELLIPSIS = 10, 46, 0x2026


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


@cache
def _classes() -> np.ndarray:
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
def _stop_words() -> np.ndarray:
    """The stop words, at most four letters each, as big-endian numbers."""
    return np.array([int.from_bytes(word.encode()) for word in STOP_WORDS], np.uint64)


def as_bytes(text: str) -> np.ndarray:
    """Return the UTF-8 of a text, uint8 [bytes]; a lone surrogate, which no row has, reads as U+003F."""
    return np.frombuffer(text.encode("utf-8", "replace"), np.uint8)


def measure(data: np.ndarray) -> tuple[Facts, np.ndarray, np.ndarray]:
    """Count what the quality rules ask for in the UTF-8 bytes of one text.

    Returns the facts, and a hash and the number of characters of each word, uint64 and int64 [words].
    """
    counts, words, sizes = _measure(data, _classes(), _stop_words())
    return Facts(*counts.tolist()), words, sizes


def repeats(words: np.ndarray, sizes: np.ndarray) -> Repeats:
    """Count the characters in repeated n-grams, as Gopher does (Rae et al. 2021, table A1)."""
    chars = _repeats(words, sizes).tolist()
    return Repeats(tuple(chars[n] for n in TOP_NGRAMS), tuple(chars[n] for n in DUPLICATE_NGRAMS))


@njit(nogil=True, cache=True)
def _grown(found: np.ndarray) -> np.ndarray:
    bigger = np.empty(2 * len(found) + 16, found.dtype)
    bigger[: len(found)] = found
    return bigger


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
    """Enter the words that end in the 64 bytes from i on, as `_scan` does, up to the first that is not ASCII alone.

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
def _scan(data: np.ndarray, classes: np.ndarray, stops: np.ndarray) -> tuple[np.ndarray, ...]:
    """Read the characters once.

    Returns counts int64 [6] (characters, line feeds, hash signs, curly brackets, ellipses, bits of stop words) and of
    each word: hash uint64, characters int64, what its ends are uint8, line feeds before it int32.
    """
    counts = np.zeros(6, np.int64)
    room = len(data) // 4 + WIDTH
    words, sizes = np.empty(room, np.uint64), np.empty(room, np.int64)
    ends, feeds = np.empty(room, np.uint8), np.empty(room, np.int32)
    count = chars = dots = letters = letter_count = before = 0
    h, w, size = _START, np.uint64(0), 0
    first, last, alpha = np.uint8(0), np.uint8(0), np.uint8(0)
    i, end = 0, len(data)
    while i <= end:
        if size == 0 and i + WIDTH + 8 <= end and data[i] < 128:
            if count + WIDTH > len(words):
                words, sizes, ends, feeds = _grown(words), _grown(sizes), _grown(ends), _grown(feeds)
            past, count, before = _ascii_words(
                data, i, classes, stops, counts, before, count, words, sizes, ends, feeds
            )
            if past > i:
                i, dots = past, 0
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
        if letter_count:
            if letter_count <= 4:
                counts[5] |= _stop_bit(data, letters, letter_count, stops)
            letter_count = 0
        if kind & (_SPACE | _OWN):
            if count + 2 >= len(words):
                words, sizes, ends, feeds = _grown(words), _grown(sizes), _grown(ends), _grown(feeds)
            if size:
                words[count], sizes[count], feeds[count] = fmix64(fold(h, w) + np.uint64(size)), size, before
                ends[count] = (first & _BULLET) | (last & (_TERMINAL | _END)) | alpha
                if dots >= 3:
                    ends[count] |= _DOTS
                count += 1
                h, w, size, before, alpha = _START, np.uint64(0), 0, 0, np.uint8(0)
            dots = 0
            if kind & _OWN:
                words[count] = fmix64(fold(_START, np.uint64(code)) + np.uint64(1))
                sizes[count], feeds[count] = 1, before
                ends[count] = kind & (_OWN | _QUARTER | _ALPHA)
                count += 1
                before = 0
            elif code == _LINE_FEED:
                before += 1
                counts[1] += 1
            continue
        first = kind if size == 0 else first
        last = kind
        size += 1
        h, w = _add(h, w, size, code)
        dots = dots + 1 if code == _DOT else (3 if code == _ELLIPSIS else 0)
        counts[4] += dots == 3
        counts[2] += code == 35
        counts[3] += code == 123
    counts[0] += chars
    counts[1] -= 1  # the one that was added to end the last word
    return counts, words[:count], sizes[:count], ends[:count], feeds[:count]


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
            line_hash, line_size = _grown(line_hash), _grown(line_size)
            par_hash, par_size = _grown(par_hash), _grown(par_size)
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
def _measure(data: np.ndarray, classes: np.ndarray, stops: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The numbers of `Facts`, int64 [21], and the words."""
    counts, words, sizes, ends, feeds = _scan(data, classes, stops)
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
