"""Words of texts as 64-bit hashes, computed on Arrow buffers with the GIL released.

A *token* is a match of Python's ``\\w+`` in ``text.lower()``, except in scripts written without spaces (`UNSPACED`),
where every letter, mark and digit is a token of its own: a whole one in Chinese and Japanese, a *light* one, worth a
quarter, in the alphabets of Thai, Lao, Khmer and Myanmar, whose words have about four. The tables behind that are read
off the running Python at first use, so the kernels cannot disagree with it; ``TOKENS`` names its Unicode version. One
rule of ``lower()`` depends on the neighbours of a character, the final sigma: Python lower-cases the rows that hold a
capital sigma.

Only hashes leave this module, never token strings. A token's hash is a function of its lower-case UTF-8 bytes, eight at
a time; its lowest bit says that the token is light. It does not resist an attacker who builds collisions, which is why
exact duplicates compare bytes.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from functools import cache

import numpy as np
import pyarrow as pa
from numba import njit

from lpt_data.wide import WIDTH, count_bits, high_mask, load64, lowest, reverse64, word64, word_mask

TOKENS = f"lpt-tokens/1 unicode-{unicodedata.unidata_version}"

# Inclusive ranges of letters that are written without spaces between words. Korean and Tibetan separate theirs.
LIGHT = (
    (0x0E01, 0x0E5B),  # Thai
    (0x0E81, 0x0EFF),  # Lao
    (0x1000, 0x109F),  # Myanmar
    (0x1780, 0x17FF),  # Khmer
    (0xA9E0, 0xA9FF),  # Myanmar, extended
    (0xAA60, 0xAA7F),
)
WHOLE = (
    (0x3005, 0x3007),  # Han iteration mark, closing mark, zero
    (0x3041, 0x30FF),  # Hiragana, Katakana
    (0x31F0, 0x31FF),  # Katakana, small
    (0x3400, 0x4DBF),  # Han
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),  # Han, compatibility
    (0xFF66, 0xFF9F),  # Katakana, half width
    (0x1AFF0, 0x1B16F),  # Kana, extended
    (0x20000, 0x3FFFF),  # Han
)
UNSPACED = LIGHT + WHOLE
WEIGHT = 4  # light tokens to a whole one

_CODE_POINTS = 0x40000  # the planes that hold letters and digits; a test looks at the others
_CODE = np.uint32(0x1FFFFF)  # the lower-case code point, 0 for a character that is no part of a word
_ALONE = np.uint32(1 << 31)  # a token of its own
_ENDS = np.uint32(1 << 30)  # a word ends after it: only U+0130, whose lower case is "i" and a combining dot
_LIGHT = np.uint32(1 << 28)
_SIGMA = np.uint32(1 << 29)  # its lower case depends on its neighbours
NEEDS_LOWER = -1  # token count of a row that holds a capital sigma

_M1 = np.uint64(0xFF51AFD7ED558CCD)  # the finaliser of MurmurHash3
_M2 = np.uint64(0xC4CEB9FE1A85EC53)
_START = np.uint64(0x9E3779B97F4A7C15)
_LENGTH = np.uint64(0xD6E8FEB86659FD93)
_U0, _U1, _U3, _U8, _U32, _U33, _U63 = (np.uint64(n) for n in (0, 1, 3, 8, 32, 33, 63))


@dataclass(frozen=True)
class Tables:
    """Lookup tables of the kernels: uint8 [256] for ASCII bytes and uint32 [0x40000] for code points."""

    ascii: np.ndarray
    unicode: np.ndarray


@cache
def tables() -> Tables:
    """Read ``\\w`` and ``lower()`` off the running Python, for every code point that may be part of a word."""
    everything = "".join(map(chr, range(_CODE_POINTS)))
    # U+0130 becomes two characters and a lone sigma is never final: both are put right below.
    lowered = everything.replace("\u0130", "i").lower()
    code = np.frombuffer(lowered.encode("utf-32-le", "surrogatepass"), np.uint32)
    word = np.zeros(_CODE_POINTS, bool)
    for match in re.finditer(r"\w+", everything):
        word[match.start() : match.end()] = True
    table = np.where(word[code], code, np.uint32(0))
    for first, last in _alone_ranges():
        table[first : last + 1] = code[first : last + 1] | _ALONE
        if any(low <= first <= high for low, high in LIGHT):
            table[first : last + 1] |= _LIGHT
    table[0x0130] |= _ENDS
    table[0x03A3] = np.uint32(0x03C3) | _SIGMA
    small = np.zeros(256, np.uint8)
    small[:128] = table[:128]
    return Tables(small, table)


@njit(nogil=True, cache=True)
def fmix64(h: np.uint64) -> np.uint64:
    """The 64-bit finaliser of MurmurHash3: a bijection after which every bit depends on every bit."""
    h ^= h >> _U33
    h *= _M1
    h ^= h >> _U33
    h *= _M2
    return h ^ (h >> _U33)


@njit(nogil=True, cache=True)
def fold(h: np.uint64, w: np.uint64) -> np.uint64:
    """Add one 64-bit word to a running hash."""
    h = (h ^ w) * _M1
    return h ^ (h >> _U32)


@njit(nogil=True, cache=True)
def decode(data: np.ndarray, i: int, end: int) -> tuple[np.uint32, int]:
    """The code point at byte ``i`` and the index after it. Broken UTF-8 reads as U+FFFD and never past ``end``."""
    lead = data[i]
    if lead < 0x80:
        return np.uint32(lead), i + 1
    extra = 1 if lead < 0xE0 else (2 if lead < 0xF0 else 3)
    if lead < 0xC0 or lead > 0xF7 or i + extra >= end:
        return np.uint32(0xFFFD), i + 1
    code = np.uint32(lead & (0x3F >> extra))
    for k in range(1, extra + 1):
        code = (code << np.uint32(6)) | np.uint32(data[i + k] & 0x3F)
    if code > 0x10FFFF:
        return np.uint32(0xFFFD), i + 1
    return code, i + extra + 1


@njit(nogil=True, cache=True)
def _utf8(code: np.uint32) -> tuple[np.uint64, int]:
    """The UTF-8 bytes of a code point as one big-endian number, and how many they are."""
    c = np.uint64(code)
    low = np.uint64(0x80) | (c & np.uint64(0x3F))
    if code < 0x80:
        return c, 1
    second = np.uint64(0x80) | ((c >> np.uint64(6)) & np.uint64(0x3F))
    if code < 0x800:
        return ((np.uint64(0xC0) | (c >> np.uint64(6))) << _U8) | low, 2
    third = np.uint64(0x80) | ((c >> np.uint64(12)) & np.uint64(0x3F))
    if code < 0x10000:
        return ((np.uint64(0xE0) | (c >> np.uint64(12))) << np.uint64(16)) | (second << _U8) | low, 3
    lead = np.uint64(0xF0) | (c >> np.uint64(18))
    return (lead << np.uint64(24)) | (third << np.uint64(16)) | (second << _U8) | low, 4


@njit(nogil=True, cache=True)
def _lower(
    data: np.ndarray, start: int, end: int, small: np.ndarray, table: np.ndarray, low: np.ndarray
) -> tuple[int, int, bool]:
    """Write the lower-case words of ``data[start:end]`` into ``low``, at least one 0 between two, 72 after the last.

    Returns (bytes written, characters, whether some are light); NEEDS_LOWER bytes at a capital sigma. ASCII goes by 64
    bytes, the last ones of the array and everything else by the character.
    """
    i = start
    used = 0
    chars = 0
    light = False
    while i < end:
        if i + WIDTH <= len(data):
            high = high_mask(data, i)
            run = WIDTH
            if high or i + WIDTH > end:  # the processor guesses that neither holds, and need not wait for `lowest`
                run = min(lowest(high), end - i)
            if run:
                word64(data, i, low, used)  # bytes after the run are written over
                i += run
                used += run
                chars += run
                continue
        if data[i] < 128:
            low[used] = small[data[i]]
            used += 1
            i += 1
            chars += 1
            continue
        code, i = decode(data, i, end)
        chars += 1
        entry = table[code] if code < len(table) else np.uint32(0)
        if entry & _SIGMA:
            return NEEDS_LOWER, chars, light
        if entry == 0:
            low[used] = 0
            used += 1
            continue
        if entry & _LIGHT:
            light = True
        if entry & _ALONE:
            low[used] = 0
            used += 1
        value, width = _utf8(entry & _CODE)
        for k in range(width - 1, -1, -1):
            low[used] = (value >> np.uint64(8 * k)) & np.uint64(0xFF)
            used += 1
        if entry & (_ALONE | _ENDS):
            low[used] = 0
            used += 1
    low[used : used + 72] = 0
    return used, chars, light


@njit(nogil=True, cache=True)
def _word_edges(low: np.ndarray, used: int, edges: np.ndarray) -> int:
    """Write where the words of `_lower` start and end, in turn, into ``edges``; returns how many words.

    Eight edges at a time, those past the last one to be written over: a loop that ends where it must is guessed wrong.
    """
    count = _U0  # unsigned, so that no index is asked whether it counts from the end
    carry = _U0
    for block in range(0, used + 1, WIDTH):
        mask = word_mask(low, block)
        left = mask ^ ((mask << _U1) | carry)
        carry = mask >> np.uint64(63)
        k = count
        count += np.uint64(count_bits(left))
        while k < count:
            for n in range(8):
                edges[k + np.uint64(n)] = block + lowest(left)
                left &= left - _U1
            k += _U8
    return int(np.int64(count)) // 2


@njit(nogil=True, cache=True)
def _hash_words(low: np.ndarray, used: int, out: np.ndarray, edges: np.ndarray, long: np.ndarray) -> int:
    """Hash the words that `_lower` wrote; returns how many.

    All of them as if they were short, as most are, which takes no branch; then the long ones again. Their bytes are
    fetched in one loop and hashed in another, which has nothing but arithmetic and becomes vectors.
    """
    count = _word_edges(low, used, edges)
    longs = 0
    for n in range(count):
        start = int(edges[2 * n])
        out[n] = load64(low, start)
        long[longs] = n
        longs += int(edges[2 * n + 1]) - start >= 8
    for n in range(count):
        size = np.uint64(np.uint32(edges[2 * n + 1] - edges[2 * n]))
        w = (reverse64(out[n]) >> _U1) >> ((_U63 - (size << _U3)) & _U63)
        out[n] = fmix64(fold(_START, w) + size * _LENGTH) & ~_U1
    for n in long[:longs]:
        start = int(edges[2 * n])
        end = int(edges[2 * n + 1])
        length = end - start
        h = _START
        while start + 8 <= end:
            h = fold(h, reverse64(load64(low, start)))
            start += 8
        w = (reverse64(load64(low, start)) >> _U1) >> np.uint64(63 - 8 * (end - start))
        out[n] = fmix64(fold(h, w) + np.uint64(length) * _LENGTH) & ~_U1
    return count


@njit(nogil=True, cache=True)
def tokens_of(
    data: np.ndarray, start: int, end: int, small: np.ndarray, table: np.ndarray, out: np.ndarray
) -> tuple[int, int]:
    """Hash the tokens of one row into ``out`` (room for bytes // 2 + 1 of them); return (tokens, characters).

    Tokens are NEEDS_LOWER at a capital sigma. Any UTF-8 is read; broken one as U+FFFD and never past ``end``.
    """
    most = (2 * (end - start) + 4 * WIDTH) & -8
    room = np.empty(most + 4 * most + most // 2, np.uint8)  # in one piece: asking for it costs as much as hashing it
    low = room[:most]
    used, chars, light = _lower(data, start, end, small, table, low)
    if used < 0:
        return NEEDS_LOWER, chars
    edges = room[most : 5 * most].view(np.int32)
    count = _hash_words(low, used, out, edges, room[5 * most :].view(np.int32))
    if light:
        for n in range(count):
            first = edges[2 * n]
            if low[first] >= 128 and table[decode(low, first, used)[0]] & _LIGHT:
                out[n] |= _U1
    return count, chars


@njit(nogil=True, cache=True)
def sequence_hash(tokens: np.ndarray, count: int) -> np.uint64:
    """A hash of ``tokens[:count]`` as a sequence. Four run side by side: one would wait for each multiplication."""
    a = b = c = d = _START
    whole = count - count % 4
    for i in range(0, whole, 4):
        a = fold(a, tokens[i])
        b = fold(b, tokens[i + 1])
        c = fold(c, tokens[i + 2])
        d = fold(d, tokens[i + 3])
    for i in range(whole, count):
        a = fold(a, tokens[i])
    return fmix64(fold(fold(fold(fold(a, b), c), d), np.uint64(count)))


def buffers(texts: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Return (offsets int64 [n + 1], bytes uint8) of a large_string array without copying; null rows read as empty."""
    if texts.type != pa.large_string():
        texts = texts.cast(pa.large_string())
    if texts.null_count:
        texts = texts.fill_null("")
    _, offsets, data = texts.buffers()
    if len(texts) == 0 or offsets is None:
        return np.zeros(1, np.int64), np.zeros(0, np.uint8)
    starts = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    return starts, np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(0, np.uint8)


def token_hashes(text: str) -> np.ndarray:
    """The token hashes of one text, uint64 [tokens], in order; the kernels on a single row."""
    offsets, data = buffers(pa.array([text], pa.large_string()))
    out = np.empty(len(data) // 2 + 1, np.uint64)
    table = tables()
    count, _ = tokens_of(data, offsets[0], offsets[1], table.ascii, table.unicode, out)
    return token_hashes(text.lower()) if count == NEEDS_LOWER else out[:count]


def words(text: str) -> list[str]:
    """The tokens of one text as strings, by Python alone: the definition that the kernels are tested against."""
    return _pattern().findall(text.lower())


def word_spans(text: str) -> list[tuple[int, int]]:
    """Where the tokens of one text lie, as half-open ranges of characters of ``text.lower()``."""
    return [match.span() for match in _pattern().finditer(text.lower())]


def normal_form(text: str) -> str:
    """Lower case, white space collapsed to single blanks and trimmed. Punctuation stays: "2 + 2" is not "2 - 2"."""
    return " ".join(text.lower().split())


@cache
def _pattern() -> re.Pattern[str]:
    alone = "".join(f"{chr(first)}-{chr(last)}" for first, last in _alone_ranges())
    return re.compile(f"[{alone}]|[^\\W{alone}]+")


@cache
def _alone_ranges() -> list[tuple[int, int]]:
    """Runs of the letters, marks and digits inside UNSPACED; marks too, for a Thai or Khmer vowel may be one."""
    found: list[tuple[int, int]] = []
    for first, last in UNSPACED:
        categories = "".join(map(unicodedata.category, map(chr, range(first, last + 1))))
        alone = np.isin(np.frombuffer(categories[::2].encode(), np.uint8), np.frombuffer(b"LMN", np.uint8))
        edges = np.flatnonzero(np.diff(np.concatenate([[False], alone, [False]]).astype(np.int8))) + first
        found += zip(edges[::2].tolist(), (edges[1::2] - 1).tolist(), strict=True)
    return found
