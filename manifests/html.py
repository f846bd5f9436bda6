"""Markup that is escaped by default: text becomes markup in one place, and what is no text was built here.

`el` makes every element of a page. A child that is a plain `str` is text, whatever it holds; only another element is
markup. No element can name anything outside the page: `href` takes fragments alone, `src` does not exist. Characters
that show nothing or change how others are shown (NUL, escapes, direction marks, zero-width ones) become visible names
such as U+202E, so that hostile rows can be read.
"""

from __future__ import annotations

import base64
import hashlib
import re
import unicodedata
from collections.abc import Iterable
from typing import TypeAlias

LONGEST = 8_000  # characters of one text
VOID = frozenset({"meta", "br", "input", "rect", "line", "polygon", "polyline", "wbr", "col"})
_NAME = re.compile(r"[a-z][a-z0-9-]*", re.IGNORECASE)
_FORBIDDEN = re.compile(r"on|src|style$|srcdoc|action|formaction|xlink|ping|data$|background", re.IGNORECASE)


class Html(str):
    """Markup that `el` built, safe to put into a page as it is."""

    __slots__ = ()


Child: TypeAlias = "str | int | float | None | Iterable[Child]"
Attribute: TypeAlias = "str | int | float | bool | None"

_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;"})
_RAW_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
# Everything that is not printed as itself; spaces of any width, line feeds and tabs are white space of documents.
_HIDDEN = re.compile(r"[^\x20-\x7e\n\t\u00a0-\u00ac\u00ae-\u02ff\u0370-\u0377\u0400-\u052f\u3040-\u30fe\u4e00-\u9fff]")


def code_points(text: str) -> str:
    """Return text for an attribute or a plain-text file: what cannot be seen is written as U+202E."""
    return _HIDDEN.sub(lambda found: _named(found[0]), text)


def text(value: object) -> Html:
    """Return any value as escaped text, with what cannot be seen marked as such; at most LONGEST characters of it."""
    if isinstance(value, Html):
        return value
    plain = _clipped(str(value)).translate(_RAW_ESCAPES)
    if plain.isascii() and plain.isprintable():
        return Html(plain)
    return Html(_HIDDEN.sub(_marked, plain))


def one_line(value: object) -> Html:
    """Return text in which line breaks are visible too: a command that is copied must stay one command."""
    marked = [text(part) for part in _clipped(str(value)).split("\n")]
    return Html(Html('<span class="code-point">U+000A</span>').join(marked))


def el(tag: str, *children: Child, **attributes: Attribute) -> Html:
    """Return an element. `class_` stands for class, `data_reason` for data-reason; None and False leave one out."""
    parts = [f"<{_checked(tag)}"]
    for name, value in attributes.items():
        if value is None or value is False:
            continue
        written = _checked(name.rstrip("_").replace("_", "-"))
        if _FORBIDDEN.match(written) and not written.startswith("data-"):
            raise ValueError(f"an element of a report has no attribute {written}")
        if written == "href" and not str(value).startswith("#"):
            raise ValueError("a report links to itself alone")
        parts.append(f" {written}" if value is True else f' {written}="{_attribute(value)}"')
    if tag in VOID:  # shapes of SVG have to be closed, the others may be
        return Html("".join([*parts, "/>"]))
    return Html("".join([*parts, ">", *_flat(children), f"</{tag}>"]))


def join(children: Iterable[Child]) -> Html:
    """Return children one after the other."""
    return Html("".join(_flat(children)))


def page(title: str, *body: Child, style: str, script: str = "") -> str:
    """Return a whole page. Its policy allows this style sheet and this script by their sha256 and nothing else: no
    picture, no font, no frame, no form, no request; so it does the same from a disk, a mail or a web server."""
    scripts = f"script-src '{_sha256(script)}'; " if script else ""
    policy = f"default-src 'none'; style-src '{_sha256(style)}'; {scripts}base-uri 'none'; form-action 'none'"
    head = [
        el("meta", charset="utf-8"),
        el("meta", http_equiv="Content-Security-Policy", content=policy),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="referrer", content="no-referrer"),
        el("title", title),
        # Style and script are ours, word for word: their hashes are in the policy above.
        Html(f"<style>{style}</style>"),
    ]
    last = Html(f"<script>{script}</script>") if script else None
    return f"<!doctype html>\n{el('html', el('head', head), el('body', body, last), lang='en')}\n"


def _sha256(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _clipped(given: str) -> str:
    return given if len(given) <= LONGEST else f"{given[:LONGEST]}… {len(given) - LONGEST:,} more characters"


def _flat(children: Iterable[Child]) -> Iterable[str]:
    for child in children:
        if child is None:
            continue
        if isinstance(child, (str, int, float)):
            yield text(child)
        else:
            yield from _flat(child)


def _attribute(value: object) -> str:
    return code_points(_clipped(str(value))).translate(_ESCAPES)


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(f"not a name of HTML: {name!r}")
    return name


def _marked(found: re.Match[str]) -> str:
    shown = _named(found[0])
    return shown if shown == found[0] else f'<span class="code-point">{shown}</span>'


def _named(character: str) -> str:
    # Zs: spaces of other widths are text; Zl and Zp break lines where nobody sees why.
    if character.isprintable() or unicodedata.category(character) == "Zs":
        return character
    return f"U+{ord(character):04X}"
