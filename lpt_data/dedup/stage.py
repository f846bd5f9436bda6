"""The dedup stage: rows in, decisions out. Reads once, compares, and leaves the keeping to `witness`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import xxhash

from lpt_data.config import DedupConfig
from lpt_data.dataset import Dataset
from lpt_data.dedup import exact, fields, lsh, report, templates, witness
from lpt_data.dedup.lsh import Bands
from lpt_data.dedup.minhash import Scheme
from lpt_data.dedup.report import DUPLICATED, EMPTY, EXACT, NEAR, NORMALIZED, REASONS, REFERENCE, Removals
from lpt_data.dedup.rows import BESIDE_TEXT, Rows, Run, read, sketched_again, threads
from lpt_data.io.readers import raw_lines
from lpt_data.progress import Progress
from lpt_data.stage import StageResult
from manifests import decisions
from manifests.arrow import plain_rows
from manifests.errors import UsageError

METHODS = ("exact", "minhash")
BOILERPLATE = ("lines", "paragraphs", "substring")  # methods of `lpt_data.boilerplate`
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def decide(
    dataset: Dataset, config: DedupConfig, progress: Progress, *, reference: Dataset | None = None
) -> StageResult:
    """Find the duplicates of a dataset: `lpt_data.stage.run_stage` writes what stays.

    Rows that repeat one of `reference` go on its account; its own rows are compared with nothing and never go.

    Raises UsageError for a method, policy, threshold or size that makes no sense, BadInputError when the rows do not
    fit in the memory given.
    """
    bands = _check(config)
    scheme = Scheme(config.ngram, bands.num_perm if bands else 0, config.seed)
    key, equal = fields.parts(config.key, dataset)
    share = templates.share_for(config.template_df, dataset.kind, key) if bands else 0.0
    run, close = threads(config.workers)
    try:
        rows = _read(dataset, reference, key, equal, config, scheme, None if share else bands, run, progress)
        more: dict[str, Any] = {}
        if bands and share:
            frame = templates.find(rows, share, scheme, run)
            short = np.count_nonzero(rows.sketch.shingles == 0)
            rows = sketched_again(rows, frame.table, scheme, bands, run)
            emptied = np.count_nonzero(rows.sketch.shingles == 0) - short
            more["templates"] = {
                "share": share,
                "least_rows": frame.least,
                "distinct_rows": frame.rows,
                "shingles_left_out": frame.shingles,
                "rows_of_nothing_else": int(emptied),
            }
        if rows.group is not None:
            other = fields.same_text_other_fields(rows.sketch.sequence, rows.group, rows.references)
            more["same_key_other_fields"] = {"key": key, "fields": list(equal), "rows": other}
            rows = replace(rows, sketch=fields.told_apart(rows.sketch, rows.group))
        found, counts = find(rows, config, bands, run, _twins(dataset, rows) if config.keep != "first" else None)
    finally:
        close()
    if reference is not None:
        more["reference"] = {
            "files": [source.path for source in reference.files],
            "rows": reference.rows_in,
            "quarantined": len(reference.quarantined()),
        }
    record_ids = np.zeros((dataset.rows_in, 32), np.uint8)
    record_ids[rows.rows[rows.references :]] = rows.ids[rows.references :]
    extra = _extra(rows, found, config, bands, scheme, counts, dataset)
    return StageResult(_decisions(rows, found, config, reference), record_ids, {**extra, **more})


def _read(
    dataset: Dataset,
    reference: Dataset | None,
    key: str,
    equal: tuple[str, ...],
    config: DedupConfig,
    scheme: Scheme,
    bands: Bands | None,
    run: Run,
    progress: Progress,
) -> Rows:
    """Read the rows of the reference, then those of the input, with their groups and qualities."""
    both = [one for one in (reference, dataset) if one is not None]
    groups = fields.Groups(equal)
    group = [groups.of(one) for one in both] if equal else []
    passes = [one.texts(key) for one in both]
    if equal:
        passes = [fields.with_group(batches, of) for batches, of in zip(passes, group, strict=True)]
    rows = read(
        chain.from_iterable(passes),
        scheme,
        bands,
        run,
        memory=parse_bytes(config.memory),
        progress=lambda done: progress(done, None, "rows read"),
    )
    references = reference.rows_in - len(reference.quarantined()) if reference is not None else 0
    of_row = quality = None
    if equal:
        cuts = (slice(0, references), slice(references, None))[-len(both) :]
        of_row = np.concatenate([of[rows.rows[cut]] for of, cut in zip(group, cuts, strict=True)])
    if config.keep.startswith(witness.QUALITY):
        quality = np.full(len(rows.rows), np.nan)
        quality[references:] = fields.quality(dataset, config.keep.removeprefix(witness.QUALITY))[
            rows.rows[references:]
        ]
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
        at = 0
        for source in dataset.files:
            for _, lines in raw_lines(source):
                places = np.flatnonzero(wanted[at : at + len(lines)])
                yield places + at, [lines[i] or b"" for i in places]
                at += len(lines)
        return
    for batch in dataset.batches():
        places = np.flatnonzero(wanted[batch.rows])
        records = batch.records
        chosen = plain_rows(records.take(places)) if isinstance(records, pa.Table) else [records[i] for i in places]
        yield batch.rows[places], [orjson.dumps(record, default=str) for record in chosen]


def find(
    rows: Rows, config: DedupConfig, bands: Bands | None, run: Run = map, tie: np.ndarray | None = None
) -> tuple[Removals, dict[str, Any]]:
    """Decide every row; ``tie`` orders rows of one record id. The counts are what the comparison itself can tell."""
    sketch = rows.sketch

    def rank(positions: np.ndarray) -> np.ndarray:
        order = witness.total_order(
            config.keep,
            sketch.chars[positions],
            rows.ids[positions],
            sketch.sequence[positions] if tie is None else tie[positions],
            rows.rows[positions],
            positions < rows.references,
            None if rows.quality is None else rows.quality[positions],
        )
        ranks = np.empty(len(positions), np.int64)
        ranks[order] = np.arange(len(positions))
        return ranks

    same = exact.classes(sketch.sequence, sketch.tokens, rank, rows.text, rows.group)
    total = len(rows.rows)
    near = Near(np.full(total, -1, np.int64), np.zeros(total), np.zeros(total, bool))
    counts: dict[str, Any] = {}
    if bands:
        leads = (same.leader == np.arange(total)) & (sketch.shingles > 0)
        counts = _cover(rows, np.flatnonzero(leads), rank, config, run, near)
    return _removals(same, near, config, rows.references), counts


@dataclass(frozen=True)
class Near:
    """What the comparison found for each row, by position; only leaders of their class are compared."""

    witness: np.ndarray  # int64 [n], -1 for none
    score: np.ndarray  # float64 [n]
    matched: np.ndarray  # bool [n]: in some verified pair


def _cover(
    rows: Rows,
    leaders: np.ndarray,
    rank: Callable[[np.ndarray], np.ndarray],
    config: DedupConfig,
    run: Run,
    found: Near,
) -> dict[str, Any]:
    """Compare the leaders that share a band, and note the witnesses of those that go."""
    grouped = lsh.buckets(rows.sketch.keys[leaders], run)
    meets = (grouped.of_row >= 0).any(axis=0)
    positions = leaders[meets]
    order = np.argsort(rank(positions), kind="stable")
    rows.check_room(8 * int(rows.sketch.shingles[positions].sum(dtype=np.int64)), parse_bytes(config.memory))
    sets = rows.shingle_sets(positions, config.ngram, run)
    near = lsh.Buckets(np.ascontiguousarray(grouped.of_row[:, meets]), grouped.sizes)
    outcome = witness.cover(
        order,
        witness.id_ranks(rows.ids[positions]),
        near,
        sets,
        config.threshold,
        references=int(np.searchsorted(positions, rows.references)),
        group=None if rows.group is None else rows.group[positions],
    )
    goes = outcome.witness >= 0
    found.witness[positions[goes]] = positions[outcome.witness[goes]]
    found.score[positions[goes]] = outcome.score[goes]
    found.matched[positions] = outcome.matched
    return {
        "rows_that_share_a_band": len(positions),
        "candidates": outcome.candidates,
        "verified": outcome.verified,
        "largest_bucket": int(near.sizes.max(initial=0)),
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
            "action": pa.array(np.where(reason == EMPTY, "quarantine", "remove")),
            "reason": pa.array(np.array(REASONS)[reason]),
            "witness_row": pa.array(rows.rows[witnesses], mask=alone | outside) if len(gone) else None,
            "witness_id": _masked_ids(rows.ids[witnesses], alone) if len(gone) else None,
            "score": pa.array(found.score[gone], mask=alone),
            "detail": pa.array(_details(rows, found, gone, reference), pa.string())
            if config.drop_all or reference
            else None,
        }
    )


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


def _extra(
    rows: Rows,
    found: Removals,
    config: DedupConfig,
    bands: Bands | None,
    scheme: Scheme,
    counts: dict[str, Any],
    dataset: Dataset,
) -> dict[str, Any]:
    by_match = np.bincount(found.match[found.reason > 0], minlength=NEAR + 1)
    extra: dict[str, Any] = {
        "methods": {"exact": int(by_match[EXACT] + by_match[NORMALIZED]), "minhash": int(by_match[NEAR])},
        "compared_whole": int(np.count_nonzero(rows.sketch.shingles == 0)),
        "biggest_keeper": report.biggest_keeper(rows, found),
        "alarms": report.alarms(rows, found, dataset, config.alarm_share),
        "weakest": report.weakest(rows, found),
        "text_bytes": sum(len(data) for _, data in rows.texts),
        "bytes_a_row_beside_text": BESIDE_TEXT + 8 * (bands.bands if bands else 0),
    }
    if rows.quality is not None:
        extra["rows_without_quality"] = int(np.isnan(rows.quality[rows.references :]).sum())
    if bands:
        extra["minhash"] = {
            "scheme": scheme.id,
            "bands": bands.bands,
            "rows": bands.rows,
            "num_perm": bands.num_perm,
            "threshold": config.threshold,
            "recall_at_threshold": round(bands.proposed(config.threshold), 6),
            "s_curve": [list(point) for point in bands.curve(config.threshold)],
            **counts,
        }
    return extra


def _check(config: DedupConfig) -> Bands | None:
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
    if config.workers is not None and config.workers < 1:
        raise UsageError("at least one worker is needed", seen=config.workers, next="--workers 1")
    return lsh.choose_bands(config.threshold, config.num_perm) if "minhash" in config.method else None


def parse_bytes(size: str | None) -> int | None:
    """A size such as "4GB" or "512MiB" in bytes; None stays None."""
    if size is None:
        return None
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMG]?I?B?)\s*", size.upper())
    if not match or match[2] not in _UNITS:
        raise UsageError("not an amount of memory", seen=size, next="--memory 4GB")
    return int(float(match[1]) * _UNITS[match[2]])
