"""Columns of text as Arrow arrays: one array of one type, and which of its values need a closer look."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa


def text_array(column: pa.ChunkedArray) -> pa.Array | None:
    """Return a column of any of Arrow's text types as one array, or None where it is no text."""
    array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks)
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    kind = array.type
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    return array if text else None


def text_bytes(values: pa.Array | pa.ChunkedArray) -> int:
    """Return the bytes of all texts and binary values, however deep they lie."""
    if isinstance(values, pa.ChunkedArray):
        return sum(map(text_bytes, values.chunks))
    kind = values.type
    if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        return _span(values, np.dtype(np.int64))
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return _span(values, np.dtype(np.int32))
    if pa.types.is_struct(kind):
        return sum(map(text_bytes, values.flatten()))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return text_bytes(values.flatten())
    return 0


def _span(values: pa.Array, offset: np.dtype) -> int:
    if not len(values):
        return 0
    ends = np.frombuffer(values.buffers()[1], offset)
    return int(ends[values.offset + len(values)]) - int(ends[values.offset])


def wide(texts: pa.Array) -> pa.Array:
    """Return a text array as large_string; the bytes of the texts are shared, where a cast may copy them."""
    if not pa.types.is_string(texts.type) or texts.offset or texts.null_count:
        return texts.cast(pa.large_string())
    _, offsets, data = texts.buffers()
    ends = np.frombuffer(offsets, np.int32)[: len(texts) + 1].astype(np.int64)
    return pa.LargeStringArray.from_buffers(len(texts), pa.py_buffer(ends), data)


def invalid_utf8(array: pa.Array) -> np.ndarray:
    """Return which texts of a large_string array are no UTF-8 (Parquet promises it and checks nothing): bool [n]."""
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        return np.array([not _decodes(value) for value in array.cast(pa.large_binary()).to_pylist()], bool)
    return np.zeros(len(array), bool)


def may_be_blank(array: pa.Array) -> np.ndarray:
    """Return which texts of a large_string array do not begin with a visible ASCII character, nulls among them: bool
    [n]. Python has to look at those alone.
    """
    if array.null_count:
        array = array.fill_null("")
    _, offsets, data = array.buffers()
    starts = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
    if data is None or not data.size:
        return np.ones(len(array), bool)
    first = np.frombuffer(data, np.uint8)[np.minimum(starts[:-1], data.size - 1)]
    return (starts[1:] == starts[:-1]) | (first <= 32) | (first >= 127)


def large_strings(texts: Sequence[str]) -> pa.Array:
    """Return texts as a large_string array; `pa.array` loads pandas for that, where it is installed."""
    data = [text.encode() for text in texts]
    ends = np.cumsum([0, *map(len, data)], dtype=np.int64)
    return pa.Array.from_buffers(pa.large_string(), len(data), [None, pa.py_buffer(ends), pa.py_buffer(b"".join(data))])


def bools(values: pa.BooleanArray) -> np.ndarray:
    """Return a column of true and false without nulls as bool [n]; pyarrow itself loads pandas for that."""
    bits = np.unpackbits(np.frombuffer(values.buffers()[1], np.uint8), bitorder="little")
    return bits[values.offset : values.offset + len(values)].astype(bool)


def _decodes(value: bytes | None) -> bool:
    try:
        return value is None or value.decode() is not None
    except UnicodeDecodeError:
        return False
