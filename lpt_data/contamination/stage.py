"""The decontamination stage: rows in, decisions out, and what each benchmark lost by it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import orjson

from lpt_data.config import DecontaminateConfig
from lpt_data.contamination.canaries import RENAMED, code_recall, recall, run_canaries, run_code_canaries
from lpt_data.contamination.index import Index, build_index
from lpt_data.contamination.items import Benchmarks
from lpt_data.contamination.judge import CRITERIA, Pairs, Stops, find_stops, pairs_of, removes, spans, undetectable
from lpt_data.contamination.meaning import added
from lpt_data.contamination.paraphrases import KIND, Paraphrases, caught_by_ngrams, measured
from lpt_data.contamination.perplexity import LanguageModel, anomalies
from lpt_data.contamination.scan import Finds, joined, scan
from lpt_data.contamination.summary import summary
from lpt_data.dataset import Dataset, TextBatch
from lpt_data.dedup.rows import threads
from lpt_data.progress import Progress
from lpt_data.semantic import alike
from lpt_data.stage import StageResult
from manifests import decisions
from manifests.errors import UsageError

MOST_SPANS = 50  # in the detail of one decision


@dataclass(frozen=True)
class Judged:
    """The rows of one run with all that was found out about them."""

    rows: np.ndarray  # int64 [n], row in the input
    ids: np.ndarray  # uint8 [n, 32]
    finds: Finds
    stops: Stops
    pairs: Pairs
    rule: np.ndarray  # int64 [pairs], 0 or 1 + a place in CRITERIA
    witness: np.ndarray  # int64, for each row that goes the pair it goes for, in the order of rows


def config_for(benchmarks: Benchmarks, **settings: Any) -> DecontaminateConfig:
    """Return a config that is bound to the contents of the benchmarks; UsageError for values that make no sense."""
    pinned = tuple(f"{b.name} {source['sha256']}" for b in benchmarks.benchmarks for source in b.sources)
    config = DecontaminateConfig(benchmarks=pinned, **settings)
    for name in ("coverage", "longest_coverage", "stop_items", "stop_rows"):
        if not 0 < getattr(config, name) <= 1:
            option = name.replace("_", "-")
            raise UsageError(
                f"{option} is a share above 0, at most 1", seen=getattr(config, name), next=f"--{option} 0.5"
            )
    if config.semantic is not None:
        alike.check(config.semantic)
    if not 0 <= config.semantic_numbers <= 1:
        raise UsageError(
            "the numbers that a row names are a share", seen=config.semantic_numbers, next="--semantic-numbers 0.67"
        )
    if config.longest < 8:
        raise UsageError("pieces are matched from 8 words on", seen=config.longest, next="--longest 13")
    if config.workers is not None and config.workers < 1:
        raise UsageError("at least one worker is needed", seen=config.workers, next="--workers 1")
    return config


@dataclass(frozen=True)
class Second:
    """What a run is asked beside n-grams."""

    semantics: alike.Semantics | None = None  # compares meanings, as `config.semantic` says
    paraphrases: Paraphrases | None = None  # canaries
    model: LanguageModel | None = None  # asked which items it finds unusually likely


def decider(
    benchmarks: Benchmarks, second: Second | None = None
) -> Callable[[Dataset, DecontaminateConfig, Progress], StageResult]:
    """Return the stage function for these benchmarks; `lpt_data.stage.run_stage` writes what stays."""
    return partial(_decide, benchmarks, second or Second())


def _decide(
    benchmarks: Benchmarks, second: Second, dataset: Dataset, config: DecontaminateConfig, progress: Progress
) -> StageResult:
    progress(0, None, "indexing the benchmarks")
    index = build_index(benchmarks, config.stop_items)
    rows, ids, finds = read(dataset, index, config, progress)
    return decided(dataset, benchmarks, index, config, (rows, ids, finds), progress, second)


def decided(
    dataset: Dataset,
    benchmarks: Benchmarks,
    index: Index,
    config: DecontaminateConfig,
    scanned: tuple[np.ndarray, np.ndarray, Finds],
    progress: Progress,
    second: Second | None = None,
) -> StageResult:
    """Judge rows that were scanned, as `read` gives them, and say what the benchmarks lost by them."""
    second = second or Second()
    rows, ids, finds = scanned
    judged = judge(rows, ids, finds, benchmarks, index, config)
    progress(0, None, "canaries")
    caught = run_canaries(benchmarks, index, judged.stops, config)
    programs = run_code_canaries(benchmarks, index, judged.stops, config)
    extra = summary(dataset, benchmarks, index, config, judged, undetectable(index, judged.stops))
    for number, told in enumerate(extra["benchmarks"]):
        told["canaries"] = recall(caught, benchmarks.of(number), index)
        if programs is not None and "programs" in told:
            told["canaries"][RENAMED] = code_recall(programs, benchmarks.of(number), index)
    record_ids = np.zeros((dataset.rows_in, 32), np.uint8)
    record_ids[rows] = ids
    if second.model is not None:
        _ask_model(second, second.model, benchmarks, extra["benchmarks"], progress)
    if second.paraphrases is not None:
        seen = caught_by_ngrams(second.paraphrases, index, judged.stops, config)
        rates = measured(second.paraphrases, seen, benchmarks, config, second.semantics, progress)
        for told, rate in zip(extra["benchmarks"], rates, strict=True):
            told["canaries"][KIND] = rate
    result = StageResult(_decisions(benchmarks, index, judged), record_ids, extra)
    if second.semantics is None:
        return result
    return added(result, dataset, benchmarks, config, second.semantics, progress)


def _ask_model(
    second: Second, model: LanguageModel, benchmarks: Benchmarks, told: list[dict[str, Any]], progress: Progress
) -> None:
    """Add to what is told of each benchmark which of its items a language model finds unusually likely."""
    given = second.paraphrases
    of_item = dict(zip(given.items, given.texts, strict=True)) if given is not None else {}
    for number, body in enumerate(told):
        mine = benchmarks.of(number)
        questions = [benchmarks.items[i].question for i in mine]
        found = anomalies(questions, [of_item.get(i) for i in mine], model, progress)
        for one in found["flagged"]:
            item = benchmarks.items[mine[one.pop("place")]]
            one |= {"item": item.index, "record_id": item.record_id.hex()}
        body["perplexity"] = found


def read(
    dataset: Dataset, index: Index, config: DecontaminateConfig, progress: Progress
) -> tuple[np.ndarray, np.ndarray, Finds]:
    """Scan all that the rows say: (rows int64 [n], record ids uint8 [n, 32], finds)."""
    rows, ids = [np.zeros(0, np.int64)], [np.zeros((0, 32), np.uint8)]
    found: list[Finds] = []
    run, close = threads(config.workers)

    def one(batch: TextBatch) -> tuple[TextBatch, Finds]:
        return batch, scan(batch.texts, index)

    try:
        for batch, finds in run(one, dataset.texts("text")):
            rows.append(batch.rows)
            ids.append(batch.ids)
            found.append(finds)
            progress(int(batch.rows[-1]) + 1, None, "rows scanned")
    finally:
        close()
    return np.concatenate(rows), np.concatenate(ids), joined(found)


def judge(
    rows: np.ndarray,
    ids: np.ndarray,
    finds: Finds,
    benchmarks: Benchmarks,
    index: Index,
    config: DecontaminateConfig,
) -> Judged:
    """Settle the stops, measure all pairs and choose for each row that goes the strongest evidence."""
    distinct = np.zeros(len(rows), bool)
    if len(rows):
        names = np.ascontiguousarray(ids).view("<u8")[:, 0]  # eight bytes: to sort all 32 takes ten times longer
        distinct[np.unique(names, return_index=True)[1]] = True
    stops = find_stops(finds, index, distinct, config.stop_rows)
    pairs = pairs_of(finds, index, stops)
    rule = removes(pairs, index, config)
    goes = np.flatnonzero(rule)
    ranks = _item_ranks(benchmarks)[pairs.part[goes] // 2]
    by_answer = rule[goes] > CRITERIA.index("long_answer")  # or by its program, which comes last
    order = np.lexsort((ranks, -pairs.longest[goes], -pairs.coverage[goes], by_answer, pairs.row[goes]))
    strongest = goes[order]
    witness = strongest[np.unique(pairs.row[strongest], return_index=True)[1]]
    return Judged(rows, ids, finds, stops, pairs, rule, witness)


def _item_ranks(benchmarks: Benchmarks) -> np.ndarray:
    """An order of the items that depends on what they are, not on where they stand."""
    names = [b.name for b in benchmarks.benchmarks]
    order = sorted(
        range(len(benchmarks.items)),
        key=lambda i: (benchmarks.items[i].record_id, names[benchmarks.items[i].benchmark], i),
    )
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.arange(len(order))
    return ranks


def _decisions(benchmarks: Benchmarks, index: Index, judged: Judged) -> Any:
    pairs, chosen = judged.pairs, judged.witness
    covered = _coverage_of(pairs, pairs.row[chosen])
    details = []
    for pair in chosen.tolist():
        row, part = int(pairs.row[pair]), int(pairs.part[pair])
        item = benchmarks.items[part // 2]
        program = bool(pairs.code[pair])  # no words of row and item match, and no places in them can be shown
        in_row, in_item = ([], []) if program else spans(judged.finds, index, judged.stops, row, part)
        told = {
            "benchmark": benchmarks.benchmarks[item.benchmark].name,
            "item": item.index,
            "criterion": CRITERIA[judged.rule[pair] - 1],
            "question_coverage": round(covered.get((row, part & ~1), 0.0), 6),
            "answer_coverage": round(covered.get((row, part | 1), 0.0), 6),
            "longest": float(pairs.longest[pair]),
            "row_spans": in_row[:MOST_SPANS],
            "item_spans": in_item[:MOST_SPANS],
        }
        details.append(orjson.dumps(told).decode())
    positions = pairs.row[chosen]
    names = [benchmarks.items[part // 2].record_id for part in pairs.part[chosen].tolist()]
    return decisions.table(
        {
            "row": judged.rows[positions],
            "record_id": judged.ids[positions],
            "action": np.array(["remove"] * len(chosen), object) if len(chosen) else None,
            "reason": np.array([decisions.OVERLAP] * len(chosen), object) if len(chosen) else None,
            "witness_id": np.frombuffer(b"".join(names), np.uint8).reshape(-1, 32),
            "score": pairs.coverage[chosen],
            "detail": np.array(details, object) if len(chosen) else None,
        }
    )


def _coverage_of(pairs: Pairs, rows: np.ndarray) -> dict[tuple[int, int], float]:
    """Coverage by (row, part) of all pairs of some rows."""
    mine = np.isin(pairs.row, rows) & ~pairs.code
    keys = zip(pairs.row[mine].tolist(), pairs.part[mine].tolist(), strict=True)
    return dict(zip(keys, pairs.coverage[mine].tolist(), strict=True))
