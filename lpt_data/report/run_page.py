"""The page of a training run: its curves, what was measured of it, its proof, what it set aside, and its record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lpt_data.report import charts, words
from lpt_data.report.document import document
from lpt_data.report.evaluations import evaluations, evaluations_markdown
from lpt_data.report.markdown import code, said
from lpt_data.report.markdown import table as markdown_table
from lpt_data.report.parts import Cell, Column, command, digest, facts, figures, literal, notes, section, sql, table
from lpt_data.report.stage_page import foot
from lpt_data.report.story import RunStory
from manifests.html import Child, Html, el, join

_STATUS = {"done": "pass", "running": "skipped", "stopped": "warn", "failed": "fail"}


def run_page(story: RunStory) -> str:
    """Return the whole page."""
    body = story.body
    sections = [
        ("curves", "Curves", _curves(story)),
        ("evaluations", "Evaluations", evaluations(story)),
        ("proof", "Proof", _proof(body.get("proof") or {})),
        ("aside", "Quarantine", _aside(body.get("quarantined") or [])),
        ("record", "Record", _record(story)),
    ]
    return document(f"{story.title} – report", _head(story), sections, foot(story.id, body.get("env")))


def run_markdown(story: RunStory) -> str:
    """Return the report as Markdown: how it ended, first and last values, the record."""
    body = story.body
    lines = [f"# {said(story.title)}", "", f"{said(str(body['algorithm']))}, {said(str(body['status']))}", ""]
    lines += [f"- {said(told)}" for told in _told(body)]
    rows = [
        [said(curve.name), *(words.value(curve.lines[curve.name][end][1]) for end in (0, -1)), words.count(curve.steps)]
        for curve in story.curves
    ]
    lines += (
        ["", "## Metrics", "", *markdown_table(["metric", "first:", "last:", "steps:"], rows), ""] if rows else [""]
    )
    lines += evaluations_markdown(story)
    lines += ["## Record", "", *markdown_table(["", ""], [[name, code(value)] for name, value in _names(story)])]
    lines += [f"- {said(note)}" for note in story.notes]
    return "\n".join(lines).rstrip() + "\n"


def _head(story: RunStory) -> Html:
    body = story.body
    status = str(body["status"])
    numbers: list[tuple[str, Child]] = [
        ("status", el("span", status, class_=_STATUS.get(status, "fail"))),
        ("steps", words.count(body.get("steps") or 0)),
    ]
    if body.get("tokens_per_second"):
        numbers.append(("tokens a second", words.value(float(round(body["tokens_per_second"])))))
    if body.get("peak_memory_bytes"):
        numbers.append(("memory", words.size(int(body["peak_memory_bytes"]))))
    numbers.append(("took", words.duration(float(body.get("seconds") or 0))))
    told = [el("p", line, class_="note") for line in _told(body)]
    over = f"Run · {body['algorithm']} · {body.get('split')} · {str(body.get('created', ''))[:10]}"
    return join([el("p", over, class_="overline"), el("h1", story.title), figures(numbers), told, notes(story.notes)])


def _told(body: Mapping[str, Any]) -> list[str]:
    """What a reader must know before the curves."""
    told = [f"{failure}" for failure in body.get("failures") or []]
    if body.get("stopped_early"):
        told.append(f"Stopped early: {body['stopped_early']}")
    if best := body.get("best"):
        told.append(f"The best {best.get('metric')}, {words.value(best.get('value'))}, is that of {best.get('path')}")
    if dropped := (body.get("data") or {}).get("dropped"):
        reasons = ", ".join(f"{reason} {count}" for reason, count in dropped.items())
        told.append(f"{words.rows(sum(dropped.values()))} of {body.get('split')} dropped before training: {reasons}.")
    if evaluated := (body.get("eval") or {}).get("ref"):
        told.append(f"Evaluated on {evaluated}.")
    if body.get("tainted"):
        told.append("Marked: it was trained on rows that were not admitted, or from a model that was.")
    return told


def _curves(story: RunStory) -> Html | None:
    drawn = [el("div", charts.lines(curve, story.skipped)) for curve in story.curves]
    lead = f"{len(story.skipped):,} steps moved no weight (dashed)." if story.skipped else None
    return (
        section("curves", "Curves", el("p", lead) if lead else None, el("div", drawn, class_="charts"))
        if drawn
        else None
    )


def _proof(proof: Mapping[str, Any]) -> Html | None:
    if not proof:
        return None
    told = [(name.replace("_", " "), _named(words.value(value))) for name, value in proof.items()]
    lead = "Gradients were counted and every tensor was compared with what it was at the start."
    return section("proof", "Proof of an update", el("p", lead), facts(told))


def _aside(entries: Any) -> Html | None:
    if not isinstance(entries, list) or not entries:
        return None
    rows = [
        [
            words.value(entry.get("step")), el("span", str(entry.get("reason")), class_="reason"),
            words.value(entry.get("loss")), words.value(entry.get("grad_norm")),
            words.value(entry.get("median_grad_norm")), _suspect(entry.get("suspect")),
        ]
        for entry in entries
        if isinstance(entry, dict)
    ]  # fmt: skip
    columns = [
        Column("step", number=True), Column("reason"), Column("loss", number=True),
        Column("gradient norm", number=True), Column("usual norm", number=True), Column("record with the largest"),
    ]  # fmt: skip
    lead = el("p", "Batches that would have spoiled the weights; their updates were not made.")
    return section("aside", "Quarantine", lead, table(columns, rows, caption="Batches set aside"))


def _suspect(given: Any) -> Cell | Child:
    if not given:
        return "–"
    first = str(given).split()[0]
    return Cell(command(f"lpt why {first[:16]}"), first) if first.isascii() and first.isalnum() else str(given)


def _names(story: RunStory) -> list[tuple[str, str]]:
    body = story.body
    parts = {
        "run": body["run_id"], "manifest": body.get("manifest"), "split": body.get("split"),
        "content": body.get("content_root"), "tokenized": body.get("tokenized_id"),
        "model": (body.get("model") or {}).get("name"), "model digest": (body.get("model") or {}).get("digest"),
        "checkpoint": (body.get("checkpoint") or {}).get("path"),
        "checkpoint digest": (body.get("checkpoint") or {}).get("sha256"), "seed": body.get("seed"),
    }  # fmt: skip
    return [(name, str(value)) for name, value in parts.items() if value is not None]


def _record(story: RunStory) -> Html:
    body = story.body
    told = [(name, _named(value)) for name, value in _names(story)]
    settings = [(name, el("code", value)) for name, value in _settings(body.get("config") or {})]
    ask = sql(f"select metric, first, last from v_metric where run_id = {literal(body['run_id'])}")
    return section(
        "record", "Record", facts(told),
        el("details", el("summary", "Settings"), facts(settings), class_="more"),
        el("h3", "Ask further"), el("p", ask),
    )  # fmt: skip


def _named(value: str) -> Child:
    return digest(value) if len(value) == 64 and value.isalnum() else value


def _settings(config: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    found = []
    for name, value in config.items():
        inner = isinstance(value, Mapping)
        found += _settings(value, f"{prefix}{name}.") if inner else [(f"{prefix}{name}", words.value(value)[:2000])]
    return found
