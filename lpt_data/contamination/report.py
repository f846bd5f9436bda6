"""The report of a decontamination as JSON or Markdown; rows beside items, the weakest evidence first.

Its page is that of every stage (`lpt_data.report`), which takes the rows and items from here.

It is made from the recorded stage, its decisions and a second look at the rows, so it comes out the same for work that
was done before. Rows and items are hostile text: control characters are made visible, everything is escaped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from lpt_data.contamination.items import Benchmarks, Item
from lpt_data.contamination.plain import plain_text
from lpt_data.dataset import Dataset
from lpt_data.progress import Progress
from lpt_data.stage import StageReport
from lpt_data.text import word_spans
from manifests import decisions
from manifests.canon import json_text
from manifests.errors import BadInputError, UsageError
from manifests.files import write_atomic

PAGE = ".html"  # written by `lpt_data.report`
SHOWN = 100  # removed rows shown with their texts
AROUND = 240  # characters of a row shown before and after what matches
LONGEST = 6000  # characters of one text shown

Pieces = list[tuple[str, bool]]  # text and whether it is matched


@dataclass(frozen=True)
class Shown:
    """One removed row beside the item that it repeats."""

    row: int
    record_id: str
    benchmark: str
    item: int
    criterion: str
    coverage: float
    longest: float
    row_text: Pieces
    item_text: Pieces

    @property
    def evidence(self) -> str:
        """What speaks for it, in words."""
        if self.criterion == "meaning":
            return f"{self.criterion}, cosine {self.coverage:.3f}"
        return f"{self.criterion}, coverage {self.coverage:.2f}, {self.longest:g} words in one piece"


def check_paths(path: Path | None, out: Path, dataset: Dataset, benchmarks: Benchmarks, *, dry_run: bool) -> None:
    """Raise, before any work, for a report that cannot be written and for an output that is a file to be read."""
    read = {Path(source["path"]).resolve() for b in benchmarks.benchmarks for source in b.sources}
    if out.resolve() in read:
        raise UsageError("the output is a benchmark", seen=str(out), next="another --out")
    if path is None:
        return
    if path.resolve() in read | {out.resolve()} | {Path(f.path).resolve() for f in dataset.files}:
        raise UsageError(
            "the report would replace the output, an input or a benchmark", seen=str(path), next="another name"
        )
    if not path.resolve().parent.is_dir():
        raise BadInputError("the folder of the report is not there", seen=str(path), next=f"mkdir {path.parent}")
    if path.suffix not in (*WRITERS, PAGE):
        raise UsageError("a report is .md, .json or .html", seen=path.name, next=f"--report {path.stem}.html")
    if dry_run:
        raise UsageError(
            "a dry run writes no report", seen=f"--report {path}", next="leave --dry-run out, or --json for its figures"
        )


def write_report(path: Path, dataset: Dataset, benchmarks: Benchmarks, report: StageReport, progress: Progress) -> None:
    """Write the report of a finished stage as JSON or Markdown, whichever the name asks for."""
    shown = [_as_seen(one) for one in examples(dataset, benchmarks, report, progress)]
    write_atomic(path, WRITERS[path.suffix](report.body, shown).encode("utf-8", "backslashreplace"))


def examples(dataset: Dataset, benchmarks: Benchmarks, report: StageReport, progress: Progress) -> list[Shown]:
    """The removed rows with the weakest evidence, at most SHOWN of them."""
    table = decisions.read(report.decisions_path).to_pylist()
    removed = [one for one in table if one["action"] == "remove"]
    removed.sort(key=lambda one: (one["score"], one["record_id"], one["row"]))
    chosen = {one["row"]: one for one in removed[:SHOWN]}
    texts: dict[int, str] = {}
    for batch in dataset.texts("text") if chosen else ():
        for place in np.flatnonzero(np.isin(batch.rows, list(chosen))).tolist():
            texts[int(batch.rows[place])] = batch.texts[place].as_py()
        progress(int(batch.rows[-1]) + 1, None, "texts of the report")
        if len(texts) == len(chosen):
            break
    by_place = {(benchmarks.benchmarks[i.benchmark].name, i.index): i for i in benchmarks.items}
    return [_shown(one, texts[row], by_place) for row, one in chosen.items()]


def _shown(decision: dict[str, Any], text: str, items: dict[tuple[str, int], Item]) -> Shown:
    told = orjson.loads(decision["detail"])
    item = items[told["benchmark"], told["item"]]
    said = item.answer if told["criterion"] in ("long_answer", "code") else item.question
    return Shown(
        row=decision["row"],
        record_id=decision["record_id"],
        benchmark=told["benchmark"],
        item=told["item"],
        criterion=told["criterion"],
        coverage=decision["score"],
        longest=told["longest"],
        row_text=pieces(text, told["row_spans"], crop=True),
        item_text=pieces(said, told["item_spans"]),
    )


def pieces(text: str, spans: Sequence[Sequence[int]], *, crop: bool = False) -> Pieces:
    """Cut a text at its matched runs of tokens; with `crop`, what is far from any match is an ellipsis."""
    text = plain_text(text)
    if len(text.lower()) != len(text):  # a letter whose lower case is longer: places are those of the lower case
        text = text.lower()
    words = word_spans(text)
    found: Pieces = []
    at = 0
    for start, end in spans:
        first, last = words[start][0], words[end - 1][1]
        found += [(text[at:first], False), (text[first:last], True)]
        at = last
    found.append((text[at:], False))
    if crop:
        ends = (0, len(found) - 1)
        found = [(part if hit else _near(part, n == ends[0], n == ends[1]), hit) for n, (part, hit) in enumerate(found)]
    return _cut([(part, hit) for part, hit in found if part])


def _near(part: str, first: bool, last: bool) -> str:
    """What of an unmatched piece is within AROUND characters of a match."""
    if first and last:
        return part[: 2 * AROUND]
    before, after = ("" if first else part[:AROUND]), ("" if last else part[-AROUND:])
    return part if len(before) + len(after) >= len(part) else f"{before} … {after}"


def _cut(found: Pieces) -> Pieces:
    kept: Pieces = []
    room = LONGEST
    for part, hit in found:
        if len(part) > room:
            return [*kept, (part[:room] + " …", hit)]
        kept.append((part, hit))
        room -= len(part)
    return kept


def _as_seen(one: Shown) -> Shown:
    """The same with every character visible that would not be."""
    row, item = ([(_visible(part), hit) for part, hit in side] for side in (one.row_text, one.item_text))
    return replace(one, row_text=row, item_text=item)


def _visible(text: str) -> str:
    """Control and format characters as escapes; line breaks and tabs stay."""
    return "".join(c if c in "\n\t" or c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _json(body: dict[str, Any], shown: Sequence[Shown]) -> str:
    return json_text({**_head(body), **body["extra"], "examples": [asdict(one) for one in shown]}) + "\n"


def _head(body: dict[str, Any]) -> dict[str, Any]:
    names = ("stage_id", "rows_in", "rows_out", "removed", "quarantined", "inputs", "output", "content_root", "created")
    return {name: body[name] for name in names if name in body}


def _markdown(body: dict[str, Any], shown: Sequence[Shown]) -> str:
    extra = body["extra"]
    lines = ["# Contamination", "", *_funnel(body), ""]
    lines += [
        "| benchmark | items | not detectable | items hit | rows hit | 13-gram items / rows | 50-char items / rows |"
    ]
    lines += ["|---|---|---|---|---|---|---|"]
    for b in extra["benchmarks"]:
        legacy, chars = b["any_13gram"], b["any_50_characters"]
        cells = [_md(b["name"]), b["items"], len(b["undetectable_items"]), b["items_hit"], b["rows_hit"]]
        cells += [f"{legacy['items']} / {legacy['rows']}", f"{chars['items']} / {chars['rows']}"]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    lines += ["", "## Canary recall, 95 % Wilson intervals", "", "| benchmark | kind | planted | found | recall |"]
    lines += ["|---|---|---|---|---|"]
    for b in extra["benchmarks"]:
        for kind, c in b["canaries"].items():
            recall = f"{c['recall']:.3f} [{c['low']:.3f}, {c['high']:.3f}]"
            lines.append(f"| {_md(b['name'])} | {kind} | {c['planted']} | {c['found']} | {recall} |")
    for b in extra["benchmarks"]:
        lines += ["", f"## {_md(b['name'])}", ""]
        lines += [f"- {_md(str(s['path']))} sha256 `{s['sha256']}`" for s in b["sources"]]
        lines += ["", "Compromised items, the weakest evidence first:", ""] if b["compromised"] else []
        lines += [
            f"- item {c['item']}: {c['criterion']}, coverage {c['coverage']:.2f}, {c['longest']:g} words in one piece, "
            f"best row {c['row']}, {c['rows']} rows"
            for c in b["compromised"]
        ]
        lines += ["", "Not detectable:", ""] if b["undetectable_items"] else []
        lines += [f"- item {u['item']}: {_md(u['reason'])}" for u in b["undetectable_items"]]
    lines += _opinion(extra)
    lines += ["", f"## Removed rows, the weakest evidence first ({len(shown)} shown)"]
    for one in shown:
        lines += ["", f"### row {one.row} and {_md(one.benchmark)} item {one.item}", ""]
        lines += [one.evidence, ""]
        lines += [*_fenced("row", one.row_text), "", *_fenced("item", one.item_text)]
    return "\n".join(lines) + "\n"


def _opinion(extra: dict[str, Any]) -> list[str]:
    """What the embedder and the language model were asked, where they were."""
    lines: list[str] = []
    if meant := extra.get("semantic"):
        lines += ["", "## Second opinion: meaning", "", *(_md(one) for one in opinion(meant)), ""]
        lines += ["| cosine | rows by meaning alone | whatever the numbers |", "|---|---|---|"]
        for at in meant["by_threshold"]:
            rows = at["rows_by_meaning_alone"], at["rows_by_meaning_alone_whatever_the_numbers"]
            lines.append(f"| {at['threshold']:g} | {rows[0]} | {rows[1]} |")
    for b in extra["benchmarks"]:
        if odd := b.get("perplexity"):
            lines += [
                "",
                f"## Unusually likely for {_md(odd['model'])}: {_md(b['name'])}",
                "",
                f"{odd['measure']}.",
                "",
            ]
            lines += [f"- item {one['item']}: {one['value']:g}, z {one['z']:g}" for one in odd["flagged"]]
    return lines


def opinion(meant: dict[str, Any]) -> list[str]:
    """The second opinion in sentences."""
    model = meant["embedder"]
    return [
        f"{model['name']} ({model['digest'][:12]}, {model['precision']}); a row goes from a cosine of "
        f"{meant['threshold']:g} on when it names {meant['numbers']:.2g} of the item's numbers. "
        f"{meant['rows_hit']} rows, {meant['rows_by_meaning_alone']} of them by meaning alone; "
        f"{meant['truncated_texts']} texts are longer than what the model reads."
    ]


def _funnel(body: dict[str, Any]) -> list[str]:
    removed = sum(body["removed"].values())
    first = f"{body['rows_in']} rows in, {removed} removed, {body['quarantined']} quarantined, {body['rows_out']} out."
    notes = [f"Note: {_md(note)}." for note in body["extra"]["notes"]]
    return [first, f"Stage `{body['stage_id']}`. Not checked: {body['extra']['not_checked']}.", *notes]


def _fenced(title: str, found: Pieces) -> list[str]:
    """A code block with the matches in brackets; no row can close the fence, which is longer than any of its own."""
    text = "".join(f"⟦{part}⟧" if hit else part for part, hit in found)
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return [f"{title}:", "", fence, *text.splitlines(), fence]


def _md(text: str) -> str:
    """Text that no Markdown reader takes for markup."""
    return "".join(f"\\{c}" if c in "\\`*_{}[]<>()#+-.!|&~" else c for c in _visible(text).replace("\n", " "))


WRITERS: dict[str, Callable[[dict[str, Any], Sequence[Shown]], str]] = {
    ".json": _json,
    ".md": _markdown,
}
