"""The only door for data: an admitted split whose bytes are what was admitted, or a refusal that names the rows.

The manifest and the files beside it are enough; no catalog is needed to train on a folder that was carried here.
`load_unadmitted` is the one way around admission, and what comes through it is marked for good.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from manifests.canon import CANON, FIELDS, canonical_bytes, record_ids
from manifests.catalog import Catalog
from manifests.digests import ContentRoot, bucket_of, content_root, differing_buckets, ids_from_hex, order_sha256
from manifests.errors import BadInputError, RecordError, RefusedError

if TYPE_CHECKING:
    from manifests.admission import LoadedManifest

# Which contracts an algorithm can train on.
CONTRACTS: dict[str, tuple[str, ...]] = {"sft": ("sft", "text"), "grpo": ("rlvr",)}
_SHOWN = 10  # rows named in a refusal


@dataclass(frozen=True)
class AdmittedSplit:
    """The rows of one split and what is known about them; `manifest_id` is None when they were not admitted."""

    name: str
    version: int
    split: str
    contract: str
    manifest_id: str | None
    verdict: str
    table: pa.Table
    record_ids: list[str]
    content_root: str
    order_sha256: str
    tokenizer: dict[str, Any] | None
    verified: Literal["admitted", "unadmitted"]

    @property
    def ref(self) -> str:
        """How the command line names it."""
        return f"{self.name}@{self.version}:{self.split}" if self.verified == "admitted" else self.name

    @property
    def tainted(self) -> bool:
        """Whether everything made from these rows is marked."""
        return self.verified != "admitted"

    def __len__(self) -> int:
        return self.table.num_rows

    def rows(self) -> Iterator[dict[str, Any]]:
        """The canonical records in order, one dict each, without the other columns and without nulls at the top."""
        names = [name for name in FIELDS[self.contract] if name in self.table.column_names]
        for batch in self.table.select(names).to_batches(max_chunksize=1024):
            for row in batch.to_pylist():
                yield {name: value for name, value in row.items() if value is not None}


def load_split(ref: str, *, catalog: Catalog | None = None) -> AdmittedSplit:
    """The split `NAME[@VERSION]:SPLIT` or `PATH/manifest.json:SPLIT`, re-checked: bytes first, then content and order.

    Raises `RefusedError` (exit 4) naming the rows that differ, or for a rejected manifest; `BadInputError` for an
    unknown one or a file that cannot be read.
    """
    from manifests.admission import load_manifest, parse_split_ref

    manifest_ref, split = parse_split_ref(ref)
    loaded = load_manifest(catalog, manifest_ref)
    body = loaded.body
    if body["canon"] != CANON:
        raise RefusedError(
            "the split was admitted under another definition of a record", seen=f"{body['canon']}, this is {CANON}",
            next="admit it again with this version",
        )  # fmt: skip
    if split not in body["splits"]:
        raise BadInputError(
            f"{manifest_ref} has no split of that name", seen=split, next=f"one of {', '.join(body['splits'])}"
        )
    if body["verdict"] == "reject":
        failed = [check["id"] for check in body["checks"] if check["status"] in ("fail", "error")]
        raise RefusedError(
            f"{body['name']}@{body['version']} was rejected and cannot be trained on", seen=", ".join(failed),
            next=f"lpt manifest show {body['name']}@{body['version']}",
        )  # fmt: skip
    entry = body["splits"][split]
    files = [_File.read(loaded.folder, item) for item in entry["files"]]
    contract = body["contract"]
    if not all(file.intact for file in files):
        raise _refusal(ref, loaded, split, files)
    table = pa.concat_tables([file.table(ref) for file in files], promote_options="default")
    ids = record_ids(contract, _records(contract, table))
    if content_root(ids).root != entry["content_root"] or order_sha256(ids) != entry["order_sha256"]:
        raise _refusal(ref, loaded, split, files)
    return AdmittedSplit(
        name=body["name"], version=body["version"], split=split, contract=contract, manifest_id=loaded.id,
        verdict=body["verdict"], table=table, record_ids=[row.tobytes().hex() for row in ids],
        content_root=entry["content_root"], order_sha256=entry["order_sha256"], tokenizer=body.get("tokenizer"),
        verified="admitted",
    )  # fmt: skip


def load_unadmitted(path: str | Path, contract: str) -> AdmittedSplit:
    """The rows of a Parquet or JSONL file in the canonical layout of `contract`, marked as not admitted.

    Raises `BadInputError` at the first row that is no record of the contract: nothing is mapped and nothing skipped.
    """
    path = Path(path)
    try:
        rows = pq.read_table(path).to_pylist() if path.suffix == ".parquet" else _json_rows(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise BadInputError("the file cannot be read", seen=f"{path}: {error}", next="check the path") from error
    records = []
    for number, row in enumerate(rows):
        try:
            records.append(orjson.loads(canonical_bytes(contract, row)))
        except RecordError as error:
            raise BadInputError(
                f"row {number} of {path} is no {contract} record: {error.what}", seen=error.seen or error.field,
                next=f"give rows with {', '.join(FIELDS[contract])}, or admit the file, which maps other layouts",
            ) from error  # fmt: skip
    if not records:
        raise BadInputError("the file has no rows", seen=str(path), next="check the path")
    ids = record_ids(contract, records)
    return AdmittedSplit(
        name=str(path), version=0, split="", contract=contract, manifest_id=None, verdict="unadmitted",
        table=pa.Table.from_pylist(records), record_ids=[row.tobytes().hex() for row in ids],
        content_root=content_root(ids).root, order_sha256=order_sha256(ids), tokenizer=None, verified="unadmitted",
    )  # fmt: skip


def check_contract(split: AdmittedSplit, algorithm: str) -> None:
    """Raise `RefusedError` when a split of this contract is not what the algorithm trains on."""
    if split.contract not in CONTRACTS[algorithm]:
        fitting = [name for name, contracts in CONTRACTS.items() if split.contract in contracts]
        raise RefusedError(
            f"{split.ref} was admitted for {split.contract}, not for {' or '.join(CONTRACTS[algorithm])}",
            seen=f"lpt train {algorithm}",
            next=f"lpt train {fitting[0]}, or admit the data with --contract {CONTRACTS[algorithm][0]}" if fitting
            else f"admit the data with --contract {CONTRACTS[algorithm][0]}",
        )  # fmt: skip


def check_tokenizer(split: AdmittedSplit, fingerprint: str, name: str = "") -> None:
    """Raise `RefusedError` when the split was admitted with a tokenizer of other contents; names do not matter."""
    admitted = (split.tokenizer or {}).get("fingerprint")
    if admitted is not None and admitted != fingerprint:
        raise RefusedError(
            f"{split.ref} was admitted with another tokenizer",
            seen=f"{(split.tokenizer or {}).get('name')} {admitted[:12]}…, the model's is {name} {fingerprint[:12]}…",
            next="train the model whose tokenizer it was admitted with, or admit it again with --tokenizer of this one",
        )  # fmt: skip


@dataclass(frozen=True)
class _File:
    """One file of a split: its bytes as read once, so that what was hashed is what is parsed."""

    path: str
    data: bytes
    sha256: str
    intact: bool

    @classmethod
    def read(cls, folder: Path, item: Mapping[str, Any]) -> _File:
        name = PurePosixPath(item["path"])
        full = (folder / name).resolve()
        if name.is_absolute() or ".." in name.parts or not full.is_relative_to(folder.resolve()):
            raise RefusedError(
                "the manifest names a file outside its own folder", seen=item["path"], next="do not trust this manifest"
            )
        try:
            data = full.read_bytes()
        except OSError as error:
            raise BadInputError(
                "a file of the admitted split cannot be read", seen=f"{full}: {error.strerror}",
                next="copy the admitted folder again, or admit the data again",
            ) from error  # fmt: skip
        digest = hashlib.sha256(data).hexdigest()
        return cls(item["path"], data, digest, digest == item["sha256"])

    def table(self, ref: str) -> pa.Table:
        """The rows. Raises `RefusedError` when the bytes are no Parquet file."""
        try:
            return pq.read_table(io.BytesIO(self.data))
        except (pa.ArrowException, OSError) as error:
            raise RefusedError(
                f"{ref} is not what was admitted", seen=f"{self.path} is no Parquet file: {error}"[:300],
                next="copy the admitted folder again, or admit the data again",
            ) from error  # fmt: skip


def _refusal(ref: str, loaded: LoadedManifest, split: str, files: list[_File]) -> RefusedError:
    """Why the files are not the split: the rows that were edited, added, removed or reordered, or bytes alone."""
    contract, entry = loaded.body["contract"], loaded.body["splits"][split]
    rows = [(file.path, n, row) for file in files for n, row in enumerate(_records(contract, file.table(ref), True))]
    seen, labels, lines = [], [], []
    for path, number, row in rows:
        label = row.pop("record_id", None)
        try:
            seen.append(record_ids(contract, [row])[0])
            labels.append(label)
        except RecordError as error:
            lines.append(f"{path} row {number}: no longer a {contract} record ({error.reason})")
            seen.append(np.zeros(32, np.uint8))
            labels.append(label)
    ids = np.stack(seen) if seen else np.empty((0, 32), np.uint8)
    if content_root(ids).root == entry["content_root"]:
        if order_sha256(ids) == entry["order_sha256"]:
            changed = ", ".join(file.path for file in files if not file.intact)
            lines.append(f"only the bytes of {changed} differ: all {len(ids)} rows and their order are as admitted")
        else:
            lines.append(f"the same {len(ids)} rows in another order")
    else:
        lines += _differing_rows(ids, labels, rows, _admitted_root(loaded, split), entry["rows"])
    return RefusedError(
        f"{ref} is not what was admitted", seen="\n        ".join(lines),
        next="copy the admitted folder again, or admit the changed data as a new version with lpt admit",
    )  # fmt: skip


def _differing_rows(
    ids: np.ndarray, labels: list[str | None], rows: list[Any], admitted: ContentRoot | None, rows_admitted: int
) -> list[str]:
    """One line per row that was edited or added, and per bucket that lost rows."""
    root = content_root(ids)
    suspicious = set(differing_buckets(root, admitted)) if admitted else set(range(4096))
    known = {label for label in labels if label}
    lines, hidden = [], 0
    for (path, number, _), digest, label, bucket in zip(rows, ids, labels, bucket_of(ids), strict=True):
        now = digest.tobytes().hex()
        if now == label and int(bucket) not in suspicious:
            continue
        if now != label and label:
            line = f"{path} row {number}: edited, admitted as {label[:16]}, now {now[:16]}"
        elif admitted and int(bucket) in suspicious and _extra(root, admitted, int(bucket)) > 0:
            line = f"{path} row {number}: added, or beside an added row: {now[:16]}"
        else:
            continue
        lines.append(line)
    hidden = max(0, len(lines) - _SHOWN)
    lines = lines[:_SHOWN] + ([f"and {hidden} more rows"] if hidden else [])
    missing = _lost(ids_from_hex(sorted(known)), labels, admitted) if admitted else []
    lines += [f"removed: {count} row(s) whose id starts with {bucket:03x}" for bucket, count in missing[:_SHOWN]]
    if len(missing) > _SHOWN:
        lines.append(f"and rows of {len(missing) - _SHOWN} more buckets")
    return [f"{len(ids)} rows, {rows_admitted} were admitted", *lines]


def _extra(root: ContentRoot, admitted: ContentRoot, bucket: int) -> int:
    return root.buckets.get(bucket, ("", 0))[1] - admitted.buckets.get(bucket, ("", 0))[1]


def _lost(known: np.ndarray, labels: list[str | None], admitted: ContentRoot) -> list[tuple[int, int]]:
    """The (bucket, rows) that the admitted split has and the files' record ids, as they were written, do not."""
    written = content_root(ids_from_hex([label for label in labels if label]))
    return [
        (bucket, admitted.buckets[bucket][1] - written.buckets.get(bucket, ("", 0))[1])
        for bucket in differing_buckets(admitted, written)
        if bucket in admitted.buckets and admitted.buckets[bucket][1] > written.buckets.get(bucket, ("", 0))[1]
    ]


