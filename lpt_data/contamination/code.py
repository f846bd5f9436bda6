"""Programs compared by what they do with their names and not by how they spell them, nor by their layout.

A lexer cuts a text into names, numbers, strings and single marks; white space, comments and doc strings are left out.
In a window of CODE_WINDOW tokens a name that can be renamed is the distance to where it stood before in the window, 0
at first (B. Baker, "On finding duplication and near-duplication in large software systems", 1995, p-suffix encoding):
names in the order in which they appear, but of a window, so that code around it changes nothing. Keywords, names that
are built in, and what follows a dot (methods, fields) cannot be renamed in a copy that still runs and stay as they are.

    coverage = min(tokens of the program, tokens of the row that lie in windows of both) / tokens of the program

The row counts as well, because one loop in it must not cover two that are alike in the program. One lexer serves all
languages, and fragments that no parser takes: `#` begins a comment in Python and shell, `//` and `/*` where no line
looks like Python. Left out: expressions written another way, the same program in another language.
"""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numba import njit

from lpt_data.contamination.windows import Table, find, likely, make_table
from lpt_data.text import buffers

CODE_WINDOW = 16  # tokens
CODE_TOKENS = 24  # a shorter program is too common to be evidence
CODE_COVERAGE = 0.75  # share of a program's tokens inside windows of one row at which the row goes

_OTHER_KEYWORDS = """
abstract auto bool boolean break byte case catch char class const continue default delete do double else enum export
extends extern final finally float for foreach fn func function goto if implements import in instanceof int interface
let long match mut namespace new null nullptr package private protected public pub register return self short signed
sizeof static std string String struct super switch this throw throws try type typedef undefined union unsigned use
using var vector void volatile while yield console document Math Object Array System
"""
KEPT = frozenset({*keyword.kwlist, *keyword.softkwlist, *dir(builtins), *_OTHER_KEYWORDS.split()} - {"_"})

_DOES_SOMETHING = "=|return|print|yield"
_PYTHON_LINE = (
    r"(?m)\bdef \w+ *\(|\bprint\(|^\s*(?:elif|else|for|if|while|with|try|except|class)\b[^;{}\n]*:[ \t]*(?:#.*)?$"
)

_U0, _U1 = np.uint64(0), np.uint64(1)
_PRIME, _START = np.uint64(0x100000001B3), np.uint64(0xCBF29CE484222325)
_BASE = np.uint64(0x9E3779B97F4A7C15)
_MIX = np.uint64(0xBF58476D1CE4E5B9)
_NAME, _OTHER = np.uint64(1), np.uint64(0x51ED270B)
# Bytes: 1 letters, the low line and all beyond ASCII; 2 digits; 3 white space; 0 marks.
_CLASS = np.zeros(256, np.uint8)
_CLASS[[*range(65, 91), *range(97, 123), 95, *range(128, 256)]] = 1
_CLASS[48:58] = 2
_CLASS[[9, 10, 11, 12, 13, 32]] = 3


def _hash_of(word: str) -> int:
    h = int(_START)
    for byte in word.encode():
        h = ((h ^ byte) * int(_PRIME)) & (2**64 - 1)
    return h


_KEPT = np.array(sorted(_hash_of(word) for word in KEPT), np.uint64)


@dataclass(frozen=True)
class CodeIndex:
    """The windows of the programs of all items; window g occurs at ``starts[g]:starts[g + 1]`` of item and end."""

    table: Table
    starts: np.ndarray  # int64 [windows + 1]
    item: np.ndarray  # int64
    end: np.ndarray  # int64, last token in its program
    tokens: np.ndarray  # int64 [items], 0 where the item has no program


