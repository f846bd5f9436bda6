"""JSON lines of one flat shape, scanned straight into Arrow columns: no Python object a row.

Flat is a line that holds an object whose keys are those of the first line, in that order, and whose values are
strings, numbers, true, false or null. Such a line is taken only where there is no doubt that `lines.parse_lines` would
take it with the same values: any other goes there. In doubt are nested values, other keys, integers of more than 18
digits, exponents, a negative zero, and everything that is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import orjson
import pyarrow as pa
from numba import njit

from lpt_data.json_strings import string_end, unescape, valid_utf8
from lpt_data.wide import WIDTH, count_bits, line_mask, lowest

ODD, STRING, INTEGER, FLOAT, BOOLEAN, NULL = range(6)
TYPES = {STRING: str, INTEGER: int, FLOAT: float, BOOLEAN: bool}
_MOST_DIGITS = 18  # any such integer fits 64 bits
_QUOTE, _COMMA, _COLON, _OPEN, _CLOSE = 0x22, 0x2C, 0x3A, 0x7B, 0x7D


@dataclass(frozen=True)
class Keys:
    """The keys of a line as they are written: every key with its quotation marks, one after the other."""

    names: tuple[str, ...]
    written: np.ndarray  # uint8
    ends: np.ndarray  # int64 [keys]

    @classmethod
    def of(cls, line: bytes) -> Keys | None:
        """Those of a line, or None where it is not flat."""
        try:
            row = orjson.loads(line)
        except ValueError:
            return None
        if type(row) is not dict or not row or any(type(value) in (dict, list) for value in row.values()):
            return None
        written = [orjson.dumps(name) for name in row]
        ends = np.cumsum(list(map(len, written)))
        return cls(tuple(row), np.frombuffer(b"".join(written), np.uint8), ends)


@dataclass(frozen=True)
class Scan:
    """The rows of some lines, blank ones left out."""

    keys: Keys
    data: np.ndarray  # uint8, the lines
    lines: int  # blank ones included
    numbers: np.ndarray  # int64 [n], which line, from 0
    starts: np.ndarray  # int64 [n], of the line in the data
    ends: np.ndarray  # int64 [n], without the line feed
    kinds: np.ndarray  # uint8 [n, keys], of the values; ODD in all of them for a line that is not flat
    spans: np.ndarray  # int64 [n, keys, 2], of the values in the data, strings without quotation marks

    def flat(self, names: Sequence[str]) -> np.ndarray:
        """Which rows are flat and have under these names values of the types of the first flat row: bool [n]."""
        good = self.kinds[:, 0] != ODD
        if not len(good):
            return good
        first = int(good.argmax())
        for name in names:
            column = self.kinds[:, self.keys.names.index(name)]
            good &= (column == column[first]) & (column != NULL)
        return good

    def types(self, rows: slice) -> dict[str, type] | None:
        """The types of all columns of some flat rows, or None where a column has several or nulls."""
        kinds = self.kinds[rows]
        if (kinds != kinds[0]).any() or (kinds[0] == NULL).any():
            return None
        return {name: TYPES[kind] for name, kind in zip(self.keys.names, kinds[0].tolist(), strict=True)}

    def table(self, rows: slice, names: Sequence[str], keep: np.ndarray | None = None) -> pa.Table:
        """Columns of some rows that `flat` named for them, at least one; of those alone that are kept (bool)."""
        columns = {}
        for name in names:
            number = self.keys.names.index(name)
            spans = self.spans[rows, number] if keep is None else self.spans[rows, number][keep]
            starts, ends = np.ascontiguousarray(spans.T)
            columns[name] = self._column(int(self.kinds[rows.start, number]), starts, ends)
        return pa.table(columns)

    def strings(self, rows: slice, name: str, before: int) -> tuple[np.ndarray, np.ndarray] | None:
        """Where the strings of some rows that `flat` named begin in the file, int64 [n], and their bytes as written,
        int32 [n]; None where the values are no strings. ``before`` bytes of the file come before the lines.
        """
        number = self.keys.names.index(name)
        if self.kinds[rows.start, number] != STRING:
            return None
        starts, ends = np.ascontiguousarray(self.spans[rows, number].T)
        return starts + before, (ends - starts).astype(np.int32)

    def _column(self, kind: int, starts: np.ndarray, ends: np.ndarray) -> pa.Array:
        if kind == STRING:
            out = np.empty(int((ends - starts).sum()) + WIDTH, np.uint8)
            offsets = np.empty(len(starts) + 1, np.int32)
            used = unescape(self.data, starts, ends, offsets, out)
            return pa.StringArray.from_buffers(len(starts), pa.py_buffer(offsets), pa.py_buffer(out[:used]))
        if kind == BOOLEAN:
            return pa.array(ends - starts == len("true"))
        if kind == INTEGER:
            return pa.array(_integers(self.data, starts, ends))
        written = b",".join([self.data[start:end].tobytes() for start, end in zip(starts, ends, strict=True)])
        return pa.array(orjson.loads(b"[" + written + b"]"), pa.float64())


def line_bounds(lines: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Where each line that is not blank starts and ends (without its line feed), int64 [n] both."""
    data = np.frombuffer(lines, np.uint8)
    return _line_bounds(data, _count_lines(data))


