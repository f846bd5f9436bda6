"""The folder of an export, of whatever kind of model: whole or not at all, with its origin, marks and record."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lpt_train.adapter_folder import PROVENANCE, adapter_base, quantisation_of, read_provenance
from lpt_train.checkpoint import checkpoint_sha256, verify_files
from lpt_train.checkpoint_folders import STATE
from lpt_train.disk import WRITE_ERRORS, cannot_save
from lpt_train.models import model_digest, resolve
from lpt_train.runs import env, now
from manifests.catalog import Catalog
from manifests.digests import bytes_sha256
from manifests.errors import BadInputError, LptError, UsageError
from manifests.files import fsync_file, fsync_folder, make_folder


@dataclass(frozen=True)
class Exported:
    """What was written: its folder, its record (`body`) and what a user should be told."""

    path: Path
    body: dict[str, Any]
    object_id: str | None = None
    notes: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """The record, with the id under which the catalog has it."""
        return {**self.body, "object": self.object_id, "notes": list(self.notes)}


@contextlib.contextmanager
def written_whole(out: Path) -> Iterator[Path]:
    """A folder for what `out` is to hold, which takes its place when the block has ended: whole, or not at all.

    Raises `UsageError` when something is at `out` already, and what `cannot_save` tells when the disk refuses.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError("the place of the export is taken", seen=str(out), next="choose another --out")
    make_folder(out.parent)
    temporary = out.parent / f".tmp-{out.name}-{os.getpid()}"
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir()
        yield temporary
        _put_in_place(temporary, out)
    except WRITE_ERRORS as error:
        raise cannot_save(out, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def trained_weights(source: str) -> Path:
    """The folder of weights that a run or folder stands for; a checkpoint's files are as they were written.

    Raises `BadInputError` where there is none, or where one of its files is damaged.
    """
    if not Path(source).is_dir():
        raise BadInputError(
            "there is no run or folder of weights to export", seen=source, next="give the folder of a run: runs/NAME"
        )
    folder = Path(resolve(source, Path(source)))
    if (folder / STATE).is_file():
        verify_files(folder)
    return folder


def mapping_in(path: Path) -> dict[str, Any]:
    """The object in a JSON file; raises `BadInputError` where there is none."""
    try:
        body = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        body = error
    if not isinstance(body, dict):
        raise BadInputError(
            "a file beside the weights cannot be read", seen=f"{path}: {body!r:.200}",
            next="copy the folder again from where it was made",
        )  # fmt: skip
    return body


def origin_of(source: str, folder: Path) -> dict[str, Any]:
    """Which checkpoint of which run the weights in `folder` are, what that was made from, and the marks on it."""
    made_from = read_provenance(folder) or {}
    base = adapter_base(str(folder))
    under = {"name": base, "digest": model_digest(base)} if base is not None else None
    checkpoint = checkpoint_sha256(folder) if (folder / STATE).is_file() else None
    run = Path(source) / "run.json"
    told = mapping_in(run) if run.is_file() else {}
    return {
        "type": "lpt.export/1", "source": str(folder), "checkpoint_sha256": checkpoint, "base": under,
        "quantisation": quantisation_of(folder), "run_id": made_from.get("run_id"),
        "run_status": told.get("status"), "run_verdict": told.get("verdict"), "manifest": made_from.get("manifest"),
        "split": made_from.get("split"), "verified": made_from.get("verified", "unknown"),
        "tainted": bool(made_from.get("tainted")), "created": now(), "env": env(),
    }  # fmt: skip


def outputs_of(temporary: Path, out: Path) -> list[dict[str, Any]]:
    """Each file written, by the path that it will have: `{path, bytes, sha256}`."""
    return [
        {"path": str(out / path.name), "bytes": path.stat().st_size, "sha256": bytes_sha256(path)}
        for path in sorted(temporary.iterdir())
    ]


def notes_of(body: dict[str, Any]) -> list[str]:
    """What a user should be told of an export, by its record."""
    notes = []
    if body["tainted"]:
        notes.append("this export is marked: it was trained on data that was not admitted")
    if body["run_verdict"] in ("no_effective_update", "frozen_tensors_changed", "reject"):
        notes.append(f"the verdict of its run is {body['run_verdict']}")
    if body["quantisation"] is not None:
        what = "merged into the weights that its base's codes stand for, not into the original ones"
        alone = "trained over a base in four bits: over the original weights it is another model"
        notes.append(f"the adapter was {what if body['merged'] else alone}")
    return notes


def recorded(made: Exported, catalog: Catalog | None) -> Exported:
    """What was made with the id under which the catalog has it, its run as parent; never raises for that."""
    if catalog is None:
        return made
    try:
        runs = catalog.find("lpt.run/1", run_id=made.body["run_id"]) if made.body["run_id"] else []
        parents = [name for name, _ in runs][:1]
        object_id = catalog.put({**made.body, "parents": parents})
    except (LptError, OSError) as error:  # the folder is whole and says where it comes from
        return Exported(made.path, made.body, None, [*made.notes, f"the catalog could not record it ({error})"])
    return Exported(made.path, made.body, object_id, made.notes)


def _put_in_place(temporary: Path, out: Path) -> None:
    mode = (temporary / PROVENANCE).stat().st_mode
    for path in temporary.iterdir():
        path.chmod(mode)  # safetensors makes files that only their owner can read
        fsync_file(path)
    fsync_folder(temporary)
    temporary.replace(out)
    fsync_folder(out.parent)
