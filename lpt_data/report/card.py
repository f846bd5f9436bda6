"""Reports as Markdown: the data card of an admission, with the header that the Hugging Face hub reads, and a stage.

What the manifest does not record is said to be unknown, in the words of the hub where it has any.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from lpt_data.report import words
from lpt_data.report.markdown import block, code, said, table
from lpt_data.report.story import ColumnStory, Flow, ManifestStory, Pair, StageStory, contamination_of

PAIRS = 20  # pairs of texts in a Markdown file
_SIZES = ("1K", "10K", "100K", "1M", "10M", "100M", "1B", "10B", "100B", "1T")
_TASKS = {
    "text": ["text-generation"],
    "sft": ["text-generation"],
    "preference": ["text-generation"],
    "rlvr": ["reinforcement-learning", "text-generation"],
    "kto": ["text-generation"],
    "synthetic": ["text-generation"],
}
_UNKNOWN = (
    ("Licence", "no source states one here; `license: unknown` in the header until somebody decides"),
    ("Languages", "not measured"),
    ("Who wrote the data, and from where it was collected", "not recorded beyond the files above"),
    ("Consent and terms of use of the sources", "not recorded"),
    ("Intended use and uses to avoid", "for its authors to say"),
)


def card(story: ManifestStory) -> str:
    """Return the README.md of an admitted data set."""
    body = story.body
    lines = [*_header(story), f"# {said(story.ref)}", ""]
    lines += [f"**{words.VERDICTS[body['verdict']]}.** {words.MEANS[body['verdict']]}", ""]
    lines += [
        f"Contract {code(body['contract'])}, policy {code(body['policy']['name'])}, manifest {code(story.id)}.",
        "",
    ]
    lines += ["## Splits", "", *_splits(story)]
    lines += ["## Where the rows went", "", *_flows(story.flows)]
    lines += ["## Sources", "", *_sources(body)]
    lines += ["## Checks", "", *_checks(story), *_unchecked(body)]
    lines += _contamination(story.contaminations())
    lines += _personal(story)
    lines += ["## Not known", ""]
    lines += [f"- {name}: {why}." for name, why in _UNKNOWN]
    lines += ["", "## Verify", "", *block("lpt manifest verify ./manifest.json\nsha256sum -c SHA256SUMS", "sh"), ""]
    if story.notes:
        lines += ["## Not in this card", "", *(f"- {said(note)}" for note in story.notes), ""]
    return "\n".join(lines)


def stage_markdown(story: StageStory) -> str:
    """Return the report of a stage."""
    body = story.body
    lines = [f"# {said(str(body['stage']))} {code(body['stage_id'])}", "", *_flows([story.flow])]
    rows = [[said(reason), words.ACTIONS[action], words.count(n)] for action, reason, n in story.reasons]
    lines += ["## Why", "", *table(["reason", "rows were", "rows:"], rows)] if rows else []
    if (found := contamination_of(body)) is not None:
        lines += _contamination([found])
    if story.keepers:
        rows = [[str(k.row), words.count(k.absorbed), said(k.excerpt)] for k in story.keepers]
        lines += ["## Kept rows that stand for the most", "", *table(["row:", "stands for:", "its text"], rows)]
    if story.pairs:
        shown = story.pairs[:PAIRS]
        lines += [f"## The weakest evidence ({len(shown)} of {story.pairs_of:,} removals)", ""]
        lines += [line for one in shown for line in _pair(one)]
    if story.quarantine:
        rows = [[said(one.reason), said(one.place), said(one.detail)] for one in story.quarantine]
        lines += [f"## Set aside ({len(rows)} of {story.flow.quarantined:,})", ""]
        lines += table(["reason", "where", "detail"], rows)
    rows = [
        [code(f["path"]), words.value(f.get("rows")), code(f["sha256"])] for f in [*body["inputs"], *body["outputs"]]
    ]
    lines += ["## Files read and written", "", *table(["file", "rows:", "sha256"], rows)]
    lines += [f"- {said(note)}" for note in story.notes]
    return "\n".join(lines).rstrip() + "\n"


def size_category(rows: int) -> str:
    """Return the hub's name for a number of rows."""
    for number, name in enumerate(_SIZES):
        if rows < 10 ** (3 + number):
            return f"n<{name}" if not number else f"{_SIZES[number - 1]}<n<{name}"
    return "n>1T"


def _header(story: ManifestStory) -> list[str]:
    body = story.body
    splits = [{"split": s.name, "path": [f["path"] for f in s.entry["files"]]} for s in story.splits if s.entry["rows"]]
    head = {
        "pretty_name": str(body["name"]),
        "license": "unknown",
        "task_categories": _TASKS.get(body["contract"], ["other"]),
        "size_categories": [size_category(sum(s.entry["rows"] for s in story.splits))],
        "tags": ["lpt", str(body["contract"]), f"verdict-{body['verdict']}"],
        "configs": [{"config_name": "default", "data_files": splits}],
    }
    return ["---", yaml.safe_dump(head, sort_keys=False, allow_unicode=False).rstrip(), "---", ""]


