"""JSON of free shape in Parquet: what Arrow's types do to it, and the refusal of what cannot be read back.

The arguments of a call, a tool's schema and a structured answer are JSON as it was written: their text is part of the
record's identity. A column of Arrow structs has one set of fields for all rows. It gives each row nulls for the fields
of the others, puts names in one order and makes integers floats beside floats, and nobody can tell afterwards what
was there: the same rows as JSON lines would have other record ids. So such a value is refused, row by row, and JSON
text is what Parquet has to carry instead.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import pyarrow as pa

from manifests.errors import RecordError

_FREE_COLUMNS = ("tools", "answer")  # columns that are free JSON themselves
_FREE_FIELD = "arguments"  # and the field that is, wherever it lies in a message


def suspects(schema: pa.Schema, consumed: Collection[str]) -> tuple[str, ...]:
    """The columns of a record in which free JSON is typed by Arrow; most files have none."""
    return tuple(field.name for field in schema if field.name in consumed and _typed_json(field))


def refuse_typed(row: Mapping[str, Any], columns: Collection[str]) -> None:
    """Raise RecordError (`json_as_struct`) when a row holds free JSON as Arrow values in one of the columns."""
    for column in columns:
        for path, value in _free(row.get(column), column, column in _FREE_COLUMNS):
            raise RecordError(
                f"{path} is typed by Arrow, which adds nulls, orders names and widens numbers",
                reason="json_as_struct",
                field=path,
                seen=f"{repr(value)[:80]}; write it as JSON text",
            )


def _typed_json(field: pa.Field) -> bool:
    if field.name in _FREE_COLUMNS and _reshaped(field.type):
        return True
    return any(inner.name == _FREE_FIELD and _reshaped(inner.type) for inner in _fields(field.type))


def _fields(kind: pa.DataType) -> Iterator[pa.Field]:
    """Every field inside a type, at any depth."""
    if not pa.types.is_nested(kind):
        return
    for index in range(kind.num_fields):
        yield kind.field(index)
        yield from _fields(kind.field(index).type)


def _reshaped(kind: pa.DataType) -> bool:
    """Whether values of a type can have been others before: structs, maps, and lists that hold them or floats."""
    if pa.types.is_struct(kind) or pa.types.is_map(kind):
        return True
    return pa.types.is_nested(kind) and any(
        pa.types.is_struct(inner.type) or pa.types.is_map(inner.type) or pa.types.is_floating(inner.type)
        for inner in _fields(kind)
    )


def _free(value: Any, path: str, free: bool) -> Iterator[tuple[str, Any]]:
    if value is None or isinstance(value, str) or value == []:
        return
    if free:
        yield path, value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _free(item, f"{path}.{name}", name == _FREE_FIELD)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _free(item, f"{path}[{index}]", False)
