"""Admission: audit the splits, write them canonically with their digests, prove that they are disjoint, record it.

    NAME@V/ train-00000.parquet …   the rows that a trainer reads, and nothing else does
            manifest.json           sources, stages, digests, metrics, checks, policy, verdict; its sha256 is its id
            buckets.json            bucket hashes of each split, so that two machines find the rows that differ
            failing_rows.parquet    every row behind every check
            SHA256SUMS              for `sha256sum -c`, without this program

A rejected set is written and recorded as well: the evidence stays, and the trainer refuses it by its verdict. Rows that
break a check are never dropped here; rows that the reader quarantined are counted and listed.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from lpt_data import admitted_folder as folder_
from lpt_data.audit import AuditReport, audit, contract_of
from lpt_data.contracts.common import Encoder, PassRates, Verifier
from lpt_data.contracts.reference import sources
from lpt_data.contracts.sampled import Sampler
from lpt_data.dataset import Dataset
from lpt_data.io.sources import expand
from lpt_data.lineage import Origin, origin
from lpt_data.progress import Progress
from lpt_data.schedule_mix import of_split
from lpt_data.versions import environment
from manifests.canon import CANON
from manifests.catalog import Catalog, check_name
from manifests.digests import bytes_sha256
from manifests.errors import BadInputError, LptError, UsageError
from manifests.files import cannot_write, fsync_folder, make_folder, write_atomic
from manifests.loaded import pointer
from manifests.objects import object_bytes

_SPLIT = re.compile(r"[a-z][a-z0-9_]{0,39}")


@dataclass(frozen=True)
class Admission:
    """A recorded admission. `reused` is True when the same content under the same policy was on record already."""

    manifest_id: str
    name: str
    version: int
    folder: Path
    body: Mapping[str, Any]
    checks: tuple[Any, ...]  # manifests.policy.Check
    exit_code: int
    reused: bool = False
    same_content_as: str | None = None  # NAME@V of an earlier version with the same rows from other files

    @property
    def verdict(self) -> str:
        """accept, tune or reject."""
        return str(self.body["verdict"])

    def to_json(self) -> dict[str, Any]:
        """Return the admission as one JSON object: verdict, checks and digests, as the manifest keeps them."""
        kept = (
            "contract",
            "verdict",
            "checks",
            "splits",
            "disjoint",
            "funnel",
            "not_checked",
            "next",
            "tokenizer",
            "stages",
        )
        return {
            "manifest_id": self.manifest_id,
            "name": self.name,
            "version": self.version,
            "folder": str(self.folder),
            "reused": self.reused,
            "same_content_as": self.same_content_as,
            "exit_code": self.exit_code,
            "policy": {k: self.body["policy"][k] for k in ("name", "digest")},
            **{name: self.body[name] for name in kept},
        }


def admit(
    name: str,
    contract: str,
    splits: Mapping[str, Sequence[str]],
    *,
    catalog: Catalog,
    policy: str | Path | None = None,
    benchmarks: Mapping[str, Sequence[str]] | None = None,
    against: Sequence[str] | None = None,
    seeds: Sequence[str] | None = None,
    previous: Sequence[str] | None = None,
    key: str | None = None,
    encode: Encoder | None = None,
    max_length: int | None = None,
    verifiers: Mapping[str, Verifier] | None = None,
    languages: Sequence[str] = (),
    pass_rates: PassRates | Sequence[str] | None = None,
    sampler: Sampler | None = None,
    layout: str | None = None,
    text_column: str = "text",
    out: Path | str | None = None,
    progress: Progress | None = None,
) -> Admission:
    """Audit `splits` (split name -> files), write them beside the catalog or to `out`, and record a manifest.

    Returns the admission whatever its verdict. Raises UsageError for a bad name, BadInputError for files that cannot be
    read or a folder that cannot be written, BusyError when another process holds the catalog; then nothing is recorded.
    """
    check_name(name)
    _check_splits(splits)
    kind = contract_of(contract).kind
    target = None
    if out is not None:
        _set_aside(catalog, name, Path(out))
        target = _free_target(Path(out))
    catalog.check_free()
    datasets = {s: Dataset.open(p, kind=kind, layout=layout, text_column=text_column) for s, p in splits.items()}
    read = {s: sources(d) for s, d in datasets.items()}
    report = audit(
        datasets,
        contract,
        encode=encode,
        max_length=max_length,
        verifiers=verifiers,
        against=against,
        benchmarks=benchmarks,
        seeds=seeds,
        previous=previous,
        key=key,
        policy=policy,
        languages=languages,
        pass_rates=pass_rates,
        sampler=sampler,
        progress=progress,
        admitting=name,
    )
    body = _evidence(name, report, read, origin(catalog, [f["sha256"] for files in read.values() for f in files]))
    if target is None and (same := _on_record(catalog, body, report)):
        return same
    return _write_and_record(catalog, target, body, report, read, progress)


def _check_splits(splits: Mapping[str, Sequence[str]]) -> None:
    if not splits:
        raise UsageError("there is nothing to admit", seen="no split was given", next="--train FILE")
    for split in splits:
        if not _SPLIT.fullmatch(split):
            raise UsageError(
                "not a name for a split", seen=split, next="lower-case letters, digits and '_', e.g. train"
            )


def _set_aside(catalog: Catalog, name: str, out: Path) -> None:
    """Move away what an admission of this name wrote to `out` and was killed before it could record."""
    if not (out / "manifest.json").is_file() or not catalog.splits_dir.is_dir():
        return
    ours = {path.read_text("utf-8", "replace") for path in catalog.splits_dir.glob(f"{name}@*.path")}
    recorded = {found for found, _ in catalog.find("lpt.admission/1", strict=False, name=name)}
    if str(out.resolve()) not in ours or bytes_sha256(out / "manifest.json") in recorded:
        return
    aside = out.with_name(f".unfinished-{out.name}-{uuid.uuid4().hex[:8]}")
    try:
        out.rename(aside)
    except OSError as error:
        raise cannot_write(out, error) from error
    catalog.notes.append(f"{out} was left by an admission that did not finish; it was moved to {aside}")


def _free_target(out: Path) -> Path:
    """Return `out` when it does not exist or is an empty folder; nothing that is there is ever replaced."""
    if out.is_dir() and not any(out.iterdir()):
        return out
    if out.exists():
        what = "the folder to write is not empty" if out.is_dir() else "what to write is a folder, and a file is there"
        raise UsageError(what, seen=str(out), next="name another folder with --out")
    if not out.parent.is_dir():
        raise BadInputError(
            "the folder to write in does not exist", seen=str(out.parent), next=f"mkdir -p {out.parent}"
        )
    return out


def _evidence(
    name: str, report: AuditReport, read: Mapping[str, Sequence[dict[str, Any]]], made_by: Origin
) -> dict[str, Any]:
    """Return all of the manifest that does not depend on the files written and on the version."""
    survey, lent = report.survey, report.survey.lent
    failed = [
        c for c in report.checks if c.status in ("warn", "fail", "error") or (c.status == "skipped" and c.required)
    ]
    return {
        "type": "lpt.admission/1",
        "name": name,
        "contract": survey.contract.name,
        "canon": CANON,
        "key": survey.normaliser,
        "sources": [{**f, "split": s.name, "layout": s.dataset.layout} for s in survey.splits for f in read[s.name]],
        "stages": list(made_by.stages),
        "parents": list(made_by.parents),
        "funnel": [
            *made_by.funnel,
            *(
                {
                    "stage": f"admit {s.name}",
                    "rows_in": s.rows_in,
                    "quarantined": len(s.quarantined),
                    "rows_out": len(s),
                }
                for s in survey.splits
            ),
        ],
        "splits": {
            s.name: folder_.digests(s, survey.normaliser, lent.max_length) | _scheduled(read[s.name], s.ids)
            for s in survey.splits
        },
        "disjoint": folder_.disjointness(survey),
        "tokenizer": None
        if lent.encode is None
        else {
            "name": lent.encode.name,
            "fingerprint": lent.encode.fingerprint,
            "template_sha256": lent.encode.template_sha256,
            "max_length": lent.max_length,
        },
        "against": list(lent.against.sources) if lent.against else [],
        "benchmarks": [{"name": b.name, "items": b.items, "files": list(b.sources)} for b in lent.benchmarks],
        "seeds": list(lent.seeds.sources) if lent.seeds else [],
        "previous": [file for earlier in lent.previous for file in earlier.sources],
        "scored": [
            {"path": file.path, "bytes": file.bytes, "sha256": bytes_sha256(file.path)}
            for file in (expand(list(lent.scored)) if lent.scored else ())
        ],
        **({"sampled": dict(lent.sampled.told)} if lent.sampled is not None else {}),
        "languages": list(lent.languages),
        "metrics": [asdict(m) for m in report.metrics],
        "checks": [asdict(c) for c in report.checks],
        "not_checked": list(report.not_checked),
        "policy": {"name": report.policy.name, "digest": report.policy.digest, "text": report.policy.source},
        "verdict": report.verdict,
        "next": [c.next for c in failed if c.next],
        "env": environment(),
    }


def _scheduled(files: Sequence[Mapping[str, Any]], ids: np.ndarray) -> dict[str, Any]:
    """The schedule of a split that a mixture made: a trainer follows it by step."""
    schedule = of_split(files, ids)
    return {} if schedule is None else {"schedule": schedule}


def _identity(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return what makes two admissions the same: rows, order, source bytes, policy, tokenizer, measured values."""
    splits = {
        name: [s.get(k) for k in ("rows_in", "rows", "content_root", "order_sha256", "key", "schedule")]
        for name, s in body["splits"].items()
    }
    others = [*body["against"], *body.get("seeds", ()), *body.get("previous", ()), *body.get("scored", ())]
    references = [f["sha256"] for f in others] + [
        [b["name"], [f["sha256"] for f in b["files"]]] for b in body["benchmarks"]
    ]
    return {
        "contract": [body["contract"], body["canon"]],
        "splits": splits,
        "sources": [[f["split"], f["sha256"], f["layout"]] for f in body["sources"]],
        "parents": body["parents"],
        "policy": body["policy"]["digest"],
        "tokenizer": body["tokenizer"],
        "languages": list(body.get("languages", ())),
        "references": references,
        "metrics": [[m["id"], m["value"], m["n"], m["status"]] for m in body["metrics"]],
    }


