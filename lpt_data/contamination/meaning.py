"""A second opinion on contamination: rows that ask what a benchmark item asks, in other words.

N-grams see copies; a paraphrase shares none. So questions and rows are compared by their vectors
(`lpt_data.semantic`), and a row goes when, for some item,

    cosine >= threshold (0.8)   and   the row names at least `numbers` (0.66) of the numbers that the item names.

Like is compared with like: what a row asks with the question, all that it says with question and answer. A row of plain
text is compared with both.

The two values were chosen on GSM8K with MiniLM: of 1,315 published paraphrases of its test questions 1,247 are found
(0.948; by n-grams none), and 20 of the 7,473 training questions go with them, which are problems of one template with
mostly the same numbers. Without the numbers it would be 0.979 and 108; at a cosine of 0.85 without them 0.913 and 12.

Not seen: a paraphrase inside a longer row (a row has one vector, of its first tokens), translations unless the
embedder knows the language.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from lpt_data.config import DecontaminateConfig, SemanticConfig
from lpt_data.contamination.items import Benchmarks
from lpt_data.dataset import Dataset
from lpt_data.progress import Progress
from lpt_data.record_text import all_text, prompt_text
from lpt_data.semantic.alike import Alike, Pairs, Semantics, find_alike
from lpt_data.semantic.numbers import numbers_in
from lpt_data.stage import StageResult
from manifests import decisions

REASON = "benchmark_semantic"
CRITERION = "meaning"
GRID = (0.7, 0.75, 0.8, 0.85, 0.9, 0.95)  # thresholds for which the report says what would go
_ASK, _SAY = 0, 1  # what a text is: the question alone, or all that is said


@dataclass(frozen=True)
class Hits:
    """Pairs of a text and an item that mean alike, at or above the floor; the numbers are not looked at yet."""

    row: np.ndarray  # int64 [k], index into the texts given
    item: np.ndarray  # int64 [k], index into Benchmarks.items
    score: np.ndarray  # float64 [k]
    named: np.ndarray  # float64 [k], share of the item's numbers that the text names

    def over(self, threshold: float, numbers: float) -> np.ndarray:
        """Which pairs would decide: bool [k]."""
        return (self.score >= threshold) & (self.named >= numbers - 1e-9)


@dataclass(frozen=True)
class View:
    """One text of a row: what it asks, or all that it says; plain text is both."""

    row: int
    text: str
    sides: tuple[int, ...]


def views_of(dataset: Dataset, progress: Progress) -> tuple[list[View], np.ndarray]:
    """Return what the rows ask and say, and record ids (uint8 [rows_in, 32])."""
    views: list[View] = []
    ids = np.zeros((dataset.rows_in, 32), np.uint8)
    for row, record, _, name in dataset.identified():
        ids[row] = np.frombuffer(name, np.uint8)
        said, asked = all_text(dataset.kind, record), prompt_text(dataset.kind, record)
        if said == asked:
            views.append(View(row, said, (_ASK, _SAY)))
        else:
            views += [View(row, asked, (_ASK,)), View(row, said, (_SAY,))]
        if row % 4096 == 0:
            progress(row, None, "rows read")
    return [view for view in views if view.text.strip()], ids


def hits_of(
    views: Sequence[View], benchmarks: Benchmarks, config: SemanticConfig, semantics: Semantics, progress: Progress
) -> tuple[Hits, dict[str, Any]]:
    """Return which views mean what which item asks or says, and what the search had to tell."""
    items = [(i, _ASK, item.question) for i, item in enumerate(benchmarks.items)]
    items += [(i, _SAY, f"{x.question}\n{x.answer}") for i, x in enumerate(benchmarks.items) if x.answer.strip()]
    items = [one for one in items if one[2].strip()]
    texts = [text.encode("utf-8", "replace") for _, _, text in items]
    texts += [view.text.encode("utf-8", "replace") for view in views]
    alike = find_alike(texts, np.arange(len(texts)) >= len(items), config, semantics, progress)
    of_item, of_view, score = _met(alike, alike.over(0.0), len(items))
    fits = np.array(
        [items[i][1] in views[v].sides for i, v in zip(of_item.tolist(), of_view.tolist(), strict=True)], bool
    )
    of_item, of_view, score = of_item[fits], of_view[fits], score[fits]
    wanted = {i: numbers_in(items[i][2]) for i in np.unique(of_item).tolist()}
    theirs = {v: numbers_in(views[v].text) for v in np.unique(of_view).tolist()}
    named = [
        len(wanted[i] & theirs[v]) / len(wanted[i]) if wanted[i] else 1.0
        for i, v in zip(of_item.tolist(), of_view.tolist(), strict=True)
    ]
    rows, whose = np.array([view.row for view in views], np.int64), np.array([i for i, _, _ in items], np.int64)
    return Hits(rows[of_view], whose[of_item], score, np.array(named, np.float64)), alike.told


def _met(alike: Alike, pairs: Pairs, items: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pairs of an item's text and a row's, (index among items, index among views, score); equal texts score 1."""
    group = alike.group()
    of_text = group[alike.texts.of_position] if len(alike.texts.keys) else np.zeros(0, np.int64)
    apart = ~pairs.same
    a, b, score = group[pairs.a[apart]], group[pairs.b[apart]], pairs.score[apart]
    itself = np.unique(of_text[:items])
    left, right = np.concatenate([a, b, itself]), np.concatenate([b, a, itself])
    scores = np.concatenate([score, score, np.ones(len(itself))])
    pair, item = _members(left, of_text[:items])
    again, view = _members(right[pair], of_text[items:])
    return item[again], view, scores[pair[again]]


