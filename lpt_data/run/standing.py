"""What a run of a recipe would do: which stages stand as they are, and why the others would be done anew."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lpt_data.config import settings
from lpt_data.places import code_digest, intact
from lpt_data.stage import Work

if TYPE_CHECKING:
    from manifests.catalog import Catalog


@dataclass(frozen=True)
class Standing:
    """Where a stage stands before it is run."""

    reused: bool
    why: str = ""  # why it would be done anew
    stage_id: str = ""  # empty where its input is not known yet
    body: Mapping[str, Any] | None = None  # the record that is reused

    def to_json(self) -> dict[str, Any]:
        """Return what a plan prints of a stage."""
        rows = {name: self.body[name] for name in ("rows_in", "rows_out", "output")} if self.body else {}
        return {"reused": self.reused, "why": self.why, "stage_id": self.stage_id, **rows}


def standing(work: Work, catalog: Catalog) -> Standing:
    """Tell whether a work stands as it was done, and if not, why; reads and hashes its files, writes nothing."""
    told, done = work.standing(catalog)
    if done is not None:
        return Standing(True, stage_id=told["stage_id"], body=done)
    return Standing(False, _why_anew(work, told, catalog), told["stage_id"])


def _why_anew(work: Work, told: Mapping[str, Any], catalog: Catalog) -> str:
    """What differs from the last time that a stage of this name wrote this output."""
    before = next(catalog.find("lpt.stage/1", strict=False, stage=work.name, output=work.output), None)
    if before is None:
        return "not done before"
    body = before[1]
    then, now = body["config"], settings(work.config)
    changed = [name for name in now if name in told["config"] and then.get(name) != now[name]]
    if changed:
        return "; ".join(f"{name} was {_short(then.get(name))}, is {_short(now[name])}" for name in changed)
    if _files(body["inputs"]) != _files(told["inputs"]):
        return "its input changed"
    if sorted(_files(body.get("references", ()))) != sorted(_files(told["references"])):
        return "a file that it compares with changed"
    if body["code"]["source"] != code_digest():
        return "it was made by another version of lpt"
    gone = [file["path"] for file in body["outputs"] if not intact(file)]
    return f"its output is gone or was edited: {', '.join(gone)}" if gone else "its record is not whole"


def _files(entries: Any) -> list[tuple[str, str]]:
    return [(entry["sha256"], entry["format"]) for entry in entries]


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "…"
