"""Sections that a stage and the admissions built on it share: contamination, mixture, disjointness, provenance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from lpt_data.report import charts, words
from lpt_data.report.parts import Cell, Column, digest, facts, section, swatch, table
from manifests.html import Child, Html, el, join

Body = Mapping[str, Any]


def contamination(stages: Sequence[Body]) -> Html | None:
    """What was looked for, how often it was found, what canaries say about the search, and what it cannot see."""
    if not stages:
        return None
    parts: list[Child] = []
    for body in stages:
        told = body["extra"]
        parts.append(_benchmarks(told["benchmarks"]))
        parts.append(_canaries(told["benchmarks"]))
        parts += [_items(benchmark) for benchmark in told["benchmarks"]]
        parts.append(el("p", el("b", "Not checked: "), told["not_checked"]))
        parts += [el("p", note, class_="note") for note in told["notes"]]
    return section("contamination", "Contamination", parts)


def _benchmarks(told: Sequence[Body]) -> Html:
    columns = [Column("benchmark")] + [
        Column(name, number=True)
        for name in (
            "items",
            "cannot be seen",
            "items hit",
            "rows hit",
            "rows with a 13-gram",
            "rows with 50 characters",
        )
    ]
    rows = [
        [
            b["name"], b["items"], len(b["undetectable_items"]), b["items_hit"], b["rows_hit"],
            b["any_13gram"]["rows"], (b["any_50_characters"] or {}).get("rows", "not looked for"),
        ]
        for b in told
    ]  # fmt: skip
    return table(columns, rows, caption="Benchmarks and what was found of them")


def _canaries(told: Sequence[Body]) -> Html:
    columns = [Column("benchmark"), Column("canaries"), Column("planted", number=True), Column("found", number=True)]
    columns += [Column("recall", number=True), Column("95 % interval")]
    rows = [
        [
            b["name"], kind, c["planted"], c["found"], Cell(f"{c['recall']:.3f}", c["recall"]),
            Cell([f"{c['low']:.3f} – {c['high']:.3f}", charts.interval(c["low"], c["recall"], c["high"])], c["low"]),
        ]
        for b in told
        for kind, c in b["canaries"].items()
    ]  # fmt: skip
    lead = el(
        "p",
        "Items of the benchmark were sent through the same search, changed in these ways. What share came out again is "
        "how far “nothing found” can be trusted.",
    )
    return join([el("h3", "Canary recall"), lead, table(columns, rows, caption="Canary recall")])


def _items(benchmark: Body) -> Html:
    name = str(benchmark["name"])
    parts: list[Child] = []
    if hit := benchmark["compromised"]:
        columns = [Column("item"), Column("criterion")]
        columns += [Column(head, number=True) for head in ("coverage", "longest piece, words", "best row", "rows")]
        rows = [
            [
                str(c["item"]),
                c["criterion"],
                Cell(f"{c['coverage']:.3f}", c["coverage"]),
                c["longest"],
                c["row"],
                c["rows"],
            ]
            for c in hit
        ]
        found = table(columns, rows, caption=f"Compromised items of {name}, the weakest evidence first", of=len(hit))
        parts.append(el("details", el("summary", f"{len(hit):,} compromised items of ", name), found, class_="more"))
    if unseen := benchmark["undetectable_items"]:
        reasons = Counter(u["reason"] for u in unseen)
        told = ", ".join(f"{n:,} {reason}" for reason, n in reasons.most_common(5))
        found = table(
            [Column("item"), Column("reason")], [[str(u["item"]), u["reason"]] for u in unseen],
            caption=f"Items of {name} that cannot be seen", of=len(unseen),
        )  # fmt: skip
        summary = el("summary", f"{len(unseen):,} items of ", name, " cannot be seen inside a longer row: ", told)
        parts.append(el("details", summary, found, class_="more"))
    return join(parts)


def mixture(stages: Sequence[Body]) -> Html | None:
    """What was asked of each domain, and what was drawn."""
    if not stages:
        return None
    parts: list[Child] = []
    for body in stages:
        told = body["extra"]
        columns = [Column("domain"), Column("asked", number=True), Column("drawn", number=True), Column("both")]
        columns += [Column("rows", number=True), Column("repeated", number=True)]
        rows = [
            [
                d["domain"], Cell(words.share(d["asked"], 1), d["asked"]),
                Cell(words.share(d["observed"], 1), d["observed"]),
                Cell(charts.twin_bar(d["asked"], d["observed"]), d["observed"]), d["rows"], d["repeated"],
            ]
            for d in told["domains"]
        ]  # fmt: skip
        parts.append(el("p", swatch("asked"), "asked for ", swatch("kept"), "drawn", class_="small"))
        parts.append(table(columns, rows, caption="Domains of the mixture"))
        parts += _phases(told.get("phases") or [])
        parts += [el("p", warning, class_="note") for warning in told.get("warnings", ())]
        parts.append(facts([("plan", digest(told["plan_hash"]))]))
    return section("mixture", "Mixture: asked and drawn", parts)


def _phases(told: Sequence[Body]) -> list[Html]:
    """The phases of a schedule, where there are several."""
    if len(told) < 2:
        return []
    columns = [Column("phase"), Column("rows", number=True), Column("asked"), Column("drawn")]
    rows = [
        [
            f"{words.share(p['from'], 1)} to {words.share(p['until'], 1)}", p["end_row"] - p["first_row"],
            *(_shares(p[key]) for key in ("asked", "observed")),
        ]
        for p in told
    ]  # fmt: skip
    return [el("h3", "Phases"), table(columns, rows, caption="Phases of the mixture")]


def _shares(parts: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {words.share(part, 1)}" for name, part in parts.items())


def disjoint(pairs: Sequence[Body]) -> Html | None:
    """For each two splits, by what they were compared and how much they share."""
    if not pairs:
        return None
    columns = [
        Column("splits"),
        Column("compared by"),
        Column("distinct in the first", number=True),
        Column("in the second", number=True),
    ]
    columns.append(Column("in both", number=True))
    rows = [
        [
            f"{p['a']} and {p['b']}", p["by"], p.get("n_a"), p.get("n_b"),
            Cell(_shared(p["intersection"]), p["intersection"]),
        ]
        for p in pairs
    ]  # fmt: skip
    return table(columns, rows, caption="What the splits share")


def _shared(rows: int) -> Html:
    return el("b", words.count(rows), class_="fail" if rows else "pass")


def files_of(entries: Sequence[Body], caption: str) -> Html:
    """Files with their digests."""
    columns = [Column("file"), Column("rows", number=True), Column("size", number=True), Column("sha256")]
    rows = [
        [
            str(f.get("path", "")), f.get("rows"),
            Cell(words.size(f["bytes"]) if f.get("bytes") is not None else "–", f.get("bytes") or 0),
            digest(str(f.get("sha256", ""))),
        ]
        for f in entries
    ]  # fmt: skip
    return table(columns, rows, caption=caption, of=len(entries))


def settings(config: Body) -> Html:
    """The settings of a stage, as they were in force."""
    return facts([(name, el("code", _setting(value))) for name, value in config.items()])


def _setting(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return ", ".join(value)[:2000] or "none"
    return "not set" if value is None else str(value)[:2000]
