"""Texts as they are compared: NFKC, without invisible format characters.

Full-width digits, ligatures, composed and decomposed accents, soft hyphens and zero-width joiners make no difference; a
zero-width space is a space. Case and punctuation are left to the tokens. A kernel finds the few rows that hold a
character which this may touch; only they are rewritten.
"""

from __future__ import annotations

import unicodedata
from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numba import njit

from lpt_data.text import buffers, decode

_CODE_POINTS = 0x40000  # beyond it nothing but private use and tags, which are always looked at
_JAMO = range(0x1100, 0x1200)
_SPACE, _SIGMA = "\u200b", "\u03a3"


def plain(texts: pa.Array) -> pa.Array:
    """Return texts in plain form: large_string, no nulls."""
    texts = texts.cast(pa.large_string())
    starts, data = buffers(texts)
    largest = int(data[starts[0] : starts[-1]].max(initial=0))
    if largest < 128:
        return texts  # ASCII has one form
    touched = _touched(starts, data, _may_change(_beyond(largest)))
    if not touched.any():
        return texts
    mask = pa.array(touched)
    some = pc.replace_substring(texts.filter(mask), _SPACE, " ")
    some = pc.replace_substring_regex(pc.utf8_normalize(some, form="NFKC"), r"\p{Cf}", "")
    if pc.any(pc.match_substring(some, _SIGMA)).as_py():  # a final sigma depends on its neighbours
        some = pa.array([t.lower() if _SIGMA in t else t for t in some.to_pylist()], pa.large_string())
    return pc.replace_with_mask(texts, mask, some)


def plain_text(text: str) -> str:
    """`plain` of one text."""
    return plain(pa.array([text], pa.large_string()))[0].as_py()


def _beyond(byte: int) -> int:
    """The end of the code points that a text without a larger byte can hold: to look at all takes 0.3 s."""
    if byte < 0xE0:
        return 0x1200  # 0x800, and the jamo
    return max(0x1200, ((byte & 0x0F) + 1) << 12) if byte < 0xF0 else _CODE_POINTS


@cache
def _may_change(end: int) -> np.ndarray:
    """Which code points may not stay as they are, bool [end]; marks and jamo may join their neighbours."""
    flags = np.zeros(end, bool)
    for code in range(128, end):
        character = chr(code)
        category = unicodedata.category(character)
        # Cn: unassigned here, but the Unicode of Arrow may be a newer one.
        flags[code] = (
            category in ("Cf", "Mn", "Mc", "Me", "Cn") or unicodedata.normalize("NFKC", character) != character
        )
    flags[_JAMO.start : _JAMO.stop] = True
    flags[ord(_SIGMA)] = True
    return flags


@njit(nogil=True, cache=True)
def _touched(starts: np.ndarray, data: np.ndarray, flags: np.ndarray) -> np.ndarray:
    rows = len(starts) - 1
    found = np.zeros(rows, np.bool_)
    for row in range(rows):
        i = starts[row]
        end = starts[row + 1]
        while i < end and not found[row]:
            if data[i] < 128:
                i += 1
                continue
            code, i = decode(data, i, end)
            found[row] = code >= len(flags) or flags[code]
    return found