def _admitted_root(loaded: LoadedManifest, split: str) -> ContentRoot | None:
    """The bucket hashes of the split, when the side file is there and is the one the manifest names."""
    path = loaded.folder / "buckets.json"
    try:
        root = ContentRoot.from_json(orjson.loads(path.read_bytes())[split])
    except (OSError, ValueError, KeyError, TypeError, BadInputError):
        return None  # the rows are then compared with their record_id column alone
    return root if root.root == loaded.body["splits"][split]["content_root"] else None


def _records(contract: str, table: pa.Table, with_id: bool = False) -> Iterator[dict[str, Any]]:
    wanted = [*FIELDS[contract], *(["record_id"] if with_id else [])]
    names = [name for name in wanted if name in table.column_names]
    for batch in table.select(names).to_batches(max_chunksize=1024):
        yield from batch.to_pylist()


def _json_rows(path: Path) -> list[dict[str, Any]]:
    rows = []
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                rows.append(orjson.loads(line))
            except orjson.JSONDecodeError as error:
                raise BadInputError(
                    "a line is not JSON", seen=f"{path}:{number}: {error}", next="correct or remove the line"
                ) from error
            if not isinstance(rows[-1], dict):
                raise BadInputError("a line is not a JSON object", seen=f"{path}:{number}", next="one object a line")
    return rows
