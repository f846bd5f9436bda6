"""Which record a reference names: an admission by name, version, id or path, a stage by its id, a run by its folder."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from lpt_data.progress import Progress, silent
from lpt_data.report.manifest_story import manifest_story
from lpt_data.report.run_story import run_story
from lpt_data.report.stage_story import stage_story
from lpt_data.report.story import ManifestStory, StageStory, Story
from manifests.catalog import Catalog
from manifests.errors import BadInputError, UsageError
from manifests.loaded import TYPE, load_manifest

_PREFIX = re.compile(r"[0-9a-f]{4,64}")
STAGE = "lpt.stage/1"


def story_of(catalog: Catalog | None, ref: str, *, progress: Progress = silent) -> Story:
    """Return the story of NAME, NAME@VERSION, DIR/manifest.json, a stage id or an object id (or the start of one), the
    folder of a run or its id.

    A name goes before an id. Raises BadInputError when there is no such record, UsageError for a record that has no
    report.
    """
    if (run := run_story(catalog, ref)) is not None:
        return run
    stage = _stage(catalog, ref) if catalog is not None and _PREFIX.fullmatch(ref) else None
    if stage is not None and catalog is not None and not any(catalog.find(TYPE, strict=False, name=ref)):
        return stage_story(catalog, *stage, progress=progress)
    if catalog is not None and _PREFIX.fullmatch(ref) and (other := _other(catalog, ref)):
        raise UsageError(
            "there is no report of that kind of record",
            seen=f"{ref} is a {other}",
            next="lpt report NAME, or lpt report STAGE; lpt sql shows every other record",
        )
    try:
        loaded = load_manifest(catalog, ref)
    except BadInputError as error:
        if "/" in ref or ref.endswith(".json") or catalog is None:
            raise
        advice = f"{error.next}; stages: lpt sql @funnel" if error.next else "lpt manifest list, lpt sql @funnel"
        raise BadInputError("there is no manifest or stage of that name", seen=ref, next=advice) from error
    return manifest_story(loaded, catalog if catalog is not None else _beside(loaded.path), progress=progress)


def manifest_of(catalog: Catalog | None, ref: str, *, progress: Progress = silent) -> ManifestStory:
    """Return the story of an admission; raise UsageError for a stage or a run."""
    story = story_of(catalog, ref, progress=progress)
    if not isinstance(story, ManifestStory):
        what = "a stage" if isinstance(story, StageStory) else "a run"
        raise UsageError(f"{what} is no data set", seen=f"{ref}: {story.title}", next="NAME or NAME@VERSION")
    return story


def _beside(path: Path) -> Catalog | None:
    """The catalog that a manifest lies in, where it was found by its path: CATALOG/splits/NAME@V/manifest.json."""
    folder = path.resolve().parent.parent
    if folder.name == "splits" and (folder.parent / "events.jsonl").is_file():
        return Catalog.open(folder.parent, create=False)
    return None


def _stage(catalog: Catalog, ref: str) -> tuple[str, dict[str, Any]] | None:
    """Return the newest record of the one stage whose stage id or object id starts with `ref`."""
    found: dict[str, tuple[str, dict[str, Any]]] = {}
    for object_id, body in catalog.find(STAGE, strict=False):
        if str(body.get("stage_id")).startswith(ref) or object_id.startswith(ref):
            found.setdefault(str(body["stage_id"]), (object_id, body))
    if len(found) > 1:
        raise BadInputError(f"{len(found)} stages start with {ref}", seen=sorted(found)[:5], next="type more digits")
    return next(iter(found.values()), None)


def _other(catalog: Catalog, ref: str) -> str:
    """Return the type of the record that an id names, "" where it is an admission or nothing."""
    for event in catalog.events.read():
        if event.object.startswith(ref) and event.type not in (TYPE, STAGE):
            return event.type
    return ""
