"""Is a folder what was admitted? Bytes, sums, rows, order, keys and disjointness, computed again; no catalog is needed.

What differs is named row by row. A row whose recomputed id is not the one stored beside it was edited. Rows that
were added or removed together with their ids show in the bucket hashes, to within the rows of a bucket (one in
4,096).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, Literal

import numpy as np
import orjson

from manifests.canon import CANON
from manifests.digests import (
    ContentRoot,
    bucket_of,
    bytes_sha256,
    content_root,
    differing_buckets,
    ids_from_hex,
    key_root,
    order_sha256,
)
from manifests.errors import BadInputError, LptError, RefusedError
from manifests.loaded import LoadedManifest

Key = Callable[[str, Mapping[str, Any], Mapping[str, Any], str], bytes]  # kind, record, other columns, normaliser
_SHOWN = 20  # rows named for one split in `problems`; `rows` has all of them
_SUM = re.compile(r"([0-9a-f]{64}) [ *](.+)")


@dataclass(frozen=True)
class DifferingRow:
    """A row that is not what was admitted; `row` counts from 0 in its file and is -1 for a row that is gone."""

    split: str
    path: str
    row: int
    what: Literal["edited", "added", "doubled", "removed", "unreadable", "one of these"]
    admitted: str  # record id or its first digits, "" when unknown
    seen: str

    def __str__(self) -> str:
        if self.what == "removed":
            return f"{self.split}: a row is gone: {self.admitted}"
        known = {"edited": f": was {self.admitted[:16]}, is {self.seen[:16]}"}
        return (
            f"{self.split}: {self.path} row {self.row} {_SAID[self.what]}{known.get(self.what, f': {self.seen[:16]}')}"
        )


_SAID = {
    "edited": "was edited",
    "added": "was added",
    "doubled": "is there once too often",
    "unreadable": "is no record any more",
    "one of these": "may be one that was added or replaced with its id",
}


@dataclass
class VerifyReport:
    """What was computed again. `not_checked` says what was not; `problems` is empty when all that was agrees."""

    files: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    rows: list[DifferingRow] = field(default_factory=list)
    not_checked: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether everything that was checked agrees."""
        return not self.problems


@dataclass(frozen=True)
class _Split:
    ids: np.ndarray  # uint8 [N, 32], recomputed
    stored: list[str | None]
    places: list[tuple[str, int]]  # path, rows in the file, in order
    keys: np.ndarray | None


def verify(loaded: LoadedManifest, *, key: Key | None = None) -> VerifyReport:
    """Check the folder of a manifest and return what differs; only a manifest that names outside files is an error.

    `key` recomputes the canonical key of a row (32 bytes); without it keys are listed under `not_checked`.
    """
    report = VerifyReport()
    if loaded.body["canon"] != CANON:
        report.problems.append(f"the manifest uses {loaded.body['canon']}, this program {CANON}")
        return report
    if not loaded.folder.is_dir():
        report.problems.append(f"{loaded.folder} is not there; name the folder that was admitted to: DIR/manifest.json")
        return report
    _check_files(loaded, report)
    _check_sums(loaded, report)
    read: dict[str, _Split] = {}
    for name in loaded.body["splits"]:
        try:
            read[name] = _read(loaded, name, key)
        except RefusedError:
            raise
        except LptError as error:
            report.problems.append(f"{name}: {error.what}: {error.seen}")
            continue
        _check_split(loaded, name, read[name], report)
    _check_disjoint(loaded, read, report)
    return report


def _check_files(loaded: LoadedManifest, report: VerifyReport) -> None:
    body = loaded.body
    named = [f for split in body["splits"].values() for f in split["files"]]
    for entry in [*named, *(f for f in body.get("side_files") or [] if isinstance(f, dict))]:
        path = loaded.file(str(entry["path"]))
        problem = ""
        if not path.is_file():
            problem = "is missing"
        elif path.stat().st_size != entry["bytes"]:
            problem = f"has {path.stat().st_size:,} bytes, {entry['bytes']:,} were admitted"
        elif (digest := bytes_sha256(path)) != entry["sha256"]:
            problem = f"has sha256 {digest[:16]}…, {entry['sha256'][:16]}… was admitted"
        report.files.append({"path": entry["path"], "ok": not problem, "problem": problem})
        if problem:
            report.problems.append(f"{entry['path']} {problem}")
    if loaded.path.is_file() and (digest := bytes_sha256(loaded.path)) != loaded.id:
        report.problems.append(f"{loaded.path.name} has sha256 {digest[:16]}…, the manifest is {loaded.id[:16]}…")


def _check_sums(loaded: LoadedManifest, report: VerifyReport) -> None:
    """Compare `SHA256SUMS`, which people check without this program, with the manifest and the files."""
    path = loaded.folder / "SHA256SUMS"
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        report.problems.append(f"SHA256SUMS cannot be read: {error}")
        return
    listed: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        match = _SUM.fullmatch(line)
        if match is None:
            report.problems.append(f"SHA256SUMS line {number} is no checksum")
        else:
            listed[match[2]] = match[1]
    for split in loaded.body["splits"].values():
        for entry in split["files"]:
            if listed.pop(entry["path"], None) != entry["sha256"]:
                report.problems.append(f"SHA256SUMS does not agree with the manifest on {entry['path']}")
    for name, digest in listed.items():
        place = loaded.file(name)
        if not place.is_file() or bytes_sha256(place) != digest:
            report.problems.append(f"{name} is not what SHA256SUMS says")


