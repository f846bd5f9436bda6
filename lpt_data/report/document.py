"""The frame of a page: its style, its script, its contents, its largest size."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.resources import files

from lpt_data.report import words
from lpt_data.report.parts import section
from manifests.html import Child, Html, el, page

LARGEST = 2_000_000  # bytes of a page
ROOM_FOR_THE_REST = 100_000  # bytes: head, contents, notes
ROOM_FOR_TEXTS = 1_200_000  # bytes of it that texts beside each other may take


def document(title: str, head: Child, sections: Sequence[tuple[str, str, Html | None]], foot: Child = None) -> str:
    """Return a whole page; `sections` are (id, name in the contents, content or None for none)."""
    style, script = _resource("page.css"), _resource("page.js")
    kept, room = [], LARGEST - len(style) - len(script) - ROOM_FOR_THE_REST
    for key, name, content in sections:
        if content is None:
            continue
        size = len(content.encode("utf-8", "backslashreplace"))
        kept.append((key, name, content if size <= room else _left_out(key, name, size)))
        room -= size if size <= room else 0
    links = [el("li", el("a", name, href=f"#{key}")) for key, name, _ in kept]
    body = [
        el("a", "To the content", href="#content", class_="skip"),
        el("header", head, el("nav", el("ul", links), aria_label="Contents")),
        el("main", [content for _, _, content in kept], id="content"),
        el("footer", foot, class_="dim small"),
    ]
    return page(title, *body, style=style, script=script)


def _left_out(key: str, name: str, size: int) -> Html:
    told = f"This section would take {words.size(size)} and is left out: a page has at most {words.size(LARGEST)}. "
    return section(key, name, el("p", told, "lpt report --format json has it.", class_="note"))


@cache
def _resource(name: str) -> str:
    return files("lpt_data.report").joinpath(name).read_text("utf-8")
