"""Mixtures: named domains in asked proportions, drawn by content, capped, scheduled, recorded.

The draw does not follow the order of files or rows: the rows of a domain are taken in the order of a salted hash of
their content, so a larger total takes the same rows and more, and another domain changes nothing. A domain asked for
more than it has is repeated, redistributed to the others, or stops the mixture, by `exhausted`; every repeat is a
row whose `copy` column is above 0. Rows that were not drawn are removed with the reason `not_drawn`.

    rows_in + repeated == rows_out + removed + quarantined
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import pyarrow as pa

from lpt_data import mix_plan
from lpt_data.config import identity
from lpt_data.dataset import Dataset
from lpt_data.joined import Joined
from lpt_data.mix_plan import Pool
from lpt_data.mix_spec import MADE_COLUMNS, Domain, MixSpec
from lpt_data.ordered import Order
from lpt_data.places import file_entry
from lpt_data.progress import Progress, silent
from lpt_data.record_text import text_of
from lpt_data.schedule_mix import schedule, schedule_path
from lpt_data.stage import StageReport, StageResult, Work
from lpt_data.tokenizer_file import TokenizerFile, open_tokenizer
from manifests import decisions
from manifests.digests import content_root
from manifests.errors import NOT_GIVEN, BadInputError, LptError
from manifests.files import write_atomic

if TYPE_CHECKING:
    from manifests.catalog import Catalog

NOT_DRAWN = "not_drawn"
NO_SCORE = "no_score"
_BATCH = 512  # texts tokenised at a time
Shown = Callable[[Mapping[str, Any]], None]


def mix(
    spec: MixSpec,
    *,
    out: Path,
    catalog: Catalog,
    tokenizer: TokenizerFile | None = None,
    plan_only: bool = False,
    show: Shown | None = None,
    progress: Progress | None = None,
    wait: float = 5.0,
) -> StageReport:
    """Draw the mixture and write it to `out`, with its schedule beside it where the specification has one.

    `show` is called with the plan before a row is written; with `plan_only` nothing is written at all. Raises
    BadInputError for domains that do not fit together or a total in tokens without a tokenizer.
    """
    work = mix_work(spec, out=out, tokenizer=tokenizer, show=show)
    return work.run(catalog, progress or silent, dry_run=plan_only, wait=wait)


def mix_work(spec: MixSpec, *, out: Path, tokenizer: TokenizerFile | None = None, show: Shown | None = None) -> Work:
    """Return the work of a mixture; raises what `mix` does."""
    if spec.unit == "tokens" and tokenizer is None:
        if spec.tokenizer is None:
            raise BadInputError(
                "a total in tokens needs a tokenizer: characters divided by four are no tokens",
                seen=f"total.tokens: {spec.total:g}",
                next="add `tokenizer: FOLDER` to the mixture, or --tokenizer FOLDER",
            )
        tokenizer = open_tokenizer(spec.tokenizer)
    parts = [_open(domain, spec) for domain in spec.domains]
    _check_together(spec, parts)
    counter = tokenizer if spec.unit == "tokens" else None
    config = replace(
        spec,
        files=tuple(len(part.files) for part in parts),
        tokenizer_sha256=counter.sha256 if counter is not None else "",
    )
    joined = Joined(parts)
    return Work(
        "mix",
        joined,
        config,
        lambda data, _, done: _decide(joined, config, counter, show, done),
        (Path(out),),
        output=str(out),
        finish=lambda written, result: _finish(config, written[0], result),
    )


def _open(domain: Domain, spec: MixSpec) -> Dataset:
    try:
        return Dataset.open(domain.inputs, kind=spec.kind, layout=domain.layout, text_column=domain.text_column)
    except BadInputError as error:
        raise BadInputError(
            f"domain {domain.name}: {error.what}", seen=error.seen or NOT_GIVEN, next=error.next
        ) from error


def _check_together(spec: MixSpec, parts: Sequence[Dataset]) -> None:
    kinds = {domain.name: part.kind for domain, part in zip(spec.domains, parts, strict=True)}
    if len(set(kinds.values())) > 1:
        raise BadInputError(
            "the domains hold records of different kinds",
            seen=", ".join(f"{name}: {kind}" for name, kind in kinds.items()),
            next="say which with `kind: sft` (or text, rlvr) in the mixture",
        )
    owner: dict[str, str] = {}
    for domain, part in zip(spec.domains, parts, strict=True):
        for source in part.files:
            real = os.path.realpath(source.path)
            if real in owner:
                raise BadInputError(
                    "a file belongs to two domains", seen=f"{source.path}: {owner[real]} and {domain.name}",
                    next="name it in one of them",
                )  # fmt: skip
            owner[real] = domain.name


# -- reading


@dataclass(frozen=True)
class _Rows:
    """All usable rows: which, whose, what they are."""

    rows: np.ndarray  # int64 [n]
    ids: np.ndarray  # uint8 [n, 32]
    contents: np.ndarray  # uint8 [n, 16], of record and other columns: what a draw follows
    tokens: np.ndarray | None  # int64 [n]
    scores: np.ndarray | None  # float64 [n], NaN where a curriculum has no number to go by


def _read(joined: Joined, spec: MixSpec, counter: TokenizerFile | None, progress: Progress) -> _Rows:
    rows: list[int] = []
    ids, contents = bytearray(), bytearray()
    scores: list[float] = []
    tokens: list[int] = []
    held: list[str] = []
    column = None if spec.curriculum is None else spec.curriculum.column
    for row, record, extra, name in joined.identified():
        rows.append(row)
        ids += name
        contents += hashlib.sha256(name + _other(extra)).digest()[:16]
        if column is not None:
            scores.append(_score(extra.get(column)))
        if counter is not None:
            held.append(text_of(joined.kind, record, "text"))
            if len(held) == _BATCH:
                tokens += counter.lengths(held)
                held.clear()
        if len(rows) % 1000 == 0:
            progress(len(rows), None, "reading the domains")
    if counter is not None and held:
        tokens += counter.lengths(held)
    return _Rows(
        np.array(rows, np.int64),
        np.frombuffer(ids, np.uint8).reshape(-1, 32),
        np.frombuffer(contents, np.uint8).reshape(-1, 16),
        np.array(tokens, np.int64) if counter is not None else None,
        np.array(scores, np.float64) if column is not None else None,
    )


def _other(extra: Mapping[str, Any]) -> bytes:
    """The other columns as bytes: two rows of one record that differ there are told apart."""
    try:
        return orjson.dumps(extra, default=repr, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)
    except TypeError:  # integers beyond 64 bits
        return repr(sorted(extra.items(), key=lambda item: item[0])).encode("utf-8", "surrogatepass")


def _score(value: Any) -> float:
    """A finite number, or NaN: text that looks like a number (CSV has nothing else) counts, true and false do not."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return math.nan
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return math.nan
    return number if math.isfinite(number) else math.nan