def _read(loaded: LoadedManifest, name: str, key: Key | None) -> _Split:
    kind = loaded.kind
    normaliser = (loaded.split(name).get("key") or {}).get("normaliser")
    ids, stored, keys = [np.empty((0, 32), np.uint8)], [], []
    rows: dict[str, int] = {}
    for batch in loaded.rows(name):
        ids.append(batch.ids(kind))
        stored += batch.stored
        rows[batch.path] = batch.start + len(batch.records)
        if key is not None and normaliser:
            keys += [
                key(kind, r, x, normaliser)
                for r, x, i in zip(batch.records, batch.extra, ids[-1], strict=True)
                if i.any()
            ]
    hashes = np.frombuffer(b"".join(keys), np.uint8).reshape(-1, 32) if key is not None and normaliser else None
    return _Split(np.concatenate(ids), stored, list(rows.items()), hashes)


def _check_split(loaded: LoadedManifest, name: str, read: _Split, report: VerifyReport) -> None:
    entry = loaded.split(name)
    root = content_root(read.ids)
    if len(read.ids) != entry["rows"]:
        report.problems.append(f"{name} has {len(read.ids):,} rows, {entry['rows']:,} were admitted")
    if root.root != entry["content_root"]:
        found = _differing_rows(loaded, name, read, root)
        report.rows += found
        report.problems.append(f"{name} holds other rows than were admitted (content_root)")
        report.problems += [str(row) for row in found[:_SHOWN]]
        if len(found) > _SHOWN:
            report.problems.append(f"{name}: and {len(found) - _SHOWN:,} rows more")
    elif order_sha256(read.ids) != entry["order_sha256"]:
        report.problems.append(f"{name} holds the rows that were admitted in another order (order_sha256)")
    claimed = entry.get("key")
    if not claimed:
        return
    if read.keys is None:
        report.not_checked.append(f"the keys of {name}: they follow from its rows, which were checked")
    elif key_root(np.unique(read.keys, axis=0)).root != claimed["root"]:
        report.problems.append(f"{name} holds other {claimed['normaliser']} keys than were admitted")


def _differing_rows(loaded: LoadedManifest, name: str, read: _Split, root: ContentRoot) -> list[DifferingRow]:
    """Name rows: first those whose stored id no longer fits, then, by buckets, what the stored ids cannot explain."""
    places = [(path, row) for path, count in read.places for row in range(count)]
    hexes = [digest.tobytes().hex() for digest in read.ids]
    found = []
    for (path, row), now, then in zip(places, hexes, read.stored, strict=True):
        if not int(now, 16):
            found.append(DifferingRow(name, path, row, "unreadable", then or "", ""))
        elif then is not None and then != now:
            found.append(DifferingRow(name, path, row, "edited", then, now))
    admitted = _admitted_buckets(loaded, name)
    if admitted is None:
        return found
    claimed = ids_from_hex([then or now for then, now in zip(read.stored, hexes, strict=True)])
    have = content_root(claimed)
    buckets = bucket_of(claimed)
    for bucket in differing_buckets(admitted, have):
        surplus = have.buckets.get(bucket, ("", 0))[1] - admitted.buckets.get(bucket, ("", 0))[1]
        rows = np.flatnonzero(buckets == bucket).tolist()
        if surplus < 0:
            found += [DifferingRow(name, "", -1, "removed", f"{bucket:03x}…", "")] * -surplus
        found += _suspects(name, rows, places, [claimed[i].tobytes().hex() for i in rows], surplus)
    return found


def _suspects(
    name: str, rows: list[int], places: list[tuple[str, int]], ids: list[str], surplus: int
) -> list[DifferingRow]:
    """Name the rows of a bucket that has `surplus` rows too many, or as many as admitted but others."""
    if surplus < 0:
        return []
    if surplus == len(rows):
        return [DifferingRow(name, *places[i], "added", "", digest) for i, digest in zip(rows, ids, strict=True)]
    doubled = [k for k, digest in enumerate(ids) if digest in ids[:k]]
    if surplus and len(doubled) == surplus:
        return [DifferingRow(name, *places[rows[k]], "doubled", ids[k], ids[k]) for k in doubled]
    return [DifferingRow(name, *places[i], "one of these", "", digest) for i, digest in zip(rows, ids, strict=True)]


def _admitted_buckets(loaded: LoadedManifest, name: str) -> ContentRoot | None:
    """Return the bucket hashes of a split when `buckets.json` is there and they are those of the manifest's root."""
    try:
        body = orjson.loads((loaded.folder / "buckets.json").read_bytes())
        root = ContentRoot.from_json(body[name])
    except (OSError, orjson.JSONDecodeError, KeyError, TypeError, BadInputError):
        return None
    return root if root.root == loaded.split(name)["content_root"] == root.recomputed() else None


def _check_disjoint(loaded: LoadedManifest, read: Mapping[str, _Split], report: VerifyReport) -> None:
    """Compute the intersections again, so that a manifest cannot claim a proof that its rows do not give."""
    claims = {(p["a"], p["b"], p["by"]): p["intersection"] for p in loaded.body.get("disjoint") or []}
    for a, b in combinations(read, 2):
        for by in ("record", "key"):
            left, right = (read[s].ids if by == "record" else read[s].keys for s in (a, b))
            if left is None or right is None:
                continue
            common = len({row.tobytes() for row in left} & {row.tobytes() for row in right})
            claimed = claims.get((a, b, by), claims.get((b, a, by)))
            if claimed is not None and common != claimed:
                report.problems.append(f"{a} and {b} share {common:,} {by}s, the manifest says {claimed:,}")