def _roots(body: Mapping[str, Any]) -> dict[str, Any]:
    return {name: s["content_root"] for name, s in body["splits"].items()}


def _on_record(catalog: Catalog, body: Mapping[str, Any], report: AuditReport) -> Admission | None:
    """Return the newest admission of the name when it says the same and its folder is still whole, else None."""
    earlier = _latest(catalog, body["name"])
    if earlier is None:
        return None
    manifest_id, known = earlier
    folder = catalog.splits_dir / f"{known['name']}@{known['version']}"
    try:
        if _identity(known) != _identity(body):
            return None
        intact = bytes_sha256(folder / "manifest.json") == manifest_id and all(
            bytes_sha256(folder / f["path"]) == f["sha256"] for f in folder_.listed_files(known)
        )
    except (LptError, KeyError, TypeError):  # an older format, or a folder that was moved: admit again
        return None
    if not intact:
        return None
    version = int(known["version"])
    return Admission(
        manifest_id, str(known["name"]), version, folder, known, report.checks, report.exit_code, reused=True
    )


def _write_and_record(
    catalog: Catalog,
    target: Path | None,
    body: dict[str, Any],
    report: AuditReport,
    read: Mapping[str, Sequence[dict[str, Any]]],
    progress: Progress | None,
) -> Admission:
    parent = make_folder(catalog.splits_dir) if target is None else target.parent
    _sweep(parent, body["name"])
    unfinished = parent / f".tmp-admit-{body['name']}-{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    place: dict[str, Any] = {}
    try:
        unfinished.mkdir()
        files = folder_.write_splits(unfinished, report.survey, progress)
        side = folder_.write_side_files(unfinished, report)
        folder_.check_unchanged(read)

        def build(version: int) -> dict[str, Any]:
            final = target if target is not None else parent / f"{body['name']}@{version}"
            earlier = _latest(
                catalog, body["name"]
            )  # again: the name is locked now, another admission may have come first
            splits = {s: {**digests, "files": files[s]} for s, digests in body["splits"].items()}
            whole = {
                **body,
                "version": version,
                "created": datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
                "supersedes": earlier[0] if earlier is not None else None,
                "splits": splits,
                "side_files": side,
            }
            folder_.seal(unfinished, object_bytes(whole), [f for fs in files.values() for f in fs] + side)
            if target is not None:
                make_folder(catalog.splits_dir)
                write_atomic(pointer(catalog, body["name"], version), str(final.resolve()).encode())
            os.replace(unfinished, final)
            fsync_folder(parent)
            place.update(folder=final, body=whole, earlier=earlier)
            return whole

        def there() -> str | None:  # asked again: the name is locked now, an equal admission may have come first
            place["same"] = None if target is not None else _on_record(catalog, body, report)
            return place["same"].manifest_id if place["same"] is not None else None

        manifest_id = catalog.admit_version(body["name"], build, same=there)
        if place["same"] is not None:
            return place["same"]
    except OSError as error:
        raise cannot_write(target or parent, error) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
        if "body" in place and not _recorded(catalog, place["body"]):  # renamed, then the catalog could not be written
            shutil.rmtree(place["folder"], ignore_errors=True)
            pointer(catalog, body["name"], place["body"]["version"]).unlink(missing_ok=True)
    same, earlier = None, place["earlier"]
    if earlier is not None and _roots(earlier[1]) == _roots(place["body"]):
        same = f"{earlier[1]['name']}@{earlier[1]['version']}"
    version = int(place["body"]["version"])
    return Admission(
        manifest_id,
        body["name"],
        version,
        place["folder"],
        place["body"],
        report.checks,
        report.exit_code,
        same_content_as=same,
    )


def _latest(catalog: Catalog, name: str) -> tuple[str, dict[str, Any]] | None:
    return next(catalog.find("lpt.admission/1", name=name), None)


def _recorded(catalog: Catalog, body: Mapping[str, Any]) -> bool:
    return any(True for _ in catalog.find("lpt.admission/1", name=body["name"], version=body["version"]))


def _sweep(parent: Path, name: str) -> None:
    """Remove what killed admissions of this name left behind on this machine; a living process keeps its own."""
    prefix = f".tmp-admit-{name}-{socket.gethostname()}-"
    for left in parent.glob(f"{prefix}*"):
        pid = left.name.removeprefix(prefix).partition("-")[0]
        if pid.isdigit() and not _alive(int(pid)):
            shutil.rmtree(left, ignore_errors=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
