"""The frame of a page: its policy, its style, its script, its contents.

The policy allows the one style sheet and the one script by their sha256 and nothing else: no picture, no font, no
frame, no form, no request. A page does the same whether it is opened from a disk, a mail or a web server.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from importlib.resources import files

from lpt_data.report import words
from lpt_data.report.parts import section
from manifests.html import Child, Html, el, join

LARGEST = 2_000_000  # bytes of a page
ROOM_FOR_THE_REST = 100_000  # bytes: head, contents, notes
ROOM_FOR_TEXTS = 1_200_000  # bytes of it that texts beside each other may take


def document(title: str, head: Child, sections: Sequence[tuple[str, str, Html | None]], foot: Child = None) -> str:
    """Return a whole page; `sections` are (id, name in the contents, content or None for none)."""
    style, script = _resource("page.css"), _resource("page.js")
    policy = (
        f"default-src 'none'; style-src '{_sha256(style)}'; script-src '{_sha256(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    kept, room = [], LARGEST - len(style) - len(script) - ROOM_FOR_THE_REST
    for key, name, content in sections:
        if content is None:
            continue
        size = len(content.encode("utf-8", "backslashreplace"))
        kept.append((key, name, content if size <= room else _left_out(key, name, size)))
        room -= size if size <= room else 0
    links = [el("li", el("a", name, href=f"#{key}")) for key, name, _ in kept]
    meta = [
        el("meta", charset="utf-8"),
        el("meta", http_equiv="Content-Security-Policy", content=policy),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="referrer", content="no-referrer"),
        el("title", title),
        # Style and script are ours, word for word: their hashes are in the policy above.
        Html(f"<style>{style}</style>"),
    ]
    body = [
        el("a", "To the content", href="#content", class_="skip"),
        el("header", head, el("nav", el("ul", links), aria_label="Contents")),
        el("main", [content for _, _, content in kept], id="content"),
        el("footer", foot, class_="dim small"),
        Html(f"<script>{script}</script>"),
    ]
    whole = el("html", el("head", meta), el("body", body), lang="en")
    return f"<!doctype html>\n{join([whole])}\n"


def _left_out(key: str, name: str, size: int) -> Html:
    told = f"This section would take {words.size(size)} and is left out: a page has at most {words.size(LARGEST)}. "
    return section(key, name, el("p", told, "lpt report --format json has it.", class_="note"))


@cache
def _resource(name: str) -> str:
    return files("lpt_data.report").joinpath(name).read_text("utf-8")


def _sha256(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
