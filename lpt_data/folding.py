"""Many ASCII texts normalised at once, as columns of bytes: what `lpt_data.keys` and `str.split` define.

Python's own functions are the definition and serve texts with other characters; tests hold the two against each other.
Arrays and no compiled kernel, because loading a compiler takes longer than the keys of a hundred thousand rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

SPACES = "\t\n\v\f\r\x1c\x1d\x1e\x1f "  # what `str.split` takes for white space in ASCII
BLANK, _EDGE = 32, 255  # 255 stands between texts: it is no byte of any
DIGIT, LETTER, BARE = 1, 2, 4  # a blank beside what is bare goes
_FEW = 8  # texts; below it arrays cost more than they save


@dataclass(frozen=True)
class Rule:
    """How texts are folded: `define` says it; for ASCII it follows the rest.

    `table` is a table of `bytes.translate`, with blanks for the characters that go; runs of blanks become one. With
    `math` (the operators) commas of thousands, points of decimals, hyphens of words and blanks around operators are
    treated as in `lpt_data.keys.normalise_math`.
    """

    table: bytes
    math: str
    define: Callable[[str], str]


SPACED = Rule(
    bytes(32 if chr(code) in SPACES else code for code in range(256)), "", lambda text: " ".join(text.split())
)


def spaced(texts: Sequence[str]) -> list[bytes]:
    """Return each text in UTF-8 with single blanks for white space and none at its ends."""
    return fold_all(texts, SPACED)


def fold_all(texts: Sequence[str], rule: Rule) -> list[bytes]:
    """Return `rule.define(text)` in UTF-8 for each text."""
    table, math, define = rule.table, rule.math, rule.define
    plain = [text if text.isascii() else "" for text in texts]
    if len(texts) < _FEW:
        return [define(text).encode() for text in texts]
    data = b"\xff".join([b"", *[text.encode() for text in plain], b""])
    folded = _fold(data, table, math)[1:-1].tobytes().split(b"\xff")
    for i, text in enumerate(texts):
        if not text.isascii():
            folded[i] = define(text).encode()
    return folded


def _fold(data: bytes, table: bytes, math: str) -> np.ndarray:
    """Fold ASCII texts with an edge between them and at both ends."""
    classes = classes_of(math)
    found = np.frombuffer(data.translate(table), np.uint8)
    if math:
        found = _without_marks(np.frombuffer(data, np.uint8), found.copy(), classes)
    blank = found == BLANK
    keep = ~blank
    starts = np.flatnonzero(blank[1:] & keep[:-1]) + 1
    ends = np.flatnonzero(keep[1:] & blank[:-1])
    bare = (classes[found[starts - 1]] | classes[found[ends + 1]]) & BARE
    keep[starts[bare == 0]] = True
    return found[keep]


def _without_marks(raw: np.ndarray, found: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Blank points that are no decimal points and hyphens of words, and take out commas of thousands."""
    points = np.flatnonzero(raw == ord("."))
    decimal = classes[raw[points - 1]] & classes[raw[points + 1]] & DIGIT
    found[points[decimal == 0]] = BLANK
    hyphens = np.flatnonzero(raw == ord("-"))
    inside = classes[raw[hyphens - 1]] & classes[raw[hyphens + 1]] & LETTER
    found[hyphens[inside != 0]] = BLANK
    commas = np.flatnonzero(raw == ord(","))
    padded = np.concatenate([raw, np.full(4, _EDGE, np.uint8)])
    near = [classes[padded[commas + k]] & DIGIT for k in (-1, 1, 2, 3, 4)]
    gone = commas[(near[0] & near[1] & near[2] & near[3] & ~near[4]) != 0]
    return np.delete(found, gone) if len(gone) else found


@cache
def classes_of(math: str) -> np.ndarray:
    """What a byte is to its neighbours: uint8 [256]."""
    classes = np.zeros(256, np.uint8)
    classes[[code for code in range(128) if chr(code).isdigit()]] = DIGIT
    classes[[code for code in range(128) if chr(code).isalpha()]] = LETTER
    classes[[_EDGE, *map(ord, math)]] = BARE
    return classes
