"""Canonical keys: what must not straddle splits.

    key      = the normalised text of what a row asks (or the value of a column)
    key hash = sha256("lpt-key/1" 0x00 normaliser 0x00 key)

| normaliser | key |
|---|---|
| text | the prompt (of plain text: the text): NFKC, case folded, punctuation and symbols out, spaces collapsed |
| math | the same, but numbers, decimal points and operators stay, thousands separators go, spaces around operators go |
| code | the prompt with spaces collapsed; case and punctuation stay |
| countdown | the target and the numbers in ascending order |
| a column | its value, as JSON text where it is no string |

A normaliser may merge rows that differ; it must never tell apart rows that pose the same problem.
"""

from __future__ import annotations

import functools
import hashlib
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from lpt_data.folding import SPACES, Rule, fold_all
from lpt_data.layouts import countdown_problem
from lpt_data.record_text import prompt_text
from manifests.canon import json_text
from manifests.errors import RecordError

KEY_VERSION = "lpt-key/1"
FOLDED = ("text", "math")  # normalisers that fold whole columns of texts
_OPERATORS = "+-*/=<>%^"
_SAME_OPERATOR = {"\u2212": "-", "\u00d7": "*", "\u22c5": "*", "\u00f7": "/", "\u2044": "/"}
_WIDE = re.compile(r"[^\x00-\x7f]")
# Each starts with the character that it is about, and looks back from there: `re` then skips to the next one.
_THOUSANDS = re.compile(r",(?<=\d,)(?=\d{3}(?!\d))")
_LONE_POINT = re.compile(r"\.(?:(?<!\d\.)|(?!\d))")
_HYPHEN = re.compile(r"-(?<=[^\W\d_]-)(?=[^\W\d_])")


def canonical_key(kind: str, record: Mapping[str, Any], extra: Mapping[str, Any], normaliser: str) -> str:
    """Return the key of a canonical record and its other columns; RecordError where the row has none."""
    made = NORMALISERS.get(normaliser)
    if made is not None:
        return made(kind, record, extra)
    value = extra.get(normaliser)
    if value is None:
        raise RecordError(
            f"a row has no {normaliser!r}", reason="missing_field", field=normaliser, seen=sorted(map(str, extra))
        )
    return json_text(value)


def key_hash(key: str, normaliser: str) -> bytes:
    """Return the 32 bytes that stand for a key in roots and intersections."""
    return hashlib.sha256(f"{KEY_VERSION}\0{normaliser}\0{key}".encode()).digest()


def key_of(kind: str, record: Mapping[str, Any], extra: Mapping[str, Any], normaliser: str) -> bytes:
    """Return the key hash of a row; RecordError where the row has no key."""
    return key_hash(canonical_key(kind, record, extra, normaliser), normaliser)


def key_hashes(
    kind: str, records: Sequence[Mapping[str, Any]], beside: Sequence[Mapping[str, Any]], normaliser: str
) -> list[bytes]:
    """Return the key hash of each row of a batch, as `key_of` does one by one."""
    start = f"{KEY_VERSION}\0{normaliser}\0".encode()
    if normaliser not in FOLDED:
        return [key_of(kind, record, extra, normaliser) for record, extra in zip(records, beside, strict=True)]
    texts = [prompt_text(kind, record) for record in records]
    return [hashlib.sha256(start + key).digest() for key in normalised(texts, normaliser)]


def normalised(texts: Sequence[str], normaliser: str) -> list[bytes]:
    """Return each text as `normalise_text` or `normalise_math` does, in UTF-8."""
    return fold_all(texts, normaliser_of(normaliser))


@functools.cache
def normaliser_of(normaliser: str) -> Rule:
    """Return `text` or `math` as a rule of folding."""
    if normaliser == "text":
        return Rule(_ascii(""), "", normalise_text)
    return Rule(_ascii(_OPERATORS + "."), _OPERATORS, normalise_math)


