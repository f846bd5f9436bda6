"""The page of one admission: the verdict and what to type first, then what it rests on."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from lpt_data.report import charts, topics, words
from lpt_data.report.document import document
from lpt_data.report.parts import (
    Cell,
    Column,
    command,
    digest,
    facts,
    figures,
    notes,
    section,
    status,
    table,
    toolbar,
)
from lpt_data.report.stage_page import evidence, foot
from lpt_data.report.story import FailingRow, JudgedCheck, ManifestStory
from manifests.html import Child, Html, el, join

POLICY = 40_000  # characters of a policy
NAMED = 8  # checks named beside the verdict
_EVIDENCE = "Removed rows, the weakest evidence first"
_BAD = ("fail", "error", "warn")


def manifest_page(story: ManifestStory) -> str:
    """Return the whole page."""
    body = story.body
    sections = [
        ("verdict", "Verdict", _verdict(story)),
        ("funnel", "Rows", _funnel(story)),
        ("checks", "Checks", _checks(story)),
        ("splits", "Splits", _splits(story)),
        ("contamination", "Contamination", topics.contamination(story.contaminations())),
        ("mixture", "Mixture", topics.mixture(story.of_stage("mix"))),
        ("evidence", "Evidence", evidence(story.pairs, story.pairs_of, _EVIDENCE, stages=True)),
        ("unchecked", "Not checked", _unchecked(story)),
        ("provenance", "Provenance", _provenance(story)),
    ]
    return document(
        f"{story.ref} – {words.VERDICTS[body['verdict']].lower()}",
        _head(story),
        sections,
        foot(story.id, body.get("env")),
    )


def _head(story: ManifestStory) -> Html:
    body = story.body
    counts = Counter(one.check["status"] for one in story.checks)
    numbers: list[tuple[str, Child]] = [(s.name, words.count(s.entry["rows"])) for s in story.splits]
    numbers.append(("checks passed", f"{counts['pass']:,} of {len(story.checks):,}"))
    if bad := counts["fail"] + counts["error"]:
        numbers.append(("failed", el("span", words.count(bad), class_="fail")))
    if counts["warn"]:
        numbers.append(("warnings", el("span", words.count(counts["warn"]), class_="warn")))
    numbers.append(("not run", words.count(counts["skipped"])))
    over = ["Admission manifest · contract ", str(body["contract"]), " · ", str(body.get("created", ""))[:10]]
    return join([el("p", over, class_="overline"), el("h1", story.ref), figures(numbers), notes(story.notes)])


def _verdict(story: ManifestStory) -> Html:
    body = story.body
    bad = [one for one in story.checks if one.check["status"] in _BAD or _silent(one.check)]
    items = [
        el("li", _blame(one.check), command(one.check["next"]) if one.check.get("next") else None)
        for one in bad[:NAMED]
    ]
    more = el("p", f"and {len(bad) - NAMED:,} more, below") if len(bad) > NAMED else None
    lead = words.MEANS[body["verdict"]] if bad or body["verdict"] != "accept" else words.MEANS["accept"]
    name = body["verdict"]
    return el(
        "section", el("h2", words.VERDICTS[name], id="verdict-title"), el("p", lead),
        el("ul", items, class_="todo") if items else None, more, id="verdict", aria_labelledby="verdict-title",
        class_=f"verdict {name}",
    )  # fmt: skip


def _silent(check: Mapping[str, Any]) -> bool:
    """Whether a check that was asked for did not run."""
    return check["status"] == "skipped" and bool(check.get("required"))


def _blame(check: Mapping[str, Any]) -> Html:
    said = f"{words.value(check.get('value'))}, allowed {_allowed(check)}" if check.get("op") else ""
    return el(
        "p",
        status(check["status"]),
        " ",
        el("b", check["id"], class_="check-name"),
        " ",
        said,
        " ",
        check.get("detail") or "",
    )


def _allowed(check: Mapping[str, Any]) -> str:
    sign = {"<=": "≤", ">=": "≥", "==": "=", "!=": "≠"}.get(check.get("op") or "", check.get("op"))
    return f"{sign} {words.value(check.get('threshold'))}" if sign else ""


def _funnel(story: ManifestStory) -> Html:
    sources = topics.files_of(story.body.get("sources") or [], "Files that were admitted")
    return section(
        "funnel",
        "Where the rows went",
        charts.funnel(story.flows),
        el("details", el("summary", "The files that were admitted"), sources, class_="more"),
    )


def _checks(story: ManifestStory) -> Html:
    columns = [
        Column("status"), Column("check"), Column("value", number=True), Column("allowed", number=True),
        Column("looked at", number=True), Column("if broken"),
    ]  # fmt: skip
    rows = [
        [
            Cell(status(one.check["status"]), place),
            Cell(_named(one), one.check["id"]),
            one.check.get("value"),
            _allowed(one.check),
            one.check.get("n"),
            _severity(one.check),
        ]
        for place, one in enumerate(story.checks)
    ]
    groups = [words.STATUSES[one.check["status"]] for one in story.checks]
    return section(
        "checks",
        "Checks, the worst first",
        toolbar("check-rows", list(Counter(groups).items()), what="the checks"),
        el("div", table(columns, rows, caption="Checks", groups=groups), id="check-rows"),
    )


def _named(one: JudgedCheck) -> Html:
    """The name of a check, its remark, the rows behind it, and its command: open where there is something to do."""
    check = one.check
    remark = el("div", check["detail"], class_="dim small") if check.get("detail") else None
    line = command(check["next"]) if check.get("next") else None
    if line is not None and check["status"] not in _BAD and not _silent(check):
        line = el("details", el("summary", "what to type"), line, class_="more small")
    return el("div", el("span", check["id"], class_="check-name"), remark, _behind(one), line)


def _severity(check: Mapping[str, Any]) -> str:
    required = ", must run" if check.get("required") else ""
    return f"{check.get('severity', '')}{required}"


def _behind(one: JudgedCheck) -> Html | None:
    if not one.rows:
        return None
    summary = f"{one.rows_of:,} rows behind it" if one.rows_of > 1 else "the row behind it"
    if one.rows_of > len(one.rows):
        summary += f", {len(one.rows)} shown"
    return el(
        "details", el("summary", summary), el("ul", map(_failing, one.rows), class_="behind"), class_="more small"
    )


def _failing(row: FailingRow) -> Html:
    said = el("q", row.excerpt) if row.excerpt else None
    return el("li", el("code", row.place), " ", row.detail, said)


def _splits(story: ManifestStory) -> Html:
    columns = [
        Column("split"),
        Column("rows", number=True),
        Column("set aside", number=True),
        Column("distinct keys", number=True),
    ]
    columns += [Column("tokens", number=True), Column("content"), Column("order"), Column("files")]
    rows = [
        [
            s.name, s.entry["rows"], s.entry.get("quarantined"), (s.entry.get("key") or {}).get("count"),
            (s.entry.get("tokenized") or {}).get("tokens"), digest(s.entry["content_root"]),
            digest(s.entry["order_sha256"]), _state(s.intact),
        ]
        for s in story.splits
    ]  # fmt: skip
    proofs = story.body.get("disjoint") or ()
    shared: list[Child] = []
    if proofs:
        key = el("code", str(story.body.get("key", "")))
        shared = [
            el("h3", "What the splits share"),
            el("p", "By record and by canonical key (", key, ")."),
            topics.disjoint(proofs),
        ]
    lengths = el("div", charts.histogram(story.lengths), class_="charts") if story.lengths else None
    tokens = [_tokens(s.name, s.entry["tokenized"]) for s in story.splits if s.entry.get("tokenized")]
    listed = [{**file, "path": file["path"]} for s in story.splits for file in s.entry["files"]]
    return section(
        "splits",
        "Splits and their digests",
        table(columns, rows, caption="Splits"),
        el("ul", tokens) if tokens else None,
        shared,
        lengths,
        el("details", el("summary", "Files"), topics.files_of(listed, "Files of the splits"), class_="more"),
    )


def _tokens(name: str, told: Mapping[str, Any]) -> Html:
    """What the tokenizer made of a split."""
    supervised = f"{told['supervised']:,} supervised ({words.share(told['supervised'], told['tokens'])})"
    cut = f"{words.rows(told['truncated_rows'])} longer than allowed"
    return el("li", f"{name}: {told['tokens']:,} tokens of {words.rows(told['rows'])}, {supervised}, {cut}")


def _state(intact: bool | None) -> Html:
    said = {True: ("pass", "✓ as admitted"), False: ("fail", "✕ NOT as admitted"), None: ("dim", "not here")}[intact]
    return el("span", said[1], class_=f"chip {said[0]}")


def _unchecked(story: ManifestStory) -> Html | None:
    told = story.body.get("not_checked") or []
    if not told:
        return None
    lead = el("p", "A check that did not run is no pass. These did not, and why:")
    rows = [list(str(one).partition(": ")[::2]) for one in told]
    return section(
        "unchecked", "Not checked", lead, table([Column("check"), Column("why")], rows, caption="Not checked")
    )


def _provenance(story: ManifestStory) -> Html:
    body = story.body
    told: list[tuple[str, Child]] = [
        ("manifest", digest(story.id)),
        ("policy", [str(body["policy"]["name"]), " ", digest(body["policy"]["digest"])]),
        ("identity of rows", str(body["canon"])),
    ]
    if tokenizer := body.get("tokenizer"):
        told.append(("tokenizer", [str(tokenizer.get("name")), f", at most {tokenizer.get('max_length')} tokens"]))
    told += [(f"benchmark {b['name']}", f"{b['items']:,} items") for b in body.get("benchmarks") or []]
    if story.earlier:
        told.append(("versions before", ", ".join(f"{ref} ({verdict})" for ref, verdict, _ in story.earlier)))
    return section(
        "provenance",
        "Provenance",
        facts(told),
        _stages(story),
        el("h3", "Check it yourself"),
        el("p", "In the folder, on any machine; the second needs nothing of this program:"),
        el("p", command("lpt manifest verify ./manifest.json")),
        el("p", command("sha256sum -c SHA256SUMS")),
        el(
            "details",
            el("summary", "The policy in force"),
            el("pre", _lines(body["policy"].get("text") or "")),
            class_="more",
        ),
        el("details", el("summary", "Versions of what ran"), _env(body.get("env") or {}), class_="more"),
    )


def _lines(given: str) -> list[str]:
    """A long text in pieces, each of which is shown whole."""
    return [f"{line}\n" for line in given[:POLICY].split("\n")]


def _stages(story: ManifestStory) -> Child:
    known = [(name, stage) for name, stage in story.stages if stage is not None]
    if not known:
        return (
            el("p", "No stage of this catalog made these files: they came as they are.") if not story.stages else None
        )
    columns = [
        Column("stage"),
        Column("rows in", number=True),
        Column("rows out", number=True),
        Column("when"),
        Column("its page"),
    ]
    rows = [
        [
            str(stage.get("stage")), stage.get("rows_in"), stage.get("rows_out"), str(stage.get("created", ""))[:19],
            command(f"lpt report {shlex.quote(str(stage.get('stage_id')))}"),
        ]
        for _, stage in known
    ]  # fmt: skip
    return [el("h3", "Stages behind it, the oldest first"), table(columns, rows, caption="Stages behind this data")]


def _env(env: Mapping[str, Any]) -> Html:
    packages: Sequence[tuple[str, Any]] = list((env.get("packages") or {}).items())
    plain = [(name, str(value)) for name, value in env.items() if not isinstance(value, dict)]
    return facts([*plain, *((name, str(version)) for name, version in packages)])