def _splits(story: ManifestStory) -> list[str]:
    rows = []
    for s in story.splits:
        keys, tokens = s.entry.get("key") or {}, s.entry.get("tokenized") or {}
        numbers = [words.value(n) for n in (s.entry["rows"], keys.get("count"), tokens.get("tokens"))]
        rows.append([said(s.name), *numbers, code(s.entry["content_root"])])
    lines = table(["split", "rows:", "distinct keys:", "tokens:", "content root"], rows)
    for pair in story.body.get("disjoint") or ():
        lines.append(f"- {said(pair['a'])} and {said(pair['b'])} share {pair['intersection']:,} by {said(pair['by'])}")
    columns = story.splits[0].columns if story.splits else ()
    if columns:
        lines += ["", "Columns: " + ", ".join(f"{code(c.name)} ({_kind(c)})" for c in columns)]
    return [*lines, ""]


def _kind(column: ColumnStory) -> str:
    return (
        f"list of objects with {', '.join(said(name) for name, _ in column.members)}"
        if column.members
        else said(column.type)
    )


def _flows(flows: Sequence[Flow]) -> list[str]:
    rows = [
        [
            said(flow.title), words.count(flow.rows_in), words.count(flow.rows_out),
            ", ".join(f"{said(reason)} {n:,}" for reason, n in flow.removed.items()) or "–",
            words.count(flow.quarantined), words.count(flow.repeated),
        ]
        for flow in flows
    ]  # fmt: skip
    return table(["stage", "rows in:", "rows out:", "removed", "set aside:", "repeated:"], rows)


def _sources(body: Mapping[str, Any]) -> list[str]:
    rows = [
        [said(f["split"]), code(f["path"]), words.size(f["bytes"]), code(f["sha256"])]
        for f in body.get("sources") or ()
    ]
    return table(["split", "file", "size:", "sha256"], rows)


def _checks(story: ManifestStory) -> list[str]:
    rows = []
    for one in story.checks:
        check = one.check
        bound = f"{check['op']} {words.value(check.get('threshold'))}" if check.get("op") else "–"
        cells = [words.STATUSES[check["status"]], code(check["id"]), words.value(check.get("value")), said(bound)]
        rows.append([*cells, words.value(check.get("n")), said(check.get("severity") or "")])
    return table(["status", "check", "value:", "allowed:", "looked at:", "if broken"], rows)


def _unchecked(body: Mapping[str, Any]) -> list[str]:
    told = body.get("not_checked") or ()
    return ["Not checked:", "", *(f"- {said(one)}" for one in told), ""] if told else []


def _contamination(stages: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = (
        ["## Contamination", ""] if stages else ["## Contamination", "", "No decontamination stage is on record.", ""]
    )
    for body in stages:
        told = body["extra"]["benchmarks"]
        counts = [[b["items"], len(b["undetectable_items"]), b["items_hit"], b["rows_hit"]] for b in told]
        rows = [[said(b["name"]), *map(words.count, c)] for b, c in zip(told, counts, strict=True)]
        lines += table(["benchmark", "items:", "cannot be seen:", "items hit:", "rows hit:"], rows)
        rows = [
            [
                said(b["name"]),
                said(kind),
                words.count(c["planted"]),
                f"{c['recall']:.3f} ({c['low']:.3f} to {c['high']:.3f})",
            ]
            for b in told
            for kind, c in b["canaries"].items()
        ]
        lines += table(["benchmark", "canaries", "planted:", "recall, 95 % interval:"], rows)
        lines += [f"Not checked: {said(body['extra']['not_checked'])}.", ""]
    return lines


def _personal(story: ManifestStory) -> list[str]:
    """What cleaning did about personal data; without such a stage it is unknown."""
    cleaned = story.of_stage("clean")
    lines = ["## Personal data and secrets", ""]
    if not cleaned:
        return [*lines, "Not known: no cleaning stage is on record.", ""]
    for body in cleaned:
        config = body["config"]
        masked = {r: n for r, n in {**body["rewritten"], **body["removed"]}.items() if "mask" in r or "secret" in r}
        found = ", ".join(f"{said(reason)} {n:,}" for reason, n in masked.items()) or "nothing was found"
        lines.append(f"- Personal data: {said(config['pii'])}; secrets: {said(config['secrets'])}; {found}.")
    return [*lines, ""]


def _pair(one: Pair) -> list[str]:
    score = "" if one.score is None else f", score {one.score:.3f}"
    lines = [f"### {said(one.left_name)}: {said(one.reason)}{score}", ""]
    for name, pieces in ((one.left_name, one.left), (one.right_name, one.right)):
        if pieces:
            lines += [f"{said(name)}:", "", *block("".join(_in_brackets(*piece) for piece in pieces)), ""]
    return lines


def _in_brackets(part: str, kind: str) -> str:
    return f"⟦{part}⟧" if kind in ("differs", "matches") else f" {part} " if kind == "gap" else part
