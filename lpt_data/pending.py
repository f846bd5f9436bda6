"""What a stage has decided, kept until its outputs stand: if killed while writing, it need not decide again."""

from __future__ import annotations

import zipfile
from dataclasses import asdict
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import orjson
import pyarrow as pa

from lpt_data.dataset import Dataset, Quarantine
from lpt_data.ordered import Order
from manifests.files import atomic_path

if TYPE_CHECKING:
    from lpt_data.stage import StageResult


def path_of(directory: Path, stage_id: str) -> Path:
    """Return where the note of a stage lies; it belongs to exactly these inputs, this config and this code."""
    return directory / "decisions" / f"{stage_id}.pending.npz"


def save(path: Path, dataset: Dataset, result: StageResult) -> None:
    """Write a result down, whole or not at all: an .npz whose tables are written as they are, never held twice."""
    told = {
        "extra": result.extra,
        "rows_in": dataset.rows_in,
        "first_rows": dataset.first_rows,
        "quarantined": [asdict(found) for found in dataset.quarantined()],
        "left_out": [] if result.order is None else list(result.order.left_out),
    }
    parts: dict[str, Any] = {
        "record_ids": result.record_ids,
        "decisions": result.decisions,
        "told": np.frombuffer(orjson.dumps(told, option=orjson.OPT_SERIALIZE_NUMPY), np.uint8),
    }
    if result.part is not None:
        parts["part"] = result.part
    if result.rewritten is not None:
        parts["rewritten"] = result.rewritten
    if result.order is not None:
        parts |= {"order": result.order.rows, "added": result.order.added}
        parts |= {} if result.order.ids is None else {"ids": result.order.ids}
    with atomic_path(path) as temporary, zipfile.ZipFile(temporary, "w") as file:
        for name, part in parts.items():
            with file.open(f"{name}.npy", "w", force_zip64=True) as member:
                if isinstance(part, pa.Table):
                    _pack(part, member)
                else:
                    np.lib.format.write_array(member, np.asanyarray(part), allow_pickle=False)


def load(path: Path, dataset: Dataset) -> StageResult | None:
    """Return the result written down and tell the dataset what was found in it then; None without a note."""
    from lpt_data.stage import StageResult

    try:
        with np.load(path, allow_pickle=False) as note:
            arrays = {name: note[name] for name in note.files}
        told = orjson.loads(arrays["told"].tobytes())
        decisions = _unpacked(arrays["decisions"])
        rewritten = _unpacked(arrays["rewritten"]) if "rewritten" in arrays else None
        order = None
        if "order" in arrays:
            added, left_out = _unpacked(arrays["added"]), tuple(told["left_out"])
            order = Order(arrays["order"], added, left_out, arrays.get("ids"))
        quarantined = [Quarantine(**found) for found in told["quarantined"]]
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile, pa.ArrowException):
        return None  # no note, or one that cannot be used: deciding again gives the same
    dataset.restore(told["rows_in"], told["first_rows"], quarantined)
    return StageResult(
        decisions, arrays["record_ids"], told["extra"], arrays.get("part"), rewritten=rewritten, order=order
    )


def _pack(table: pa.Table, member: IO[bytes]) -> None:
    """Write a table as an array of the bytes of an Arrow file."""
    size = pa.MockOutputStream()
    with pa.ipc.new_file(size, table.schema) as writer:
        writer.write_table(table)
    header = {"descr": "|u1", "fortran_order": False, "shape": (size.size(),)}
    np.lib.format.write_array_header_1_0(member, header)
    with pa.PythonFile(member, "w") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)


def _unpacked(packed: np.ndarray) -> pa.Table:
    return pa.ipc.open_file(pa.py_buffer(packed.tobytes())).read_all()