def scan(lines: bytes, keys: Keys) -> Scan | None:
    """Look at whole lines once; None where they have fewer bytes than flat lines would have values, which bounds what
    a short line of very many keys makes of the others: 17 bytes for each byte of the lines.
    """
    data = np.frombuffer(lines, np.uint8)
    count = _count_lines(data)
    if count * len(keys.names) > len(data):
        return None
    return Scan(keys, data, count, *_scan(data, count, keys.written, keys.ends))


@njit(nogil=True, cache=True)
def _count_lines(data: np.ndarray) -> int:
    lines = 0
    i = 0
    while i + WIDTH <= len(data):
        lines += count_bits(line_mask(data, i))
        i += WIDTH
    while i < len(data):
        lines += data[i] == 10
        i += 1
    return lines + (len(data) > 0 and data[len(data) - 1] != 10)


@njit(nogil=True, cache=True)
def _line_end(data: np.ndarray, i: int) -> int:
    while i + WIDTH <= len(data):
        mask = line_mask(data, i)
        if mask:
            return i + lowest(mask)
        i += WIDTH
    while i < len(data) and data[i] != 10:
        i += 1
    return i


@njit(nogil=True, cache=True)
def _blank(data: np.ndarray, i: int, end: int) -> bool:
    while i < end and (data[i] == 32 or 9 <= data[i] <= 13):
        i += 1
    return i == end


@njit(nogil=True, cache=True)
def _past_blanks(data: np.ndarray, i: int) -> int:
    while i < len(data) and (data[i] == 32 or data[i] == 9 or data[i] == 13):
        i += 1
    return i


@njit(nogil=True, cache=True)
def _is(data: np.ndarray, i: int, byte: int) -> bool:
    return i < len(data) and data[i] == byte


@njit(nogil=True, cache=True)
def _digits(data: np.ndarray, i: int) -> int:
    while i < len(data) and 48 <= data[i] <= 57:
        i += 1
    return i


@njit(nogil=True, cache=True)
def _number(data: np.ndarray, i: int) -> tuple[int, int]:
    """The kind of the number at ``i`` and the index after it."""
    first = i + 1 if data[i] == 45 else i
    end = _digits(data, first)
    if end == first or end - first > _MOST_DIGITS or (data[first] == 48 and end - first > 1):
        return ODD, i
    kind = INTEGER
    if _is(data, end, 46):
        kind = FLOAT
        point = end
        end = _digits(data, point + 1)
        if end == point + 1:
            return ODD, i
    elif first > i and data[first] == 48:
        return ODD, i
    return kind, end  # an exponent is no comma, so its line is odd


