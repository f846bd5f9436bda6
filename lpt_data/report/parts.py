"""The parts that every page is made of: sections, tables, commands, chips, texts beside each other."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from lpt_data.report import words
from lpt_data.report.story import Pair, Pieces
from manifests.html import Child, Html, el, join, one_line

TEASER = 90  # characters of a text in the line that opens it
NOTES = 20  # shown of what is not on a page
LISTED = 200  # rows of a table of items, files or notes
# A command of ours whose words a shell only reads: nothing outside of quotes starts another one or reads a variable.
_ONE_COMMAND = re.compile(r"""(?:lpt|sha256sum) (?:[^\s"'$`\\!;&|<>(){}#*?~]|[ ]|"[^"$`\\!\n]*"|'[^'\n]*')+""")


@dataclass(frozen=True)
class Column:
    """A column of a table: its head, and whether it holds numbers, which stand to the right."""

    head: str
    number: bool = False


@dataclass(frozen=True)
class Cell:
    """A cell that is sorted by another value than it shows."""

    shown: Child
    sort: float | str


def section(name: str, title: str, *content: Child) -> Html:
    """Return a section that the contents of the page can link to."""
    return el("section", el("h2", title, id=f"{name}-title"), content, id=name, aria_labelledby=f"{name}-title")


def table(
    columns: Sequence[Column],
    rows: Iterable[Sequence[Any]],
    *,
    caption: str,
    groups: Sequence[str] = (),
    of: int | None = None,
) -> Html:
    """Return a table whose rows become cards on a narrow screen; `groups` is what each row can be filtered by.

    `of` is how many rows there are in all, where only the first are given.
    """
    body = []
    shown = 0
    for shown, row in enumerate(rows, 1):
        if shown > LISTED:
            break
        cells = [_cell(column, given, first=not i) for i, (column, given) in enumerate(zip(columns, row, strict=True))]
        body.append(el("tr", cells, data_group=groups[shown - 1] if groups else None))
    heads = [el("th", column.head, scope="col", class_="n" if column.number else None) for column in columns]
    whole = el(
        "table", el("caption", caption, class_="unseen"), el("thead", el("tr", heads)), el("tbody", body),
        class_="sortable" if len(body) > 1 else None,
    )  # fmt: skip
    total = of if of is not None else shown
    if total > len(body):
        return join([whole, el("p", f"{len(body):,} of {total:,} are shown.", class_="dim small")])
    return whole


def _cell(column: Column, given: Any, *, first: bool) -> Html:
    shown, sort = (given.shown, given.sort) if isinstance(given, Cell) else (given, None)
    if sort is None and isinstance(given, (int, float)) and not isinstance(given, bool):
        sort = given
    if isinstance(shown, (list, tuple)):
        shown = el("div", shown)
    elif not isinstance(shown, Html):
        shown = words.value(shown) if shown is None or isinstance(shown, (int, float)) else shown
    kind = "th" if first else "td"
    return el(
        kind, shown, scope="row" if first else None, class_="n" if column.number else None, data_label=column.head,
        data_sort=sort,
    )  # fmt: skip


def command(line: str) -> Html:
    """Return a command with a button that copies exactly what is shown; a remark behind two spaces and # beneath it.

    A remark that ends in a command of its own is two: what it is for, and that command. What a shell would read as
    more than one command of ours has no button: a record that came from elsewhere may hold anything.
    """
    typed, _, remark = line.partition("  # ")
    copy = (
        el("button", "Copy", type="button", class_="copy", hidden=True, aria_label=f"Copy the command {typed[:80]}")
        if _ONE_COMMAND.fullmatch(typed)
        else None
    )
    shown = el("span", el("code", one_line(typed)), copy, class_="command")
    said, found, other = remark.partition(": lpt ")
    told = el("span", one_line(f"{said}:" if found else said), class_="remark dim small") if remark else None
    return join([shown, told, command(f"lpt {other}") if found else None])


def sql(query: str) -> Html:
    """Return the command that asks the catalog; values in it come from `literal`."""
    plain = not set(query) & set('"$`\\!\n')  # in double quotes a reader sees the literals as they are
    return command(f'lpt sql "{query}"' if plain else f"lpt sql {shlex.quote(query)}")


def literal(value: Any) -> str:
    """Return a value as text of SQL."""
    return "'" + str(value).replace("'", "''") + "'"


def swatch(name: str) -> Html:
    """Return a spot of the colour that a drawing uses."""
    return el("span", class_=f"swatch {name}", aria_hidden="true")


def digest(given: str) -> Html:
    """Return a digest whose start is enough to read and whose whole can be copied."""
    return el("code", given[:16], el("span", given[16:], class_="rest"), class_="digest", title=given)


def status(name: str) -> Html:
    """Return the status of a check: a sign, a word and a colour."""
    return el(
        "span", el("span", words.SIGNS[name], aria_hidden="true"), " ", words.STATUSES[name], class_=f"chip {name}"
    )


def figures(given: Iterable[tuple[str, Child]]) -> Html:
    """Return the few numbers that a page starts with."""
    pairs = [el("div", el("dt", name), el("dd", value)) for name, value in given]
    return el("dl", pairs, class_="figures")


def facts(given: Iterable[tuple[str, Child]]) -> Html:
    """Return names with their values."""
    return el("dl", [[el("dt", name), el("dd", value)] for name, value in given], class_="facts")


def notes(given: Sequence[str]) -> Html | None:
    """Return what cannot be shown, and why."""
    if not given:
        return None
    shown = [el("li", note[:400]) for note in given[:NOTES]]
    more = el("li", f"and {len(given) - NOTES:,} more") if len(given) > NOTES else None
    return el("aside", el("p", el("b", "Not on this page")), el("ul", shown, more), class_="note")


def toolbar(target: str, groups: Sequence[tuple[str, int]], *, what: str, expand: bool = False) -> Html:
    """Return filters over the children of `target` that have a group; shown where scripts run."""
    total = sum(n for _, n in groups)
    buttons = [
        el("button", name, " ", el("span", n, class_="n"), type="button", data_show=value, aria_pressed=pressed)
        for name, value, n, pressed in [
            ("all", "", total, "true"),
            *((name, name, n, "false") for name, n in groups),
        ]
    ]
    search = el("input", type="search", id=f"{target}-search", placeholder="Search", autocomplete="off")
    label = el("label", f"Search in {what}", for_=f"{target}-search", class_="unseen")
    every = el("button", "Expand all", type="button", class_="expand", aria_expanded="false") if expand else None
    told = el("span", role="status", class_="dim small told")
    group = el("div", buttons, role="group", aria_label=f"Filter {what}", class_="filters")
    return el("div", group, label, search, every, told, class_="toolbar", data_for=target, hidden=True)


# -- texts


def pairs(given: Sequence[Pair], *, open_first: int, room: int, stages: bool) -> tuple[Html, int]:
    """Return texts beside each other, as many as fit into `room` bytes, and how many those are; `stages` names the
    stage of each."""
    shown: list[Html] = []
    for number, one in enumerate(given):
        made = _pair(one, opened=number < open_first, stage=stages)
        room -= len(made.encode("utf-8", "backslashreplace"))
        if room < 0:
            break
        shown.append(made)
    return join(shown), len(shown)


def _pair(one: Pair, *, opened: bool, stage: bool) -> Html:
    score = el("span", "–" if one.score is None else f"{one.score:.3f}", class_="score n", title="score")
    reason = el("span", one.reason, class_="reason")
    start = " ".join("".join(part for part, kind in one.left if kind != "gap")[:300].split())[:TEASER]
    name = el("span", f"{one.stage}, {one.left_name}" if stage else one.left_name)
    summary = el("summary", score, reason, name, el("span", start, class_="teaser dim small"))
    if one.left and one.left == one.right:
        sides: Child = _side(f"{one.left_name}; {one.right_name}; the texts are the same", one.left)
    else:
        sides = [_side(one.left_name, one.left)]
        if one.right or one.right_name:
            sides.append(_side(one.right_name, one.right))
    foot = el("p", el("span", one.detail, class_="dim small") if one.detail else None, command(one.why), class_="foot")
    return el(
        "details", summary, el("div", sides, class_="sides"), foot, class_="pair", open=opened, data_group=one.reason
    )


def _side(name: str, pieces: Pieces) -> Html:
    said = text_of(pieces) if pieces else el("p", "The text is not at hand.", class_="dim small")
    return el("div", el("h4", name), said, class_="side")


def text_of(pieces: Pieces) -> Html:
    """Return a text with its marks; the direction of each follows its own letters."""
    tags = {"differs": ("mark", "differs"), "matches": ("mark", "matches"), "gap": ("span", "gap")}
    marked = [part if kind == "plain" else el(tags[kind][0], part, class_=tags[kind][1]) for part, kind in pieces]
    return el("pre", marked, dir="auto")