def normalise_text(text: str) -> str:
    """Return text without case, punctuation, symbols and the shape of its spaces."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text).casefold()
    return _spaced(text, "")


def normalise_math(text: str) -> str:
    """Return text as `normalise_text` does, with numbers and operators kept."""
    if not text.isascii():
        text = _same_operators(unicodedata.normalize("NFKC", _same_operators(text)).casefold())
    if "," in text:
        text = _THOUSANDS.sub("", text)
    if "." in text:
        text = _LONE_POINT.sub(" ", text)
    if "-" in text:
        text = _HYPHEN.sub(" ", text)
    text = _spaced(text, _OPERATORS + ".")
    for sign in _OPERATORS:
        if sign in text:
            text = text.replace(f" {sign}", sign).replace(f"{sign} ", sign)
    return text


def _same_operators(text: str) -> str:
    for other, sign in _SAME_OPERATOR.items():
        if other in text:
            text = text.replace(other, sign)
    return text


def _spaced(text: str, kept: str) -> str:
    """Blank punctuation and symbols but `kept`, and let single blanks stand for white space; ASCII in lower case."""
    data = text.encode()
    if len(data) > len(text) and 8 * (len(data) - len(text)) > len(text):
        return " ".join(text.translate(_punctuation(kept)).split())
    if len(data) > len(text):  # few characters beyond ASCII, such as quotation marks: each is looked at by itself
        blanked = _punctuation("")  # what is kept is ASCII
        data = _WIDE.sub(lambda found: chr(blanked[ord(found[0])]), text).encode()
    return b" ".join(data.translate(_ascii(kept)).split()).decode()


@functools.cache
def _ascii(kept: str) -> bytes:
    """The table of `bytes.translate` that does for ASCII what NFKC, case folding and `_punctuation` do."""
    spaced = {c for c in map(chr, range(128)) if unicodedata.category(c)[0] in "PS" and c not in kept} | set(SPACES)
    return bytes(32 if chr(code) in spaced else ord(chr(code).lower()) if code < 128 else code for code in range(256))


class _Punctuation(dict[int, int]):
    """Maps a code point to a blank where it is punctuation, a symbol or white space, else to itself; filled on demand.

    Letters, digits and combining marks (Hindi, Thai) stay.
    """

    def __init__(self, kept: str) -> None:
        super().__init__()
        self._kept = kept

    def __missing__(self, code: int) -> int:
        char = chr(code)
        blank = char.isspace() or (unicodedata.category(char)[0] in "PS" and char not in self._kept)
        self[code] = 32 if blank else code
        return self[code]


@functools.cache
def _punctuation(kept: str) -> _Punctuation:
    return _Punctuation(kept)


def _text_key(kind: str, record: Mapping[str, Any], extra: Mapping[str, Any]) -> str:
    return normalise_text(prompt_text(kind, record))


def _math_key(kind: str, record: Mapping[str, Any], extra: Mapping[str, Any]) -> str:
    return normalise_math(prompt_text(kind, record))


def _code_key(kind: str, record: Mapping[str, Any], extra: Mapping[str, Any]) -> str:
    return " ".join(prompt_text(kind, record).split())


def _countdown_key(kind: str, record: Mapping[str, Any], extra: Mapping[str, Any]) -> str:
    numbers, target = countdown_problem(_countdown_row(record, extra))
    return orjson.dumps([target, sorted(numbers)]).decode()


def _countdown_row(record: Mapping[str, Any], extra: Mapping[str, Any]) -> Mapping[str, Any]:
    """Numbers and target: those of the gold answer where there is one, because it is what the verifier reads."""
    answer = record.get("answer")
    if isinstance(answer, str) and answer.startswith("{"):
        try:
            return orjson.loads(answer)
        except ValueError:
            pass
    return extra


NORMALISERS: dict[str, Callable[[str, Mapping[str, Any], Mapping[str, Any]], str]] = {
    "text": _text_key,
    "math": _math_key,
    "code": _code_key,
    "countdown": _countdown_key,
}
