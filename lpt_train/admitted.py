"""The only door for data: an admitted split whose bytes are what was admitted, or a refusal that names the rows.

The manifest and the files beside it are enough; no catalog is needed to train on a folder that was carried here.
`load_unadmitted` is the one way around admission, and what comes through it is marked for good.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from manifests.admission import LoadedManifest, load_manifest, parse_split_ref, verify
from manifests.arrow import plain_rows
from manifests.canon import CANON, FIELDS, canonical_bytes, kind_of, record_ids
from manifests.catalog import Catalog
from manifests.digests import content_root, order_sha256
from manifests.errors import NOT_GIVEN, BadInputError, RecordError, RefusedError

# Which kinds of record an algorithm can train on.
CONTRACTS: dict[str, tuple[str, ...]] = {
    "sft": ("sft", "text"),
    "grpo": ("rlvr",),
    "dpo": ("preference",),
    "simpo": ("preference",),
    "cpo": ("preference",),
    "orpo": ("preference",),
    "kto": ("preference", "kto"),
    "reward": ("preference",),
}
# Columns beside the records that an algorithm reads; what is not admitted keeps these, too.
BESIDE = ("margin",)
# Splits that measure besides `test`: the test problems again, with their numbers in another order.
_MEASURES = ("order_robustness",)
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
    schedule: dict[str, Any] | None = None  # lpt.mix-schedule/1, of the mixture that wrote the rows
    tokenized: dict[str, Any] | None = None  # what its admission counted with a tokenizer

    @property
    def kind(self) -> str:
        """Kind of the records."""
        return kind_of(self.contract)

    @property
    def ref(self) -> str:
        """How the command line names it."""
        return f"{self.name}@{self.version}:{self.split}" if self.verified == "admitted" else self.name

    @property
    def identity(self) -> dict[str, str]:
        """What a record says of the split that something was measured on."""
        return {"ref": self.ref, "content_root": self.content_root}

    @property
    def max_length(self) -> int | None:
        """The tokens that its rows may have, as the admission was told; None when it was told nothing."""
        return (self.tokenizer or {}).get("max_length")

    @property
    def tainted(self) -> bool:
        """Whether everything made from these rows is marked."""
        return self.verified != "admitted"

    def __len__(self) -> int:
        return self.table.num_rows

    def rows(self) -> Iterator[dict[str, Any]]:
        """The canonical records in order, one dict each, without the other columns and without nulls at the top."""
        for row in _records(self.kind, self.table):
            yield {name: value for name, value in row.items() if value is not None}

    def take(self, places: Sequence[int]) -> AdmittedSplit:
        """Some of its rows, in that order, under its name and digests; no schedule is theirs."""
        table, ids = self.table.take(pa.array(places, pa.int64())), [self.record_ids[at] for at in places]
        return replace(self, table=table, record_ids=ids, schedule=None)

    def beside(self, name: str) -> list[Any] | None:
        """A column that is no part of the records, in their order; None where the split has none of that name."""
        return self.table.column(name).to_pylist() if name in self.table.column_names else None


def load_split(ref: str, *, catalog: Catalog | None = None, contract: str = "sft") -> AdmittedSplit:
    """The split `NAME[@VERSION]:SPLIT` or `PATH/manifest.json:SPLIT`, re-checked: bytes first, then content and order.
    Whoever names a file that was not admitted is told how to admit it for `contract`.

    Raises `RefusedError` (exit 4) naming the rows that differ, or for a rejected manifest; `BadInputError` for an
    unknown one or a file that cannot be read.
    """
    manifest_ref, split = parse_split_ref(ref, catalog, contract)
    loaded = load_manifest(catalog, manifest_ref)
    body = loaded.body
    if body["canon"] != CANON:
        raise RefusedError(
            "the split was admitted under another definition of a record", seen=f"{body['canon']}, this is {CANON}",
            next="admit it again with this version",
        )  # fmt: skip
    _check_sum(loaded)
    entry, contract = loaded.split(split, catalog), body["contract"]
    if body["verdict"] == "reject":
        failed = [check["id"] for check in body["checks"] if check["status"] in ("fail", "error")]
        raise RefusedError(
            f"{body['name']}@{body['version']} was rejected and cannot be trained on", seen=", ".join(failed),
            next=f"lpt manifest show {body['name']}@{body['version']}",
        )  # fmt: skip
    if not entry["files"] or not entry["rows"]:
        raise BadInputError(f"{ref} has no rows", seen=f"{entry['rows']} rows", next="train on another split")
    tables = [_intact_table(ref, loaded, split, item) for item in entry["files"]]
    table = pa.concat_tables(tables, promote_options="default")
    try:
        ids = record_ids(loaded.kind, _records(loaded.kind, table))
    except RecordError as error:
        raise _refusal(ref, loaded, split) from error
    if content_root(ids).root != entry["content_root"] or order_sha256(ids) != entry["order_sha256"]:
        raise _refusal(ref, loaded, split)
    return AdmittedSplit(
        name=body["name"], version=body["version"], split=split, contract=contract, manifest_id=loaded.id,
        verdict=body["verdict"], table=table, record_ids=[row.tobytes().hex() for row in ids],
        content_root=entry["content_root"], order_sha256=entry["order_sha256"], tokenizer=body.get("tokenizer"),
        verified="admitted", schedule=entry.get("schedule"), tokenized=entry.get("tokenized"),
    )  # fmt: skip


def load_unadmitted(path: str | Path, *contracts: str) -> AdmittedSplit:
    """The rows of a Parquet or JSONL file in the canonical layout of a contract, marked as not admitted.

    Of several contracts it is the one that the first row has most fields of. Raises `BadInputError` at the first row
    that is no record of the contract: nothing is mapped and nothing skipped.
    """
    path = Path(path)
    try:
        rows = plain_rows(pq.read_table(path)) if path.suffix == ".parquet" else _json_rows(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise BadInputError("the file cannot be read", seen=f"{path}: {error}", next="check the path") from error
    contract = max(contracts, key=lambda name: len(set(FIELDS[name]) & set(rows[0] if rows else ())))
    records = []
    for number, row in enumerate(rows):
        try:
            records.append(orjson.loads(canonical_bytes(contract, row)))
        except RecordError as error:
            raise BadInputError(
                f"row {number} of {path} is no {contract} record: {error.what}",
                seen=error.seen or error.field or NOT_GIVEN,
                next=f"give rows with {', '.join(FIELDS[contract])}, or admit the file, which maps other layouts",
            ) from error  # fmt: skip
    if not records:
        raise BadInputError("the file has no rows", seen=str(path), next="check the path")
    more = {name: _column([row.get(name) for row in rows]) for name in BESIDE if any(name in row for row in rows)}
    return unadmitted(contract, records, str(path), more)


def unadmitted(
    contract: str, records: Sequence[Mapping[str, Any]], name: str, beside: Mapping[str, Any] | None = None
) -> AdmittedSplit:
    """Canonical records of a contract as a split that is marked as not admitted, with columns ``beside`` them."""
    ids = record_ids(contract, records)
    # By name: `Table.from_pylist` takes the columns of the first record for those of all.
    columns: dict[str, Any] = {field: [record.get(field) for record in records] for field in FIELDS[contract]}
    table = pa.table(columns | dict(beside or {}))
    return AdmittedSplit(
        name=name, version=0, split="", contract=contract, manifest_id=None, verdict="unadmitted",
        table=table, record_ids=[row.tobytes().hex() for row in ids],
        content_root=content_root(ids).root, order_sha256=order_sha256(ids), tokenizer=None, verified="unadmitted",
    )  # fmt: skip


def kinds_beside(contract: str) -> tuple[str, ...]:
    """The kinds of record that an algorithm takes which takes those of a contract, such as text beside sft."""
    return tuple(dict.fromkeys(kind for kinds in CONTRACTS.values() if contract in kinds for kind in kinds))


def check_contract(split: AdmittedSplit, algorithm: str) -> None:
    """Raise `RefusedError` when a split of this contract is not what the algorithm trains on."""
    if split.kind not in CONTRACTS[algorithm]:
        fitting = [name for name, kinds in CONTRACTS.items() if split.kind in kinds]
        raise RefusedError(
            f"{split.ref} was admitted for {split.contract}, not for {' or '.join(CONTRACTS[algorithm])}",
            seen=f"lpt train {algorithm}",
            next=f"lpt train {fitting[0]}, or admit the data with --contract {CONTRACTS[algorithm][0]}" if fitting
            else f"admit the data with --contract {CONTRACTS[algorithm][0]}",
        )  # fmt: skip


def check_trains(split: AdmittedSplit, algorithm: str) -> None:
    """Raise `RefusedError` when the algorithm must not train on a split: another contract, or one that measures."""
    check_contract(split, algorithm)
    if split.split in _MEASURES or "test" in split.split.split("_"):
        raise RefusedError(
            "a test split measures, it does not train", seen=split.ref,
            next=f"--admitted {split.name}@{split.version}:train; lpt eval measures on {split.ref}",
        )  # fmt: skip


def split_notes(split: AdmittedSplit, evaluated: AdmittedSplit | None, max_length: int | None = None) -> list[str]:
    """What a run should say about its rows: a split that others choose by, rows that are trained and measured on, a
    length that is not the one whose cuts the admission measured."""
    notes = []
    if max_length is not None and split.max_length not in (None, max_length):
        notes.append(f"{split.ref} was admitted with max_length {split.max_length}; this run has {max_length}")
    if split.split == "validation":
        notes.append(f"{split.ref} is trained on, so that it can no longer choose between models")
    shared = len(set(split.record_ids) & set(evaluated.record_ids)) if evaluated is not None else 0
    if shared:
        notes.append(f"{shared} rows that the run is evaluated on are trained on as well")
    return notes


def check_tokenizer(split: AdmittedSplit, fingerprint: str, name: str = "") -> None:
    """Raise `RefusedError` when the split was admitted with a tokenizer of other contents; names do not matter."""
    admitted = (split.tokenizer or {}).get("fingerprint")
    if admitted is not None and admitted != fingerprint:
        raise RefusedError(
            f"{split.ref} was admitted with another tokenizer",
            seen=f"{(split.tokenizer or {}).get('name')} {admitted[:12]}…, the model's is {name} {fingerprint[:12]}…",
            next="train the model whose tokenizer it was admitted with, or admit it again with --tokenizer of this one",
        )  # fmt: skip


def _check_sum(loaded: LoadedManifest) -> None:
    """Raise `RefusedError` when the `SHA256SUMS` beside a manifest names another one: its verdict may be edited too."""
    try:
        lines = (loaded.folder / "SHA256SUMS").read_bytes().splitlines()
    except OSError:
        return  # a folder without it is carried by its manifest's id alone; `lpt manifest verify` says so
    sums = [
        line[:64].decode("ascii", "replace") for line in lines if line[64:] in (b"  manifest.json", b" *manifest.json")
    ]
    if sums and loaded.id not in sums:
        raise RefusedError(
            f"{loaded.ref} is not the manifest that SHA256SUMS names", seen=f"{loaded.id[:16]}…, not {sums[0][:16]}…",
            next="copy the admitted folder again from where it was made",
        )  # fmt: skip


def _intact_table(ref: str, loaded: LoadedManifest, split: str, item: Mapping[str, Any]) -> pa.Table:
    """The rows of one file; the bytes are read once, so that what was hashed is what is parsed."""
    path = loaded.file(item["path"])
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BadInputError(
            "a file of the admitted split cannot be read", seen=f"{path}: {error.strerror}",
            next="copy the admitted folder again, or admit the data again",
        ) from error  # fmt: skip
    if hashlib.sha256(data).hexdigest() != item["sha256"]:
        raise _refusal(ref, loaded, split)
    try:
        return pq.read_table(io.BytesIO(data))
    except pa.ArrowException as error:
        raise BadInputError("an admitted file is no Parquet file", seen=f"{path}: {error}"[:300]) from error


def _refusal(ref: str, loaded: LoadedManifest, split: str) -> RefusedError:
    """Why the files are not the split: the rows that were edited, added, removed or reordered, or the bytes alone."""
    report = verify(loaded)
    paths = [item["path"] for item in loaded.split(split)["files"]]
    rows = [row for row in report.rows if row.split == split]
    named = {str(row) for row in report.rows}
    said = [p for p in report.problems if p.startswith((f"{split} ", f"{split}: ", *paths)) and p not in named]
    lines = [*said, *(str(row) for row in rows[:_SHOWN])]
    if len(rows) > _SHOWN:
        lines.append(f"{split}: and {len(rows) - _SHOWN:,} rows more (lpt manifest verify names them)")
    if all(line.startswith(tuple(paths)) for line in said):
        lines.append(f"only the bytes differ: all {loaded.split(split)['rows']:,} rows and their order are as admitted")
    return RefusedError(
        f"{ref} is not what was admitted", seen="\n        ".join(lines),
        next="copy the admitted folder again, or admit the changed data as a new version with lpt admit",
    )  # fmt: skip


def _records(kind: str, table: pa.Table) -> Iterator[dict[str, Any]]:
    """The canonical columns, row by row."""
    names = [name for name in FIELDS[kind] if name in table.column_names]
    for batch in table.select(names).to_batches(max_chunksize=1024):
        yield from batch.to_pylist()


def _column(values: list[Any]) -> pa.Array:
    """Values as they are, or as text where they differ in type, as an admission writes them."""
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return pa.array([None if value is None else str(value) for value in values])


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
