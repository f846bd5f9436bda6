"""The dedup stage: rows in, decisions out. Reads once, compares, and leaves the keeping to `witness`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import xxhash

from lpt_data.config import DedupConfig
from lpt_data.dataset import Dataset
from lpt_data.dedup import exact, lsh, witness
from lpt_data.dedup.lsh import Bands
from lpt_data.dedup.minhash import Scheme
from lpt_data.dedup.rows import BESIDE_TEXT, Rows, Run, read, threads
from lpt_data.io.readers import raw_lines
from lpt_data.progress import Progress
from lpt_data.stage import StageResult
from manifests import decisions
from manifests.errors import UsageError

METHODS = ("exact", "minhash")
WEAKEST = 5  # removals shown with their texts
EXCERPT = 160  # characters of a text shown
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


@dataclass(frozen=True)
class Removals:
    """What happens to each row, by position."""

    reason: np.ndarray  # int8 [n], an index into REASONS
    witness: np.ndarray  # int64 [n], the position of the kept row, -1 where there is none
    score: np.ndarray  # float64 [n]


REASONS = ("", "exact_duplicate", "normalized_duplicate", "near_duplicate", "empty_text")
_EXACT, _NORMALIZED, _NEAR, _EMPTY = range(1, 5)


def decide(dataset: Dataset, config: DedupConfig, progress: Progress) -> StageResult:
    """Find the duplicates of a dataset: `lpt_data.stage.run_stage` writes what stays.

    Raises UsageError for a method, policy, threshold or size that makes no sense, BadInputError when the rows do not
    fit in the memory given.
    """
    bands = _check(config)
    scheme = Scheme(config.ngram, bands.num_perm if bands else 0, config.seed)
    run, close = threads(config.workers)
    try:
        rows = read(
            dataset.texts(config.key),
            scheme,
            bands,
            run,
            memory=parse_bytes(config.memory),
            progress=lambda done: progress(done, None, "rows read"),
        )
        found, counts = find(rows, config, bands, run, _twins(dataset, rows) if config.keep != "first" else None)
    finally:
        close()
    record_ids = np.zeros((dataset.rows_in, 32), np.uint8)
    record_ids[rows.rows] = rows.ids
    return StageResult(_decisions(rows, found), record_ids, _extra(rows, found, config, bands, scheme, counts))


def _twins(dataset: Dataset, rows: Rows) -> np.ndarray | None:
    """A hash of the whole row as written, uint64 [n], where several rows have one record id, else 0; None without any.

    Their other columns may differ, and which of them stays must not depend on the order of the files either.
    """
    twins = exact.shared(rows.ids.view("<u8")[:, 0], np.arange(len(rows.rows)))
    if not len(twins):
        return None
    tie = np.zeros(len(rows.rows), np.uint64)
    wanted = np.zeros(dataset.rows_in, bool)
    wanted[rows.rows[twins]] = True
    for places, lines in _as_written(dataset, wanted):
        tie[np.searchsorted(rows.rows, places)] = [xxhash.xxh3_64_intdigest(line) for line in lines]
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
        chosen = records.take(places).to_pylist() if isinstance(records, pa.Table) else [records[i] for i in places]
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
        )
        ranks = np.empty(len(positions), np.int64)
        ranks[order] = np.arange(len(positions))
        return ranks

    same = exact.classes(sketch.sequence, sketch.tokens, rank, rows.text)
    total = len(rows.rows)
    leader_witness = np.full(total, -1, np.int64)
    leader_score = np.zeros(total)
    counts: dict[str, Any] = {}
    if bands:
        leads = (same.leader == np.arange(total)) & (sketch.shingles > 0)
        counts = _cover(rows, np.flatnonzero(leads), rank, config, run, leader_witness, leader_score)
    return _removals(same, leader_witness, leader_score, "exact" in config.method), counts


def _cover(
    rows: Rows,
    leaders: np.ndarray,
    rank: Callable[[np.ndarray], np.ndarray],
    config: DedupConfig,
    run: Run,
    leader_witness: np.ndarray,
    leader_score: np.ndarray,
) -> dict[str, Any]:
    """Compare the leaders that share a band, and note the witnesses of those that go."""
    grouped = lsh.buckets(rows.sketch.keys[leaders], run)
    meets = (grouped.of_row >= 0).any(axis=0)
    positions = leaders[meets]
    order = np.argsort(rank(positions), kind="stable")
    rows.check_room(8 * int(rows.sketch.shingles[positions].sum(dtype=np.int64)), parse_bytes(config.memory))
    sets = rows.shingle_sets(positions, config.ngram, run)
    near = lsh.Buckets(np.ascontiguousarray(grouped.of_row[:, meets]), grouped.sizes)
    outcome = witness.cover(order, witness.id_ranks(rows.ids[positions]), near, sets, config.threshold)
    goes = outcome.witness >= 0
    leader_witness[positions[goes]] = positions[outcome.witness[goes]]
    leader_score[positions[goes]] = outcome.score[goes]
    return {
        "rows_that_share_a_band": len(positions),
        "candidates": outcome.candidates,
        "verified": outcome.verified,
        "largest_bucket": int(near.sizes.max(initial=0)),
    }


def _removals(same: exact.Classes, leader_witness: np.ndarray, leader_score: np.ndarray, by_exact: bool) -> Removals:
    """Carry what befell each leader over to the rows that equal it."""
    positions = np.arange(len(same.leader))
    follows = same.leader != positions
    near = leader_witness[same.leader] >= 0
    reason = np.zeros(len(positions), np.int8)
    reason[follows] = np.where(same.same_bytes[follows], _EXACT, _NORMALIZED) if by_exact else _NEAR
    reason[near] = _NEAR
    reason[same.empty] = _EMPTY
    found = np.where(near, leader_witness[same.leader], np.where(follows, same.leader, -1))
    score = np.where(near, leader_score[same.leader], np.where(follows, 1.0, 0.0))
    return Removals(reason, found, score)


def _decisions(rows: Rows, found: Removals) -> pa.Table:
    gone = np.flatnonzero(found.reason)
    empty = found.reason[gone] == _EMPTY
    witnesses = np.where(empty, 0, found.witness[gone])
    return decisions.table(
        {
            "row": rows.rows[gone],
            "record_id": rows.ids[gone],
            "action": pa.array(np.where(empty, "quarantine", "remove")),
            "reason": pa.array(np.array(REASONS)[found.reason[gone]]),
            "witness_row": pa.array(rows.rows[witnesses], mask=empty) if len(gone) else None,
            "witness_id": _masked_ids(rows.ids[witnesses], empty) if len(gone) else None,
            "score": pa.array(found.score[gone], mask=empty),
        }
    )


def _masked_ids(ids: np.ndarray, without: np.ndarray) -> np.ndarray:
    ids[without] = 0  # the decision table shows an id of zeros as null
    return ids


def _extra(
    rows: Rows, found: Removals, config: DedupConfig, bands: Bands | None, scheme: Scheme, counts: dict[str, Any]
) -> dict[str, Any]:
    by_reason = {name: int(n) for name, n in zip(REASONS, np.bincount(found.reason, minlength=5), strict=True) if name}
    removed = (found.reason > 0) & (found.reason != _EMPTY)
    extra: dict[str, Any] = {
        "methods": {
            "exact": by_reason["exact_duplicate"] + by_reason["normalized_duplicate"],
            "minhash": by_reason["near_duplicate"],
        },
        "compared_whole": int(np.count_nonzero(rows.sketch.shingles == 0)),
        "biggest_keeper": _biggest_keeper(rows, found.witness[removed]),
        "weakest": _weakest(rows, found, np.flatnonzero(found.reason == _NEAR)),
        "text_bytes": sum(len(data) for _, data in rows.texts),
        "bytes_a_row_beside_text": BESIDE_TEXT + 8 * (bands.bands if bands else 0),
    }
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


def _biggest_keeper(rows: Rows, witnesses: np.ndarray) -> dict[str, Any] | None:
    """The kept row for which the most rows went, and their share of all rows; the smallest row of equals."""
    if not len(witnesses):
        return None
    absorbed = np.bincount(witnesses)
    most = np.flatnonzero(absorbed == absorbed.max())
    keeper = int(most[np.argmin(rows.rows[most])])
    count = int(absorbed[keeper])
    return {
        "row": int(rows.rows[keeper]),
        "record_id": rows.ids[keeper].tobytes().hex(),
        "absorbed": count,
        "share": round(count / len(rows.rows), 6),
    }


def _weakest(rows: Rows, found: Removals, near: np.ndarray) -> list[dict[str, Any]]:
    """The near duplicates that went on the lowest score, first the one most worth a doubt."""
    order = near[np.lexsort((rows.rows[near], found.score[near]))][:WEAKEST]
    return [
        {
            "row": int(rows.rows[position]),
            "witness_row": int(rows.rows[found.witness[position]]),
            "score": float(found.score[position]),
            **dict(zip(("text", "witness_text"), _differing(rows, position, found.witness[position]), strict=True)),
        }
        for position in order.tolist()
    ]


def _differing(rows: Rows, a: int, b: int) -> tuple[str, str]:
    """Excerpts of two texts, each from shortly before the first character that differs."""
    texts = [rows.text(int(i)).decode("utf-8", "replace") for i in (a, b)]
    same = next((i for i, (x, y) in enumerate(zip(*texts, strict=False)) if x != y), min(map(len, texts)))
    start = max(0, same - EXCERPT // 4)
    lead = "…" if start else ""
    first, second = (lead + t[start : start + EXCERPT] + ("…" if len(t) > start + EXCERPT else "") for t in texts)
    return first, second


def _check(config: DedupConfig) -> Bands | None:
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
