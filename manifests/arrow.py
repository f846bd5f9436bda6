"""Arrow values as plain Python values, in whatever environment."""

from __future__ import annotations

from typing import Any

import pyarrow as pa


def plain_rows(table: pa.Table | pa.RecordBatch) -> list[dict[str, Any]]:
    """Return the rows of a table as dicts.

    Times with nanoseconds have no Python type of their own (pyarrow borrows one from pandas where that is installed,
    and fails where it is not): they come as microseconds where nothing is lost by that, else as ISO text.
    """
    whole = pa.Table.from_batches([table]) if isinstance(table, pa.RecordBatch) else table
    for number, column in enumerate(whole.schema):
        if _has_nanoseconds(column.type):
            whole = whole.set_column(number, column.name, _without_nanoseconds(whole.column(number)))
    return whole.to_pylist()


def _has_nanoseconds(kind: pa.DataType) -> bool:
    if pa.types.is_temporal(kind):
        return getattr(kind, "unit", "") == "ns"
    return any(_has_nanoseconds(kind.field(i).type) for i in range(kind.num_fields))


def _without_nanoseconds(column: pa.ChunkedArray) -> pa.ChunkedArray:
    try:
        return column.cast(_replaced(column.type, text=False))
    except pa.ArrowInvalid:
        return column.cast(_replaced(column.type, text=True))


def _replaced(kind: pa.DataType, *, text: bool) -> pa.DataType:
    """The type with microseconds, or text, in the place of nanoseconds, inside lists and structs as well."""
    if pa.types.is_temporal(kind):
        if getattr(kind, "unit", "") != "ns":
            return kind
        if pa.types.is_duration(kind):  # a duration has no text form in Arrow: whole nanoseconds
            return pa.int64() if text else pa.duration("us")
        if text:
            return pa.string()
        return pa.time64("us") if pa.types.is_time(kind) else pa.timestamp("us", kind.tz)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_replaced(field.type, text=text)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(_replaced(kind.value_type, text=text))
    if pa.types.is_large_list(kind):
        return pa.large_list(_replaced(kind.value_type, text=text))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _replaced(kind.item_type, text=text))
    return kind
