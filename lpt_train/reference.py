"""The reference of a preference loss: log-probs of rows under the model as the run starts from it.

They are computed once, before the first update, and are no second model in memory. An item is what a loss takes at a
time: the row of a completion, or the two rows of a pair (`R` rows each).

They are kept in the catalog's `references/` under the digest of what they were computed from and how: a resumed run
finds its own there, and a run with another loss, beta or rate those of an earlier one. Where the catalog takes no
files they lie in the run's folder. What was used last is kept, up to `KEPT_BYTES`; what is gone is computed again.

The folder is trusted as the catalog is: the digests find damage, not somebody who may write there.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lpt_train.machine import env, sources_sha256
from lpt_train.micro_batch import BLANK, MicroBatch
from lpt_train.packing import Row
from lpt_train.runs import Run
from lpt_train.steps import batched
from manifests.catalog import Catalog
from manifests.errors import LptError
from manifests.files import FILE, make_folder, sweep_killed, write_atomic

Items = Sequence[Sequence[Row]]
Score = Callable[[Sequence[Row]], torch.Tensor]
KEPT_BYTES = 2**30  # of all references of a catalog: some 50 million rows
_VALUE = 26  # bytes of a float32 value as JSON has it, and what stands between two
_PACKAGES = ("torch", "transformers", "peft")  # another version may round otherwise


def reference_logprobs(
    run_micro_batch: MicroBatch, items: Items, needed: Sequence[int], size: int, score: Score
) -> np.ndarray:
    """Summed log-probs of the rows of items, `size` items at a time, float32 [items, R]; zeros where not needed."""
    found = np.zeros((len(items), len(items[0])), np.float32)
    blank, ranks = [BLANK] * len(items[0]), run_micro_batch.ranks
    parts = ranks.deal(batched(needed, size), [])

    def rows() -> Iterator[Sequence[Row]]:
        """The rows of each batch: the next is asked for once the one before it has been computed."""
        for done, part in enumerate(parts):
            run_micro_batch.watch(done, len(parts), "batches of the reference")
            yield [row for i in part for row in items[i]] or blank
        run_micro_batch.watch(len(parts), len(parts), "batches of the reference")

    for part, sums in zip(parts, run_micro_batch.start_logprobs(rows(), score), strict=True):
        found[list(part)] = sums.view(-1, len(blank)).numpy()[: len(part)]
    return ranks.total(found)


def kept_reference(
    run: Run, name: str, run_micro_batch: MicroBatch, items: Items, needed: Sequence[int], size: int, score: Score
) -> np.ndarray:
    """`reference_logprobs`, taken from the catalog where an earlier run has kept them, else computed and kept.

    The record of the run has their digest under `name`, and its notes say which of the two it was. Of several processes
    the main one looks: what another run writes meanwhile must not part them.
    """
    ranks, shape, rows = run_micro_batch.ranks, (len(needed), len(items[0])), _rows_sha256(items, needed)

    def key() -> str:
        return _key(run, run_micro_batch, rows, size, score.__name__)

    kept = ranks.from_main(_taken(run, key(), shape) if ranks.main else None)
    reused = kept is not None
    if kept is not None:
        found = np.zeros((len(items), shape[1]), np.float32)
        found[list(needed)] = kept
    else:
        found = reference_logprobs(run_micro_batch, items, needed, size, score)
    if ranks.main:
        kept = found[list(needed)]
        digest = values_sha256(kept)  # the key is asked again: computing may have fallen to another way of running
        now = key()
        told: dict[str, Any] = {"sha256": digest, "key": now, "rows": kept.size, "reused": reused}
        where = "reused from an earlier run" if reused else _keep(run, now, kept, digest)
        begun = run.body.setdefault("reference", {}).get(name)  # of the run that is resumed
        if begun is not None:
            told = _gone_on(begun, told, kept)
            if "resumed_with" not in told:
                where = "those that the run began with" if reused else where
            elif told["resumed_with"]["sha256"] == digest:
                run.notes.append(
                    f"the log-probs of the reference, {name}, differ from those the run began with (sha256 "
                    f"{begun['sha256'][:16]}): other threads, GPU, options, versions or sources round otherwise"
                )
        run.body["reference"][name] = told
        run.notes.append(f"reference log-probs, {name}: {kept.size:,} rows, {where} (sha256 {digest[:16]})")
    return found


def _gone_on(begun: dict[str, Any], told: dict[str, Any], kept: np.ndarray) -> dict[str, Any]:
    """What the record of a resumed run says of its reference; `resumed_with` is there where values took another's
    place.

    A run that was made longer reads more rows, the first of which are those that it began with; of one that was made
    shorter the others cannot be compared.
    """
    items = begun["rows"] // kept.shape[1]
    if items > len(kept):
        return begun
    if values_sha256(kept[:items]) == begun["sha256"]:
        return {**told, "reused": begun["reused"]}
    return {**begun, "resumed_with": told}


def values_sha256(logps: np.ndarray) -> str:
    """The digest of log-probs: of their shape and their float32 values to the bit."""
    return hashlib.sha256(f"{logps.shape}\0".encode() + logps.astype("<f4").tobytes()).hexdigest()


def _key(run: Run, run_micro_batch: MicroBatch, rows: str, size: int, score: str) -> str:
    """The digest of what the values depend on: model and adapter, rows and how they are cut, and the program."""
    config, machine = run.body["config"], env()
    names = (*_PACKAGES, "bitsandbytes") if config["lora"]["load_in_4bit"] else _PACKAGES
    return hashlib.sha256(
        json.dumps({
            "model": run.body["model"]["digest"], "lora": config["lora"], "seed": config["run"]["seed"], "rows": rows,
            "size": size, "score": score, "program": run_micro_batch.program(), "lpt": sources_sha256(),
            "packages": {name: machine["packages"].get(name) for name in names},
        }, sort_keys=True).encode()
    ).hexdigest()  # fmt: skip


def _rows_sha256(items: Items, needed: Sequence[int]) -> str:
    """The digest of ids and masks of the rows, in the order in which they are computed."""
    digest = hashlib.sha256()
    for row in (row for i in needed for row in items[i]):
        ids, mask = row.ids.astype("<i4"), row.loss_mask.astype(np.uint8)
        digest.update(f"{len(ids)}\0".encode() + ids.tobytes() + mask.tobytes())
    return digest.hexdigest()


def _folders(run: Run) -> Iterator[Path]:
    """Where references are looked for and kept: the first that takes them."""
    with contextlib.suppress(LptError):  # what is wrong with the catalog, the end of the run says
        yield (run.catalog or Catalog.open()).references_dir
    yield run.out / "references"


def _taken(run: Run, key: str, shape: tuple[int, int]) -> np.ndarray | None:
    """What is kept under a key, float32 of `shape`; None where there is nothing or, with a note, damage."""
    for path in (folder / f"{key}.json" for folder in _folders(run)):
        try:
            data = _read(path, 1024 + shape[0] * (shape[1] * _VALUE + 4))
        except OSError:
            continue
        try:
            body = json.loads(data)
            logps = np.asarray(body["logps"], np.float32)
            whole = logps.shape == shape and bool(np.isfinite(logps).all())
            if not (whole and body["key"] == key and body["sha256"] == values_sha256(logps)):
                raise ValueError("not what was written")
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            run.notes.append(f"{path} was damaged, so the log-probs of the reference were computed again")
            continue
        with contextlib.suppress(OSError):
            os.utime(path)  # used now: others go first
        return logps
    return None


def _read(path: Path, most: int) -> bytes:
    """What a regular file of at most `most` bytes holds, and nothing of another: a pipe would be waited for."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        told = os.fstat(file.fileno())
        return file.read(most) if stat.S_ISREG(told.st_mode) and told.st_size <= most else b""


