"""The sixth canary: paraphrases of benchmark items that a user has, sent through the judgement of the same run.

A file is JSON lines, `{"item": 17, "paraphrase": "…"}`: the row of the item in its benchmark, and the other words.
Without `item` line n is of item n; `text` and `question` are read where there is no `paraphrase`; `benchmark` names the
benchmark where there are several. What is measured: how many are found for their own item (recall), and how many of
those found are (precision), by n-grams, by meaning, and at other thresholds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from lpt_data.config import DecontaminateConfig
from lpt_data.contamination.index import Index
from lpt_data.contamination.items import Benchmarks
from lpt_data.contamination.judge import Stops, pairs_of, removes
from lpt_data.contamination.meaning import GRID, Hits, View, hits_of
from lpt_data.contamination.scan import scan
from lpt_data.progress import Progress
from lpt_data.semantic.alike import Semantics
from manifests.digests import bytes_sha256
from manifests.errors import BadInputError
from manifests.intervals import wilson

KIND = "paraphrase"
_FIELDS = ("paraphrase", "text", "question")


@dataclass(frozen=True)
class Paraphrases:
    """Texts with the item that each says in other words, an index into Benchmarks.items."""

    texts: tuple[str, ...]
    items: tuple[int, ...]
    sha256: tuple[str, ...]  # of the files


def load_paraphrases(paths: Sequence[Path], benchmarks: Benchmarks) -> Paraphrases:
    """Read the files; BadInputError for one that is missing, no JSON lines, or names an item that is not there."""
    texts, items = [], []
    for path in paths:
        try:
            lines = path.read_bytes().splitlines()
        except OSError as error:
            raise BadInputError(
                "the paraphrases cannot be read", seen=f"{path}: {error.strerror}", next="--paraphrases FILE.jsonl"
            ) from error
        for number, line in enumerate(lines):
            if line.strip():
                text, item = _read(line, number, f"{path}:{number + 1}", benchmarks)
                if text.strip():
                    texts.append(text)
                    items.append(item)
    if not texts:
        raise BadInputError(
            "no paraphrase was found",
            seen=", ".join(map(str, paths)),
            next='lines such as {"item": 0, "paraphrase": "…"}',
        )
    return Paraphrases(tuple(texts), tuple(items), tuple(bytes_sha256(path) for path in paths))


def _read(line: bytes, number: int, place: str, benchmarks: Benchmarks) -> tuple[str, int]:
    def wrong(what: str) -> BadInputError:
        return BadInputError(
            f"a line of the paraphrases {what}", seen=f"{place}: {line[:80]!r}", next='{"item": 0, "paraphrase": "…"}'
        )

    try:
        said = orjson.loads(line)
    except orjson.JSONDecodeError:
        raise wrong("is no JSON") from None
    text = next((said[name] for name in _FIELDS if name in said), None) if isinstance(said, dict) else None
    if not isinstance(text, str):
        raise wrong("has no text")
    names = [b.name for b in benchmarks.benchmarks]
    name = said.get("benchmark", names[0] if len(names) == 1 else None)
    if name not in names:
        raise wrong(f"names none of the benchmarks {', '.join(names)}")
    row = said.get("item", number)
    found = [i for i in benchmarks.of(names.index(name)) if benchmarks.items[i].index == row]
    if not found or isinstance(row, bool):
        raise wrong("names an item that the benchmark has not")
    return text, found[0]


def caught_by_ngrams(
    paraphrases: Paraphrases, index: Index, stops: Stops, config: DecontaminateConfig
) -> tuple[np.ndarray, np.ndarray]:
    """Return which paraphrases n-grams find for their own item, and for another one: bool [n] each."""
    count = len(paraphrases.texts)
    pairs = pairs_of(scan(pa.array(paraphrases.texts, pa.large_string()), index), index, stops)
    hit = removes(pairs, index, config) > 0
    own = np.array(paraphrases.items, np.int64)[pairs.row[hit]] == pairs.part[hit] // 2
    rows = np.arange(count)
    return np.isin(rows, pairs.row[hit][own]), np.isin(rows, pairs.row[hit][~own])


def measured(
    paraphrases: Paraphrases,
    ngrams: tuple[np.ndarray, np.ndarray],
    benchmarks: Benchmarks,
    config: DecontaminateConfig,
    semantics: Semantics | None,
    progress: Progress,
) -> list[dict[str, Any]]:
    """Return recall and precision for each benchmark, by n-grams and, with an embedder, by meaning too."""
    own = np.array(paraphrases.items, np.int64)
    of = np.array([benchmarks.items[i].benchmark for i in paraphrases.items], np.int64)
    hits = None
    if semantics is not None and config.semantic is not None:
        views = [View(k, text, (0, 1)) for k, text in enumerate(paraphrases.texts)]
        hits, _ = hits_of(views, benchmarks, config.semantic, semantics, progress)
    found = []
    for number in range(len(benchmarks.benchmarks)):
        mine = of == number
        told = _rates(ngrams[0][mine], ngrams[1][mine])
        if hits is not None and config.semantic is not None:
            floor = config.semantic.floor or 0.0
            at = (*GRID, config.semantic.threshold)
            rule = _over(hits, own, config.semantic.threshold, config.semantic_numbers)
            told = {
                **_rates((ngrams[0] | rule[0])[mine], (ngrams[1] | rule[1])[mine]),
                "by_ngrams": told,
                "by_meaning": _rates(rule[0][mine], rule[1][mine]),
                "by_threshold": [
                    {
                        "threshold": t,
                        "numbers": n,
                        **_rates(*(part[mine] for part in _over(hits, own, t, n))),
                    }
                    for t in sorted(set(at))
                    for n in (config.semantic_numbers, 0.0)
                    if t >= floor
                ],
            }
        found.append(told)
    return found


def _over(hits: Hits, own: np.ndarray, threshold: float, numbers: float) -> tuple[np.ndarray, np.ndarray]:
    over = hits.over(threshold, numbers)
    right = own[hits.row[over]] == hits.item[over]
    rows = np.arange(len(own))
    return np.isin(rows, hits.row[over][right]), np.isin(rows, hits.row[over][~right])


def _rates(right: np.ndarray, wrong: np.ndarray) -> dict[str, Any]:
    """Recall with Wilson's 95 % interval; precision: of the paraphrases that were found, those for their own item."""
    k, n, any_ = int(right.sum()), len(right), int((right | wrong).sum())
    low, high = (round(end, 6) for end in wilson(k, n))
    return {
        "planted": n,
        "found": k,
        "recall": round(k / n, 6) if n else 0.0,
        "low": low,
        "high": high,
        "found_for_another_item_alone": int((wrong & ~right).sum()),
        "precision": round(k / any_, 6) if any_ else None,
    }
