"""Which rows of each layout are plain (`lpt_data.plain`), told by whole columns.

A function looks at some rows of one layout and returns samples of their records with marks for texts, and the texts; or
None where one of the rows may need its converter, and then all of them go there. A test holds both ways against each
other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lpt_data.chat_fields import assistant, user
from lpt_data.plain import Plain, mark, shape_of
from lpt_data.text import buffers
from lpt_data.text_arrays import bools, invalid_utf8, large_strings, text_array, wide

_BITS, MOST_TURNS = 3, 20  # bits of a role, and turns, in the number that stands for the roles of a conversation
_JSON = "[{"  # what a text begins with that may be messages as a format without nesting writes them


class Uniform(NamedTuple):
    """Records of one shape: a sample, and a column for each of its marks."""

    sample: dict[str, Any]
    columns: Sequence[pa.Array]  # large_string [n]


class Chats(NamedTuple):
    """Conversations: the messages of all rows, and the first of each."""

    first: np.ndarray  # int64 [n + 1]
    roles: tuple[str, ...]
    role: np.ndarray  # int64 [m], index into roles
    contents: pa.Array  # large_string [m]


def plain_of(layout: str, kind: str, table: pa.Table) -> Plain | None:
    """Return some rows as plain records, or None where one of them may be no plain record."""
    read = PLAIN.get((layout, kind))
    found = read(table) if read is not None and table.num_rows else None
    if found is None:
        return None
    return _uniform(kind, found) if isinstance(found, Uniform) else _conversations(kind, found)


def texts_of(column: pa.ChunkedArray | pa.Array) -> pa.Array | None:
    """Return a column as large_string, or None where a value is no text."""
    chunked = column if isinstance(column, pa.ChunkedArray) else pa.chunked_array([column])
    if chunked.null_count:
        return None
    array = text_array(chunked)
    array = None if array is None else wide(array)
    return None if array is None or invalid_utf8(array).any() else array


def _uniform(kind: str, found: Uniform) -> Plain:
    shape, order = shape_of(kind, found.sample)
    rows, width = len(found.columns[0]), len(order)
    starts = np.empty((rows, width), np.int64)
    ends = np.empty((rows, width), np.int64)
    parts, size = [], 0
    for place, number in enumerate(order):
        offsets, data = buffers(found.columns[number])
        base = int(offsets[0])
        starts[:, place] = offsets[:-1] - base + size
        ends[:, place] = offsets[1:] - base + size
        parts.append(data[base : int(offsets[-1])])
        size += len(parts[-1])
    first = np.arange(0, rows * width + 1, width)
    whole = np.concatenate(parts)
    return Plain(kind, whole, starts.reshape(-1), ends.reshape(-1), first, (shape,), np.zeros(rows, np.int64))


def _conversations(kind: str, found: Chats) -> Plain | None:
    turns = np.diff(found.first)
    if turns.min() < 1 or turns.max() > MOST_TURNS or len(found.roles) >= 1 << _BITS:
        return None
    place = np.arange(len(found.role)) - np.repeat(found.first[:-1], turns)
    codes = (found.role + 1).astype(np.uint64) << (_BITS * place).astype(np.uint64)
    names, shape = np.unique(np.add.reduceat(codes, found.first[:-1]), return_inverse=True)
    shapes = []
    for name in names.tolist():
        roles = []
        while name:
            roles.append(found.roles[(name & ((1 << _BITS) - 1)) - 1])
            name >>= _BITS
        sample = [{"role": role, "content": mark(i)} for i, role in enumerate(roles)]
        shapes.append(shape_of(kind, {"messages": sample})[0])
    offsets, data = buffers(found.contents)
    return Plain(kind, data, offsets[:-1], offsets[1:], found.first, tuple(shapes), shape.astype(np.int64))


# -- one function per layout and kind


def _columns(table: pa.Table, *names: str) -> list[pa.Array] | None:
    found = [texts_of(table[name]) for name in names if name in table.column_names]
    return [array for array in found if array is not None] if len(found) == len(names) and None not in found else None


def _begin(array: pa.Array, start: str) -> bool:
    return bool(pc.any(pc.starts_with(array, start)).as_py())


def _text(table: pa.Table) -> Uniform | None:
    columns = _columns(table, "text")
    return Uniform({"text": mark(0)}, columns) if columns else None


def _messages(table: pa.Table) -> Chats | None:
    if "tools" in table.column_names:
        return None
    column = table["messages"].combine_chunks()
    kind = column.type
    if not (pa.types.is_list(kind) and pa.types.is_struct(kind.value_type)) or column.null_count:
        return None
    if sorted(field.name for field in kind.value_type) != ["content", "role"]:
        return None
    first = np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + len(column) + 1]
    turns = column.flatten()
    if turns.null_count:
        return None
    contents, role = texts_of(turns.field("content")), turns.field("role")
    if contents is None or role.null_count:
        return None
    coded = role if pa.types.is_dictionary(role.type) else role.dictionary_encode()
    if not (pa.types.is_string(coded.type.value_type) or pa.types.is_large_string(coded.type.value_type)):
        return None
    indices = coded.indices.cast(pa.int64())
    codes = np.frombuffer(indices.buffers()[1], np.int64)[indices.offset : indices.offset + len(indices)]
    return Chats(first.astype(np.int64) - int(first[0]), tuple(coded.dictionary.to_pylist()), codes, contents)


def _gsm8k_sft(table: pa.Table) -> Uniform | None:
    columns = _columns(table, "question", "answer")
    return Uniform({"messages": [user(mark(0)), assistant(mark(1))]}, columns) if columns else None


def _gsm8k_rlvr(table: pa.Table) -> Uniform | None:
    columns = _columns(table, "question", "answer")
    if not columns:
        return None
    marked = [solution.rpartition("####")[1:] for solution in columns[1].to_pylist()]
    golds = [gold.strip().replace(",", "") if sign else "" for sign, gold in marked]
    if not all(golds):
        return None
    return Uniform(
        {"prompt": [user(mark(0))], "answer": mark(1), "verifier": "integer"},
        [columns[0], large_strings(golds)],
    )


def _alpaca_sft(table: pa.Table) -> Uniform | None:
    given = ["input"] if "input" in table.column_names else []
    columns = None if "system" in table.column_names else _columns(table, "instruction", "output", *given)
    if not columns:
        return None
    asked, output = columns[:2]
    if given:
        both = pc.binary_join_element_wise(asked, columns[2], pa.scalar("\n\n", pa.large_string()))
        asked = pc.if_else(pc.equal(pc.binary_length(columns[2]), 0), asked, both)
    return Uniform({"messages": [user(mark(0)), assistant(mark(1))]}, [asked, output])


def _prompt_completion_sft(table: pa.Table) -> Uniform | None:
    columns = None if "tools" in table.column_names else _columns(table, "prompt", "completion")
    if not columns or _begin(columns[0], _JSON):
        return None
    return Uniform({"messages": [user(mark(0)), assistant(mark(1))]}, columns)


def _preference(table: pa.Table) -> Uniform | None:
    columns = _columns(table, "prompt", "chosen", "rejected")
    if not columns or any(_begin(column, _JSON) for column in columns):
        return None
    if bools(pc.match_substring(columns[0], "\n\nAssistant:")).any():  # may be a transcript
        return None
    sides = {"chosen": [assistant(mark(1))], "rejected": [assistant(mark(2))]}
    return Uniform({"prompt": [user(mark(0))], **sides}, columns)


# To add a layout: a function above and a line here, where most of its rows are plain.
PLAIN: dict[tuple[str, str], Callable[[pa.Table], Uniform | Chats | None]] = {
    ("text", "text"): _text,
    ("messages", "sft"): _messages,
    ("gsm8k", "sft"): _gsm8k_sft,
    ("gsm8k", "rlvr"): _gsm8k_rlvr,
    ("alpaca", "sft"): _alpaca_sft,
    ("prompt_completion", "sft"): _prompt_completion_sft,
    ("preference", "preference"): _preference,
    ("ultrafeedback", "preference"): _preference,
}
