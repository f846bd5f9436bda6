"""The section of a run's page on what `lpt eval` measured of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lpt_data.report import words
from lpt_data.report.markdown import said
from lpt_data.report.markdown import table as markdown_table
from lpt_data.report.parts import Column, digest, literal, section, sql, table
from lpt_data.report.story import Compared, Evaluated, RunStory
from manifests.html import Child, Html, el

_MEASURES = (
    Column("measure"), Column("domain"), Column("value", number=True), Column("95 % interval", number=True),
    Column("items", number=True),
)  # fmt: skip
_PAIRED = (
    Column("measure"), Column("was", number=True), Column("is", number=True), Column("difference", number=True),
    Column("95 % interval", number=True), Column("better on", number=True), Column("worse on", number=True),
    Column("p (McNemar)", number=True), Column("items", number=True),
)  # fmt: skip


def evaluations(story: RunStory) -> Html | None:
    """Return the section, None where nothing was measured."""
    if not story.evaluations:
        return None
    content: list[Child] = []
    for one in story.evaluations:
        told = el("p", f"{_over(one)} · ", digest(one.digest), class_="dim small")
        rows = [_measured(measure) for measure in one.measures]
        content += [el("h3", one.split), told, table(_MEASURES, rows, caption=f"Measures on {one.split}")]
    for both in story.comparisons:
        content += [el("h3", _title(both)), el("p", both.split, class_="dim small")]
        content += [table(columns, rows, caption="Of both models") for columns, rows in _of_both(both)]
    ask = f"select split, model, measure, domain, value, low, high from v_measure where run_id = {literal(story.title)}"
    return section("evaluations", "Evaluations", content, el("p", sql(ask)))


def evaluations_markdown(story: RunStory) -> list[str]:
    """Return the same as lines of Markdown."""
    if not story.evaluations:
        return []
    lines = ["## Evaluations", ""]
    for one in story.evaluations:
        lines += [f"### {said(one.split)}", "", f"{said(_over(one))}", ""]
        lines += markdown_table(_heads(_MEASURES), [list(map(said, _measured(measure))) for measure in one.measures])
    for both in story.comparisons:
        lines += [f"### {said(_title(both))}", "", said(both.split), ""]
        for columns, rows in _of_both(both):
            lines += markdown_table(_heads(columns), [list(map(said, row)) for row in rows])
    return lines


def _heads(columns: tuple[Column, ...]) -> list[str]:
    return [f"{column.head}:" if column.number else column.head for column in columns]


def _over(one: Evaluated) -> str:
    return " · ".join(filter(None, (one.weights, one.how, one.created[:10])))


def _measured(measure: Mapping[str, Any]) -> list[Any]:
    value = measure.get("value")
    exact = value is not None and measure.get("low") == measure.get("high") == value
    return [
        measure["name"], measure.get("domain") or "all", value, "" if exact else _interval(measure), measure.get("n"),
    ]  # fmt: skip


def _interval(found: Mapping[str, Any]) -> str:
    low, high = found.get("low"), found.get("high")
    return "not known" if low is None or high is None else f"{words.value(low)} to {words.value(high)}"


def _title(both: Compared) -> str:
    return f"{both.after} against {both.before}"


def _of_both(both: Compared) -> list[tuple[tuple[Column, ...], list[list[Any]]]]:
    """The paired differences, and the measures that take both models, where there are any."""
    tables = [(_PAIRED, list(map(_paired, both.paired))), (_MEASURES, list(map(_measured, both.measures)))]
    return [(columns, rows) for columns, rows in tables if rows]


def _paired(found: Mapping[str, Any]) -> list[Any]:
    was, now, moved, p = (found.get(name) for name in ("before", "after", "difference", "p_value"))
    return [
        found["name"], was, now, moved, _interval(found), found.get("gained"), found.get("lost"), p, found.get("n"),
    ]  # fmt: skip
