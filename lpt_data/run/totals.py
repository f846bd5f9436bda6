"""The stages of a recipe added up, in the keys that every data command prints.

`rows_in` are rows from outside, `rows_out` rows that no later stage took over. Where no output is read twice,
`rows_in + repeated == rows_out + removed + quarantined`, as for one stage.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lpt_data.run.recipe import StageSpec
from lpt_data.run.table import STAGES
from lpt_data.stage import StageReport


def totals(reports: Mapping[str, tuple[StageSpec, StageReport]]) -> dict[str, Any]:
    """Return the sums over the stages that ran, by name; output and content_root are those of the last of them."""
    bodies = {name: report.body for name, (_, report) in reports.items()}
    removed: Counter[str] = Counter()
    for body in bodies.values():
        removed.update(body["removed"])
    inside = [_place(ref, reports) for spec, _ in reports.values() for ref in spec.reads if ref.split(".")[0] in bodies]
    seconds = sum(0.0 if report.reused else report.body["seconds"] for _, report in reports.values())
    rows_in = sum(body["rows_in"] for body in bodies.values()) - sum(_rows(place, bodies) for place in inside)
    rows_out = sum(body["rows_out"] for body in bodies.values()) - sum(_rows(place, bodies) for place in set(inside))
    last = next(reversed(list(reports.values())))[1] if reports else None
    return {
        "stage_id": last.body["stage_id"] if last else None,
        "rows_in": rows_in,
        "rows_out": rows_out,
        "repeated": sum(body.get("repeated", 0) for body in bodies.values()),
        "removed": dict(removed.most_common()),
        "quarantined": sum(body["quarantined"] for body in bodies.values()),
        "output": last.body["output"] if last else None,
        "content_root": last.body["content_root"] if last else None,
        "decisions": last.decisions_path if last else None,
        "seconds": round(seconds, 4),  # of what was done now; what was reused cost nothing
        "rows_per_second": round(rows_in / seconds, 1) if seconds else None,
        "peak_memory_bytes": max((body["peak_memory_bytes"] for body in bodies.values()), default=0),
        "reused": [name for name, (_, report) in reports.items() if report.reused],
    }


def _place(ref: str, reports: Mapping[str, tuple[StageSpec, StageReport]]) -> tuple[str, str]:
    """The stage and the part of it that a reference names; of several parts train, as for the stage that reads it."""
    name, _, part = ref.partition(".")
    spec = reports[name][0]
    return name, part or (STAGES[spec.kind].parts(spec.options) or ("",))[0]


def _rows(place: tuple[str, str], bodies: Mapping[str, Mapping[str, Any]]) -> int:
    name, part = place
    if not part:
        return int(bodies[name]["rows_out"])
    return sum(int(file["rows"]) for file in bodies[name]["outputs"] if Path(file["path"]).stem == part)
