"""Removed rows beside the benchmark items that they repeat, with what matched."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from lpt_data.contamination import load_benchmarks
from lpt_data.contamination.report import Shown, examples
from lpt_data.dataset import Dataset
from lpt_data.progress import Progress
from lpt_data.report.places import place_name
from lpt_data.report.story import Kind, Pair, Pieces
from lpt_data.stage import StageReport
from manifests.catalog import Catalog
from manifests.digests import bytes_sha256
from manifests.errors import LptError


def benchmark_pairs(catalog: Catalog, body: Mapping[str, Any], notes: list[str], progress: Progress) -> list[Pair]:
    """Removed rows beside the benchmark items that they repeat, where rows and items are still what they were."""
    told = body["extra"]["benchmarks"]
    for entry in [*body["inputs"], *(source for one in told for source in one["sources"])]:
        try:
            same = bytes_sha256(entry["path"]) == entry["sha256"]
        except LptError:
            same = False
        if not same:
            notes.append(f"{entry['path']} is not there any more or has changed; rows and items are not shown")
            return []
    try:
        first = body["inputs"][0]
        dataset = Dataset.open(
            [entry["path"] for entry in body["inputs"]],
            kind=body["kind"],
            layout=first["layout"],
            text_column=first["text_column"],
        )
        benchmarks = load_benchmarks({one["name"]: [s["path"] for s in one["sources"]] for one in told})
        report = StageReport(dict(body), "", decisions_path=str(catalog.decisions_path(body["stage_id"])))
        shown = examples(dataset, benchmarks, report, progress)
    except LptError as error:
        notes.append(f"rows and items are not shown: {error.what} ({error.seen})")
        return []
    return [_benchmark_pair(body, one) for one in shown]


def _benchmark_pair(body: Mapping[str, Any], one: Shown) -> Pair:
    def marked(pieces: Sequence[tuple[str, bool]]) -> Pieces:
        kinds: dict[bool, Kind] = {True: "matches", False: "plain"}
        return tuple((part, kinds[hit]) for part, hit in pieces)

    return Pair(
        stage="decontaminate",
        reason=one.criterion,
        row=one.row,
        score=one.coverage,
        left=marked(one.row_text),
        right=marked(one.item_text),
        left_name=f"removed: {place_name(body, one.row)}",
        right_name=f"item {one.item} of {one.benchmark}",
        why=f"lpt why {shlex.quote(str(body['stage_id']))}:{one.row}",
        detail=one.evidence,
    )
