"""Plain records as columns: their texts in one buffer, their canonical bytes and ids made by kernels, no Python object
a row.

A record is plain where its row says it with texts alone: nothing is parsed, cut or refused on the way. Which rows are,
`lpt_data.plain_layouts` says; all others are converted one by one (`lpt_data.layouts`). What a plain record is made of,
its *shape*, is read off `manifests.canon` and `lpt_data.record_text` themselves: a sample with a mark in the place of
each text goes through them. Few shapes make up a whole data set: what hangs on the shape alone is asked once for each.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, overload

import numpy as np
import orjson
import pyarrow as pa

from lpt_data import folding
from lpt_data.keys import KEY_VERSION, normaliser_of
from lpt_data.record_text import prompt_text
from manifests.canon import canonical_bytes, id_prefix

_MARK = 0xE000  # text number i of a sample is the one character U+E000 + i
_MARKS = re.compile("[\ue000-\ue0ff]")


class Slot(NamedTuple):
    """Where a text stands in its record."""

    field: str
    turn: int  # -1: the field is the text
    role: str  # "" where the field is the text


@dataclass(frozen=True)
class Shape:
    """What records are but for their texts, which are numbered in the order of the canonical bytes."""

    record: dict[str, Any]  # a sample with the text "x" everywhere
    slots: tuple[Slot, ...]
    pieces: tuple[bytes, ...]  # canonical bytes before each text, and behind the last
    asked: tuple[bool, ...]  # which texts are the prompt

    def number(self, field: str, turn: int = -1) -> int:
        """Return the number of a text."""
        return next(i for i, slot in enumerate(self.slots) if slot[:2] == (field, turn))


def shape_of(kind: str, sample: Mapping[str, Any]) -> tuple[Shape, list[int]]:
    """Return the shape of a record whose texts are marks, and which text of the sample each of its slots has."""
    written = canonical_bytes(kind, sample).decode()
    order = [ord(mark) - _MARK for mark in _MARKS.findall(written)]
    asked = _MARKS.findall(prompt_text(kind, sample))
    slots = {text: slot for text, slot in _slots(sample)}
    shape = Shape(
        orjson.loads(_MARKS.sub("x", written)),
        tuple(slots[mark(number)] for number in order),
        tuple(piece.encode() for piece in _MARKS.split(written)),
        tuple(mark(number) in asked for number in order),
    )
    return shape, order


def mark(number: int) -> str:
    """Return the mark that stands for a text of a sample."""
    return chr(_MARK + number)


def _slots(sample: Mapping[str, Any]) -> Iterator[tuple[str, Slot]]:
    for name, value in sample.items():
        if isinstance(value, str):
            yield value, Slot(name, -1, "")
        elif isinstance(value, list):
            for turn, message in enumerate(value):
                yield message["content"], Slot(name, turn, message["role"])


@dataclass(frozen=True)
class Plain:
    """Some plain records: text t is ``data[starts[t] : ends[t]]``, row r has the texts ``first[r] : first[r + 1]``."""

    kind: str
    data: np.ndarray  # uint8
    starts: np.ndarray  # int64 [m]
    ends: np.ndarray  # int64 [m]
    first: np.ndarray  # int64 [n + 1]
    shapes: tuple[Shape, ...]
    shape: np.ndarray  # int64 [n]

    def __len__(self) -> int:
        return len(self.shape)

    @cached_property
    def _written(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        from lpt_data.plain_kernels import written

        pieces = [piece for shape in self.shapes for piece in shape.pieces]
        piece_of = np.cumsum([0, *(len(shape.pieces) for shape in self.shapes)])
        bounds = np.cumsum([0, *map(len, pieces)])
        joined = np.frombuffer(b"".join(pieces), np.uint8)
        return written(self.data, self.starts, self.ends, self.first, self.shape, piece_of, joined, bounds)

    @property
    def json(self) -> np.ndarray:
        """The canonical bytes of all records, one after the other: uint8."""
        return self._written[0]

    @property
    def bounds(self) -> np.ndarray:
        """Where in `json` each record begins, and the end: int64 [n + 1]."""
        return self._written[1]

    @property
    def inside(self) -> np.ndarray:
        """Where in `json` each text begins: int64 [m]."""
        return self._written[2]

    @cached_property
    def column(self) -> pa.Array:
        """The canonical bytes as large_string [n]."""
        buffers = [None, pa.py_buffer(self.bounds), pa.py_buffer(self.json)]
        return pa.Array.from_buffers(pa.large_string(), len(self), buffers)

    @cached_property
    def ids(self) -> np.ndarray:
        """The record ids, uint8 [n, 32]."""
        from lpt_data.plain_kernels import digests_of

        return digests_of(self.json, self.bounds[:-1], self.bounds[1:], id_prefix(self.kind))

    def of_shape(self, value: Callable[[Shape], Any]) -> np.ndarray:
        """Return for each row what a function says of its shape: [n]."""
        return np.array([value(shape) for shape in self.shapes])[self.shape]

    def of_slots(self, value: Callable[[Shape], Sequence[bool]]) -> np.ndarray:
        """Return for each text what a function says of the slots of its row's shape: bool [m]."""
        if len(self.shapes) == 1:
            return np.tile(np.array(value(self.shapes[0]), bool), len(self))
        flags = [np.array(value(shape), bool) for shape in self.shapes]
        return np.concatenate([flags[shape] for shape in self.shape.tolist()])

    def strings(self, texts: np.ndarray) -> list[str]:
        """Return texts by their numbers, "" for -1."""
        if not len(texts):
            return []
        starts, ends = self.starts[texts], self.ends[texts]
        low = int(starts.min())
        whole = self.data[low : int(ends.max())].tobytes()
        bounds = zip(texts.tolist(), (starts - low).tolist(), (ends - low).tolist(), strict=True)
        return [whole[start:end].decode() if text >= 0 else "" for text, start, end in bounds]

    def joined(self, taken: np.ndarray, rows: np.ndarray) -> list[str]:
        """Return the taken texts (bool [m]) of some rows (int64), those of a row with line feeds between them."""
        counts = np.diff(self.first)
        chosen = np.zeros(len(self), bool)
        chosen[rows] = True
        numbers = np.flatnonzero(taken & np.repeat(chosen, counts))
        texts = iter(self.strings(numbers))
        each = np.bincount(np.repeat(np.arange(len(self)), counts)[numbers], minlength=len(self))[rows]
        return ["\n".join(filter(None, itertools.islice(texts, n))) for n in each.tolist()]

    def fold(self, taken: np.ndarray, rule: folding.Rule, before: bytes = b"") -> np.ndarray:
        """Return the SHA-256 of the taken texts (bool [m]) of each row, folded, behind some bytes: uint8 [n, 32]."""
        from lpt_data.plain_kernels import folded, hashed

        table = np.frombuffer(rule.table, np.uint8).copy()
        if not rule.define("\u2019"):  # punctuation goes, and so do the quotation marks and dashes that kernels read
            table[128:] = folding.BLANK
        start = np.frombuffer(before, np.uint8)
        classes = folding.classes_of(rule.math)
        *written, odd = folded(
            self.data, self.starts, self.ends, self.first, taken, table, classes, bool(rule.math), start
        )
        digests = hashed(*written)
        rows = np.flatnonzero(odd)
        if len(rows):
            texts = self.joined(taken, rows)
            own = [hashlib.sha256(before + rule.define(text).encode()).digest() for text in texts]
            digests = digests.copy()
            digests[rows] = np.frombuffer(b"".join(own), np.uint8).reshape(-1, 32)
        return digests

    def keys(self, normaliser: str) -> np.ndarray:
        """Return the key hash of each record under `text` or `math`, uint8 [n, 32]."""
        start = f"{KEY_VERSION}\0{normaliser}\0".encode()
        return self.fold(self.of_slots(lambda shape: shape.asked), normaliser_of(normaliser), start)


class Parsed(Sequence[dict[str, Any]]):
    """Canonical records out of their bytes, each made when it is first looked at."""

    def __init__(self, data: Sequence[bytes]) -> None:
        self._data = data
        self._made: dict[int, dict[str, Any]] = {}

    def __len__(self) -> int:
        return len(self._data)

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...

    @overload
    def __getitem__(self, index: slice) -> list[dict[str, Any]]: ...

    def __getitem__(self, index: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if index not in self._made:
            self._made[index] = orjson.loads(self._data[index])
        return self._made[index]


class Slices(Sequence[bytes]):
    """Stretches of a buffer as bytes, each made when it is looked at."""

    def __init__(self, data: np.ndarray, bounds: np.ndarray) -> None:
        self._data, self._bounds = data, bounds

    def __len__(self) -> int:
        return len(self._bounds) - 1

    @overload
    def __getitem__(self, index: int) -> bytes: ...

    @overload
    def __getitem__(self, index: slice) -> list[bytes]: ...

    def __getitem__(self, index: int | slice) -> bytes | list[bytes]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self._data[self._bounds[index] : self._bounds[index + 1]].tobytes()
