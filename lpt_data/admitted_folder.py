"""The files of an admitted folder, and the digests and proofs that its manifest carries."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from lpt_data.audit import AuditReport, as_row
from lpt_data.contracts.groups import as_bytes
from lpt_data.contracts.survey import SplitSurvey, Survey
from lpt_data.progress import Progress, silent
from lpt_data.write import write_canonical
from manifests.canon import FIELDS, record_ids
from manifests.digests import bytes_sha256, content_root, key_root, order_sha256
from manifests.errors import BadInputError
from manifests.files import fsync_file, fsync_folder

FAILING_ROWS = pa.schema(
    [
        pa.field("check_id", pa.string(), nullable=False),
        pa.field("split", pa.string(), nullable=False),
        pa.field("row", pa.int64(), nullable=False),  # index in the split's input, counting every row
        pa.field("record_id", pa.string()),  # "" where the row never became a record
        pa.field("file", pa.string()),
        pa.field("line", pa.int64()),
        pa.field("detail", pa.string()),
    ]
)
READ_BACK = 4096  # rows compared at a time


def digests(part: SplitSurvey, normaliser: str, max_length: int | None) -> dict[str, Any]:
    """Return the entry of one split in the manifest, its files left out."""
    keys = key_root(np.unique(part.keys, axis=0)) if len(part) else key_root(part.keys)
    tokenized = None
    if len(part.tokens):
        length, kept = part.tokens[:, 1], part.tokens[:, 3]
        tokenized = {
            "rows": len(part.tokens),
            "tokens": int((np.minimum(length, max_length) if max_length else length).sum()),
            "supervised": int(kept.sum()),
            "truncated_rows": int((length > max_length).sum()) if max_length else 0,
        }
    return {
        "rows_in": part.rows_in,
        "rows": len(part),
        "quarantined": len(part.quarantined),
        "content_root": content_root(part.ids).root,
        "order_sha256": order_sha256(part.ids),
        "key": {"normaliser": normaliser, "root": keys.root, "count": keys.count},
        "tokenized": tokenized,
    }


def disjointness(survey: Survey) -> list[dict[str, Any]]:
    """Return, for each pair of splits, by record and by key: distinct values on each side and how many both have."""
    proofs = []
    for a, b in combinations(survey.splits, 2):
        for by, column, root in (("record", "ids", content_root), ("key", "keys", key_root)):
            left, right = set(as_bytes(getattr(a, column))), set(as_bytes(getattr(b, column)))
            proofs.append(
                {
                    "a": a.name,
                    "b": b.name,
                    "by": by,
                    "n_a": len(left),
                    "n_b": len(right),
                    "root_a": root(_stack(left)).root,
                    "root_b": root(_stack(right)).root,
                    "intersection": len(left & right),
                }
            )
    return proofs


def _stack(values: set[bytes]) -> np.ndarray:
    return np.frombuffer(b"".join(sorted(values)), np.uint8).reshape(-1, 32)


def write_splits(folder: Path, survey: Survey, progress: Progress | None) -> dict[str, list[dict[str, Any]]]:
    """Write each split as canonical Parquet and read it back; return split -> the entries of its files.

    An entry is {path, bytes, sha256, rows, json_columns}; `json_columns` names columns beside the record that became
    JSON text, because their values differ in type. Raises BadInputError when the rows on disk are not those audited.
    """
    report = progress or silent
    written = {}
    for part in survey.splits:
        path = folder / f"{part.name}-00000.parquet"
        report(0, len(part), f"write {part.name}")
        extras = [extra for _, _, extra in part.dataset.records()] if part.has_extra else None
        as_json = write_canonical(path, survey.contract.kind, _again(part), part.ids, extras)
        _compare(path, survey.contract.kind, part)
        report(len(part), len(part), f"write {part.name}")
        written[part.name] = [{**_listed(path, rows=len(part)), "json_columns": as_json}]
    return written


def _again(part: SplitSurvey) -> Iterator[Mapping[str, Any]]:
    """Yield the records of a split a second time, as many as the first time."""
    count = 0
    for _, record, _ in part.dataset.records():
        count += 1
        if count <= len(part):
            yield record
    if count != len(part):
        raise _changed(part)


def _compare(path: Path, kind: str, part: SplitSurvey) -> None:
    """Recompute the ids from the columns on disk: what is admitted is what will be read, not what was meant."""
    position = 0
    for batch in _batches(path, kind):
        ids = record_ids(kind, batch)
        if not np.array_equal(ids, part.ids[position : position + len(ids)]):
            raise _changed(part)
        position += len(ids)
    if position != len(part):
        raise _changed(part)


def _batches(path: Path, kind: str) -> Iterator[list[dict[str, Any]]]:
    with pq.ParquetFile(path) as file:
        columns = [name for name in FIELDS[kind] if name in file.schema_arrow.names]
        for batch in file.iter_batches(READ_BACK, columns=columns):
            yield batch.to_pylist()


def _changed(part: SplitSurvey) -> BadInputError:
    return BadInputError(
        f"the rows of {part.name} written are not the rows that were audited",
        seen="the input changed while it was read, or cannot be read the same way twice",
        next="run the command again when nothing writes to the input",
    )


def write_side_files(folder: Path, report: AuditReport) -> list[dict[str, Any]]:
    """Write `buckets.json` and `failing_rows.parquet`; return their entries."""
    buckets = {s.name: content_root(s.ids).to_json() for s in report.survey.splits}
    (folder / "buckets.json").write_bytes(orjson.dumps(buckets, option=orjson.OPT_SORT_KEYS))
    rows = [{"check_id": name, **as_row(f)} for name, outcome in report.outcomes.items() for f in outcome.findings]
    pq.write_table(pa.Table.from_pylist(rows, schema=FAILING_ROWS), folder / "failing_rows.parquet", compression="zstd")
    return [_listed(folder / "buckets.json"), _listed(folder / "failing_rows.parquet", rows=len(rows))]


def _listed(path: Path, *, rows: int | None = None) -> dict[str, Any]:
    entry = {"path": path.name, "bytes": path.stat().st_size, "sha256": bytes_sha256(path)}
    return entry if rows is None else {**entry, "rows": rows}


def listed_files(body: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the entries of all files that a manifest names."""
    return [f for s in body["splits"].values() for f in s["files"]] + list(body["side_files"])


def seal(folder: Path, manifest: bytes, files: Sequence[Mapping[str, Any]]) -> None:
    """Write `manifest.json` and `SHA256SUMS` and flush everything, so that the folder can be renamed into place."""
    (folder / "manifest.json").write_bytes(manifest)
    sums = {**{f["path"]: f["sha256"] for f in files}, "manifest.json": bytes_sha256(folder / "manifest.json")}
    (folder / "SHA256SUMS").write_text("".join(f"{sums[name]}  {name}\n" for name in sorted(sums)), "utf-8")
    for path in folder.iterdir():
        fsync_file(path)
    fsync_folder(folder)


def check_unchanged(read: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Raise BadInputError when a source file is not the one that was hashed: the manifest would describe another."""
    for files in read.values():
        for file in files:
            if os.path.getsize(file["path"]) != file["bytes"] or bytes_sha256(file["path"]) != file["sha256"]:
                raise BadInputError(
                    "a source file changed while it was admitted",
                    seen=file["path"],
                    next="run the command again when nothing writes to it",
                )
