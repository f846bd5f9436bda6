"""What a report says of rows compared by meaning: scores, pairs of each band to choose a threshold by, thresholds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lpt_data.report import charts
from lpt_data.report.parts import Column, section, table
from lpt_data.report.story import Histogram
from manifests.html import Child, Html, el


def meanings(extra: Mapping[str, Any]) -> Html | None:
    """Return the section, None where no meanings were compared."""
    meant = extra.get("semantic")
    if not meant:
        return None
    model = meant["embedder"]
    said = (
        f"{model['name']} ({model['digest'][:12]}), {model['precision']}. A pair counts from a cosine of "
        f"{meant['threshold']:g} on. {meant['truncated_texts']:,} of {meant['distinct_texts']:,} distinct texts are "
        "longer than what the model reads and were compared by their beginning."
    )
    content: list[Child] = [el("p", said)]
    if "bands" in meant:
        content += [charts.histogram(_scores(meant)), _bands(meant)]
    if "by_threshold" in meant:
        content.append(_thresholds(meant))
    return section("meaning", "Meaning", content)


def _scores(meant: Mapping[str, Any]) -> Histogram:
    bins = meant["histogram"]
    edges = (*(low for low, _ in bins), 1.01)
    note = f"{meant['pairs']:,} pairs at or above {meant['floor']:g}; {meant['pairs_at_threshold']:,} at the threshold."
    return Histogram("Pairs by score", "cosine", edges, {"pairs": tuple(n for _, n in bins)}, note)


def _bands(meant: Mapping[str, Any]) -> Html:
    rows = [
        [p["score"], "same" if p["same_numbers"] else "differ", *p["texts"]]
        for band in meant["bands"]
        for p in band["shown"]
    ]
    columns = [Column("cosine", number=True), Column("numbers"), Column("a text"), Column("another")]
    return table(columns, rows, caption="Some pairs of each band of scores", of=meant["pairs"])


def _thresholds(meant: Mapping[str, Any]) -> Html:
    rows = [
        [at["threshold"], at["rows_by_meaning_alone"], at["rows_by_meaning_alone_whatever_the_numbers"]]
        for at in meant["by_threshold"]
    ]
    columns = [Column("cosine", number=True), Column("rows by meaning alone", number=True)]
    columns.append(Column("whatever the numbers", number=True))
    return table(columns, rows, caption="Rows that would go at other thresholds")
