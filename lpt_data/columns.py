"""Which Arrow type each column of untyped rows has, without guessing and without widening.

A column has the type that all of its values have. Where they differ (text and numbers, integers and floats, objects too
unlike each other) the column becomes JSON text and is named in `Columns.as_json`; nothing is rounded, parsed or
dropped. A key that only some objects have is null in the others, which is the same to a canonical record.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import pyarrow as pa

from manifests.errors import BadInputError

_MOST_KEYS = 100  # objects with more different keys than that are data, not structure
_INT64 = 2**63
_MIXED = "mixed"
_TEXT = pa.string()
_SCALARS: dict[type, pa.DataType] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: _TEXT,
    bytes: pa.binary(),
    datetime.date: pa.date32(),
    datetime.time: pa.time64("us"),
}
# A type while rows are looked at: None (only nulls so far), an Arrow scalar, ["list", item], {"key": type}, or _MIXED.
_Seen = Any


@dataclass(frozen=True)
class Columns:
    """The schema that fits all rows, and the columns whose values are written as JSON text."""

    schema: pa.Schema
    as_json: tuple[str, ...] = ()

    def table(self, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
        """Return rows as a table of the schema; a row without a column has null there."""
        arrays = []
        for field in self.schema:
            values = [row.get(field.name) for row in rows]
            if field.name in self.as_json:
                values = [None if value is None else dump(value).decode() for value in values]
            arrays.append(pa.array(values, field.type))
        return pa.Table.from_arrays(arrays, schema=self.schema)


def find_columns(rows: Iterable[Mapping[str, Any]]) -> Columns:
    """Look at every row once and return the columns in the order of their appearance."""
    seen: dict[str, _Seen] = {}
    for row in rows:
        for name, value in row.items():
            known = seen.get(name)
            if type(value) is str and known is _TEXT:  # nearly every value of nearly every file
                continue
            seen[name] = _join(known, _type_of(value))
    types = {name: _arrow(kind) for name, kind in seen.items()}
    schema = pa.schema([pa.field(name, pa.string() if kind is None else kind) for name, kind in types.items()])
    return Columns(schema, tuple(name for name, kind in types.items() if kind is None))


class Shape:
    """The columns of rows while they go by, as long as all rows have the same names in the same order and one plain
    type a column; `columns` is then what `find_columns` finds for any of these rows, without another look at them.
    """

    def __init__(self) -> None:
        self._names: tuple[str, ...] | None = None
        self._types: list[type] = []
        self._same = True

    def see(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Look at some rows."""
        if not self._same or not rows:
            return
        if self._names is None:
            self._names = tuple(rows[0])
            self._types = [type(value) for value in rows[0].values()]
        self._same = {*map(tuple, rows)} == {self._names} and all(
            self._plain([row[name] for row in rows], kind) for name, kind in zip(self._names, self._types, strict=True)
        )

    def see_types(self, types: Mapping[str, type] | None) -> None:
        """Look at rows whose columns have these types and whose numbers fit 64 bits; None: they are of no one shape."""
        if types is None:
            self._same = False
            return
        if self._names is None:
            self._names, self._types = tuple(types), list(types.values())
        self._same = self._same and self._names == tuple(types) and self._types == list(types.values())

    def columns(self) -> Columns | None:
        """Return the columns, or None where the rows were not all of one shape."""
        if not self._same or self._names is None:
            return None
        types = zip(self._names, self._types, strict=True)
        return Columns(pa.schema([pa.field(name, _SCALARS[kind]) for name, kind in types]))

    @staticmethod
    def _plain(values: list[Any], kind: type) -> bool:
        if {*map(type, values)} != {kind}:
            return False
        if kind is int:
            return min(values) >= -_INT64 and max(values) < _INT64
        if kind is float:  # a larger one may be an integer that a JSON reader has rounded
            return all(-_INT64 < value < _INT64 for value in values)
        return kind in (str, bool)


def dump(value: Any) -> bytes:
    """Return a value as JSON; integers of any size stay exact, decimals are text; BadInputError for what JSON
    cannot say.
    """
    try:
        return orjson.dumps(value, default=_foreign)
    except TypeError as error:
        if "64-bit" in str(error):
            import json

            return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_foreign).encode()
        raise BadInputError(
            "a value cannot be written as JSON", seen=f"{error}: {repr(value)[:80]}", next="write to a .parquet file"
        ) from error


def _foreign(value: Any) -> Any:
    if isinstance(value, decimal.Decimal):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def _type_of(value: Any) -> _Seen:
    if value is None:
        return None
    if isinstance(value, Mapping):
        if not value:
            return _MIXED  # Parquet has no empty objects
        return {name: _type_of(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        item: _Seen = None
        for element in value:
            item = _join(item, _type_of(element))
        return ["list", item]
    if type(value) is int and not -_INT64 <= value < _INT64:
        return _MIXED
    if isinstance(value, datetime.datetime):
        return pa.timestamp("us", tz=str(value.tzinfo) if value.tzinfo else None)
    return _SCALARS.get(type(value), _MIXED)


def _join(a: _Seen, b: _Seen) -> _Seen:
    if a is None or a is b:
        return b
    if b is None:
        return a
    if isinstance(a, dict) and isinstance(b, dict):
        joined = {name: _join(a.get(name), b.get(name)) for name in {**a, **b}}
        return joined if len(joined) <= _MOST_KEYS else _MIXED
    if isinstance(a, list) and isinstance(b, list):
        return ["list", _join(a[1], b[1])]
    if isinstance(a, pa.DataType) and isinstance(b, pa.DataType) and a == b:
        return a
    return _MIXED


def _arrow(seen: _Seen) -> pa.DataType | None:
    """The Arrow type, or None where only JSON text can hold the column as it is."""
    if seen is None:
        return pa.string()
    if isinstance(seen, pa.DataType):
        return seen
    if isinstance(seen, dict):
        inner = {name: _arrow(kind) for name, kind in seen.items()}
        if any(kind is None for kind in inner.values()):
            return None
        return pa.struct([pa.field(name, kind) for name, kind in inner.items()])
    if isinstance(seen, list):
        item = _arrow(seen[1])
        return None if item is None else pa.list_(item)
    return None
