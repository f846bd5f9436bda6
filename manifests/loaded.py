"""A manifest and the folder that it describes, found by name, by id or by path; nothing in it is believed before it
is checked.

A manifest may come from anywhere. Its shape is checked when it is loaded, and a path in it that is absolute, climbs
out of the folder or leads out through a link is refused before a byte behind it is read.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from shlex import quote
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from manifests.arrow import plain_rows
from manifests.canon import FIELDS, kind_of, record_id, record_ids
from manifests.catalog import Catalog
from manifests.errors import BadInputError, LptError, RecordError, RefusedError, UsageError
from manifests.objects import object_id, parse_object

TYPE = "lpt.admission/1"
BATCH = 4096  # rows held as Python objects at a time
_DIGEST = re.compile(r"[0-9a-f]{64}")
_REF = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(?:@(?P<version>[0-9]{1,9}))?")
_LONGEST_NAME = 255  # bytes that a file system takes for one name
_LONGEST_PATH = 4096  # and for a path, with the byte that ends it
_VERDICTS = ("accept", "tune", "reject")
_TOKENIZED = ("tokens", "rows", "supervised", "truncated_rows")
_STATUSES = ("pass", "warn", "fail", "error", "skipped")


@dataclass(frozen=True)
class LoadedManifest:
    """A manifest: `id` is the sha256 of its bytes, `folder` where its files lie, `path` its `manifest.json`."""

    id: str
    body: dict[str, Any]
    folder: Path
    path: Path

    @property
    def ref(self) -> str:
        """NAME@VERSION."""
        return f"{self.body['name']}@{self.body['version']}"

    def file(self, written: str) -> Path:
        """Return the place of a path that the manifest names; raise RefusedError when it is outside the folder."""
        return inside(self.folder, written)

    @property
    def kind(self) -> str:
        """Kind of the canonical records."""
        return kind_of(self.body["contract"])

    def split(self, name: str, catalog: Catalog | None = None) -> dict[str, Any]:
        """Return the entry of a split or raise BadInputError naming those that there are, and the other versions in
        the catalog that have it."""
        splits = self.body["splits"]
        if name not in splits:
            advice = f"one of: {', '.join(splits) or 'none'}"
            found = catalog.find(TYPE, strict=False, name=self.body["name"]) if catalog is not None else ()
            others = [f"{body['name']}@{body['version']}" for _, body in found if name in body["splits"]]
            if others:
                advice += f"; {' and '.join(others)} {'have' if len(others) > 1 else 'has'} {name}: {others[0]}:{name}"
            raise BadInputError(f"{self.ref} has no split of that name", seen=name, next=advice)
        return splits[name]

    def rows(self, split: str) -> Iterator[Rows]:
        """Yield the rows of a split in order, in batches; raise BadInputError for a file that is no Parquet."""
        for entry in self.split(split)["files"]:
            yield from read_rows(self.file(entry["path"]), entry["path"], self.kind)


@dataclass(frozen=True)
class Rows:
    """A batch of one Parquet file: canonical columns as dicts, the `record_id` column as it is stored, other
    columns."""

    path: str  # as the manifest names it
    start: int  # row of the file that the batch starts with
    records: list[dict[str, Any]]
    stored: list[str | None]
    extra: list[dict[str, Any]]

    def ids(self, kind: str) -> np.ndarray:
        """Recompute the record ids, uint8 [n, 32]; zeros where a row is no record of the kind."""
        try:
            return record_ids(kind, self.records)
        except RecordError:
            return np.frombuffer(b"".join(_id_or_zeros(kind, row) for row in self.records), np.uint8).reshape(-1, 32)


def load_manifest(catalog: Catalog | None, ref: str | Path) -> LoadedManifest:
    """Find a manifest by NAME (its newest version), NAME@VERSION, object id, or the path of `manifest.json` or its
    folder.

    Raises BadInputError, with names that are close, when there is none.
    """
    text = str(ref)
    path = Path(text)
    if not _can_be_there(path):
        raise BadInputError(
            "there is no manifest of that name", seen=text, next="lpt manifest list shows what there is"
        )
    if is_path(text):
        return _from_path(path / "manifest.json" if path.is_dir() else path)
    if catalog is None:
        raise BadInputError("not the path of a manifest", seen=text, next="name DIR/manifest.json, or give a catalog")
    match = _REF.fullmatch(text)
    if match is None:
        raise UsageError("not a manifest", seen=text, next="NAME, NAME@VERSION, an object id, or DIR/manifest.json")
    wanted: dict[str, Any] = {"name": match["name"]}
    if match["version"]:
        wanted["version"] = int(match["version"])
    newest = max(catalog.find(TYPE, **wanted), key=lambda found: found[1]["version"], default=None)
    if newest is not None:
        return _in_catalog(catalog, *newest)
    if re.fullmatch(r"[0-9a-f]{4,64}", text):
        found = catalog.objects.resolve(text) if len(text) < 64 else text
        return _in_catalog(catalog, found, catalog.get(found))
    raise _unknown(catalog, text, match["name"])


def is_path(text: str) -> bool:
    """Return whether a manifest is named by its place and not by what a catalog calls it."""
    path = Path(text)
    return _can_be_there(path) and (
        path.suffix == ".json" or path.is_file() or "/" in text or (path / "manifest.json").is_file()
    )


def _can_be_there(path: Path) -> bool:
    """Return whether a file system can hold the path; one that cannot raises where it is only looked for."""
    short = all(len(os.fsencode(part)) <= _LONGEST_NAME for part in path.parts)
    return short and "\0" not in str(path) and len(os.fsencode(path / "manifest.json")) < _LONGEST_PATH


def parse_split_ref(ref: str, catalog: Catalog | None = None, contract: str = "sft") -> tuple[str, str]:
    """Split `NAME[@VERSION]:SPLIT` or `DIR/manifest.json:SPLIT` in two; raise UsageError when there is no split in
    it, which says the splits of a manifest, and of a file how it is admitted for the contract."""
    manifest, colon, split = ref.rpartition(":")
    path = Path(manifest if colon else ref)
    if is_path(str(path)) and path.is_file() and path.suffix != ".json":
        admit = f"lpt admit NAME --contract {contract} --train {quote(str(path))}"
        raise UsageError("a file is not an admitted split", seen=ref, next=f"{admit}; then NAME:train")
    if not colon or not manifest or not split or "/" in split:
        raise UsageError("not a split", seen=ref, next=_splits_of(ref, catalog))
    return manifest, split


def _splits_of(ref: str, catalog: Catalog | None) -> str:
    """The splits of what was named without one; examples where nothing has that name."""
    try:
        loaded = load_manifest(catalog, ref)
    except LptError:
        return "e.g. NAME:train, NAME@2:train, DIR/manifest.json:train"
    splits = list(loaded.body["splits"])
    first = "train" if "train" in splits else splits[0]
    return f"{ref}:{first}; {loaded.ref} has {', '.join(splits)}"


def inside(folder: Path, written: str) -> Path:
    """Return `folder / written`, or raise RefusedError when that is not inside the folder, links followed."""
    posix, windows = PurePosixPath(written), PureWindowsPath(written)
    path = folder / written
    safe = written and not posix.is_absolute() and not windows.anchor and ".." not in (*posix.parts, *windows.parts)
    safe = safe and all(len(os.fsencode(part)) <= _LONGEST_NAME for part in posix.parts)
    if not safe or "\0" in written or not path.resolve().is_relative_to(folder.resolve()):
        raise RefusedError(
            "the manifest names a file outside its own folder", seen=written, next="do not trust this manifest"
        )
    return path


def read_rows(path: Path, name: str, kind: str) -> Iterator[Rows]:
    """Yield the rows of a canonical Parquet file in batches."""
    try:
        with pq.ParquetFile(path) as file:
            start = 0
            for batch in file.iter_batches(BATCH):
                rows = plain_rows(batch)
                yield Rows(
                    name,
                    start,
                    [{n: row.get(n) for n in FIELDS[kind]} for row in rows],
                    [_stored(row.get("record_id")) for row in rows],
                    [{n: v for n, v in row.items() if n not in FIELDS[kind] and n != "record_id"} for row in rows],
                )
                start += len(rows)
    except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
        raise BadInputError(
            "a file of the split cannot be read as Parquet",
            seen=f"{path}: {str(error).splitlines()[0]}",
            next="copy the folder again from where it was made",
        ) from error


def _from_path(path: Path) -> LoadedManifest:
    try:
        data = path.read_bytes()
    except OSError as error:
        _check_is_data(path.parent)
        raise BadInputError(
            "the manifest cannot be read", seen=f"{path}: {error.strerror}", next="name DIR/manifest.json"
        ) from error
    return LoadedManifest(object_id(data), _checked(parse_object(data, path), str(path)), path.parent, path)


def _check_is_data(folder: Path) -> None:
    """Raise UsageError for the folder of a run or of a matrix, which have records of their own."""
    name = quote(str(folder))
    if (folder / "run.json").is_file():
        raise UsageError(
            "a run is not an admitted data set", seen=str(folder),
            next=f"lpt report {name}; two runs beside each other: lpt sql @compare, or on the same items: "
            f"lpt eval --admitted NAME:test --model {name} --baseline OTHER",
        )  # fmt: skip
    if (folder / "matrix.md").is_file():
        raise UsageError(
            "a matrix is not an admitted data set", seen=str(folder),
            next=f"its page is {name}/matrix.md; lpt sql @matrices; of a run of it: lpt report {name}/VARIANT-seedN",
        )  # fmt: skip


def _in_catalog(catalog: Catalog, found: str, body: dict[str, Any]) -> LoadedManifest:
    _checked(body, found)
    folder = inside(catalog.splits_dir, f"{body['name']}@{body['version']}")
    elsewhere = pointer(catalog, body["name"], body["version"])
    if not folder.is_dir() and elsewhere.is_file():
        folder = Path(elsewhere.read_text("utf-8", "replace").strip() or folder)
    return LoadedManifest(found, body, folder, folder / "manifest.json")


def pointer(catalog: Catalog, name: str, version: int) -> Path:
    """Return the file that tells where on this machine NAME@V was written, when that was not into the catalog.

    It is a convenience and no part of the record: what lies there is checked like any carried folder.
    """
    return inside(catalog.splits_dir, f"{name}@{version}.path")


def _unknown(catalog: Catalog, text: str, name: str) -> BadInputError:
    known: dict[str, list[int]] = {}
    for event in catalog.events.read():
        if event.type == TYPE:
            known.setdefault(str(event.facets.get("name")), []).append(int(event.facets.get("version", 0)))
    if name in known:
        versions = ", ".join(f"{name}@{v}" for v in sorted(known[name], reverse=True)[:5])
        return BadInputError("there is no such version", seen=text, next=f"did you mean {versions}?")
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    advice = f"did you mean {' or '.join(close)}?" if close else "lpt manifest list shows what there is"
    return BadInputError("there is no manifest of that name", seen=text, next=advice)


def _checked(body: dict[str, Any], origin: str) -> dict[str, Any]:
    """Return the body when it has the shape of a manifest, so that nothing after this meets a surprise."""
    if body["type"] != TYPE:
        raise BadInputError("not an admission manifest", seen=f"{origin}: {body['type']}", next=f"a {TYPE} is needed")
    try:
        fault = _fault(body) or _fault_of_the_optional(body)
    except (KeyError, TypeError, AttributeError) as error:
        fault = f"{type(error).__name__}: {error}"
    if fault:
        raise BadInputError("the manifest is damaged", seen=f"{origin}: {fault}", next="copy it again from its source")
    return body


def _fault(body: Mapping[str, Any]) -> str:
    if not isinstance(body["name"], str) or not _REF.fullmatch(body["name"]):
        return f"name {body['name']!r}"
    if type(body["version"]) is not int or body["version"] < 1:
        return f"version {body['version']!r}"
    if (
        kind_of(body["contract"]) not in FIELDS
        or body["verdict"] not in _VERDICTS
        or not isinstance(body["canon"], str)
    ):
        return f"contract {body['contract']!r}, verdict {body['verdict']!r}, canon {body['canon']!r}"
    if not isinstance(body["checks"], list) or not all(isinstance(c, dict) and "id" in c for c in body["checks"]):
        return "checks"
    for name, entry in body["splits"].items():
        digests = [entry["content_root"], entry["order_sha256"], *(f["sha256"] for f in entry["files"])]
        if not all(isinstance(d, str) and _DIGEST.fullmatch(d) for d in digests):
            return f"a digest of {name}"
        sizes = [entry["rows"], *(f["bytes"] for f in entry["files"]), *(f["rows"] for f in entry["files"])]
        if not all(type(size) is int and size >= 0 for size in sizes):
            return f"a size of {name}"
        if not all(isinstance(f["path"], str) for f in entry["files"]):
            return f"a path of {name}"
    return ""


def _fault_of_the_optional(body: Mapping[str, Any]) -> str:
    """Say what is wrong with fields that may be left out and must be what they should be where they are there."""
    for check in body["checks"]:
        texts = (check["id"], check.get("next", ""), check.get("detail", ""), check.get("op") or "")
        numbers = (check.get("value"), check.get("threshold"), check.get("n"))
        if check["status"] not in _STATUSES or not all(isinstance(text, str) for text in texts):
            return f"the check {check['id']!r}"
        if not all(number is None or isinstance(number, int | float) for number in numbers):
            return f"a number of the check {check['id']}"
    for pair in body.get("disjoint") or []:
        if not all(isinstance(pair[part], str) for part in ("a", "b", "by")) or type(pair["intersection"]) is not int:
            return "disjoint"
    for file in body.get("side_files") or []:
        if not isinstance(file["path"], str) or type(file["bytes"]) is not int or not _DIGEST.fullmatch(file["sha256"]):
            return "side_files"
    for name, entry in body["splits"].items():
        key = entry.get("key")
        if key is not None and not (isinstance(key["normaliser"], str) and _DIGEST.fullmatch(key["root"])):
            return f"the key of {name}"
        tokenized = entry.get("tokenized")
        if tokenized is not None and not all(type(tokenized[n]) is int and tokenized[n] >= 0 for n in _TOKENIZED):
            return f"the tokens of {name}"
    return "" if isinstance(body.get("tokenizer") or {}, dict) else "tokenizer"


def _stored(value: Any) -> str | None:
    """A record id as it is stored, or None for what is none: a column that was edited may hold anything."""
    return value if isinstance(value, str) and _DIGEST.fullmatch(value) else None


def _id_or_zeros(kind: str, row: Mapping[str, Any]) -> bytes:
    try:
        return record_id(kind, row)
    except RecordError:
        return bytes(32)
