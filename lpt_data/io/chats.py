"""JSON lines that hold one conversation and nothing else, scanned straight into an Arrow column of messages.

Such a line is ``{"messages": [...]}`` with at least one message, each of a role that is known and a text, in either
order of the two. As in `flat`, a line is taken only where there is no doubt that `lines.parse_lines` would take it with
the same values: tool calls, names, other columns, `null` and everything that is wrong go there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numba import njit

from lpt_data.io.flat import _blank, _count_lines, _is, _line_end, _past_blanks
from lpt_data.json_strings import string_end, unescape, valid_utf8
from lpt_data.text_arrays import large_strings
from lpt_data.wide import WIDTH

COLUMN = "messages"
ROLES = ("system", "user", "assistant", "tool")
_SHORTEST = len('{"role":"tool","content":""}')  # bytes of a message
_QUOTE, _COMMA, _COLON, _OPEN, _CLOSE, _FIRST, _LAST = 0x22, 0x2C, 0x3A, 0x7B, 0x7D, 0x5B, 0x5D


def _words(names: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    written = [f'"{name}"'.encode() for name in names]
    return np.frombuffer(b"".join(written), np.uint8), np.cumsum([0, *map(len, written)])


_WORDS, _BOUNDS = _words((*ROLES, COLUMN, "role", "content"))
_MESSAGES, _ROLE, _CONTENT = len(ROLES), len(ROLES) + 1, len(ROLES) + 2


@dataclass(frozen=True)
class Chats:
    """The rows of some lines, blank ones left out, as `flat.Scan` has them."""

    data: np.ndarray  # uint8, the lines
    lines: int  # blank ones included
    numbers: np.ndarray  # int64 [n], which line, from 0
    starts: np.ndarray  # int64 [n], of the line in the data
    ends: np.ndarray  # int64 [n], without the line feed
    first: np.ndarray  # int64 [n + 1], the first turn of each row; none for a row that is no such conversation
    roles: np.ndarray  # uint8 [m], index into ROLES
    spans: np.ndarray  # int64 [m, 2], of the contents in the data, without quotation marks

    def flat(self, names: Sequence[str]) -> np.ndarray:
        """Which rows are such conversations: bool [n]."""
        return self.first[1:] > self.first[:-1]

    def types(self, rows: slice) -> dict[str, type] | None:
        """None: messages have no plain type."""
        return None

    def table(self, rows: slice, names: Sequence[str], keep: np.ndarray | None = None) -> pa.Table:
        """The column of some rows that `flat` named: list of struct of role (dictionary) and content."""
        first, last = int(self.first[rows.start]), int(self.first[rows.stop])
        starts, ends = np.ascontiguousarray(self.spans[first:last].T)
        out = np.empty(int((ends - starts).sum()) + WIDTH, np.uint8)
        offsets = np.empty(len(starts) + 1, np.int32)
        used = unescape(self.data, starts, ends, offsets, out)
        content = pa.StringArray.from_buffers(len(starts), pa.py_buffer(offsets), pa.py_buffer(out[:used]))
        codes = pa.Array.from_buffers(pa.int8(), last - first, [None, pa.py_buffer(self.roles[first:last].copy())])
        role = pa.DictionaryArray.from_arrays(codes, large_strings(ROLES))
        turns = pa.StructArray.from_arrays([role, content], ["role", "content"])
        cuts = (self.first[rows.start : rows.stop + 1] - first).astype(np.int32)
        offsets_ = pa.Array.from_buffers(pa.int32(), len(cuts), [None, pa.py_buffer(cuts)])
        column = pa.ListArray.from_arrays(offsets_, turns)
        return pa.table({COLUMN: column if keep is None else column.filter(pa.array(keep))})


def begins(line: bytes) -> bool:
    """Whether a line may be such a conversation."""
    return line.lstrip(b"{ \t").startswith(b'"messages"')


def scan(lines: bytes) -> Chats:
    """Look at whole lines once."""
    data = np.frombuffer(lines, np.uint8)
    count = _count_lines(data)
    return Chats(data, count, *_scan(data, count, len(data) // _SHORTEST + 1, _WORDS, _BOUNDS))


@njit(nogil=True, cache=True)
def _past_word(data: np.ndarray, i: int, words: np.ndarray, bounds: np.ndarray, word: int) -> int:
    """The index after a word in quotation marks, or -1 where another stands."""
    size = bounds[word + 1] - bounds[word]
    if i + size > len(data):
        return -1
    for k in range(size):
        if data[i + k] != words[bounds[word] + k]:
            return -1
    return i + size


@njit(nogil=True, cache=True)
def _past_key(data: np.ndarray, i: int, words: np.ndarray, bounds: np.ndarray, word: int) -> int:
    """The index of the value after a key and its colon, or -1."""
    i = _past_word(data, _past_blanks(data, i), words, bounds, word)
    if i < 0:
        return -1
    i = _past_blanks(data, i)
    return _past_blanks(data, i + 1) if _is(data, i, _COLON) else -1


@njit(nogil=True, cache=True)
def _role(data: np.ndarray, i: int, words: np.ndarray, bounds: np.ndarray) -> tuple[int, int]:
    """The role at ``i`` and the index after it, or -1."""
    for role in range(_MESSAGES):
        end = _past_word(data, i, words, bounds, role)
        if end >= 0:
            return role, end
    return -1, -1


@njit(nogil=True, cache=True)
def _content(data: np.ndarray, i: int) -> int:
    """The index of the quotation mark that ends the string at ``i``, or -1."""
    if not _is(data, i, _QUOTE):
        return -1
    end = string_end(data, i + 1, len(data))
    return end if end >= 0 and valid_utf8(data, i + 1, end) else -1


@njit(nogil=True, cache=True)
def _message(
    data: np.ndarray, i: int, words: np.ndarray, bounds: np.ndarray, roles: np.ndarray, spans: np.ndarray, turn: int
) -> int:
    """Scan a message; returns the index after it and the blanks that follow, or -1."""
    if not _is(data, i, _OPEN):
        return -1
    role = -1
    content = -1
    for key in range(2):
        at = _past_key(data, i + 1, words, bounds, _ROLE) if role < 0 else -1
        if at >= 0:
            role, i = _role(data, at, words, bounds)
            if role < 0:
                return -1
        else:
            at = _past_key(data, i + 1, words, bounds, _CONTENT) if content < 0 else -1
            if at < 0:
                return -1
            content = _content(data, at)
            if content < 0:
                return -1
            spans[turn, 0] = at + 1
            spans[turn, 1] = content
            i = content + 1
        i = _past_blanks(data, i)
        if not _is(data, i, _CLOSE if key else _COMMA):
            return -1
    roles[turn] = role
    return _past_blanks(data, i + 1)


@njit(nogil=True, cache=True)
def _conversation(
    data: np.ndarray, i: int, words: np.ndarray, bounds: np.ndarray, roles: np.ndarray, spans: np.ndarray, turn: int
) -> tuple[int, int]:
    """Scan a line; returns the index after it and the number of the next turn, or -1."""
    if not _is(data, i, _OPEN):
        return -1, turn
    i = _past_key(data, i + 1, words, bounds, _MESSAGES)
    if i < 0 or not _is(data, i, _FIRST):
        return -1, turn
    i = _past_blanks(data, i + 1)
    while True:
        i = _message(data, i, words, bounds, roles, spans, turn)
        if i < 0:
            return -1, turn
        turn += 1
        if not _is(data, i, _COMMA):
            break
        i = _past_blanks(data, i + 1)
    if not _is(data, i, _LAST):
        return -1, turn
    i = _past_blanks(data, i + 1)
    return (_past_blanks(data, i + 1), turn) if _is(data, i, _CLOSE) else (-1, turn)


@njit(nogil=True, cache=True)
def _scan(
    data: np.ndarray, most: int, most_turns: int, words: np.ndarray, bounds: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    numbers = np.empty(most, np.int64)
    starts = np.empty(most, np.int64)
    ends = np.empty(most, np.int64)
    first = np.zeros(most + 1, np.int64)
    roles = np.empty(most_turns, np.uint8)
    spans = np.empty((most_turns, 2), np.int64)
    rows = 0
    start = 0
    line = 0
    while start < len(data):
        turn = first[rows]
        end, after = _conversation(data, _past_blanks(data, start), words, bounds, roles, spans, turn)
        if end < 0 or (end < len(data) and data[end] != 10):
            end, after = _line_end(data, start), turn
        if not _blank(data, start, end):
            numbers[rows] = line
            starts[rows] = start
            ends[rows] = end
            rows += 1
            first[rows] = after
        line += 1
        start = end + 1
    turns = first[rows]
    return numbers[:rows], starts[:rows], ends[:rows], first[: rows + 1], roles[:turns], spans[:turns]
