"""The stages of a recipe added up, in the keys that every data command prints.

`rows_in` are rows from outside, `rows_out` rows that no later stage took over. Where no output is read twice,
`rows_in + repeated == rows_out + removed + quarantined`, as for one stage.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from lpt_data.run.recipe import Recipe
from lpt_data.run.table import STAGES
from lpt_data.stage import StageReport


def totals(recipe: Recipe, reports: Mapping[str, StageReport]) -> dict[str, Any]:
    """Return the sums over the stages that ran; output and content_root are those of the last of them."""
    bodies = {name: report.body for name, report in reports.items()}
    removed: Counter[str] = Counter()
    for body in bodies.values():
        removed.update(body["removed"])
    taken = {file for body in bodies.values() for file in _inputs(body)}
    made = {file for body in bodies.values() for file in _outputs(body)}
    seconds = sum(0.0 if report.reused else report.body["seconds"] for report in reports.values())
    rows_in = sum(rows for body in bodies.values() for file, rows in _inputs(body).items() if file not in made)
    last = next(reversed(list(bodies.values())), None)
    return {
        "stage_id": last["stage_id"] if last else None,
        "rows_in": rows_in,
        "rows_out": sum(rows for body in bodies.values() for f, rows in _outputs(body).items() if f not in taken),
        "repeated": sum(body.get("repeated", 0) for body in bodies.values()),
        "removed": dict(removed.most_common()),
        "quarantined": sum(body["quarantined"] for body in bodies.values()),
        "output": last["output"] if last else None,
        "content_root": last["content_root"] if last else None,
        "decisions": reports[next(reversed(list(bodies)))].decisions_path if last else None,
        "seconds": round(seconds, 4),  # of what was done now; what was reused cost nothing
        "rows_per_second": round(rows_in / seconds, 1) if seconds else None,
        "peak_memory_bytes": max((body["peak_memory_bytes"] for body in bodies.values()), default=0),
        "reused": [spec.name for spec in recipe.stages if spec.name in reports and reports[spec.name].reused],
        "gates": [spec.name for spec in recipe.stages if STAGES[spec.kind].begin is None],
    }


def _inputs(body: Mapping[str, Any]) -> dict[str, int]:
    return {file["path"]: file["rows"] for file in body["inputs"]}


def _outputs(body: Mapping[str, Any]) -> dict[str, int]:
    """The files of rows: what a stage writes beside them (a schedule, the record of a split) has none of its own."""
    return {
        file["path"]: file["rows"] for file in body["outputs"] if not file["path"].endswith("order_robustness.jsonl")
    }
