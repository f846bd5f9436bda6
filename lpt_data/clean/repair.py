"""Rules that mend a text: encoding, characters that nobody sees, remains of HTML, boilerplate lines, white space.

A rule here never drops a row. What was damaged beyond repair (U+FFFD) stays as it is: the audit counts it. Nothing
changes what is only unusual: quotation marks stay curly, ligatures and full-width forms stay.
"""

from __future__ import annotations

import html
import re
import unicodedata

import ftfy
from ftfy import badness
from ftfy.fixes import fix_c1_controls

from lpt_data.clean.measure import tidied
from lpt_data.clean.outcome import KEEP, Document, Drop, Limits, Outcome, Rewrite

_FTFY = ftfy.TextFixerConfig(unescape_html=False, normalization=None, explain=False)
_C1 = re.compile(r"[\x80-\x9f]")
_LONGEST_LINE = 1_000_000  # characters that ftfy looks at as one


def mojibake(doc: Document, limits: Limits) -> Outcome:
    """Undo UTF-8 that was decoded with a one-byte code page (Speer, ftfy: its `badness` heuristic and `fix_encoding`).

    Only lines that ftfy finds bad are touched. C1 controls become the Windows-1252 characters they were meant to be.
    """
    lines = doc.text.split("\n")
    for i, line in enumerate(lines):
        if line.isascii():
            continue
        if _C1.search(line):
            line = lines[i] = fix_c1_controls(line)
        if badness.is_bad(line):
            parts = [line[k : k + _LONGEST_LINE] for k in range(0, len(line), _LONGEST_LINE)]
            lines[i] = "".join(ftfy.fix_encoding(part, _FTFY) for part in parts)
    return _rewritten(doc, "\n".join(lines), "mojibake_repaired")


def not_nfc(doc: Document, limits: Limits) -> Outcome:
    """Compose characters (Unicode Annex 15, form NFC), which looks the same and makes equal texts equal."""
    if unicodedata.is_normalized("NFC", doc.text):
        return KEEP
    return _rewritten(doc, unicodedata.normalize("NFC", doc.text), "composed_to_nfc")


# An escape sequence of a terminal goes as a whole: without its first character the rest would stay as text.
_CONTROL = re.compile(r"\x1b(?:\[[0-9;:<=>?]{0,64}[ -/]{0,8}[@-~])?|[\x00-\x08\x0b\x0e-\x1a\x1c-\x1f\x7f-\x9f]")
_INVISIBLE = re.compile("[\u00ad\u200b\u2060\ufeff\u202d\u202e]")


def control_characters(doc: Document, limits: Limits) -> Outcome:
    """Remove NUL, ESC (with its terminal sequence), DEL and the C1 block; tab, line feed, form feed and CR stay.

    C1 is left to `unicode.mojibake` first, which knows it as the remains of Windows-1252.
    """
    return _rewritten(doc, _CONTROL.sub("", doc.text), "control_characters_removed")


def invisible_characters(doc: Document, limits: Limits) -> Outcome:
    """Remove zero-width space, word joiner, byte order mark, soft hyphen and directional overrides (Boucher & Anderson
    2021, Trojan Source). The zero-width joiners stay: emoji, Persian and Indic scripts are written with them.
    """
    return _rewritten(doc, _INVISIBLE.sub("", doc.text), "invisible_characters_removed")


_ENTITY = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")


def entities(doc: Document, limits: Limits) -> Outcome:
    """Decode HTML entities (`&amp;` to `&`) where the text has no "<": text with tags means them (ftfy's rule)."""
    if "<" in doc.text:
        return KEEP
    return _rewritten(doc, _ENTITY.sub(_decoded, doc.text), "html_entities_decoded")


def _decoded(match: re.Match[str]) -> str:
    found = html.unescape(match[0])
    return found if found.isprintable() or found == "\xa0" else match[0]


_NAMES = (
    "a abbr article aside b big blockquote body br button center cite code dd details div dl dt em figcaption figure "
    "font footer form h1 h2 h3 h4 h5 h6 head header hr html i iframe img input label li link main meta nav noscript ol "
    "option p pre s section select small span strong sub summary sup table tbody td tfoot th thead title tr u ul video"
)
_TAG = re.compile(
    rf"</?(?:{'|'.join(_NAMES.split())})(?:\s[^<>]{{0,2000}})?/?>|<!--[^<>]{{0,2000}}-->|<![dD][oO][^<>]{{0,200}}>",
    re.ASCII | re.IGNORECASE,
)
_BLOCK = re.compile(r"</?(?:br|p|div|li|tr|h[1-6]|ul|ol|table|section|article|blockquote)\b", re.IGNORECASE)
_HIDDEN = re.compile(r"<(/?)(script|style)(?:\s[^<>]{0,2000})?>", re.IGNORECASE)


