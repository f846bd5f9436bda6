"""What a run says of each benchmark: hits both ways, by every criterion, and the items that cannot be seen."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from lpt_data.config import DecontaminateConfig, settings
from lpt_data.contamination.code import CODE_COVERAGE, CODE_TOKENS, CODE_WINDOW
from lpt_data.contamination.index import NGRAM, SHORTEST, Grams, Index
from lpt_data.contamination.items import Benchmark, Benchmarks
from lpt_data.contamination.judge import ANSWER_COVERAGE, ANSWER_WORDS, CRITERIA, Pairs
from lpt_data.dataset import Dataset
from lpt_data.text import TOKENS
from manifests.digests import bytes_sha256

if TYPE_CHECKING:
    from lpt_data.contamination.stage import Judged

MOST_WEAK = 50  # pairs below the rule that are listed, the strongest first
WHOLE = 0.9  # share of items and of rows from which the benchmark looks like the data itself


def summary(
    dataset: Dataset,
    benchmarks: Benchmarks,
    index: Index,
    config: DecontaminateConfig,
    judged: Judged,
    unseen: dict[int, str],
) -> dict[str, Any]:
    """Return what goes into the record of the stage; canaries are added by the caller."""
    told = [_benchmark(number, benchmarks, index, judged, unseen) for number in range(len(benchmarks.benchmarks))]
    stops, finds = judged.stops, judged.finds
    return {
        "benchmarks": told,
        "rule": {
            **{k: v for k, v in settings(config).items() if k not in ("benchmarks", "workers")},
            "ngram": NGRAM,
            "shortest": SHORTEST,
            "answer_words": ANSWER_WORDS,
            "answer_coverage": ANSWER_COVERAGE,
            "code_window": CODE_WINDOW,
            "code_tokens": CODE_TOKENS,
            "code_coverage": CODE_COVERAGE,
            "tokens": TOKENS,
        },
        "stops": {
            "ngrams": int(stops.gram.sum()),
            "in_many_items": int(index.stop.sum()),
            "in_many_rows": stops.in_rows,
            "short_questions_in_many_rows": int(stops.exact.sum()),
            "matches_ignored": int(stops.gram[finds.gram].sum() + stops.exact[finds.exact_part].sum()),
        },
        "criteria": {
            name: int(np.count_nonzero(judged.rule[judged.witness] == place)) for place, name in enumerate(CRITERIA, 1)
        },
        "below_the_rule": _weak(benchmarks, judged),
        "not_checked": "paraphrases and translations: n-grams do not see them",
        "notes": _notes(dataset, benchmarks, told),
    }


def _benchmark(
    number: int, benchmarks: Benchmarks, index: Index, judged: Judged, unseen: dict[int, str]
) -> dict[str, Any]:
    found, mine = benchmarks.benchmarks[number], benchmarks.of(number)
    pairs, first, end = judged.pairs, 2 * mine.start, 2 * mine.stop
    here = (pairs.part >= first) & (pairs.part < end)
    hit = here & (judged.rule > 0)
    hidden = {item: unseen[item] for item in mine if item in unseen}
    legacy = _any_hit(judged.finds.legacy_row, judged.finds.legacy_gram, index.legacy, first, end)
    finds, chars = judged.finds, None
    if index.chars is not None:
        chars = _any_hit(finds.chars_row, finds.chars_gram, index.chars, first, end)
    return {
        "name": found.name,
        "sources": list(found.sources),
        "layout": found.layout,
        "items": found.count,
        "unread": len(found.unread),
        "undetectable": dict(Counter(hidden.values())),
        "items_hit": len(np.unique(pairs.part[hit] // 2)),
        "rows_hit": len(np.unique(pairs.row[hit])),
        "items_with_any_8gram": len(np.unique(pairs.part[here & (pairs.part % 2 == 0)])),
        "rows_with_any_8gram": len(np.unique(pairs.row[here & (pairs.part % 2 == 0)])),
        "any_13gram": legacy,
        "any_50_characters": chars,
        "short_items_hit": len(np.unique(pairs.part[hit & pairs.exact])),
        "answers_hit": len(np.unique(pairs.part[hit & (pairs.part % 2 == 1) & ~pairs.code])),
        **_programs(mine, benchmarks, index, pairs, hit),
        "undetectable_items": [
            {
                "item": benchmarks.items[i].index,
                "record_id": benchmarks.items[i].record_id.hex(),
                "reason": why,
            }
            for i, why in hidden.items()
        ]
        + [{"item": row, "record_id": None, "reason": f"unreadable: {why}"} for row, why in found.unread],
        "compromised": _compromised(np.flatnonzero(hit), benchmarks, judged),
    }


def _programs(mine: range, benchmarks: Benchmarks, index: Index, pairs: Pairs, hit: np.ndarray) -> dict[str, Any]:
    """What was looked for in the programs of a benchmark; nothing where it has none."""
    if index.code is None or not index.code.tokens[mine.start : mine.stop].any():
        return {}
    tokens = index.code.tokens[mine.start : mine.stop]
    short = np.flatnonzero((tokens > 0) & (tokens < CODE_TOKENS)) + mine.start
    return {
        "programs": {
            "items": int(np.count_nonzero(tokens)),
            "too_short": len(short),
            "too_short_items": [benchmarks.items[i].index for i in short.tolist()],
            "items_hit": len(np.unique(pairs.part[hit & pairs.code])),
            "rows_hit": len(np.unique(pairs.row[hit & pairs.code])),
        }
    }


def _any_hit(rows: np.ndarray, grams: np.ndarray, of: Grams, first: int, end: int) -> dict[str, int]:
    """Items with any match and rows with any match of one benchmark; nothing is a stop here."""
    mine = (of.part >= first) & (of.part < end)
    gram = np.repeat(np.arange(len(of.lengths)), np.diff(of.starts))
    seen = np.zeros(len(of.lengths), bool)
    seen[grams] = True
    ours = np.zeros(len(of.lengths), bool)
    ours[gram[mine]] = True
    return {"items": len(np.unique(of.part[mine & seen[gram]])), "rows": len(np.unique(rows[ours[grams]]))}


def _compromised(hit: np.ndarray, benchmarks: Benchmarks, judged: Judged) -> list[dict[str, Any]]:
    """Items that a row repeats, each with the row that repeats it most; the weakest first."""
    pairs = judged.pairs
    id_ranks = np.zeros(len(hit), np.int64)
    if len(hit):
        id_ranks = np.unique(judged.ids[pairs.row[hit]], axis=0, return_inverse=True)[1].ravel()
    items = pairs.part[hit] // 2
    order = np.lexsort(
        (pairs.row[hit], id_ranks, -pairs.longest[hit], -pairs.coverage[hit], pairs.part[hit] % 2, items)
    )
    distinct, best, counts = np.unique(items[order], return_index=True, return_counts=True)
    rows = []
    for item, pair, count in zip(distinct.tolist(), hit[order[best]].tolist(), counts.tolist(), strict=True):
        row = int(pairs.row[pair])
        rows.append(
            {
                "item": benchmarks.items[item].index,
                "record_id": benchmarks.items[item].record_id.hex(),
                "criterion": CRITERIA[judged.rule[pair] - 1],
                "coverage": round(float(pairs.coverage[pair]), 6),
                "longest": float(pairs.longest[pair]),
                "row": int(judged.rows[row]),
                "row_id": judged.ids[row].tobytes().hex(),
                "rows": count,
            }
        )
    return sorted(rows, key=lambda one: (one["coverage"], one["longest"], one["record_id"]))


def _weak(benchmarks: Benchmarks, judged: Judged) -> list[dict[str, Any]]:
    """The strongest pairs that did not meet the rule: where another threshold would have decided otherwise."""
    pairs = judged.pairs
    below = np.flatnonzero((judged.rule == 0) & (pairs.part % 2 == 0))
    order = below[np.lexsort((judged.rows[pairs.row[below]], -pairs.longest[below], -pairs.coverage[below]))]
    return [
        {
            "row": int(judged.rows[pairs.row[pair]]),
            "benchmark": benchmarks.benchmarks[benchmarks.items[pairs.part[pair] // 2].benchmark].name,
            "item": benchmarks.items[pairs.part[pair] // 2].index,
            "coverage": round(float(pairs.coverage[pair]), 6),
            "longest": float(pairs.longest[pair]),
        }
        for pair in order[:MOST_WEAK].tolist()
    ]


def _notes(dataset: Dataset, benchmarks: Benchmarks, told: list[dict[str, Any]]) -> list[str]:
    notes = []
    rows = dataset.rows_in - len(dataset.quarantined())
    for found, body in zip(benchmarks.benchmarks, told, strict=True):
        name = found.name
        unseen = sum(body["undetectable"].values())
        if _is_the_input(found, dataset):
            notes.append(f"the benchmark {name} is a file of the input itself: every row of it is one of its items")
        elif body["items_hit"] >= WHOLE * found.count and body["rows_hit"] >= WHOLE * rows:
            notes.append(f"nearly every row is an item of {name} and the reverse: is it the data itself?")
        if unseen == found.count:
            notes.append(f"no item of {name} can be seen inside a longer row: the data is not checked against it")
        if found.unread:
            notes.append(f"{len(found.unread)} rows of {name} could not be read and are not looked for")
    return notes


def _is_the_input(found: Benchmark, dataset: Dataset) -> bool:
    pinned = {(source["bytes"], source["sha256"]) for source in found.sources}
    sizes = {size for size, _ in pinned}
    return any((f.bytes, bytes_sha256(f.path)) in pinned for f in dataset.files if f.bytes in sizes)
