"""Decisions: what a stage removed, rewrote or quarantined; rows that are kept as they are have none.

A row that is removed or quarantined has one decision. A row that is rewritten has one for each reason and witness: its
`record_id` is the old one, and `detail` starts with "old id -> new id".

They are Parquet files beside the catalog, so that ten million of them are one small file and not a table. Record
ids are lower-case hex strings, because people compare and paste them in SQL
(docs/decisions/0001-decision-rows-carry-record-ids.md).
"""

from __future__ import annotations

import binascii
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from manifests.errors import BadInputError
from manifests.files import atomic_path

ACTIONS = ("remove", "rewrite", "quarantine")
DUPLICATED = "duplicated_row"  # reason of a row that would have been kept, where no copy was to stay
OVERLAP = "benchmark_overlap"  # reason of a row that repeats a benchmark item, whichever copies of it went before
GOES_AFTER = (DUPLICATED, OVERLAP)  # reasons of rows that may have been kept over others in the same stage
SCHEMA = pa.schema(
    [
        pa.field(
            "row", pa.int64(), nullable=False
        ),  # index in the stage's input, over all its files, counting every row
        pa.field("record_id", pa.string()),  # null where the row could not be read, so has no record
        pa.field("action", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        # The kept row that this one repeats, in the same input; null where its witness is not in there.
        pa.field("witness_row", pa.int64()),
        pa.field("witness_id", pa.string()),
        pa.field("score", pa.float64()),
        pa.field("detail", pa.string()),
    ]
)
_HEX_ROWS = 1 << 24  # ids in one Arrow array of strings, which holds 2 GiB
_ROWS_PER_GROUP = 200_000  # under 5,000 rows a group, reading gets several times slower


def hex_ids(ids: np.ndarray) -> pa.Array | pa.ChunkedArray:
    """Return uint8 [N, 32] ids as hex strings; an id of 32 zero bytes means "no record" and becomes null.

    64 bytes a row: no Python string is made. More than _HEX_ROWS of them are several arrays, as Arrow's strings need.
    """
    parts = [_hex(ids[start : start + _HEX_ROWS]) for start in range(0, len(ids), _HEX_ROWS)]
    return parts[0] if len(parts) == 1 else pa.chunked_array(parts, pa.string())


def _hex(ids: np.ndarray) -> pa.Array:
    known = pa.array(np.asarray(ids).any(axis=1))
    offsets = np.arange(0, 64 * len(ids) + 1, 64, dtype=np.int32)
    text = binascii.hexlify(np.ascontiguousarray(ids).tobytes())
    return pa.StringArray.from_buffers(len(ids), pa.py_buffer(offsets), pa.py_buffer(text), known.buffers()[1])


def table(columns: Mapping[str, Any]) -> pa.Table:
    """Build a table of SCHEMA out of columns by name; columns left out are null. Rows are put in the order of `row`."""
    unknown = set(columns) - set(SCHEMA.names)
    if unknown:
        raise TypeError(f"no such decision columns: {sorted(unknown)}")
    rows = len(columns["row"])
    arrays = []
    for field in SCHEMA:
        given = columns.get(field.name)
        if given is None:
            arrays.append(pa.nulls(rows, field.type))
        elif isinstance(given, np.ndarray) and given.dtype == np.uint8 and given.ndim == 2:
            arrays.append(hex_ids(given))
        else:
            column = given if isinstance(given, (pa.Array, pa.ChunkedArray)) else pa.array(given)
            arrays.append(column.cast(field.type))
    return _sorted(pa.Table.from_arrays(arrays, schema=SCHEMA))


def empty() -> pa.Table:
    """Return a table of SCHEMA without rows."""
    return SCHEMA.empty_table()


def concat(tables: Sequence[pa.Table]) -> pa.Table:
    """Return several tables of SCHEMA as one, in the order of `row`."""
    return _sorted(pa.concat_tables([empty(), *tables]))


def _sorted(decisions: pa.Table) -> pa.Table:
    """The same in the order of `row`; a table that is in order already is not copied, since it may be large."""
    rows = decisions["row"].to_numpy()
    return decisions if (rows[1:] >= rows[:-1]).all() else decisions.sort_by("row")


_ARROW = " -> "
_NEW_ID = slice(64 + len(_ARROW), 128 + len(_ARROW))


def rewrite_detail(old: str, new: str, more: str = "") -> str:
    """Return the detail of a decision to rewrite: both record ids in hex, then what else there is to say."""
    return f"{old}{_ARROW}{new}; {more}" if more else f"{old}{_ARROW}{new}"


def rewritten_to(detail: str | None) -> str:
    """Return the new record id that the detail of a decision to rewrite names, "" where it names none."""
    return detail[_NEW_ID] if detail and detail[64 : _NEW_ID.start] == _ARROW else ""


def new_ids(decisions: pa.Table) -> pa.ChunkedArray:
    """Return the new record id of each decision to rewrite, null for other decisions: string [rows]."""
    ids = pc.utf8_slice_codeunits(decisions["detail"], _NEW_ID.start, _NEW_ID.stop)
    return pc.if_else(pc.equal(decisions["action"], "rewrite"), ids, pa.scalar(None, pa.string()))


def reasons(decisions: pa.Table, action: str) -> dict[str, int]:
    """Return how many rows went for each reason of one action, the most frequent first."""
    needed = decisions.select(["row", "reason"] if action == "rewrite" else ["reason"])  # a filter copies what it keeps
    chosen = needed.filter(pc.equal(decisions["action"], action))
    if action == "rewrite":  # a row may have several witnesses for one reason
        chosen = chosen.group_by(["row", "reason"]).aggregate([])
    counts = [(entry["values"], entry["counts"]) for entry in pc.value_counts(chosen["reason"]).to_pylist()]
    return dict(sorted(counts, key=lambda count: -count[1]))


def write(path: Path | str, decisions: pa.Table) -> None:
    """Write decisions as Parquet, whole or not at all."""
    if decisions.schema.names != SCHEMA.names:
        raise TypeError(f"not the columns of a decision: {decisions.schema.names}")
    with atomic_path(path) as temporary:
        pq.write_table(decisions.cast(SCHEMA), temporary, compression="zstd", row_group_size=_ROWS_PER_GROUP)


def read(path: Path | str) -> pa.Table:
    """Read decisions; raise BadInputError when the file is missing or is no such Parquet."""
    try:
        found = pq.read_table(path, columns=SCHEMA.names, partitioning=None)
        return found.cast(SCHEMA)
    except (OSError, pa.ArrowException, KeyError) as error:
        raise BadInputError(
            "the decisions of a stage cannot be read",
            seen=f"{path}: {str(error).splitlines()[0]}",
            next="run the stage again: its decisions come out the same",
        ) from error