def tags(doc: Document, limits: Limits) -> Outcome:
    """Take out remains of HTML: known tags, comments, `<script>` and `<style>` with what they enclose.

    What stands between back-ticks (Markdown code) stays. A block tag becomes a line break, any other tag nothing.
    """
    parts = doc.text.split("`")  # an odd number of back-ticks opens code, for ` as for ```
    parts[::2] = [_without_tags(part) if "<" in part else part for part in parts[::2]]
    return _rewritten(doc, "`".join(parts), "html_tags_removed")


def _without_tags(text: str) -> str:
    return _TAG.sub(lambda tag: "\n" if _BLOCK.match(tag[0]) else "", _without_scripts(text))


def _without_scripts(text: str) -> str:
    """Cut from each opening tag to the closing one of its name; one that is never closed stays and is a tag only."""
    kept, at, opened = [], 0, None
    for tag in _HIDDEN.finditer(text):
        if opened is None and not tag[1]:
            opened = tag
        elif opened is not None and tag[1] and tag[2].lower() == opened[2].lower():
            kept.append(text[at : opened.start()])
            at, opened = tag.end(), None
    text = "".join([*kept, text[at:]])
    return text if opened is None else _HIDDEN.sub("", text)


_NOTICE = re.compile(
    r"terms of use|privacy policy|cookie policy|uses? (?:of )?cookies|all rights reserved|accept (?:all )?cookies"
)
_SCRIPTING = re.compile(r"enable|disabled|required|turn(?:ed)? on|browser|support")
_HINTS = ("cookie", "javascript", "privacy policy", "terms of use", "all rights reserved")


def boilerplate(doc: Document, limits: Limits) -> Outcome:
    """Take out lines that are notices about cookies, policies or JavaScript (C4: Raffel et al. 2020, section 2.2).

    C4 removes every line with the word "javascript"; here the line must also ask for it (enable, disabled, browser…),
    so that texts about the language stay. Only lines of at most `longest` characters are looked at.
    """
    low = doc.text.lower()
    if not any(hint in low for hint in _HINTS):
        return KEEP
    kept = [line for line in doc.text.split("\n") if len(line) > limits["longest"] or not _is_notice(line.lower())]
    return _rewritten(doc, "\n".join(kept), "boilerplate_lines_removed")


def _is_notice(line: str) -> bool:
    return bool(_NOTICE.search(line)) or ("javascript" in line and bool(_SCRIPTING.search(line)))


def white_space(doc: Document, limits: Limits) -> Outcome:
    """Line ends become LF, blanks at their ends go, more than two empty lines become two; none at start and end.

    Indentation and a final line feed stay: code and Markdown need the one and files end with the other.
    """
    return _rewritten(doc, tidied(doc.data).tobytes().decode(), "white_space_tidied")


_TERMINAL = (".", "!", "?", '"', "'", "\u201d", "\u2026", "\u3002", "\uff01", "\uff1f")


def lines_without_end(doc: Document, limits: Limits) -> Outcome:
    """Keep only lines that end with terminal punctuation and have `min_words` words (C4: Raffel et al. 2020).

    In no preset: it removes headings, lists and code; FineWeb (Penedo et al. 2024) left it out as well.
    """
    least = int(limits["min_words"])
    lines = doc.text.split("\n")
    kept = [
        x for x in lines if not x.strip() or (x.rstrip().endswith(_TERMINAL) and len(x.split(None, least)) >= least)
    ]
    return _rewritten(doc, "\n".join(kept), "lines_without_terminal_punctuation_removed")


_BLANK = " \t\n\r\f\v\xa0\u200b\u200c\u200d\u2060\u3000\ufeff"


def empty(doc: Document, limits: Limits) -> Outcome:
    """Drop what says nothing, or nothing any more after the rules before."""
    return KEEP if doc.text.strip(_BLANK) else Drop("empty_text", 0.0)


def _rewritten(doc: Document, text: str, reason: str) -> Outcome:
    return KEEP if text == doc.text else Rewrite(text, reason)