# -- deciding


def _decide(
    joined: Joined, spec: MixSpec, counter: TokenizerFile | None, show: Shown | None, progress: Progress
) -> StageResult:
    read = _read(joined, spec, counter, progress)
    record_ids = np.zeros((joined.rows_in, 32), np.uint8)
    record_ids[read.rows] = read.ids
    starts = joined.starts
    whose = np.searchsorted(starts, read.rows, side="right") - 1
    unscored = _unscored(read, whose, spec)
    pools = []
    for number, domain in enumerate(spec.domains):
        mine = np.flatnonzero((whose == number) & ~unscored)
        if not len(mine):
            raise _no_scores(domain, spec)
        pools.append(
            Pool(
                domain=domain,
                rows=read.rows[mine],
                contents=read.contents[mine],
                tokens=None if read.tokens is None else read.tokens[mine],
                scores=None if read.scores is None else read.scores[mine],
                root=content_root(read.ids[mine]).root,
            )
        )
    plan = mix_plan.make(spec, pools)
    extra = {
        "plan_hash": _plan_hash(spec, pools),
        **plan.told,
        "shared_records": _shared_records(read.ids, whose),
    }
    if extra["shared_records"]:
        extra["warnings"].append(f"{extra['shared_records']:,} records are in more than one domain")
    if show is not None:
        show(extra)
    drawn = np.zeros(joined.rows_in, bool)
    drawn[plan.rows] = True
    left = read.rows[~drawn[read.rows] & ~unscored]
    gone = [(int(row), "remove", NOT_DRAWN) for row in left.tolist()]
    gone += [(int(row), "quarantine", NO_SCORE) for row in read.rows[unscored].tolist()]
    names = pa.array([spec.domains[i].name for i in plan.domains.tolist()], pa.string())
    order = Order(plan.rows, pa.table([names, pa.array(plan.copies, pa.int64())], names=list(MADE_COLUMNS)))
    return StageResult(_decisions(gone, record_ids, starts, spec), record_ids, extra, order=order)


