"""A report in one of its formats, as text and as a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

from lpt_data.report.attestation import statement
from lpt_data.report.card import card, stage_markdown
from lpt_data.report.croissant import croissant
from lpt_data.report.manifest_page import manifest_page
from lpt_data.report.run_page import run_markdown, run_page
from lpt_data.report.stage_page import stage_page
from lpt_data.report.story import ManifestStory, RunStory, StageStory, Story
from manifests.errors import BadInputError, UsageError
from manifests.files import write_atomic

_JSON = orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE | orjson.OPT_NON_STR_KEYS


@dataclass(frozen=True)
class Format:
    """How a report is written: the end of its file's name, and who writes it of an admission, a stage, a run."""

    suffix: str
    folder_name: str  # what it is called in a folder of exports
    of_manifest: Callable[[ManifestStory], str]
    of_stage: Callable[[StageStory], str] | None = None
    of_run: Callable[[RunStory], str] | None = None


def _json(value: Any) -> str:
    return orjson.dumps(value, default=str, option=_JSON).decode()


FORMATS: Mapping[str, Format] = {
    "html": Format(".html", "report.html", manifest_page, stage_page, run_page),
    "md": Format(".md", "README.md", card, stage_markdown, run_markdown),
    "json": Format(".json", "report.json", *[lambda s: _json(asdict(s))] * 3),
    "croissant": Format(".croissant.json", "croissant.json", lambda s: _json(croissant(s))),
    "in-toto": Format(".intoto.json", "statement.intoto.json", lambda s: _json(statement(s))),
}
ALIASES = {"card": "md"}


def format_of(name: str) -> Format:
    """Return a format by name; raise UsageError naming those that there are."""
    found = FORMATS.get(ALIASES.get(name, name))
    if found is None:
        raise UsageError("there is no such format", seen=name, next=f"one of: {', '.join([*FORMATS, *ALIASES])}")
    return found


def rendered(story: Story, name: str) -> bytes:
    """Return a report; the same story gives the same bytes. Raises UsageError for a format of data sets alone."""
    wanted = format_of(name)
    if isinstance(story, ManifestStory):
        text = wanted.of_manifest(story)
    elif isinstance(story, StageStory) and wanted.of_stage is not None:
        text = wanted.of_stage(story)
    elif isinstance(story, RunStory) and wanted.of_run is not None:
        text = wanted.of_run(story)
    else:
        what = "a run" if isinstance(story, RunStory) else "a stage"
        raise UsageError(f"{what} is no data set, so it has no {name}", seen=story.title, next="--format html")
    return text.encode("utf-8", "backslashreplace")


def default_name(story: Story, name: str) -> str:
    """Return how the file of a report is called: NAME@V.html, STAGE-ID.html, RUN.html."""
    if isinstance(story, RunStory):
        start = story.title
    else:
        start = story.ref if isinstance(story, ManifestStory) else f"{story.body['stage']}-{story.body['stage_id']}"
    return "".join(c if c.isalnum() or c in "@._-" else "_" for c in start) + format_of(name).suffix


def write(path: Path, story: Story, name: str) -> int:
    """Write a report, whole or not at all, and return its size in bytes.

    Raises UsageError when the file is one that the record names: a report never replaces data.
    """
    data = rendered(story, name)
    taken = _named(story)
    if path.resolve() in taken:
        raise UsageError("the report would replace a file of the data", seen=str(path), next="another name for --out")
    if not path.resolve().parent.is_dir():
        raise BadInputError("the folder of the report is not there", seen=str(path), next=f"mkdir -p {path.parent}")
    write_atomic(path, data)
    return len(data)


def _named(story: Story) -> set[Path]:
    body = story.body
    if isinstance(story, RunStory):
        return {path.resolve() for path in story.files}
    names = ("sources", "against") if isinstance(story, ManifestStory) else ("inputs", "outputs", "references")
    entries = [entry for name in names for entry in body.get(name) or ()]
    if isinstance(story, ManifestStory):
        return {Path(str(entry["path"])).resolve() for entry in entries} | {path.resolve() for path in story.files}
    return {Path(str(entry["path"])).resolve() for entry in entries}
