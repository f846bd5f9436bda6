"""What the quality rules count, in one pass over the UTF-8 bytes of a text, with the GIL released.

A *word* is a run of characters that are no white space; in scripts written without spaces (`lpt_data.text`) every
letter is a word of its own, and of the light ones (Thai, Lao, Khmer, Myanmar) four are. A *line* is a stretch between
line feeds that says something, a *paragraph* a run of such lines. Lines and paragraphs are compared by a 64-bit hash of
their characters, white space collapsed; n-grams by a hash of their words. Shares are of characters, not of bytes.

`marks` is the cheaper pass that comes first: it tells which rewriting rules can possibly find anything.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
from numba import njit

from lpt_data.text import _ALONE, _LIGHT, _decode, fmix64, fold, tables

# Bits of `marks`: what a text holds that some rule looks at more closely.
NON_ASCII, CONTROL, ANGLE, AMPERSAND, AT, UNTIDY, IPV4, IPV6, PHONE, CARD, IBAN = (1 << n for n in range(11))

STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")  # Gopher's eight
TERMINAL = ".!?\"'\u201d\u2019\u2026\u3002\uff01\uff1f\u300d\u300f\u061f\u06d4\u0964\u0965\u0589\u1362"
SENTENCE_ENDS = ".!?\u2026\u3002\uff01\uff1f\u061f\u06d4\u0964\u0965\u0589\u1362"
BULLETS = "-*\u2022\u2023\u25b6\u25c0\u25e6\u25a0\u25a1\u25aa\u25ab\u2013\u00b7\u25cf"
SHORT_LINE = 30  # characters; FineWeb's
TOP_NGRAMS, DUPLICATE_NGRAMS = (2, 3, 4), (5, 6, 7, 8, 9, 10)

_SPACE, _ALPHA, _TERMINAL, _END, _BULLET, _OWN, _QUARTER = (np.uint8(1 << n) for n in range(7))
_START = np.uint64(0x9E3779B97F4A7C15)
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


class Repeats(NamedTuple):
    """Characters of a text in repeated n-grams of words, one number for each n."""

    top: tuple[int, ...]  # in the most frequent n-gram, n of TOP_NGRAMS, 0 where none occurs twice
    duplicate: tuple[int, ...]  # in n-grams seen before, n of DUPLICATE_NGRAMS


@cache
def _classes() -> np.ndarray:
    """What each code point is, read off the running Python: uint8 [0x40000]."""
    table = tables().unicode
    found = np.zeros(len(table), np.uint8)
    everything = [chr(code) for code in range(len(table))]
    found[[c.isspace() for c in everything]] |= _SPACE
    found[[c.isalpha() for c in everything]] |= _ALPHA
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
def _is_digit(byte: int) -> bool:
    return 48 <= byte <= 57


@njit(nogil=True, cache=True)
def _is_hex(byte: int) -> bool:
    return 48 <= byte <= 57 or 65 <= byte <= 70 or 97 <= byte <= 102


@njit(nogil=True, cache=True)
def _is_upper(byte: int) -> bool:
    return 65 <= byte <= 90


@njit(nogil=True, cache=True)
def _hidden(data: np.ndarray, i: int) -> bool:
    """Whether a character that nobody sees starts at byte i, which is not ASCII: C1, soft hyphen, zero width, bidi."""
    if i + 1 >= len(data):
        return False
    lead, second = data[i], data[i + 1]
    if lead == 0xC2:
        return 0x80 <= second <= 0x9F or second == 0xAD
    if i + 2 >= len(data):
        return False
    third = data[i + 2]
    if lead == 0xE2:
        return (second == 0x80 and third in (0x8B, 0xAD, 0xAE)) or (second == 0x81 and third == 0xA0)
    return lead == 0xEF and second == 0xBB and third == 0xBF


@njit(nogil=True, cache=True)
def _digits_end(data: np.ndarray, i: int) -> int:
    """Marks of the last digit of a run, at byte i."""
    size = len(data)
    if i >= 2 and i + 5 < size and (data[i + 1] == 45 or data[i + 1] == 46) and _is_digit(data[i - 1]):
        if _is_digit(data[i - 2]) and _is_digit(data[i + 2]) and _is_digit(data[i + 3]) and _is_digit(data[i + 4]):
            return PHONE
    return 0


@njit(nogil=True, cache=True)
def _space_marks(data: np.ndarray, i: int) -> int:
    """Marks of a control character at byte i."""
    byte = data[i]
    if byte == 10:
        blank = i > 0 and (data[i - 1] == 32 or data[i - 1] == 9)
        empty = i > 2 and data[i - 1] == 10 and data[i - 2] == 10 and data[i - 3] == 10
        return UNTIDY if blank or empty or i == 0 or (i == len(data) - 1 and data[i - 1] == 10) else 0
    if byte == 13:
        return UNTIDY
    return 0 if byte == 9 or byte == 12 else CONTROL


@njit(nogil=True, cache=True)
def marks(data: np.ndarray) -> int:
    """Tell what a text may hold: an OR of the bits above. May say too much, never too little."""
    found = 0
    size = len(data)
    if size and (data[size - 1] == 32 or data[size - 1] == 9):
        found |= UNTIDY
    run, parts = 0, 0  # digits with single blanks or hyphens between; groups of digits joined by dots
    for i in range(size):
        byte = data[i]
        if 97 <= byte <= 122:
            run = parts = 0
        elif byte >= 128:
            found |= NON_ASCII
            if (byte == 0xC2 or byte == 0xE2 or byte == 0xEF) and _hidden(data, i):
                found |= CONTROL
            run = parts = 0
        elif _is_digit(byte):
            run += 1
            if run == 13:
                found |= CARD
            if parts == 3:
                found |= IPV4
            if i + 1 < size and _is_digit(data[i + 1]):
                if i >= 2 and _is_upper(data[i - 1]) and _is_upper(data[i - 2]):
                    found |= IBAN
            else:
                found |= _digits_end(data, i)
        else:
            before = i > 0 and _is_digit(data[i - 1])
            parts = parts + 1 if byte == 46 and before else 0
            if not ((byte == 32 or byte == 45) and before):
                run = 0
            if byte < 32 or byte == 127:
                found |= _space_marks(data, i)
            elif byte == 64:
                found |= AT
            elif byte == 38:
                found |= AMPERSAND
            elif byte == 60:
                found |= ANGLE
            elif byte == 43:
                if i + 1 < size and _is_digit(data[i + 1]):
                    found |= PHONE
            elif byte == 58 and i >= 4 and _is_hex(data[i - 1]) and (data[i - 4] == 50 or data[i - 4] == 51):
                found |= IPV6
    return found


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
def _measure(data: np.ndarray, classes: np.ndarray, stops: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The numbers of `Facts`, int64 [20], and the words."""
    out = np.zeros(20, np.int64)
    words, sizes = np.empty(len(data) // 4 + 16, np.uint64), np.empty(len(data) // 4 + 16, np.int64)
    line_hash, line_size = np.empty(64, np.uint64), np.empty(64, np.int64)
    par_hash, par_size = np.empty(64, np.uint64), np.empty(64, np.int64)
    count = lines = pars = chars = dots = light = stop_bits = letter_count = 0
    letters = np.uint64(0)
    h, size, alpha = _START, 0, False  # the word
    lh, lsize, first, last = _START, 0, np.uint8(0), np.uint8(0)  # the line
    ph, psize = _START, 0  # the paragraph
    i, end = 0, len(data)
    while i <= end:
        closing = i == end
        if closing:
            code = np.uint32(_LINE_FEED)
            i += 1
        else:
            code, i = _decode(data, i, end)
            chars += 1
        kind = classes[code] if code < len(classes) else np.uint8(0)
        low = code | np.uint32(32)
        if 97 <= low <= 122 and code < 128:
            letters = (letters << np.uint64(8)) | np.uint64(low)
            letter_count += 1
        elif letter_count:
            if letter_count <= 4:
                for k in range(len(stops)):
                    if letters == stops[k]:
                        stop_bits |= 1 << k
            letters, letter_count = np.uint64(0), 0
        if size and kind & (_SPACE | _OWN):  # a word ends
            if count + 2 >= len(words):
                words, sizes = _grown(words), _grown(sizes)
            words[count], sizes[count] = fmix64(h), size
            lh = fold(lh, words[count])
            lsize += size + (lsize > 0)
            out[1] += 1
            out[3] += alpha
            out[18] += (last & _END) != 0
            count += 1
            h, size, alpha = _START, 0, False
        if kind & _SPACE:
            if code == _LINE_FEED:
                out[11] += not closing
                if lsize:
                    if lines == len(line_hash):
                        line_hash, line_size = _grown(line_hash), _grown(line_size)
                    line_hash[lines], line_size[lines] = fmix64(lh), lsize
                    lines += 1
                    out[7] += (first & _BULLET) != 0
                    out[8] += dots >= 3
                    out[9] += (last & _TERMINAL) != 0
                    out[10] += lsize <= SHORT_LINE
                    ph, psize = fold(ph, lh), psize + lsize
                if psize and (lsize == 0 or closing):
                    if pars == len(par_hash):
                        par_hash, par_size = _grown(par_hash), _grown(par_size)
                    par_hash[pars], par_size[pars] = fmix64(ph), psize
                    pars += 1
                    ph, psize = _START, 0
                lh, lsize, last, dots = _START, 0, np.uint8(0), 0
            continue
        if lsize == 0 and size == 0:
            first = kind
        last = kind
        out[2] += 1
        if code == _DOT:
            dots += 1
            out[5] += dots == 3
        elif code == _ELLIPSIS:
            dots = 3
            out[5] += 1
        else:
            dots = 0
            out[4] += code == 35
            out[19] += code == 123
        h = fold(h, np.uint64(code))
        size += 1
        if kind & _OWN:
            words[count], sizes[count] = fmix64(h), 1
            lh = fold(lh, words[count])
            lsize += 1
            count += 1
            light += (kind & _QUARTER) != 0
            whole = (kind & _QUARTER) == 0
            out[1] += whole
            out[3] += whole
            h, size = _START, 0
        else:
            alpha = alpha or (kind & _ALPHA) != 0
    out[0], out[6], out[14] = chars, lines, pars
    out[1] += (light + 3) // 4
    out[3] += (light + 3) // 4
    out[12], out[13] = _repeated(line_hash, line_size, lines)
    out[15], out[16] = _repeated(par_hash, par_size, pars)
    for k in range(len(stops)):
        out[17] += (stop_bits >> k) & 1
    return out, words[:count], sizes[:count]


@njit(nogil=True, cache=True)
def _repeats(words: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Characters in the most frequent n-gram (n up to 4) or in n-grams seen before (n from 5), int64 [11].

    An n-gram can only occur twice where both (n - 1)-grams inside it do: nothing else is hashed.
    """
    total = len(words)
    out = np.zeros(11, np.int64)
    upto = np.zeros(total + 1, np.int64)
    for i in range(total):
        upto[i + 1] = upto[i] + sizes[i]
    grams = np.full(total, _START)
    place = np.zeros(total, np.int32)
    again = np.ones(total + 1, np.bool_)  # the (n - 1)-gram here occurs more than once
    room = 4
    while room < 2 * total:
        room *= 2
    seen, counts = np.empty(room, np.uint64), np.empty(room, np.int32)
    candidates = total
    for n in range(1, 11):
        last = total - n + 1
        room = 4
        while room < 2 * candidates:
            room *= 2
        seen[:room] = 0
        counts[:room] = 0
        mask = np.uint64(room - 1)
        for i in range(last):
            place[i] = -1
            if again[i] and (n == 1 or again[i + 1]):
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
