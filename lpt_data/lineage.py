"""Where rows came from: the stages behind files that are about to be admitted, and the record that a row was."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from lpt_data.dataset import Dataset
from lpt_data.record_text import all_text
from manifests.catalog import Catalog
from manifests.digests import bytes_sha256
from manifests.errors import LptError


@dataclass(frozen=True)
class Origin:
    """`parents` made the files, `stages` are all stages behind them, `funnel` their row counts, oldest first."""

    parents: tuple[str, ...]
    stages: tuple[str, ...]
    funnel: tuple[dict[str, Any], ...]


def origin(catalog: Catalog, source_sha256s: Iterable[str]) -> Origin:
    """Match files by the sha256 of their bytes with what stages (and earlier admissions) wrote; names do not matter."""
    made_by: dict[str, str] = {}
    for object_id, body in catalog.find("lpt.admission/1", strict=False):
        for split in body["splits"].values():
            made_by.update({f["sha256"]: object_id for f in split["files"]})
    stages: dict[str, Mapping[str, Any]] = {}
    for object_id, body in reversed(list(catalog.find("lpt.stage/1", strict=False))):  # newest last, so that it wins
        stages[object_id] = body
        made_by.update({f["sha256"]: object_id for f in body.get("outputs", ())})
    parents = list(dict.fromkeys(made_by[s] for s in source_sha256s if s in made_by))
    ordered: list[str] = []
    for parent in parents:
        _oldest_first(parent, stages, made_by, ordered, set())
    funnel = tuple(_counts(stages[object_id]) for object_id in ordered)
    return Origin(tuple(parents), tuple(ordered), funnel)


def _oldest_first(
    object_id: str,
    stages: Mapping[str, Mapping[str, Any]],
    made_by: Mapping[str, str],
    ordered: list[str],
    path: set[str],
) -> None:
    """Append a stage after the stages behind it; `path` stops a stage whose output equals its own input."""
    if object_id not in stages or object_id in ordered or object_id in path:
        return
    body = stages[object_id]
    if body.get("stage_id") in {stages[done].get("stage_id") for done in ordered} - {None}:
        return  # the same work once more, into another file
    behind = [*body.get("parents", ()), *(made_by.get(f.get("sha256", ""), "") for f in body.get("inputs", ()))]
    for parent in behind:
        _oldest_first(parent, stages, made_by, ordered, path | {object_id})
    ordered.append(object_id)


def _counts(body: Mapping[str, Any]) -> dict[str, Any]:
    counts = {name: body.get(name) for name in ("stage", "rows_in", "removed", "quarantined", "rows_out")}
    return counts | {name: body[name] for name in ("repeated",) if name in body}


def identify(body: Mapping[str, Any], path: str, row: int) -> str | None:
    """Return the record id (hex) of a row of a file that a stage read, in whatever layout; None where it has none now.

    `row` is 0-based in that file, whose bytes must still be those that the stage read.
    """
    found = _found(body, path, row)
    return found[1].hex() if found is not None else None


def excerpt(body: Mapping[str, Any], path: str, row: int, length: int = 160) -> str | None:
    """Return the start of the text of a row, on one line; None where the file is not what the stage read."""
    found = _found(body, path, row)
    if found is None:
        return None
    text = " ".join(all_text(found[2], found[0]).split())
    return text if len(text) <= length else text[: length - 1] + "…"


def _found(body: Mapping[str, Any], path: str, row: int) -> tuple[dict[str, Any], bytes, str] | None:
    """Return the canonical record, its id and its kind of a row as it was when the stage read it."""
    entry = next((file for file in body.get("inputs") or () if file.get("path") == path), None)
    if entry is None or not os.path.isfile(path):
        return None
    try:
        if bytes_sha256(path) != entry.get("sha256"):
            return None
        column = str(entry.get("text_column", "text"))
        rows = Dataset.open([path], kind=body.get("kind"), layout=entry.get("layout"), text_column=column)
        found = next(((at, record, name) for at, record, _, name in rows.identified() if at >= row), None)
    except LptError:
        return None
    if found is None or found[0] != row:
        return None
    return found[1], found[2], rows.kind
