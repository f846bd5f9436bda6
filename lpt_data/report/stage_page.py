"""The page of one stage: where its rows went, why, and the removals that a reader should doubt first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from lpt_data.report import charts, topics, words
from lpt_data.report.document import ROOM_FOR_TEXTS, document
from lpt_data.report.meaning import meanings
from lpt_data.report.parts import (
    Cell,
    Column,
    digest,
    facts,
    figures,
    literal,
    notes,
    pairs,
    section,
    sql,
    table,
    toolbar,
)
from lpt_data.report.story import Pair, StageStory, contamination_of
from manifests.html import Child, Html, el, join


def stage_page(story: StageStory) -> str:
    """Return the whole page."""
    body = story.body
    rewritten = sum(n for action, _, n in story.reasons if action == "rewrite")
    found = contamination_of(body)
    told = (body["extra"].get("splits") or {}, body["extra"].get("disjoint") or ())
    sections = [
        ("funnel", "Rows", section("funnel", "Where the rows went", charts.funnel([story.flow]), _reasons(story))),
        ("mixture", "Mixture", topics.mixture([body]) if body["stage"] == "mix" else None),
        ("contamination", "Contamination", topics.contamination([found] if found is not None else [])),
        ("meaning", "Meaning", meanings(body["extra"])),
        ("splits", "Splits", _splits(*told)),
        ("evidence", "Evidence", evidence(story.pairs, story.pairs_of + rewritten, _evidence_title(story))),
        ("pictures", "Distributions", _pictures(story)),
        ("keepers", "Kept for many", _keepers(story)),
        ("aside", "Quarantine", _aside(story)),
        ("record", "Record", _record(story)),
    ]
    return document(f"{story.title} – report", _head(story), sections, foot(story.id, body.get("env")))


def foot(object_id: str, env: object) -> Child:
    """The last line of every page: which record it was made from."""
    version = env.get("lpt") if isinstance(env, dict) else None
    return [
        "Made from the record ",
        el("code", object_id[:16]),
        f" of lpt {version or ''}. This page loads nothing.",
    ]


def _head(story: StageStory) -> Html:
    body, flow = story.body, story.flow
    gone = [("removed", flow.lost)] if flow.lost or not flow.repeated else [("repeated", flow.repeated)]
    numbers: list[tuple[str, Child]] = [("rows in", words.count(flow.rows_in))]
    numbers += [(name, words.count(n)) for name, n in gone]
    if rewritten := sum(n for action, _, n in story.reasons if action == "rewrite"):
        numbers.append(("rewrites", words.count(rewritten)))
    if flow.quarantined:
        numbers.append(("set aside", words.count(flow.quarantined)))
    numbers += [("rows out", words.count(flow.rows_out)), ("took", words.duration(float(body["seconds"])))]
    return join(
        [
            el(
                "p",
                "Stage · ",
                str(body.get("kind", "")),
                " rows · ",
                str(body.get("created", ""))[:10],
                class_="overline",
            ),
            el("h1", str(body["stage"]), " ", el("code", str(body["stage_id"]), class_="dim small")),
            figures(numbers),
            notes(story.notes),
        ]
    )


def _reasons(story: StageStory) -> Html | None:
    if not story.reasons:
        return el("p", "Every row was kept as it was.")
    of = story.flow.rows_in
    rows = [
        [
            el("span", reason, class_="reason"), words.ACTIONS[action], n, Cell(words.share(n, of), n),
            Cell(sql(_rows_of(story, action, reason)), reason),
        ]
        for action, reason, n in story.reasons
    ]  # fmt: skip
    columns = [Column("reason"), Column("were"), Column("rows", number=True), Column("of all", number=True)]
    return join([el("h3", "Why"), table([*columns, Column("show them")], rows, caption="Reasons")])


def _rows_of(story: StageStory, action: str, reason: str) -> str:
    stage = literal(story.body["stage_id"])
    where = f"stage_id = {stage} and action = {literal(action)} and reason = {literal(reason)}"
    return f"select row, record_id, witness_row, score, detail from v_decision where {where} order by score"


def _evidence_title(story: StageStory) -> str:
    if story.body["stage"] == "clean":
        return "What cleaning did"
    return "Removed rows, the weakest evidence first"


def evidence(given: Sequence[Pair], of: int, title: str, *, stages: bool = False) -> Html | None:
    """Texts beside each other with filters by reason; says how many of all are shown."""
    if not given:
        return None
    shown, count = pairs(given, open_first=2, room=ROOM_FOR_TEXTS, stages=stages)
    groups = Counter(one.reason for one in given[:count])
    kinds = {kind for one in given[:count] for _, kind in (*one.left, *one.right)}
    keys: list[Child] = []
    if "differs" in kinds:
        keys.append([el("mark", "marked", class_="differs"), " words differ. "])
    if "matches" in kinds:
        keys.append([el("mark", "marked", class_="matches"), " words are in both. "])
    many = (
        f"{count:,} of {of:,} decisions are shown: of each reason those with the lowest scores. " if of > count else ""
    )
    return section(
        "evidence",
        title,
        el("p", many, keys),
        toolbar("pairs", groups.most_common(), what="the rows", expand=True) if count > 1 else None,
        el("div", shown, id="pairs"),
    )


def _pictures(story: StageStory) -> Html | None:
    near = story.body["extra"].get("minhash") or {}
    drawn: list[Child] = [charts.histogram(one) for one in (story.scores, story.lengths) if one is not None]
    if points := near.get("s_curve"):
        at = float(near["threshold"])
        labels = ("true similarity of two rows", "Chance that the pair is compared at all")
        said = (
            f"At the threshold, {at:g} (dashed), it is {near['recall_at_threshold']:.4f}. {near['candidates']:,} pairs "
            f"were compared and {near['verified']:,} were similar enough."
        )
        drawn.append(charts.curve(points, at, labels, said))
    return (
        section("pictures", "Distributions", el("div", [el("div", one) for one in drawn], class_="charts"))
        if drawn
        else None
    )


def _keepers(story: StageStory) -> Html | None:
    if not story.keepers:
        return None
    columns = [Column("row"), Column("stands for", number=True), Column("of all", number=True), Column("its text")]
    rows = [
        [Cell(str(k.row), k.row), k.absorbed, Cell(words.share(k.absorbed, story.flow.rows_in), k.absorbed), k.excerpt]
        for k in story.keepers
    ]
    lead = el("p", "Kept rows for which the most others went. One that stands for very many is often a template.")
    alarms = [
        el("p", f"Alarm: row {a['row']} stands for {a['absorbed']:,} rows of ", a["file"], class_="note")
        for a in story.body["extra"].get("alarms", ())
    ]
    return section(
        "keepers", "Kept for many", lead, alarms, table(columns, rows, caption="Kept rows that stand for many")
    )


def _aside(story: StageStory) -> Html | None:
    if not story.flow.quarantined:
        return None
    rows = [[el("span", one.reason, class_="reason"), one.place, one.detail[:400]] for one in story.quarantine]
    where = story.body["extra"].get("quarantine_file")
    found = table(
        [Column("reason"), Column("where"), Column("detail")],
        rows,
        caption="Rows in quarantine",
        of=story.flow.quarantined,
    )
    kept = el("p", "The rows themselves: ", el("code", str(where))) if where else None
    return section("aside", "Quarantine", el("p", "Rows that could not be used. None of them is lost."), found, kept)


def _splits(splits: object, shared: Sequence[dict]) -> Html | None:
    if not isinstance(splits, dict) or not splits:
        return None
    columns = [Column("split"), Column("rows", number=True), Column("keys", number=True), Column("content")]
    rows = [
        [name, s.get("rows"), s.get("keys"), digest(str(s["content_root"])) if "content_root" in s else "–"]
        for name, s in splits.items()
    ]
    proof = [el("h3", "What they share"), topics.disjoint(shared)] if shared else None
    return section("splits", "Splits", table(columns, rows, caption="Splits"), proof)


def _record(story: StageStory) -> Html:
    body = story.body
    parents = [el("code", str(name)[:16], " ") for name in body.get("parents") or ()]
    told: list[tuple[str, Child]] = [
        ("record", digest(story.id)),
        ("content of the output", digest(str(body["content_root"]))),
        ("made from", parents or "files of the user"),
        ("code", f"lpt {body['code']['lpt']}, source {body['code']['source']}"),
        (
            "speed",
            f"{body['rows_per_second']:,.0f} rows a second, {words.size(int(body['peak_memory_bytes']))} of memory",
        ),
    ]
    references = body.get("references") or []
    return section(
        "record",
        "Record",
        facts(told),
        el("h3", "Read"),
        topics.files_of([*body["inputs"], *references], "Files that were read"),
        el("h3", "Written"),
        topics.files_of(body.get("outputs") or [], "Files that were written"),
        el("details", el("summary", "Settings"), topics.settings(body["config"]), class_="more"),
        el("h3", "Ask further"),
        el("p", sql(f"select * from v_stage where stage_id = {literal(body['stage_id'])}")),
    )
