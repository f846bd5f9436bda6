"""What a training run has to tell: its record, the lines of its metrics and its evaluations, by its folder or id.

A run that still goes on can be told as well. The lines are read one by one; of each metric as many points are kept as
a drawing shows, the lowest and the highest of each stretch, so that no spike is thinned away.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lpt_data.report.run_evaluations import Found, evaluations_of
from lpt_data.report.shape import RUN, check_shape
from lpt_data.report.story import Curve, RunStory
from manifests.catalog import Catalog
from manifests.errors import BadInputError, LptError

TYPE = "lpt.run/1"
_MOST = 2**63  # a whole number below it can be drawn
CURVES = 40  # that a page shows
STRETCHES = 200  # of a curve, two points each
_FIRST = ("loss", "reward", "eval_accuracy", "rewards/margins", "rewards/accuracies", "grad_norm", "learning_rate")
_NO_CURVE = ("step", "skipped", "skipped_steps", "tokens", "supervised_tokens", "epoch", "eta_seconds", "step_seconds")
_EVAL = "eval_"
Points = list[tuple[float, float]]


def folder_of(ref: str) -> Path | None:
    """The folder of a run that a reference names by its path, or None."""
    path = Path(ref)
    folder = path.parent if path.name == "run.json" else path
    return folder if (folder / "run.json").is_file() else None


def run_story(catalog: Catalog | None, ref: str) -> RunStory | None:
    """Return the story of a run by its folder, its run.json or its id; None where there is no such run.

    Raises BadInputError when its record is damaged.
    """
    folder = folder_of(ref)
    if folder is not None:
        return _told(catalog, _record(folder / "run.json"), "", folder / "metrics.jsonl", (folder / "run.json",))
    found = list(catalog.find(TYPE, strict=False, run_id=ref)) if catalog is not None else []
    if not found:
        return None
    object_id, body = found[0]
    check_shape(body, ref, RUN, "the record of the run is damaged")
    return _told(catalog, body, object_id, Path(str(body.get("metrics_path") or "")), ())


def _told(
    catalog: Catalog | None, body: Mapping[str, Any], object_id: str, metrics: Path, files: tuple[Path, ...]
) -> RunStory:
    notes: list[str] = []
    points: dict[str, Points] = defaultdict(list)
    skipped: list[int] = []
    if not metrics.is_file():
        notes.append(f"the curves: {metrics} is not here")
    else:
        files = (*files, metrics)
        unread = 0
        for row in _rows(metrics):
            if row is None:
                unread += 1
                continue
            if row.get("skipped"):
                skipped.append(row["step"])
            for name, value in row.items():
                if name not in _NO_CURVE and isinstance(value, (int, float)) and math.isfinite(value):
                    points[name].append((row["step"], value))
        if unread:
            notes.append(f"{unread:,} lines of {metrics} that could not be read")
    evaluations, comparisons, more = _evaluations(catalog, body)
    curves = _curves(points)
    if len(curves) > CURVES:
        notes.append(f"{len(curves) - CURVES:,} more metrics; they are in {metrics}")
    return RunStory(
        object_id or str(body["run_id"]), body, tuple(curves[:CURVES]), tuple(skipped), files, evaluations, comparisons,
        (*notes, *more),
    )  # fmt: skip


def _evaluations(catalog: Catalog | None, body: Mapping[str, Any]) -> Found:
    """What the catalog has of a run. A folder has its page without it: a damaged one is named there and in words."""
    if catalog is None:
        return (), (), ["evaluations: there is no catalog here; --catalog DIR names the one of lpt eval"]
    try:
        return evaluations_of(catalog, body)
    except LptError as error:
        note = f"evaluations: the catalog {catalog.directory} cannot be read: {error.what} ({error.seen})"
        catalog.notes.append(note)
        return (), (), [note]


def _record(path: Path) -> dict[str, Any]:
    try:
        body = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise BadInputError(
            "the record of the run cannot be read", seen=f"{path}: {error}", next="name a folder that lpt train made"
        ) from error
    check_shape(body, str(path), RUN, "the record of the run is damaged")
    return body


def _rows(path: Path) -> Iterator[dict[str, Any] | None]:
    with open(path, "rb") as file:
        for line in file:
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                yield None
                continue
            yield row if isinstance(row, dict) and _readable(row) else None


def _readable(row: Mapping[str, Any]) -> bool:
    """Whether a line has the number of a step, and no number that is larger than any that a run writes."""
    step = row.get("step")
    numbers = (value for value in row.values() if isinstance(value, int))
    return isinstance(step, int) and step >= 0 and all(-_MOST < number < _MOST for number in numbers)


def _curves(points: Mapping[str, Points]) -> list[Curve]:
    """What is measured on other rows is drawn beside what it is called after."""
    bases = [name for name in points if not (name.startswith(_EVAL) and name.removeprefix(_EVAL) in points)]
    bases.sort(key=lambda name: (_FIRST.index(name) if name in _FIRST else len(_FIRST), name))
    curves = []
    for base in bases:
        lines = {name: tuple(_thinned(points[name])) for name in (base, f"{_EVAL}{base}") if name in points}
        curves.append(Curve(base, lines, len(points[base])))
    return curves


def _thinned(points: Sequence[tuple[float, float]]) -> Points:
    ordered = sorted(points)
    if len(ordered) <= 2 * STRETCHES:
        return ordered
    kept: Points = []
    for n in range(STRETCHES):
        part = ordered[n * len(ordered) // STRETCHES : (n + 1) * len(ordered) // STRETCHES]
        ends = {min(part, key=lambda point: point[1]), max(part, key=lambda point: point[1])}
        kept += sorted(ends)
    return kept
