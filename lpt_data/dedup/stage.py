"""The dedup stage: rows in, decisions out. Reads once, compares, and leaves the keeping to `witness`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from lpt_data.config import DedupConfig
from lpt_data.dataset import Dataset
from lpt_data.dedup import compare, exact, fields, graph, lsh, report, semantic, templates, witness
from lpt_data.dedup.decided import decision_table
from lpt_data.dedup.lsh import Bands
from lpt_data.dedup.memory import MEANING, Budget, budget, give_back
from lpt_data.dedup.minhash import Scheme
from lpt_data.dedup.report import DUPLICATED, EMPTY, EXACT, NEAR, NORMALIZED, REFERENCE, SEMANTIC, Removals
from lpt_data.dedup.rows import Room, Rows, Run, read, sketched_again, thread_count, threads
from lpt_data.dedup.shingles import NOTHING
from lpt_data.dedup.spread import Spread
from lpt_data.dedup.store import Text
from lpt_data.engines.ray import cluster
from lpt_data.progress import Progress, silent
from lpt_data.semantic import alike
from lpt_data.spill import Spill
from lpt_data.stage import StageResult
from lpt_data.twins import ties
from manifests.errors import UsageError

METHODS = ("exact", "minhash", "semantic")
ENGINES = ("local", "ray")
BOILERPLATE = ("lines", "paragraphs", "substring")  # methods of `lpt_data.boilerplate`


def decide(
    dataset: Dataset,
    config: DedupConfig,
    progress: Progress,
    *,
    reference: Dataset | None = None,
    output: Path | None = None,
    semantics: alike.Semantics | None = None,
) -> StageResult:
    """Find the duplicates of a dataset: `lpt_data.stage.run_stage` writes what stays.

    Rows that repeat one of `reference` go on its account; its own rows are compared with nothing and never go. What
    does not fit in the memory given lies in a nameless file beside `output` (None: in the folder of temporary files).
    The method `semantic` needs `semantics`: an embedder, and where its vectors are kept.

    Raises UsageError for a method, policy, threshold or size that makes no sense, BadInputError when the memory is not
    enough even so, or the disk.
    """
    from lpt_data.dedup.predict import count_rows, foretold

    bands = check(config)
    semantic.check(config, semantics)
    told = foretold(dataset, config, output or Path("out.jsonl"), reference)
    scheme = Scheme(config.ngram, bands.num_perm if bands else 0, config.seed)
    with ExitStack() as stack:
        stack.callback(give_back)
        spread = None
        if config.engine == "ray":
            progress(0, None, "connecting to the cluster")
            spread = Spread(stack.enter_context(cluster(config.ray_address)), scheme, bands, progress)
        room = budget(config.memory, thread_count(config.workers))
        room = replace(room, a_row=MEANING if semantics is not None else 0)
        if not any(source.format == "json" for source in dataset.files):  # an array would be read whole to count it
            rows, exact = count_rows(dataset)
            room.hold(rows if exact else int(0.9 * rows), at_least=not exact)  # refuses now rather than in an hour
        if semantics is not None:
            semantic.check_room(room, 0, semantics)
        run, close = threads(config.workers)
        stack.callback(close)
        file = stack.enter_context(Spill(output.parent if output else None))
        work = Work(config, bands, scheme, run, file, room, spread, semantics, progress)
        result = _decide(dataset, reference, work)
        result.extra.update(told)
        return result


@dataclass(frozen=True)
class Work:
    """What every part of one deduplication needs to know."""

    config: DedupConfig
    bands: Bands | None
    scheme: Scheme
    run: Run
    spill: Spill
    budget: Room
    spread: Spread | None = None  # over a cluster; None: threads of this process
    semantics: alike.Semantics | None = None  # of the method semantic
    progress: Progress = silent


def _decide(dataset: Dataset, reference: Dataset | None, work: Work) -> StageResult:
    config, bands, progress = work.config, work.bands, work.progress
    key, equal = fields.parts(config.key, dataset)
    share = templates.share_for(config.template_df, dataset.kind, key) if bands else 0.0
    rows = _read(dataset, reference, key, equal, work, None if share else bands, progress)
    more: dict[str, Any] = {}
    if bands and share:
        frame = templates.find(rows, share, work.scheme, work.run)
        short = np.count_nonzero(rows.shingles == 0)
        rows = _sketched_again(rows, frame.table, work)
        more["templates"] = {
            "share": share,
            "least_rows": frame.least,
            "distinct_rows": frame.rows,
            "shingles_left_out": frame.shingles,
            "rows_of_nothing_else": int(np.count_nonzero(rows.shingles == 0) - short),
        }
    if rows.group is not None:
        other = fields.same_text_other_fields(rows.sequence, rows.group, rows.references)
        more["same_key_other_fields"] = {"key": key, "fields": list(equal), "rows": other}
        rows = fields.told_apart(rows)
    progress(dataset.rows_in, None, "comparing")
    found, counts = find(rows, work, _twins(dataset, rows) if config.keep != "first" else None)
    if "semantic" in counts:
        more["semantic"] = counts.pop("semantic")
    if reference is not None:
        more["reference"] = {
            "files": [source.path for source in reference.files],
            "rows": reference.rows_in,
            "quarantined": len(reference.quarantined()),
        }
    give_back()
    extra = _extra(rows, found, work, counts, dataset)
    decided = decision_table(rows, found, config, reference)
    return StageResult(decided, _record_ids(dataset, rows), {**extra, **more})


def _record_ids(dataset: Dataset, rows: Rows) -> np.ndarray:
    """The record id of each row of the input, zeros where it could not be read: uint8 [rows_in, 32]."""
    if len(rows.rows) - rows.references == dataset.rows_in:
        return rows.ids[rows.references :]  # no copy: 32 bytes a row are much
    record_ids = np.zeros((dataset.rows_in, 32), np.uint8)
    record_ids[rows.rows[rows.references :]] = rows.ids[rows.references :]
    return record_ids


def _read(
    dataset: Dataset,
    reference: Dataset | None,
    key: str,
    equal: tuple[str, ...],
    work: Work,
    bands: Bands | None,
    progress: Progress,
) -> Rows:
    """Read the rows of the reference, then those of the input, with their groups and qualities."""
    both = [one for one in (reference, dataset) if one is not None]
    group = fields.groups(both, equal) if equal else []
    passes = [one.texts(key) for one in both]
    if equal:
        passes = [fields.with_group(batches, of) for batches, of in zip(passes, group, strict=True)]
    spread = work.spread
    rows = read(
        chain.from_iterable(passes),
        work.scheme,
        bands if spread is None else None,  # the signatures stay in the cluster
        work.run if spread is None else lambda _, texts: spread.sketches(texts, NOTHING, sign=bands is not None),
        spill=work.spill,
        budget=work.budget,
        progress=lambda done: progress(done, None, "rows read"),
    )
    keep = work.config.keep
    references = reference.rows_in - len(reference.quarantined()) if reference is not None else 0
    of_row = quality = None
    if equal:
        cuts = (slice(0, references), slice(references, None))[-len(both) :]
        of_row = np.concatenate([of[rows.rows[cut]] for of, cut in zip(group, cuts, strict=True)])
    if keep.startswith(witness.QUALITY):
        quality = np.full(len(rows.rows), np.nan)
        quality[references:] = fields.quality(dataset, keep.removeprefix(witness.QUALITY))[rows.rows[references:]]
    told_by_id = all(one.is_record(key) for one in both)
    return replace(rows, references=references, group=of_row, quality=quality, told_by_id=told_by_id)


def _sketched_again(rows: Rows, left_out: np.ndarray, work: Work) -> Rows:
    """The rows with sketches that leave some shingles out."""
    spread = work.spread
    if spread is None:
        return sketched_again(rows, left_out, work.scheme, work.bands, work.run, work.spill, work.budget)

    def run(_: object, texts: Iterable[Text]) -> Iterator[lsh.Sketch]:
        return spread.sketches(texts, left_out, sign=True)

    return sketched_again(rows, left_out, work.scheme, None, run, work.spill, work.budget)


def _twins(dataset: Dataset, rows: Rows) -> np.ndarray | None:
    """What orders rows of one record id that differ beside it, uint64 [n], 0 for all others; None without any."""
    first = rows.references
    tie = ties(dataset, rows.rows[first:], rows.ids[first:], lambda places: rows.texts.lines(places + first))
    return np.concatenate([np.zeros(rows.references, np.uint64), tie]) if tie.any() else None


def find(rows: Rows, work: Work, tie: np.ndarray | None = None) -> tuple[Removals, dict[str, Any]]:
    """Decide every row; ``tie`` orders rows of one record id. The counts are what the comparison itself can tell, and
    under `semantic` what that of meanings can.
    """

    def rank(positions: np.ndarray) -> np.ndarray:
        order = witness.total_order(
            work.config.keep,
            rows.chars[positions],
            rows.ids[positions],
            rows.sequence[positions] if tie is None else tie[positions],
            rows.rows[positions],
            positions < rows.references,
            None if rows.quality is None else rows.quality[positions],
        )
        ranks = np.empty(len(positions), np.int64)
        ranks[order] = np.arange(len(positions))
        return ranks

    same = exact.classes(rows.sequence, rows.tokens, rank, rows.texts_of, rows.group, rows.contents_of)
    total = len(rows.rows)
    counts: dict[str, Any] = {}

    def near(leaders: np.ndarray, rank: semantic.Rank) -> Near:
        found = Near(np.full(total, -1, np.int64), np.zeros(total), np.zeros(total, bool))
        if work.bands:
            told = _cover(rows, leaders[rows.shingles[leaders] > 0], rank, work, found)
            counts.update(told if not counts else {})
        return found

    leads = np.flatnonzero((same.leader == np.arange(total)) & ~same.empty)
    if work.config.semantic is None or work.semantics is None:
        return _removals(same, near(leads, rank), np.zeros(total, bool), work.config, rows.references), counts
    pairs = semantic.pairs_of(rows, leads, work.config.semantic, work.semantics, work.progress, work.budget, work.spill)
    settled = semantic.settle(rows, pairs, rank, near)
    found = Near(settled.witness, settled.score, settled.matched)
    removals = _removals(same, found, settled.meant, work.config, rows.references)
    weakest = report.weakest(rows, removals, SEMANTIC)
    return removals, {**counts, "semantic": {**semantic.told(rows, pairs, settled), "weakest": weakest}}


@dataclass(frozen=True)
class Near:
    """What the comparison found for each row, by position; only leaders of their class are compared."""

    witness: np.ndarray  # int64 [n], -1 for none
    score: np.ndarray  # float64 [n]
    matched: np.ndarray  # bool [n]: in some verified pair


def _cover(
    rows: Rows, leaders: np.ndarray, rank: Callable[[np.ndarray], np.ndarray], work: Work, found: Near
) -> dict[str, Any]:
    """Compare the leaders that may resemble one another, and note the witnesses of those that go."""
    threshold, spread = work.config.threshold, work.spread
    room = max(work.budget.room(len(rows.rows)) - rows.held, 0)
    if work.semantics is not None:  # what loading an embedder left behind counts
        room = min(room, work.budget.left(len(rows.rows)))
    if spread is None:
        workers = thread_count(work.config.workers)
        near = graph.components(rows, leaders, threshold, room, workers, work.run)
    else:
        near = spread.components(rows, leaders, threshold)
    sizes = np.bincount(near.root, minlength=1)
    chosen = np.flatnonzero(sizes[near.root] > 1)
    positions, root = leaders[chosen], near.root[chosen]
    standing = compare.Standing(positions, rank(positions), witness.id_ranks(rows.ids[positions]))
    if spread is None:
        batches, outcomes = compare.outcomes(
            rows, standing, root, threshold, work.config.ngram, work.run, work.spill, room
        )
    else:
        batches, outcomes = spread.outcomes(rows, standing, root, threshold, room)
    counts = np.zeros(2, np.int64)
    for outcome in outcomes:
        goes = outcome.witness >= 0
        found.witness[outcome.names[goes]] = outcome.witness[goes]
        found.score[outcome.names[goes]] = outcome.score[goes]
        found.matched[outcome.names] = outcome.matched
        counts += outcome.counts
    return {
        "rows_that_share_a_band": int(np.count_nonzero(near.shares)),
        "rows_compared": len(positions),
        "shingles": int(rows.shingles.sum(dtype=np.int64)),
        "candidates": int(counts[0]),
        "verified": int(counts[1]),
        "largest_bucket": near.largest_bucket,
        "huge_buckets": near.huge_buckets,
        "largest_component": int(sizes.max(initial=0)),
        "batches": batches,
    }


def _removals(same: exact.Classes, near: Near, meant: np.ndarray, config: DedupConfig, references: int) -> Removals:
    """Carry what befell each leader over to the rows that equal it; rows of the reference stay.

    ``meant`` (bool [n]) tells the leaders that went by their meaning.
    """
    positions = np.arange(len(same.leader))
    follows = same.leader != positions
    goes = near.witness[same.leader] >= 0
    match = np.zeros(len(positions), np.int8)
    loose = NEAR if "minhash" in config.method else SEMANTIC
    match[follows] = np.where(same.same_bytes[follows], EXACT, NORMALIZED) if "exact" in config.method else loose
    match[goes] = np.where(meant[same.leader[goes]], SEMANTIC, NEAR)
    found = np.where(goes, near.witness[same.leader], np.where(follows, same.leader, -1))
    score = np.where(goes, near.score[same.leader], np.where(follows, 1.0, 0.0))
    reason = np.where((found >= 0) & (found < references), REFERENCE, match).astype(np.int8)
    if config.drop_all:
        doubled = near.matched.copy()
        doubled[same.leader[follows]] = True
        reason[doubled & (reason == 0)] = DUPLICATED
    reason[same.empty] = EMPTY
    reason[:references] = 0
    return Removals(reason, found, score, match)


def _extra(rows: Rows, found: Removals, work: Work, counts: dict[str, Any], dataset: Dataset) -> dict[str, Any]:
    config, bands = work.config, work.bands
    by_match = np.bincount(found.match[found.reason > 0], minlength=SEMANTIC + 1)
    methods = {"exact": int(by_match[EXACT] + by_match[NORMALIZED]), "minhash": int(by_match[NEAR])}
    if config.semantic is not None:
        methods["semantic"] = int(by_match[SEMANTIC])
    extra: dict[str, Any] = {
        "methods": methods,
        "compared_whole": int(np.count_nonzero(rows.shingles == 0)),
        "biggest_keeper": report.biggest_keeper(rows, found),
        "alarms": report.alarms(rows, found, dataset, config.alarm_share),
        "weakest": report.weakest(rows, found),
        "text_bytes": rows.texts.bytes,
        "text_bytes_held": rows.texts.bytes_held,
        "memory": _memory(work),
    }
    if work.spread is not None:
        extra["engine"] = work.spread.cluster.told()
    if rows.quality is not None:
        extra["rows_without_quality"] = int(np.isnan(rows.quality[rows.references :]).sum())
    if bands:
        extra["minhash"] = {
            "scheme": work.scheme.id,
            "bands": bands.bands,
            "rows": bands.rows,
            "num_perm": bands.num_perm,
            "threshold": config.threshold,
            "recall_at_threshold": round(bands.proposed(config.threshold), 6),
            "s_curve": [list(point) for point in bands.curve(config.threshold)],
            **counts,
        }
    return extra


def _memory(work: Work) -> dict[str, Any]:
    """The cap, where it comes from, and what had to lie on the disk."""
    told: dict[str, Any] = {"spilled_bytes": work.spill.bytes}
    if isinstance(work.budget, Budget):
        told = {"cap_bytes": work.budget.cap, "cap_from": work.budget.source, **told}
    return told


def check(config: DedupConfig) -> Bands | None:
    """Raise UsageError for values that make no sense; returns the bands for near-duplicates, where they are asked."""
    unknown = [method for method in config.method if method not in METHODS]
    if parts := [method for method in unknown if method in BOILERPLATE]:
        raise UsageError(
            "repeated parts of documents are cut out by a command of their own",
            seen=f"--method {','.join(config.method)}",
            next=f"lpt data boilerplate IN --out OUT --method {parts[0]}",
        )
    if unknown or not config.method:
        raise UsageError(
            "no such method of deduplication",
            seen=", ".join(unknown) or "none",
            next=f"--method {','.join(METHODS)}, or one of them",
        )
    witness.check_keep(config.keep)
    if not 1 <= config.ngram <= 64:
        raise UsageError("a shingle has 1 to 64 tokens", seen=config.ngram, next="ngram: 5")
    if not 0 <= config.seed < 2**32:
        raise UsageError("the seed lies outside 0..4294967295", seen=config.seed, next="seed: 0")
    if not 0.0 <= config.alarm_share <= 1.0:
        raise UsageError("the share of an alarm lies within 0..1", seen=config.alarm_share, next="--alarm-share 0.01")
    if config.engine not in ENGINES:
        raise UsageError("no such engine", seen=config.engine, next=f"--engine {' | '.join(ENGINES)}")
    if config.ray_address is not None and config.engine != "ray":
        raise UsageError("an address of a cluster without --engine ray", seen=config.ray_address, next="--engine ray")
    if config.workers is not None and config.workers < 1:
        raise UsageError("at least one worker is needed", seen=config.workers, next="--workers 1")
    return lsh.choose_bands(config.threshold, config.num_perm) if "minhash" in config.method else None
