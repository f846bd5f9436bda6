"""A run's folder and its record.

    OUT/run.json        the record; status "running" from the first moment, replaced atomically as it changes
    OUT/metrics.jsonl   one JSON object a logged step
    OUT/checkpoints/    see `checkpoint`

The run is recorded once, at the end, and the catalog can never fail it: what cannot be recorded is left in
OUT/unrecorded/ and the result says so. Before that it lends log-probs of a reference (`reference`).
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import random
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lpt_train.admitted import AdmittedSplit
from lpt_train.checkpoint import Restored, checkpoint_sha256, load_checkpoint, read_provenance
from lpt_train.checkpoint_folders import latest, recover
from lpt_train.config import to_mapping
from lpt_train.machine import env as env
from lpt_train.machine import now as now
from lpt_train.machine import own_version, ran_out
from lpt_train.memory import Fitted, measured_peak
from lpt_train.models import placement
from lpt_train.proof import Proof
from lpt_train.quantised import quantisation_record
from lpt_train.ranks import SOLO, Ranks, refuse_several
from lpt_train.resume import check_resume, processes
from lpt_train.run_folder import check_new
from lpt_train.sharded import made_whole
from lpt_train.sinks import Sinks, check_sinks
from lpt_train.speed import peak_memory_bytes
from lpt_train.stop import StopRequest
from manifests.catalog import Catalog
from manifests.command_line import command_line
from manifests.errors import BadInputError, LptError, UsageError
from manifests.files import cannot_write, exclusive_lock, make_folder, write_atomic
from manifests.rollouts import into_catalog

# progress(step, total steps, metrics): called after each logged step; metrics carry tokens_per_second and eta_seconds.
# What one may have besides, `lpt_train.watch` says.
Progress = Callable[[int, int, Mapping[str, float]], None]


_BATCH = ("per_device_train_batch_size", "gradient_accumulation_steps")


@dataclass(frozen=True)
class RunResult:
    """How a run ended: its record (`body`), its folder, and what a user should be told (`notes`)."""

    run_id: str
    body: dict[str, Any]
    path: Path
    object_id: str | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def status(self) -> str:
        """`done`, `stopped` or `failed`."""
        return self.body["status"]

    def to_json(self) -> dict[str, Any]:
        """The record, with the id under which the catalog has it."""
        return {**self.body, "object": self.object_id, "notes": list(self.notes)}


class Run:
    """One training run; `create` starts it, `log` adds a step, `finish` closes and records it.

    Of several processes the main one writes; the others go through the same calls and leave no trace.
    """

    def __init__(self, out: Path, body: dict[str, Any], catalog: Catalog | None, ranks: Ranks = SOLO) -> None:
        self.out = out
        self.body = body
        self.catalog = catalog
        self.ranks = ranks
        self.run_id: str = body["run_id"]
        self.checkpoints = out / "checkpoints"
        self.metrics_path = out / "metrics.jsonl"
        self._started = time.monotonic()
        self._written = -math.inf  # when the record was written last
        self._earlier_seconds = float(body.get("seconds") or 0.0)
        self.notes: list[str] = []
        self.memory: Fitted | None = None  # what the steps were predicted to take
        self.sinks = Sinks((), out, body["run_id"], body["config"])
        self.rollouts: Path | None = None  # what the run sampled, as JSON lines; for SQL they go beside the catalog
        self._stopped_by: str | None = None
        self._from = 0  # the step that a resumed run goes on from
        self._lock = contextlib.ExitStack()

    @classmethod
    def create(
        cls,
        out: Path,
        algorithm: str,
        config: Any,
        split: AdmittedSplit,
        model_info: Mapping[str, Any],
        *,
        tokenizer: Mapping[str, Any],
        tokenized_id: str | None = None,
        eval_split: AdmittedSplit | None = None,
        seed: int = 0,
        catalog: Catalog | None = None,
        resume: bool = False,
        ranks: Ranks = SOLO,
        engine: Mapping[str, Any] | None = None,
    ) -> Run:
        """Start a run in `out`, or go on with the one there when `resume`.

        `model_info` is `{name, digest}` with the path the weights came from as `name`; `tokenizer` `{fingerprint,
        template_sha256}`; `engine` `{name, version, …}` of what does the updates, by default the loops of this package.
        A folder that holds a run already is refused with `UsageError` unless `resume`. An algorithm that gives no
        `ranks` runs in one process and is refused where there are several.
        """
        if ranks is SOLO:
            refuse_several(algorithm)
        out = Path(out)
        reports = config.run.reports
        check_sinks(reports)
        record = out / "run.json"
        if ranks.main and not resume:
            check_new(out)
        before = read_record(record) if resume and ranks.main else None
        make_folder(out / "checkpoints")
        made_from = read_provenance(model_info["name"])
        created = now()
        body: dict[str, Any] = {
            "type": "lpt.run/1", "run_id": _new_id(algorithm, created), "algorithm": algorithm,
            "config": to_mapping(config), "manifest": split.manifest_id, "split": split.ref,
            "content_root": split.content_root, "verified": split.verified,
            "eval": eval_split.identity if eval_split is not None else None,
            "tainted": split.tainted or bool(made_from and made_from.get("tainted")), "verdict": split.verdict,
            "model": {**model_info, "made_from": made_from, "quantisation": _quantisation(config)},
            "tokenizer": dict(tokenizer),
            "engine": dict(engine or {"name": "lean", "version": own_version()}),
            "tokenized_id": tokenized_id, "steps": 0, "metrics": {}, "tokens_per_second": 0.0,
            "peak_memory_bytes": 0, "checkpoint": None, "proof": {}, "failures": [], "status": "running", "env": env(),
            "command": command_line(), "seed": seed, "created": created, "seconds": 0.0,
            "metrics_path": str(out / "metrics.jsonl"), "parents": [],
            **({"ranks": ranks.to_json()} if ranks.world > 1 else {}),
        }  # fmt: skip
        if before is not None:
            check_resume(before, body, to_mapping(type(config)()))
            body |= {key: before[key] for key in ("run_id", "created", "seconds", "metrics", "steps", "checkpoint")}
            body |= {key: before[key] for key in ("reference",) if key in before}
        body["run_id"] = ranks.from_main(body["run_id"])
        run = cls(out, body, catalog, ranks)
        if before is not None and (then := processes(before)) != ranks.world:
            run.notes.append(f"begun by {then} processes, gone on with by {ranks.world}: sums differ in their rounding")
        if ranks.main:
            run.sinks.names = reports
            run._lock.enter_context(exclusive_lock(out / ".lock", wait=0.5, what=f"the run in {out}"))
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        if not resume:  # a resumed run is written when it has been taken up: a refusal leaves it as it was
            run._write()
            run._keep_metrics([])
        return run

    def take_up(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | None,
        *,
        check: Callable[[Restored], None] | None = None,
    ) -> Restored | None:
        """Go on from the newest checkpoint, if there is one; what refuses it leaves the run and its record as they
        were."""
        back = None
        try:
            with self.ranks.main_first():
                recover(self.checkpoints)
                checkpoint = latest(self.checkpoints)
            if checkpoint is not None:
                with made_whole(model, optimizer, back=True) as whole:
                    back = load_checkpoint(checkpoint, model=model, optimizer=whole, provenance=self.provenance)
                if check is not None:
                    check(back)
        except BaseException:
            self._lock.close()
            raise
        self.resumed_at(back.step if back is not None else 0)
        return back

    def mark(self, verdict: str, why: Mapping[str, Any]) -> None:
        """Mark the run and everything made from it for good: it is a `verdict` (such as a control), and passes no
        gate."""
        self.body |= {"tainted": True, "verdict": verdict, verdict: dict(why)}

    @property
    def provenance(self) -> dict[str, Any]:
        """What every artifact of this run carries with it, as `lpt.json`."""
        body = self.body
        return {
            "type": "lpt.provenance/1", "run_id": self.run_id, "algorithm": body["algorithm"],
            "manifest": body["manifest"], "split": body["split"], "content_root": body["content_root"],
            "verified": body["verified"], "tainted": body["tainted"], "tokenizer": body["tokenizer"],
            "model": {key: body["model"].get(key) for key in ("name", "digest", "quantisation")},
        }  # fmt: skip

    def resumed_at(self, step: int) -> None:
        """Forget what was logged after the checkpoint of `step`, so that a step is never in the metrics twice."""
        lines = self.metrics_path.read_bytes().splitlines(keepends=True) if self.metrics_path.exists() else []
        kept = []
        for line in lines:
            try:
                if step > 0 and json.loads(line)["step"] <= step:  # from 0 everything is done again
                    kept.append(line)
            except (ValueError, KeyError, TypeError):
                continue  # the half line of a kill; its step comes again
        self._keep_metrics(kept)
        self.body["metrics"], self._from = {}, step
        for line in kept:
            self._note_ends(json.loads(line))
        self._write()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append the metrics of `step` (the number of updates done); a value that is not finite is written as text."""
        if not self.ranks.main:
            return
        plain = {name: float(value) for name, value in metrics.items()}
        row = {"step": step, **{name: v if math.isfinite(v) else str(v) for name, v in plain.items()}}
        with open(self.metrics_path, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        self.sinks.log(step, plain)
        self._note_ends(row)
        self.body["steps"] = step
        if time.monotonic() - self._written > 1.0:  # the record is flushed to the disk: not in every step of a fast run
            self._write()

    @contextlib.contextmanager
    def guarded(self, proof: Proof) -> Iterator[StopRequest]:
        """The loop's surroundings: SIGTERM and Ctrl-C become a request to stop, an exception a recorded failure."""
        self.sinks.begin(self._from)
        try:
            with StopRequest(self.ranks) as stop:
                try:
                    yield stop
                except BaseException as error:  # recorded before a signal can end the process
                    lost = self.ranks.lost(error)
                    self._failed(lost or error, proof)
                    if lost is not None:
                        raise lost from error
                    raise
            self._stopped_by = stop.signal
        except BaseException as error:
            if ran_out(error) and isinstance(error, Exception):
                size, parts = (self.body["config"].get(name, 1) for name in _BATCH)
                raise (self.memory or Fitted(None, None, None, size, parts)).answer(error) from error
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
                raise cannot_write(self.out, error) from error
            raise

    def _failed(self, error: BaseException, proof: Proof) -> None:
        if self.ranks.sharded:  # its digests need all processes, and those are not here any more
            proved = {"verdict": "not_computed", "reason": "the weights are spread over processes"}
        else:
            try:
                proved = proof.finish()
            except Exception as also:  # a GPU that failed cannot be read either; the first error is the one to tell
                proved = {"verdict": "not_computed", "reason": str(also)}
        self.finish("failed", steps=self.body["steps"], proof=proved, failures=[f"{type(error).__name__}: {error}"])

    def require_finite(self, step: int, **values: float) -> None:
        """Raise `LptError` for a NaN or infinite value, before the update that it would spoil."""
        for name, value in values.items():
            if not math.isfinite(value):
                kept = latest(self.checkpoints)
                raise LptError(
                    f"the {name} of step {step} is not finite, so the run was stopped", seen=value,
                    next=f"the weights of {kept} are good; start a run from them with a lower learning_rate"
                    if kept else "start again with a lower learning_rate, and look at the rows of that step",
                )  # fmt: skip

    def finish(
        self,
        status: str,
        *,
        steps: int,
        proof: Mapping[str, Any] | None = None,
        failures: list[str] | None = None,
        tokens_per_second: float = 0.0,
        extra: Mapping[str, Any] | None = None,
    ) -> RunResult:
        """Close the run (`done`, `stopped` or `failed`) and record it; never raises for the catalog's sake.

        `proof` is `proof.Proof.finish()`; when it says that nothing was learned, so does the verdict of the run.
        """
        checkpoint = latest(self.checkpoints)
        self.sinks.close()
        self.notes += self.sinks.notes
        self.body |= {
            "status": status, "steps": steps, "proof": dict(proof or {}), "failures": list(failures or []),
            "tokens_per_second": tokens_per_second, "peak_memory_bytes": peak_memory_bytes(),
            "stopped_by": self._stopped_by if status == "stopped" else None,
            "seconds": self._seconds(), **(extra or {}),
        }  # fmt: skip
        if self.memory is not None:
            self.body["memory"] = self.memory.to_json(measured_peak())
            self.notes += self.memory.told(measured_peak() if status != "failed" else None)
        if checkpoint is not None:
            self.body["checkpoint"] = {"path": str(checkpoint), "sha256": checkpoint_sha256(checkpoint)}
        if proof and proof.get("verdict") != "effective":
            self.body["verdict"] = proof["verdict"]
        if self.rollouts is not None:
            self.body["rollouts"], notes = into_catalog(self.rollouts, self.catalog, self.run_id)
            self.notes += notes
        object_id = self._record() if self.ranks.main else None
        self._write()
        self._lock.close()
        return RunResult(self.run_id, self.body, self.out, object_id, self.notes)

    def _record(self) -> str | None:
        made_from = (self.body["model"].get("made_from") or {}).get("run_id")
        parents = [self.body["manifest"]] if self.body["manifest"] else []
        try:
            catalog = self.catalog or Catalog.open()
            parents += [name for name, _ in catalog.find("lpt.run/1", run_id=made_from)][:1] if made_from else []
            self.body["parents"] = parents
            object_id = catalog.put(self.body)
            if self.body["checkpoint"]:
                catalog.put(self._checkpoint_body(object_id))
            self.notes += [note for note in catalog.notes if note not in self.notes]
            return object_id
        except Exception as error:  # whatever is wrong with the catalog, the run is done and its weights are good
            self.body["parents"] = parents
            spool = self.out / "unrecorded"
            try:
                make_folder(spool)
                write_atomic(spool / "run.json", _json_bytes(self.body))
                place = f"its record is in {spool}"
            except BadInputError as also:
                place = f"nor could its record be kept: {also.what}"
            self.notes.append(f"the catalog could not record the run ({error}); {place}")
            return None

    def _checkpoint_body(self, run_object: str) -> dict[str, Any]:
        path = Path(self.body["checkpoint"]["path"])
        keys = ("run_id", "manifest", "split", "verified", "tainted", "tokenizer", "created", "env")
        return {
            "type": "lpt.checkpoint/1", **{key: self.body[key] for key in keys}, **self.body["checkpoint"],
            "step": int(path.name.rpartition("-")[2]), "parents": [run_object],
        }  # fmt: skip

    def _seconds(self) -> float:
        return round(self._earlier_seconds + time.monotonic() - self._started, 3)

    def _note_ends(self, row: Mapping[str, Any]) -> None:
        for name, value in row.items():
            if name != "step":
                ends = self.body["metrics"].setdefault(name, [value, value])
                ends[1] = value

    def _keep_metrics(self, lines: list[bytes]) -> None:
        if self.ranks.main:
            write_atomic(self.metrics_path, b"".join(lines))

    def _write(self) -> None:
        if not self.ranks.main:
            return
        if self.body["status"] == "running":  # what is killed has taken its time as well
            self.body["seconds"] = self._seconds()
        write_atomic(self.out / "run.json", _json_bytes(self.body))
        self._written = time.monotonic()


def seed_everything(seed: int) -> None:
    """Seed the generators of python, numpy and torch (all devices)."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002  (the global one, which libraries use)
    torch.manual_seed(seed)


def _quantisation(config: Any) -> dict[str, Any] | None:
    dtype = str(placement(config.run.device, config.run.dtype).dtype).removeprefix("torch.")
    return quantisation_record(to_mapping(config.lora), dtype)


def _new_id(algorithm: str, created: str) -> str:
    return f"{algorithm}-{created[:19].replace('-', '').replace(':', '')}-{secrets.token_hex(4)}"


def read_record(path: Path) -> dict[str, Any]:
    """The record of a run; raises `UsageError` where there is none and `BadInputError` where it is damaged."""
    try:
        body = json.loads(path.read_bytes())
    except OSError as error:
        raise UsageError(
            "there is no run to resume", seen=f"{path}: {error}", next="start it without --resume"
        ) from error
    except ValueError:
        body = None
    parts = ("config", "model") if isinstance(body, dict) else ()
    if not parts or "run_id" not in body or not all(isinstance(body.get(name), dict) for name in parts):
        raise BadInputError(
            "the record of the run is damaged", seen=str(path),
            next=f"remove the folder {path.parent} and start the run again, or start a new one in another folder",
        )  # fmt: skip
    return body


def _json_bytes(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, indent=1, default=str).encode() + b"\n"