def _members(groups: np.ndarray, of_member: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Every member of every group asked for: (index into ``groups``, member)."""
    order = np.argsort(of_member, kind="stable")
    low = np.searchsorted(of_member[order], groups, side="left")
    count = np.searchsorted(of_member[order], groups, side="right") - low
    asked = np.repeat(np.arange(len(groups)), count)
    return asked, order[np.arange(len(asked)) - np.repeat(np.cumsum(count) - count, count) + low[asked]]


def added(
    result: StageResult,
    dataset: Dataset,
    benchmarks: Benchmarks,
    config: DecontaminateConfig,
    semantics: Semantics,
    progress: Progress,
) -> StageResult:
    """Return a decontamination with the rows that went for their meaning alone, and with what the opinion tells."""
    assert config.semantic is not None
    views, ids = views_of(dataset, progress)
    hits, search = hits_of(views, benchmarks, config.semantic, semantics, progress)
    gone = np.zeros(dataset.rows_in, bool)
    gone[result.decisions["row"].to_numpy()] = True
    over = hits.over(config.semantic.threshold, config.semantic_numbers)
    extra = {**result.extra, "not_checked": "paraphrases inside longer rows, and translations"}
    extra["semantic"] = {
        **search,
        "threshold": config.semantic.threshold,
        "numbers": config.semantic_numbers,
        "rows_hit": len(np.unique(hits.row[over])),
        "rows_by_meaning_alone": len(np.unique(hits.row[over & ~gone[hits.row]])),
        "items_hit": len(np.unique(hits.item[over])),
        "by_threshold": [_at(threshold, hits, gone, config) for threshold in GRID if threshold >= search["floor"]],
    }
    of_item = np.array([item.benchmark for item in benchmarks.items], np.int64)
    extra["benchmarks"] = [
        {**told, "semantic": _benchmark(hits, over & (of_item[hits.item] == number), benchmarks)}
        for number, told in enumerate(extra["benchmarks"])
    ]
    alone = np.flatnonzero(over & ~gone[hits.row])
    more = _decisions(alone[_strongest(hits, alone, benchmarks)], hits, ids, benchmarks)
    return StageResult(decisions.concat([result.decisions, more]), result.record_ids, extra)


def _at(threshold: float, hits: Hits, gone: np.ndarray, config: DecontaminateConfig) -> dict[str, Any]:
    told: dict[str, Any] = {"threshold": threshold}
    for name, numbers in (("", config.semantic_numbers), ("_whatever_the_numbers", 0.0)):
        rows = np.unique(hits.row[hits.over(threshold, numbers)])
        told[f"rows{name}"] = len(rows)
        told[f"rows_by_meaning_alone{name}"] = int(np.count_nonzero(~gone[rows]))
    return told


def _benchmark(hits: Hits, mine: np.ndarray, benchmarks: Benchmarks) -> dict[str, Any]:
    items = np.unique(hits.item[mine])
    return {
        "items_hit": len(items),
        "rows_hit": len(np.unique(hits.row[mine])),
        "compromised": [
            {
                "item": benchmarks.items[i].index,
                "record_id": benchmarks.items[i].record_id.hex(),
                "score": round(float(hits.score[mine & (hits.item == i)].max()), 6),
                "rows": len(np.unique(hits.row[mine & (hits.item == i)])),
            }
            for i in items.tolist()
        ],
    }


def _strongest(hits: Hits, some: np.ndarray, benchmarks: Benchmarks) -> np.ndarray:
    """For each row among some hits the one with the highest score, then the smallest id of the item."""
    names = [(benchmarks.items[i].record_id, i) for i in hits.item[some].tolist()]
    ranks = np.empty(len(names), np.int64)
    ranks[sorted(range(len(names)), key=names.__getitem__)] = np.arange(len(names))
    order = np.lexsort((ranks, -hits.score[some], hits.row[some]))
    return order[np.unique(hits.row[some][order], return_index=True)[1]]


def _decisions(chosen: np.ndarray, hits: Hits, ids: np.ndarray, benchmarks: Benchmarks) -> pa.Table:
    details, names = [], []
    for k in chosen.tolist():
        item = benchmarks.items[int(hits.item[k])]
        names.append(item.record_id)
        told = {
            "benchmark": benchmarks.benchmarks[item.benchmark].name,
            "item": item.index,
            "criterion": CRITERION,
            "numbers_named": round(float(hits.named[k]), 6),
            "longest": 0.0,
            "row_spans": [],
            "item_spans": [],
        }
        details.append(orjson.dumps(told).decode())
    rows, count = hits.row[chosen], len(chosen)
    return decisions.table(
        {
            "row": rows,
            "record_id": ids[rows],
            "action": pa.array(["remove"] * count, pa.string()),
            "reason": pa.array([REASON] * count, pa.string()),
            "witness_id": np.frombuffer(b"".join(names), np.uint8).reshape(-1, 32),
            "score": hits.score[chosen],
            "detail": pa.array(details, pa.string()),
        }
    )