def _decisions(
    gone: list[tuple[int, str, str]], record_ids: np.ndarray, starts: Sequence[int], spec: MixSpec
) -> pa.Table:
    rows = np.array([row for row, _, _ in gone], np.int64)
    whose = np.searchsorted(starts, rows, side="right") - 1
    return decisions.table(
        {
            "row": pa.array(rows, pa.int64()),
            "record_id": decisions.hex_ids(record_ids[rows]),
            "action": pa.array([action for _, action, _ in gone], pa.string()),
            "reason": pa.array([reason for _, _, reason in gone], pa.string()),
            "detail": pa.array([f"domain {spec.domains[i].name}" for i in whose.tolist()], pa.string()),
        }
    )


def _unscored(read: _Rows, whose: np.ndarray, spec: MixSpec) -> np.ndarray:
    """Which rows a curriculum cannot place: bool [n]."""
    if read.scores is None or spec.curriculum is None:
        return np.zeros(len(read.rows), bool)
    chosen = [i for i, domain in enumerate(spec.domains) if domain.name in spec.curriculum.domains]
    return np.isnan(read.scores) & np.isin(whose, chosen)


def _no_scores(domain: Domain, spec: MixSpec) -> BadInputError:
    column = spec.curriculum.column if spec.curriculum is not None else ""
    return BadInputError(
        f"no row of the domain {domain.name} has a number under {column}",
        seen=", ".join(domain.inputs),
        next="add the column, or name the domains that have it with `curriculum: {domains: […]}`",
    )


def _shared_records(ids: np.ndarray, whose: np.ndarray) -> int:
    """Number of distinct records that occur in more than one domain."""
    names, place = np.unique(np.ascontiguousarray(ids).view("V32").ravel(), return_inverse=True)
    pairs = np.unique(np.stack([place.ravel(), whose]), axis=1)
    return int((np.bincount(pairs[0], minlength=len(names)) > 1).sum())


def _plan_hash(spec: MixSpec, pools: Sequence[Pool]) -> str:
    """Return the sha256 of the resolved plan and of the content of every domain; file names and their order are no
    part of it.
    """
    told = identity(spec)
    del told["files"]
    told["content"] = {pool.domain.name: [pool.root, len(pool.rows), pool.units(spec)] for pool in pools}
    return hashlib.sha256(b"lpt-mix/1\0" + orjson.dumps(told, option=orjson.OPT_SORT_KEYS)).hexdigest()


# -- after the file is written


def _finish(spec: MixSpec, file: Mapping[str, Any], result: StageResult) -> Mapping[str, Any]:
    if not spec.scheduled:
        return {}
    assert result.order is not None
    if file["rows"] != len(result.order.rows):
        raise LptError("another number of rows was written than planned", seen=file["rows"], next="report it")
    ids = result.record_ids[result.order.rows]
    path = Path(file["path"])
    data = {"file": path.name, "sha256": file["sha256"], "rows": file["rows"]}
    body = schedule(spec, result.extra["plan_hash"], result.extra["phases"], data, ids, content_root(ids).root)
    target = schedule_path(path)
    options = orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE
    write_atomic(target, orjson.dumps(body, option=options))
    return {"outputs": [file_entry(target, 0)], "extra": {"schedule": str(target)}}