def build_code_index(programs: Sequence[str], beside: Sequence[str]) -> CodeIndex | None:
    """Index the programs of the items, empty texts where there is none; None where no item has one.

    `beside` is what stands in front of each program, the head of its function say, and tells its language.
    """
    if not any(programs):
        return None
    keys, items, ends = [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    tokens = np.zeros(len(programs), np.int64)
    for number, program in enumerate(programs):
        hashes = code_windows(program, beside[number])
        tokens[number] = len(hashes)
        here = np.flatnonzero(hashes) if len(hashes) >= CODE_TOKENS else np.zeros(0, np.int64)
        keys.append(hashes[here])
        items.append(np.full(len(here), number))
        ends.append(here)
    every = np.concatenate(keys)
    distinct, inverse = np.unique(every, return_inverse=True)
    order = np.argsort(inverse, kind="stable")
    starts = np.concatenate([[0], np.cumsum(np.bincount(inverse, minlength=len(distinct)))]).astype(np.int64)
    return CodeIndex(make_table(distinct), starts, np.concatenate(items)[order], np.concatenate(ends)[order], tokens)


def code_windows(program: str, beside: str = "") -> np.ndarray:
    """Return the hash of the window that ends at each token of a program, uint64 [tokens]; 0 where none ends."""
    starts, data = buffers(pa.array([program], pa.large_string()))
    names, codes = np.empty((2, len(data) + 1), np.uint64)
    hashes = np.empty(len(data) + 1, np.uint64)
    count = _lex(data, starts[0], starts[1], _python([f"{beside}\n{program}"])[0], _CLASS, _KEPT, names, codes)
    _windows(names, codes, count, hashes)
    return hashes[:count]


def scan_code(texts: pa.Array, index: CodeIndex) -> np.ndarray:
    """Return what the rows of a string array share with the programs: int64 [finds, 3], (row, window, end), by row.

    A row that neither assigns nor returns, prints or yields holds no program, and is not cut into tokens.
    """
    may = pc.match_substring_regex(texts, _DOES_SOMETHING)
    rows = np.flatnonzero(may.to_numpy(zero_copy_only=False))
    if not len(rows):
        return np.zeros((0, 3), np.int64)
    some = texts.filter(may)
    starts, data = buffers(some)
    found = _scan(starts, data, _python(some), _CLASS, _KEPT, index.table)
    found[:, 0] = rows[found[:, 0]]
    return found


def _python(texts: pa.Array | list[str]) -> np.ndarray:
    """Whether `#` begins a comment in each text, and `//` is a division: bool [n]."""
    array = pa.array(texts, pa.large_string()) if isinstance(texts, list) else texts
    slashes = pc.match_substring_regex(array, r"//|/\*")
    python = pc.match_substring_regex(array, _PYTHON_LINE)
    return pc.or_(python, pc.invert(slashes)).to_numpy(zero_copy_only=False)


def code_pairs(row: np.ndarray, window: np.ndarray, end: np.ndarray, index: CodeIndex) -> tuple[np.ndarray, ...]:
    """Return (row, item, coverage) of the pairs that share a window, from finds as `scan_code` gives them, by row."""
    counts = np.diff(index.starts)[window]
    find_of = np.repeat(np.arange(len(window)), counts)
    first = np.cumsum(counts) - counts
    place = np.arange(len(find_of)) - first[find_of] + index.starts[window[find_of]]
    item, row_end = index.item[place], end[find_of]
    pairs, group = np.unique(row[find_of] * len(index.tokens) + item, return_inverse=True)
    of_item = _covered(group, index.end[place], len(pairs))
    of_row = _covered(group, row_end, len(pairs))
    items = pairs % len(index.tokens)
    return pairs // len(index.tokens), items, np.minimum(of_item, of_row) / index.tokens[items]


def _covered(group: np.ndarray, end: np.ndarray, groups: int) -> np.ndarray:
    """Tokens in the union of the windows that end at `end` in each group, int64 [groups]."""
    order = np.lexsort((end, group))
    group, end = group[order], end[order]
    same = np.concatenate([[False], group[1:] == group[:-1]]) if len(group) else np.zeros(0, bool)
    before = np.concatenate([[0], end[:-1]]) if len(end) else end
    added = np.where(same, np.minimum(end - before, CODE_WINDOW), CODE_WINDOW)
    return np.bincount(group, added, groups).astype(np.int64)


@njit(nogil=True, cache=True)
def _scan(
    starts: np.ndarray, data: np.ndarray, python: np.ndarray, classes: np.ndarray, kept: np.ndarray, table: Table
) -> np.ndarray:
    longest = 0
    for row in range(len(starts) - 1):
        longest = max(longest, starts[row + 1] - starts[row])
    names, codes = np.empty(longest + 1, np.uint64), np.empty(longest + 1, np.uint64)
    hashes, places = np.empty(longest + 1, np.uint64), np.empty(longest + 1, np.int64)
    out = np.empty((1024, 3), np.int64)
    used = 0
    for row in range(len(starts) - 1):
        count = _lex(data, starts[row], starts[row + 1], python[row], classes, kept, names, codes)
        if count < CODE_WINDOW:
            continue
        _windows(names, codes, count, hashes)
        for k in range(likely(table, hashes, CODE_WINDOW - 1, count, places)):
            window = find(table, hashes[places[k]])
            if window >= 0:
                if used == len(out):
                    more = np.empty((2 * used, 3), np.int64)
                    more[:used] = out
                    out = more
                out[used, 0] = row
                out[used, 1] = window
                out[used, 2] = places[k]
                used += 1
    return out[:used]


@njit(nogil=True, cache=True)
def _windows(names: np.ndarray, codes: np.ndarray, count: int, hashes: np.ndarray) -> None:
    """Write the hash of the window that ends at each token; `codes` becomes the distance for names."""
    for j in range(count):
        if names[j] == _U0:
            continue
        codes[j] = _U0
        for back in range(1, CODE_WINDOW):
            if back > j:
                break
            if names[j - back] == names[j]:
                codes[j] = np.uint64(back)
                break
    for j in range(count):
        h = _U0
        first = j - CODE_WINDOW + 1
        if first >= 0:
            for k in range(first, j + 1):
                value = codes[k]
                if names[k] != _U0:
                    value = _NAME if value > np.uint64(k - first) else value + _NAME
                h = h * _BASE + value * _MIX
            h ^= h >> np.uint64(29)
            h = h * _MIX if h != _U0 else _U1
        hashes[j] = h


@njit(nogil=True, cache=True)
def _is_kept(h: np.uint64, kept: np.ndarray) -> bool:
    place = np.searchsorted(kept, h)
    return bool(place < len(kept) and kept[place] == h)


@njit(nogil=True, cache=True)
def _string_end(data: np.ndarray, i: int, end: int) -> tuple[int, bool]:
    """Return (place after the string that begins at i, whether it is one of three quotes). One quote ends at a line."""
    quote = data[i]
    if i + 2 < end and data[i + 1] == quote and data[i + 2] == quote and quote != 96:
        k = i + 3
        while k < end:
            if data[k] == quote and k + 2 < end and data[k + 1] == quote and data[k + 2] == quote:
                return k + 3, True
            k += 2 if data[k] == 92 else 1
        return end, True
    k = i + 1
    while k < end and data[k] != quote:
        if data[k] == 10:
            return i + 1, False  # an apostrophe in prose
        k += 2 if data[k] == 92 else 1
    return (k + 1 if k < end else i + 1), False


@njit(nogil=True, cache=True)
def _comment_end(data: np.ndarray, i: int, end: int, python: bool) -> int:
    """Return the place after the comment that begins at i, or i where none does."""
    if python:
        if data[i] != 35:
            return i
    elif data[i] == 47 and i + 1 < end and data[i + 1] == 42:
        i += 2
        while i + 1 < end and not (data[i] == 42 and data[i + 1] == 47):
            i += 1
        return min(i + 2, end)
    elif not (data[i] == 47 and i + 1 < end and data[i + 1] == 47):
        return i
    while i < end and data[i] != 10:
        i += 1
    return i


@njit(nogil=True, cache=True)
def _lex(
    data: np.ndarray,
    start: int,
    end: int,
    python: bool,
    classes: np.ndarray,
    kept: np.ndarray,
    names: np.ndarray,
    codes: np.ndarray,
) -> int:
    """Write the tokens of a text: the hash of a name that can be renamed, else 0 and a code; return their number."""
    count = 0
    i = start
    last = np.uint8(58)  # the mark before, ":" at the start: a doc string follows one
    while i < end:
        byte = data[i]
        kind = classes[byte]
        if kind == 3:
            i += 1
            continue
        after = _comment_end(data, i, end, python) if byte == 35 or byte == 47 else i
        if after > i:
            i = after
            continue
        h = _START
        first = i
        if kind == 1 or kind == 2:
            while i < end and (classes[data[i]] == 1 or classes[data[i]] == 2 or (kind == 2 and data[i] == 46)):
                h = (h ^ np.uint64(data[i])) * _PRIME
                i += 1
            prefix = i < end and i - first <= 2 and (data[i] == 34 or data[i] == 39)
            if prefix and kind == 1 and not _is_kept(h, kept):
                last = np.uint8(0)
                continue  # f"…", r'…': what follows is the string
            free = kind == 1 and last != 46 and not _is_kept(h, kept)
            names[count] = (h | _U1) if free else _U0
            codes[count] = h
            count += 1
            last = np.uint8(0)
            continue
        if byte == 92 and i + 1 < end and (data[i + 1] in (34, 39, 92, 96)):
            # Marks, both: were the second to begin a string, each of many would be looked for the end of the line.
            names[count], codes[count] = _U0, np.uint64(92) + _OTHER
            count += 1
            byte = data[i + 1]
            i += 1
        elif byte == 34 or byte == 39 or byte == 96:
            after, triple = _string_end(data, i, end)
            if after > i + 1:
                if not (triple and last == 58):
                    for k in range(i + 1, after - 1):
                        if data[k] != 34 and data[k] != 39:
                            h = (h ^ np.uint64(data[k])) * _PRIME
                    names[count], codes[count] = _U0, h ^ _OTHER
                    count += 1
                    last = np.uint8(0)
                i = after
                continue
        names[count], codes[count] = _U0, np.uint64(byte) + _OTHER
        count += 1
        last = byte
        i += 1
    return count


_PIECES = re.compile(
    r"(?P<skip>#[^\n]*|\"\"\"[\s\S]*?\"\"\"|'''[\s\S]*?'''|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*')"
    r"|(?P<name>(?<![\w.])[A-Za-z_]\w*(?![\w\"']))"
)


def renamed(program: str) -> str:
    """Return a program with other names, other indentation and no comments: a canary of the same code."""
    seen: dict[str, str] = {}

    def other(match: re.Match[str]) -> str:
        if match["skip"] is not None:
            return "" if match["skip"].startswith("#") else match["skip"]
        name = match["name"]
        return name if name in KEPT else seen.setdefault(name, f"item_{len(seen) * 7 % 1009}_{len(seen)}")

    lines = _PIECES.sub(other, program).splitlines()
    spaced = (line.rstrip() for line in lines if line.strip())
    return "\n".join(" " * ((len(s) - len(s.lstrip())) // 2 + 1) + s.lstrip() + "  # as before" for s in spaced)