def _keep(run: Run, key: str, logps: np.ndarray, digest: str) -> str:
    """Keep log-probs, and say so; those of a model that gives none are left out, and the first step says why."""
    if not np.isfinite(logps).all():
        return "computed, not finite and not kept"
    data = json.dumps({"type": "lpt.reference/1", "key": key, "sha256": digest, "logps": logps.tolist()}).encode()
    for path in (folder / f"{key}.json" for folder in _folders(run)):
        try:
            make_folder(path.parent)
            write_atomic(path, data)
        except LptError:
            continue
        _sweep(path.parent, path)
        return "computed and kept"
    return "computed; neither the catalog nor the run's folder could keep them"


def _sweep(folder: Path, newest: Path) -> None:
    """Remove what `sweep_killed` knows as left and, beyond `KEPT_BYTES`, what was used longest ago; `newest` stays."""
    sweep_killed(folder, FILE)
    there = []
    for path in folder.glob("*.json"):
        with contextlib.suppress(OSError):  # another process sweeps, too
            told = path.stat()
            there.append((path != newest, -told.st_mtime_ns, told.st_size, path))
    used = 0
    for _, _, size, path in sorted(there):
        used += size
        if used > KEPT_BYTES and path != newest:
            with contextlib.suppress(OSError):
                path.unlink()
