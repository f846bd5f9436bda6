"""Canaries: every question of the benchmarks, changed as copies are changed, sent through the scan of the same run.

They are made in memory and never written. A canary is found when the rule would remove its row for its own item, so
the recall is that of the whole judgement, stops and thresholds of the run included.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from lpt_data.config import DecontaminateConfig
from lpt_data.contamination.code import CODE_TOKENS, renamed
from lpt_data.contamination.index import EMPTY, Index
from lpt_data.contamination.items import Benchmarks
from lpt_data.contamination.judge import Stops, pairs_of, removes
from lpt_data.contamination.scan import Finds, joined, scan
from manifests.intervals import wilson

_AROUND = 150  # words before and after an embedded question
_FILLING = [f"filler{(7 * k) % 97}" for k in range(_AROUND)]
_BEFORE, _AFTER = " ".join(_FILLING), " ".join(reversed(_FILLING))
_AT_A_TIME = 4096  # canaries scanned at once
_PUNCTUATION = str.maketrans(
    {"'": "\u2019", '"': "\u201d", "-": "\u2013", ",": " ,", ".": " \u2026 ", " ": "\u00a0", "$": "\uff04"}
    | {str(n): chr(0xFF10 + n) for n in range(10)}
)


def rewrapped(text: str) -> str:
    """Other line breaks and spaces: a line of six words, indented by tabs, two spaces between words."""
    words = text.split()
    return "\r\n\t".join("  ".join(words[i : i + 6]) for i in range(0, len(words), 6))


def recased(text: str) -> str:
    """Capitals for small letters."""
    return text.upper()


def repunctuated(text: str) -> str:
    """Curly quotes, dashes and ellipses, no-break spaces, full-width digits, soft hyphens, decomposed accents."""
    pieces = [word[:2] + "\u00ad" + word[2:] if len(word) > 4 and word.isalpha() else word for word in text.split(" ")]
    return unicodedata.normalize("NFD", " ".join(pieces)).translate(_PUNCTUATION)


def embedded(text: str) -> str:
    """In the middle of a long row."""
    return f"{_BEFORE} {text} {_AFTER}"


KINDS: dict[str, Callable[[str], str]] = {
    "verbatim": str,
    "rewrapped": rewrapped,
    "recased": recased,
    "punctuation": repunctuated,
    "embedded": embedded,
}

RENAMED = "renamed_program"  # beside KINDS, of the items that have a program long enough to be told from others


def run_canaries(
    benchmarks: Benchmarks, index: Index, stops: Stops, config: DecontaminateConfig
) -> dict[str, np.ndarray]:
    """Return which items were found again, for each kind: bool [items]."""
    caught: dict[str, np.ndarray] = {}
    for kind, change in KINDS.items():
        rows = [change(item.question) for item in benchmarks.items]
        found = joined([_scanned(rows[i : i + _AT_A_TIME], index) for i in range(0, len(rows), _AT_A_TIME)])
        pairs = pairs_of(found, index, stops)
        hit = (removes(pairs, index, config) > 0) & (pairs.part == 2 * pairs.row)
        caught[kind] = np.isin(np.arange(len(rows)), pairs.row[hit])
    return caught


def recall(caught: dict[str, np.ndarray], items: Sequence[int], index: Index) -> dict[str, dict[str, float | int]]:
    """Recall of each kind over some items, with Wilson's 95 % interval; questions without words are not planted."""
    planted = np.array([i for i in items if index.sort[2 * i] != EMPTY], np.int64)
    table: dict[str, dict[str, float | int]] = {}
    for kind, found in caught.items():
        table[kind] = _recall(int(found[planted].sum()), len(planted))
    return table


def run_code_canaries(
    benchmarks: Benchmarks, index: Index, stops: Stops, config: DecontaminateConfig
) -> np.ndarray | None:
    """Return which programs were found again with other names and another layout: bool [items]; None without any."""
    if index.code is None:
        return None
    rows = [f"def answer(given):\n{renamed(item.code)}\n" if item.code else "-" for item in benchmarks.items]
    found = joined([_scanned(rows[i : i + _AT_A_TIME], index) for i in range(0, len(rows), _AT_A_TIME)])
    pairs = pairs_of(found, index, stops)
    hit = (removes(pairs, index, config) > 0) & (pairs.part == 2 * pairs.row + 1) & pairs.code
    return np.isin(np.arange(len(rows)), pairs.row[hit])


def code_recall(caught: np.ndarray, items: range, index: Index) -> dict[str, float | int]:
    """Recall of the programs of some items that are long enough, with Wilson's 95 % interval."""
    assert index.code is not None
    planted = np.array([i for i in items if index.code.tokens[i] >= CODE_TOKENS], np.int64)
    return _recall(int(caught[planted].sum()), len(planted))


def _recall(k: int, n: int) -> dict[str, float | int]:
    low, high = (round(end, 6) for end in wilson(k, n))
    return {"planted": n, "found": k, "recall": round(k / n, 6) if n else 0.0, "low": low, "high": high}


def _scanned(rows: list[str], index: Index) -> Finds:
    return scan(pa.array(rows, pa.large_string()), index)
