"""The report as one HTML page: no script, no network, every text escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lpt_data.contamination.report import Pieces, Shown

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --hit: #ffd54a88; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 76rem; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; display: block; overflow-x: auto; }
th, td { border-bottom: 1px solid var(--line); padding: .3rem .8rem .3rem 0; text-align: left; vertical-align: top; }
td.n { text-align: right; font-variant-numeric: tabular-nums; }
.note { border-left: 4px solid #d08700; padding-left: .8rem; }
.pair { border-top: 1px solid var(--line); margin-top: 1.5rem; }
.sides { display: grid; grid-template-columns: repeat(auto-fit, minmax(20rem, 1fr)); gap: 1rem; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; font: 13px/1.5 ui-monospace, monospace; margin: .3rem 0; }
mark { background: var(--hit); color: inherit; }
"""


def page(body: dict[str, Any], shown: Sequence[Shown]) -> str:
    """Return the whole page."""
    extra = body["extra"]
    removed = sum(body["removed"].values())
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>Contamination, stage {_text(body['stage_id'])}</title><style>{_STYLE}</style></head><body>",
        "<h1>Contamination</h1>",
        f"<p>{body['rows_in']:,} rows in, {removed:,} removed, {body['quarantined']:,} quarantined, "
        f"{body['rows_out']:,} out. Stage <code>{_text(body['stage_id'])}</code>. "
        f"Not checked: {_text(extra['not_checked'])}.</p>",
        *(f'<p class="note">{_text(note)}</p>' for note in extra["notes"]),
        *_figures(extra["benchmarks"]),
        *(part for benchmark in extra["benchmarks"] for part in _lists(benchmark)),
        *_opinion(extra),
        f"<h2>Removed rows, the weakest evidence first ({len(shown)} shown)</h2>",
        *(_pair(one) for one in shown),
        "</body></html>\n",
    ]
    return "\n".join(parts)


def _figures(benchmarks: Sequence[dict[str, Any]]) -> list[str]:
    heads = ["benchmark", "items", "not detectable", "items hit", "rows hit", "any 13-gram: items", "rows"]
    heads += ["50 characters: items", "rows"]
    rows = [
        [b["name"], b["items"], len(b["undetectable_items"]), b["items_hit"], b["rows_hit"]]
        + [b[key][unit] for key in ("any_13gram", "any_50_characters") for unit in ("items", "rows")]
        for b in benchmarks
    ]
    canaries = [
        [b["name"], kind, c["planted"], c["found"], f"{c['recall']:.3f} [{c['low']:.3f}, {c['high']:.3f}]"]
        for b in benchmarks
        for kind, c in b["canaries"].items()
    ]
    return [
        _table(heads, rows),
        "<h2>Canary recall, 95 % Wilson intervals</h2>",
        _table(["benchmark", "kind", "planted", "found", "recall"], canaries),
    ]


def _lists(benchmark: dict[str, Any]) -> list[str]:
    hit = [
        [c["item"], c["criterion"], f"{c['coverage']:.2f}", f"{c['longest']:g}", c["row"], c["rows"]]
        for c in benchmark["compromised"]
    ]
    unseen = [[u["item"], u["reason"]] for u in benchmark["undetectable_items"]]
    pinned = [[s["path"], s["sha256"]] for s in benchmark["sources"]]
    name = _text(benchmark["name"])
    found = [f"<h2>{name}</h2>", _table(["file", "sha256"], pinned)]
    if hit:
        heads = ["item", "criterion", "coverage", "longest piece, words", "best row", "rows"]
        found.append(f"<details><summary>{len(hit)} compromised items</summary>{_table(heads, hit)}</details>")
    if unseen:
        table = _table(["item", "reason"], unseen)
        found.append(f"<details><summary>{len(unseen)} items not detectable</summary>{table}</details>")
    return found


def _opinion(extra: dict[str, Any]) -> list[str]:
    from lpt_data.contamination.report import opinion

    found: list[str] = []
    if meant := extra.get("semantic"):
        rows = [
            [f"{at['threshold']:g}", at["rows_by_meaning_alone"], at["rows_by_meaning_alone_whatever_the_numbers"]]
            for at in meant["by_threshold"]
        ]
        found += ["<h2>Second opinion: meaning</h2>", *(f"<p>{_text(one)}</p>" for one in opinion(meant))]
        found.append(_table(["cosine", "rows by meaning alone", "whatever the numbers"], rows))
    for b in extra["benchmarks"]:
        if odd := b.get("perplexity"):
            found.append(f"<h2>Unusually likely for {_text(odd['model'])}: {_text(b['name'])}</h2>")
            found.append(f"<p>{_text(odd['measure'])}</p>")
            rows = [[one["item"], f"{one['value']:g}", f"{one['z']:g}"] for one in odd["flagged"]]
            found.append(_table(["item", "value", "z"], rows))
    return found


def _pair(one: Shown) -> str:
    title = f"row {one.row} and {_text(one.benchmark)} item {one.item}"
    told = _text(one.evidence)
    sides = f"<div><b>row</b>{_marked(one.row_text)}</div><div><b>item</b>{_marked(one.item_text)}</div>"
    return f'<section class="pair"><h3>{title}</h3><p>{told}</p><div class="sides">{sides}</div></section>'


def _marked(found: Pieces) -> str:
    parts = (f"<mark>{escape(part)}</mark>" if hit else escape(part) for part, hit in found)
    return f"<pre>{''.join(parts)}</pre>"


def _table(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    top = "".join(f"<th>{_text(head)}</th>" for head in heads)
    lines = ("".join(_cell(cell) for cell in row) for row in rows)
    return f"<table><tr>{top}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def _cell(value: Any) -> str:
    return f'<td class="n">{value:,}</td>' if isinstance(value, int) else f"<td>{_text(value)}</td>"


def _text(value: Any) -> str:
    visible = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(value))
    return escape(visible)
