"""The dedup stage: rows in, decisions out. Reads once, compares, and leaves the keeping to `witness`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import xxhash

from lpt_data.config import DedupConfig
from lpt_data.dataset import Dataset
from lpt_data.dedup import compare, exact, fields, graph, lsh, report, templates, witness
from lpt_data.dedup.lsh import BITMAP, Bands
from lpt_data.dedup.memory import Budget, budget, give_back
from lpt_data.dedup.minhash import Scheme
from lpt_data.dedup.report import DUPLICATED, EMPTY, EXACT, NEAR, NORMALIZED, REASONS, REFERENCE, Removals
from lpt_data.dedup.rows import Room, Rows, Run, read, sketched_again, thread_count, threads
from lpt_data.dedup.spill import Spill
from lpt_data.io.jsonl import chosen_lines
from lpt_data.progress import Progress
from lpt_data.stage import StageResult
from manifests import decisions
from manifests.arrow import plain_rows
from manifests.errors import UsageError

METHODS = ("exact", "minhash")


def decide(
    dataset: Dataset,
    config: DedupConfig,
    progress: Progress,
    *,
    reference: Dataset | None = None,
    output: Path | None = None,
) -> StageResult:
    """Find the duplicates of a dataset: `lpt_data.stage.run_stage` writes what stays.

    Rows that repeat one of `reference` go on its account; its own rows are compared with nothing and never go. What
    does not fit in the memory given lies in a nameless file beside `output` (None: in the folder of temporary files).

    Raises UsageError for a method, policy, threshold or size that makes no sense, BadInputError when the memory is not
    enough even so, or the disk.
    """
    from lpt_data.dedup.predict import count_rows, foretold

    bands = check(config)
    told = foretold(dataset, config, output or Path("out.jsonl"), reference)
    room = budget(config.memory, thread_count(config.workers))
    if not any(source.format == "json" for source in dataset.files):  # an array would be read whole to count it
        rows, exact = count_rows(dataset)
        room.hold(rows if exact else int(0.9 * rows), at_least=not exact)  # refuses now rather than in an hour
    scheme = Scheme(config.ngram, bands.num_perm if bands else 0, config.seed)
    run, close = threads(config.workers)
    try:
        with Spill(output.parent if output else None) as file:
            work = Work(config, bands, scheme, run, file, room)
            result = _decide(dataset, reference, work, progress)
            result.extra.update(told)
            return result
    finally:
        close()
        give_back()


@dataclass(frozen=True)
class Work:
    """What every part of one deduplication needs to know."""

    config: DedupConfig
    bands: Bands | None
    scheme: Scheme
    run: Run
    spill: Spill
    budget: Room


def _decide(dataset: Dataset, reference: Dataset | None, work: Work, progress: Progress) -> StageResult:
    config, bands = work.config, work.bands
    key, equal = fields.parts(config.key, dataset)
    share = templates.share_for(config.template_df, dataset.kind, key) if bands else 0.0
    rows = _read(dataset, reference, key, equal, work, None if share else bands, progress)
    more: dict[str, Any] = {}
    if bands and share:
        frame = templates.find(rows, share, work.scheme, work.run)
        short = np.count_nonzero(rows.shingles == 0)
        rows = sketched_again(rows, frame.table, work.scheme, bands, work.run, work.spill, work.budget)
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
    if reference is not None:
        more["reference"] = {
            "files": [source.path for source in reference.files],
            "rows": reference.rows_in,
            "quarantined": len(reference.quarantined()),
        }
    give_back()
    extra = _extra(rows, found, work, counts, dataset)
    decided = _decisions(rows, found, config, reference)
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
    rows = read(
        chain.from_iterable(passes),
        work.scheme,
        bands,
        work.run,
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
    return replace(rows, references=references, group=of_row, quality=quality)


def _twins(dataset: Dataset, rows: Rows) -> np.ndarray | None:
    """A hash of the whole row as written, uint64 [n], where several rows have one record id, else 0; None without any.

    Their other columns may differ, and which of them stays must not depend on the order of the files either.
    """
    twins = exact.shared(rows.ids.view("<u8")[:, 0], np.arange(rows.references, len(rows.rows)))
    if not len(twins):
        return None
    tie = np.zeros(len(rows.rows), np.uint64)
    wanted = np.zeros(dataset.rows_in, bool)
    wanted[rows.rows[twins]] = True
    for places, lines in _as_written(dataset, wanted):
        at = rows.references + np.searchsorted(rows.rows[rows.references :], places)
        tie[at] = [xxhash.xxh3_64_intdigest(line) for line in lines]
    return tie


def _as_written(dataset: Dataset, wanted: np.ndarray) -> Iterator[tuple[np.ndarray, list[bytes]]]:
    """The wanted rows with their bytes: the very lines of JSONL files, which are not parsed again, else JSON."""
    if all(source.format == "jsonl" for source in dataset.files):
        for first, source in zip(dataset.first_rows, dataset.files, strict=True):
            yield from chosen_lines(source, wanted, first)
        return
    for batch in dataset.batches():
        places = np.flatnonzero(wanted[batch.rows])
        records = batch.records
        chosen = plain_rows(records.take(places)) if isinstance(records, pa.Table) else [records[i] for i in places]
        yield batch.rows[places], [orjson.dumps(record, default=str) for record in chosen]


def find(rows: Rows, work: Work, tie: np.ndarray | None = None) -> tuple[Removals, dict[str, Any]]:
    """Decide every row; ``tie`` orders rows of one record id. The counts are what the comparison itself can tell."""

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

    same = exact.classes(rows.sequence, rows.tokens, rank, rows.text, rows.group)
    total = len(rows.rows)
    near = Near(np.full(total, -1, np.int64), np.zeros(total), np.zeros(total, bool))
    counts: dict[str, Any] = {}
    if work.bands:
        leads = (same.leader == np.arange(total)) & (rows.shingles > 0)
        counts = _cover(rows, np.flatnonzero(leads), rank, work, near)
    return _removals(same, near, work.config, rows.references), counts


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
    threshold, ngram, run = work.config.threshold, work.config.ngram, work.run
    room = max(work.budget.room(len(rows.rows)) - rows.held, 0)
    near = graph.components(rows, leaders, threshold, room, thread_count(work.config.workers), run)
    sizes = np.bincount(near.root, minlength=1)
    chosen = np.flatnonzero(sizes[near.root] > 1)
    positions, root = leaders[chosen], near.root[chosen]
    standing = compare.Standing(positions, rank(positions), witness.id_ranks(rows.ids[positions]))
    weights = 8 * rows.shingles[positions].astype(np.int64) + 12 * rows.keys.width + 8 * BITMAP + compare.ROW
    batches = graph.deal(root, standing.place, weights, max(room // 2, 1))
    load = compare.loader(rows, standing, batches, ngram, run, work.spill, room)
    counts = np.zeros(2, np.int64)
    for chain_of in batches.chains:
        if len(chain_of) == 1:
            outcomes = [compare.cover_batch(load(chain_of[0]), threshold, rows.references)]
        else:
            outcomes = compare.cover_chain(chain_of, load, threshold, rows.references, room)
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
        "batches": batches.count,
    }


def _removals(same: exact.Classes, near: Near, config: DedupConfig, references: int) -> Removals:
    """Carry what befell each leader over to the rows that equal it; rows of the reference stay."""
    positions = np.arange(len(same.leader))
    follows = same.leader != positions
    goes = near.witness[same.leader] >= 0
    match = np.zeros(len(positions), np.int8)
    match[follows] = np.where(same.same_bytes[follows], EXACT, NORMALIZED) if "exact" in config.method else NEAR
    match[goes] = NEAR
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


def _decisions(rows: Rows, found: Removals, config: DedupConfig, reference: Dataset | None) -> pa.Table:
    gone = np.flatnonzero(found.reason)
    reason, witnesses = found.reason[gone], np.maximum(found.witness[gone], 0)
    alone = (reason == EMPTY) | (reason == DUPLICATED)
    outside = reason == REFERENCE
    return decisions.table(
        {
            "row": rows.rows[gone],
            "record_id": rows.ids[gone],
            "action": _named(reason == EMPTY, ("remove", "quarantine")),
            "reason": _named(reason, REASONS),
            "witness_row": pa.array(rows.rows[witnesses], mask=alone | outside) if len(gone) else None,
            "witness_id": _masked_ids(rows.ids[witnesses], alone) if len(gone) else None,
            "score": pa.array(found.score[gone], mask=alone),
            "detail": pa.array(_details(rows, found, gone, reference), pa.string())
            if config.drop_all or reference
            else None,
        }
    )


def _named(codes: np.ndarray, names: tuple[str, ...]) -> pa.Array:
    """The name of each code, as strings."""
    return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int8)), pa.array(names)).cast(pa.string())


def _details(rows: Rows, found: Removals, gone: np.ndarray, reference: Dataset | None) -> list[str | None]:
    """Where a row of the reference is, and what became of a witness that went too."""
    if reference is not None:
        files = np.searchsorted(reference.first_rows, rows.rows[found.witness[gone]], side="right") - 1
    details: list[str | None] = []
    for i, position in enumerate(gone.tolist()):
        reason, kept = found.reason[position], found.witness[position]
        if reason == REFERENCE:
            assert reference is not None
            place = int(rows.rows[kept]) - reference.first_rows[files[i]] + 1
            details.append(f"{REASONS[found.match[position]]} of {reference.files[files[i]].path}, row {place}")
        elif reason == DUPLICATED:
            details.append("others repeat it, and no copy was to stay")
        elif kept >= 0 and found.reason[kept]:
            details.append("which went too: no copy was to stay")
        else:
            details.append(None)
    return details


def _masked_ids(ids: np.ndarray, without: np.ndarray) -> np.ndarray:
    ids[without] = 0  # the decision table shows an id of zeros as null
    return ids


def _extra(rows: Rows, found: Removals, work: Work, counts: dict[str, Any], dataset: Dataset) -> dict[str, Any]:
    config, bands = work.config, work.bands
    by_match = np.bincount(found.match[found.reason > 0], minlength=NEAR + 1)
    extra: dict[str, Any] = {
        "methods": {"exact": int(by_match[EXACT] + by_match[NORMALIZED]), "minhash": int(by_match[NEAR])},
        "compared_whole": int(np.count_nonzero(rows.shingles == 0)),
        "biggest_keeper": report.biggest_keeper(rows, found),
        "alarms": report.alarms(rows, found, dataset, config.alarm_share),
        "weakest": report.weakest(rows, found),
        "text_bytes": rows.texts.bytes,
        "memory": _memory(work),
    }
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
    if config.workers is not None and config.workers < 1:
        raise UsageError("at least one worker is needed", seen=config.workers, next="--workers 1")
    return lsh.choose_bands(config.threshold, config.num_perm) if "minhash" in config.method else None
