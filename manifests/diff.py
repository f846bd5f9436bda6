"""What changed from one manifest to another, in rows and in checks, and the version step that this asks for.

The rule is Croissant's: the same rows written anew are PATCH, more rows MINOR, and rows that were edited, removed
or moved to another split MAJOR, because numbers measured before no longer mean the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from manifests.errors import BadInputError
from manifests.loaded import LoadedManifest

Bump = Literal["NONE", "PATCH", "MINOR", "MAJOR"]
_EXAMPLES = 10


@dataclass(frozen=True)
class SplitDiff:
    """Rows of one split that only one side has, as a multiset, and up to ten record ids of each."""

    added: int
    removed: int
    added_ids: list[str]
    removed_ids: list[str]


@dataclass(frozen=True)
class CheckChange:
    """A check whose status or value differs; `-` stands for a side that does not have it."""

    id: str
    left: str
    right: str


@dataclass(frozen=True)
class ManifestDiff:
    """`moved` counts rows that left one split and are in another; `reasons` say why `bump` is what it is."""

    left: str
    right: str
    splits: dict[str, SplitDiff]
    moved: int
    checks: list[CheckChange]
    verdicts: tuple[str, str]
    bump: Bump
    reasons: list[str]

    def to_json(self) -> dict[str, Any]:
        """Return the difference as one JSON object."""
        return asdict(self)


def diff(left: LoadedManifest, right: LoadedManifest) -> ManifestDiff:
    """Compare two manifests; reads the rows of splits whose content differs, and raises BadInputError when it
    cannot."""
    names = list(dict.fromkeys([*left.body["splits"], *right.body["splits"]]))
    gone: Counter[bytes] = Counter()
    come: Counter[bytes] = Counter()
    splits = {}
    for name in names:
        added, removed = _rows(left, right, name)
        gone += removed
        come += added
        splits[name] = SplitDiff(added.total(), removed.total(), _examples(added), _examples(removed))
    moved = (gone & come).total()
    reasons, bump = _bump(left.body, right.body, splits, moved)
    return ManifestDiff(
        left.ref,
        right.ref,
        splits,
        moved,
        _checks(left.body, right.body),
        (left.body["verdict"], right.body["verdict"]),
        bump,
        reasons,
    )


def _rows(left: LoadedManifest, right: LoadedManifest, name: str) -> tuple[Counter[bytes], Counter[bytes]]:
    a, b = left.body["splits"].get(name), right.body["splits"].get(name)
    same_kind = (left.body["contract"], left.body["canon"]) == (right.body["contract"], right.body["canon"])
    if a and b and same_kind and a["content_root"] == b["content_root"]:
        return Counter(), Counter()
    before = _ids(left, name) if a else Counter()
    after = _ids(right, name) if b else Counter()
    return after - before, before - after


def _ids(loaded: LoadedManifest, name: str) -> Counter[bytes]:
    if not loaded.folder.is_dir():
        raise BadInputError(
            f"the rows of {loaded.ref} are needed and not there",
            seen=str(loaded.folder),
            next="name the folder that it was admitted to: DIR/manifest.json",
        )
    ids: Counter[bytes] = Counter()
    for batch in loaded.rows(name):
        computed: np.ndarray = batch.ids(loaded.kind)
        ids.update(row.tobytes() for row in computed)
    return ids


def _examples(rows: Counter[bytes]) -> list[str]:
    return [row.hex() for row in sorted(rows)[:_EXAMPLES]]


def _bump(
    left: Mapping[str, Any], right: Mapping[str, Any], splits: Mapping[str, SplitDiff], moved: int
) -> tuple[list[str], Bump]:
    major = [f"{field} changed" for field in ("contract", "canon") if left[field] != right[field]]
    major += [f"{name} lost {part.removed:,} rows" for name, part in splits.items() if part.removed]
    major += [f"{moved:,} rows moved to another split"] if moved else []
    major += [f"the split {name} is gone" for name in left["splits"] if name not in right["splits"]]
    if major:
        return major, "MAJOR"
    minor = [f"{name} has {part.added:,} rows more" for name, part in splits.items() if part.added]
    minor += [f"the split {name} is new" for name in right["splits"] if name not in left["splits"]]
    if minor:
        return minor, "MINOR"
    if _files(left) != _files(right):
        return ["the same rows in other files or another order"], "PATCH"
    return ["the same files"], "NONE"


def _files(body: Mapping[str, Any]) -> list[Any]:
    return [[name, [f["sha256"] for f in split["files"]]] for name, split in sorted(body["splits"].items())]


def _checks(left: Mapping[str, Any], right: Mapping[str, Any]) -> list[CheckChange]:
    before = {check["id"]: _said(check) for check in left["checks"]}
    after = {check["id"]: _said(check) for check in right["checks"]}
    return [
        CheckChange(name, before.get(name, "-"), after.get(name, "-"))
        for name in dict.fromkeys([*before, *after])
        if before.get(name) != after.get(name)
    ]


def _said(check: Mapping[str, Any]) -> str:
    value = check.get("value")
    status = str(check.get("status"))
    return f"{status} {value:.6g}" if isinstance(value, (int, float)) else status