@njit(nogil=True, cache=True)
def _literal(data: np.ndarray, i: int) -> tuple[int, int]:
    """The kind of ``true``, ``false`` or ``null`` at ``i`` and the index after it."""
    if i + 4 <= len(data):
        if data[i] == 116 and data[i + 1] == 114 and data[i + 2] == 117 and data[i + 3] == 101:
            return BOOLEAN, i + 4
        if data[i] == 110 and data[i + 1] == 117 and data[i + 2] == 108 and data[i + 3] == 108:
            return NULL, i + 4
        if data[i] == 102 and data[i + 1] == 97 and data[i + 2] == 108 and data[i + 3] == 115 and _is(data, i + 4, 101):
            return BOOLEAN, i + 5
    return ODD, i


@njit(nogil=True, cache=True)
def _key(data: np.ndarray, i: int, written: np.ndarray, start: int, end: int) -> int:
    """The index after the key and its colon, or -1 where another key stands."""
    i = _past_blanks(data, i)
    if i + end - start > len(data):
        return -1
    for k in range(start, end):
        if data[i + k - start] != written[k]:
            return -1
    i = _past_blanks(data, i + end - start)
    return _past_blanks(data, i + 1) if _is(data, i, _COLON) else -1


@njit(nogil=True, cache=True)
def _object(
    data: np.ndarray, i: int, written: np.ndarray, key_ends: np.ndarray, kinds: np.ndarray, spans: np.ndarray
) -> int:
    """Scan an object; returns the index after it and the blanks that follow, or -1."""
    if not _is(data, i, _OPEN):
        return -1
    keys = len(key_ends)
    for key in range(keys):
        i = _key(data, i + 1, written, key_ends[key - 1] if key else 0, key_ends[key])
        if i < 0 or i >= len(data):
            return -1
        first = data[i]
        if first == _QUOTE:
            kind = STRING
            i += 1
            end = string_end(data, i, len(data))
            if end < 0 or not valid_utf8(data, i, end):
                return -1
        elif first == 45 or 48 <= first <= 57:
            kind, end = _number(data, i)
        else:
            kind, end = _literal(data, i)
        if kind == ODD:
            return -1
        kinds[key] = kind
        spans[key, 0] = i
        spans[key, 1] = end
        i = _past_blanks(data, end + 1 if kind == STRING else end)
        if not _is(data, i, _COMMA if key < keys - 1 else _CLOSE):
            return -1
    return _past_blanks(data, i + 1)


@njit(nogil=True, cache=True)
def _scan(
    data: np.ndarray, most: int, written: np.ndarray, key_ends: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    keys = len(key_ends)
    numbers = np.empty(most, np.int64)
    starts = np.empty(most, np.int64)
    ends = np.empty(most, np.int64)
    kinds = np.zeros((most, keys), np.uint8)
    spans = np.empty((most, keys, 2), np.int64)
    rows = 0
    start = 0
    line = 0
    while start < len(data):
        i = _object(data, _past_blanks(data, start), written, key_ends, kinds[rows], spans[rows])
        end = i
        if i < 0 or (i < len(data) and data[i] != 10):
            kinds[rows] = ODD
            end = _line_end(data, start)
        if not _blank(data, start, end):
            numbers[rows] = line
            starts[rows] = start
            ends[rows] = end
            rows += 1
        line += 1
        start = end + 1
    return numbers[:rows], starts[:rows], ends[:rows], kinds[:rows], spans[:rows]


@njit(nogil=True, cache=True)
def _line_bounds(data: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    starts = np.empty(most, np.int64)
    ends = np.empty(most, np.int64)
    rows = 0
    start = 0
    while start < len(data):
        end = _line_end(data, start)
        if not _blank(data, start, end):
            starts[rows] = start
            ends[rows] = end
            rows += 1
        start = end + 1
    return starts[:rows], ends[:rows]


@njit(nogil=True, cache=True)
def _integers(data: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    values = np.empty(len(starts), np.int64)
    for row in range(len(starts)):
        negative = data[starts[row]] == 45
        value = 0
        for i in range(starts[row] + (1 if negative else 0), ends[row]):
            value = value * 10 + int(data[i]) - 48
        values[row] = -value if negative else value
    return values
