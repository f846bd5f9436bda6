"""Remove the rows behind checks of an audit, each with the check as its reason.

An audit only points at rows; this takes them out, on record, so that what is admitted afterwards says why they went. A
check that did not run removes nothing and is an error, never an empty success. Left out: choosing which of two
duplicates stays, which is what `dedup` is for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from lpt_data.audit import AuditReport, audit
from lpt_data.config import DropConfig
from lpt_data.contracts.common import Encoder, Verifier
from lpt_data.dataset import Dataset
from lpt_data.io import expand
from lpt_data.progress import Progress, silent
from lpt_data.stage import StageReport, StageResult, Work
from manifests import decisions
from manifests.catalog import Catalog
from manifests.digests import bytes_sha256
from manifests.errors import CheckNotRunError, UsageError


def drop(
    dataset: Dataset,
    contract: str,
    checks: Sequence[str],
    *,
    out: Path,
    catalog: Catalog,
    key: str | None = None,
    encode: Encoder | None = None,
    max_length: int | None = None,
    verifiers: Mapping[str, Verifier] | None = None,
    against: Sequence[str] = (),
    benchmarks: Mapping[str, Sequence[str]] | None = None,
    seeds: Sequence[str] = (),
    languages: Sequence[str] = (),
    scored: Sequence[str] = (),
    progress: Progress | None = None,
    dry_run: bool = False,
) -> StageReport:
    """Write the rows of `dataset` (of the contract's kind) that are behind none of `checks` to `out`; record the stage.

    Raises UsageError for a check that the contract has not, CheckNotRunError for one that did not run on this data.
    """
    work = drop_work(
        dataset, contract, checks, out=out, key=key, encode=encode, max_length=max_length, verifiers=verifiers,
        against=against, benchmarks=benchmarks, seeds=seeds, languages=languages, scored=scored,
    )  # fmt: skip
    return work.run(catalog, progress or silent, dry_run=dry_run, wait=5.0)


def drop_work(
    dataset: Dataset,
    contract: str,
    checks: Sequence[str],
    *,
    out: Path,
    key: str | None = None,
    encode: Encoder | None = None,
    max_length: int | None = None,
    verifiers: Mapping[str, Verifier] | None = None,
    against: Sequence[str] = (),
    benchmarks: Mapping[str, Sequence[str]] | None = None,
    seeds: Sequence[str] = (),
    languages: Sequence[str] = (),
    scored: Sequence[str] = (),
) -> Work:
    """Return the work of such a removal; raises what `drop` does."""
    if not checks:
        raise UsageError("there is no check to drop rows by", seen="none", next="--check CHECK, as an audit names it")
    named = benchmarks or {}
    files = [*against, *seeds, *scored, *(path for paths in named.values() for path in paths)]
    config = DropConfig(
        contract=contract,
        checks=tuple(sorted(set(checks))),
        key=key,
        max_length=max_length,
        tokenizer=encode.fingerprint if encode else None,
        template_sha256=encode.template_sha256 if encode else None,
        languages=tuple(languages),
        references=tuple(sorted(bytes_sha256(source.path) for source in expand(files))) if files else (),
    )

    def decide(data: Dataset, config: DropConfig, tell: Progress) -> StageResult:
        report = audit(
            {"data": data},
            config.contract,
            encode=encode,
            max_length=max_length,
            verifiers=verifiers,
            against=against or None,
            benchmarks=named,
            seeds=seeds or None,
            key=key,
            languages=languages,
            pass_rates=scored or None,
            progress=tell,
        )
        return _result(report, config.checks)

    return Work("drop", dataset, config, decide, (Path(out),), output=str(out))


def _result(report: AuditReport, checks: Sequence[str]) -> StageResult:
    """One decision for each row behind the checks; a row behind several goes for the first by name, and names all."""
    split = report.survey.splits[0]
    place = {int(row): position for position, row in enumerate(split.rows.tolist())}
    behind: dict[int, list[tuple[str, str]]] = {}
    for check in checks:
        found_rows = report.rows(check)
        _ran(report, check)
        for found in found_rows:
            if found["row"] in place:  # what the reader could not use is in quarantine already
                behind.setdefault(found["row"], []).append((check, found["detail"]))
    rows = sorted(behind)
    record_ids = np.zeros((split.rows_in, 32), np.uint8)
    record_ids[split.rows] = split.ids
    table = decisions.table(
        {
            "row": np.array(rows, np.int64),
            "record_id": record_ids[rows],
            "action": pa.array(["remove"] * len(rows), pa.string()),
            "reason": pa.array([behind[row][0][0] for row in rows], pa.string()),
            "detail": pa.array([_detail(behind[row]) for row in rows], pa.string()),
        }
    )
    counts = {check: sum(check in [name for name, _ in why] for why in behind.values()) for check in checks}
    return StageResult(table if rows else decisions.empty(), record_ids, {"rows_behind": counts})


def _ran(report: AuditReport, check: str) -> None:
    outcome = report.outcomes[check]
    if outcome.status != "ok":
        raise CheckNotRunError(
            f"the check {check} did not run, so it cannot say which rows go",
            seen=f"{outcome.status}: {outcome.reason}",
            next="give what it needs (an audit names the option), or name another check",
        )


def _detail(why: Sequence[tuple[str, str]]) -> str:
    first, *others = why
    also = f"; also {', '.join(name for name, _ in others)}" if others else ""
    return first[1] + also
