"""The reference of a preference loss: log-probs of rows under the model as the run starts from it.

They are computed once, before the first update, and are no second model in memory. An item is what a loss takes at a
time: the row of a completion, or the two rows of a pair (`R` rows each).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence

import numpy as np
import torch

from lpt_train.micro_batch import BLANK, MicroBatch
from lpt_train.packing import Row
from lpt_train.runs import Run
from lpt_train.steps import batched
from manifests.files import write_atomic

Items = Sequence[Sequence[Row]]


def reference_logprobs(
    run_micro_batch: MicroBatch,
    items: Items,
    needed: Sequence[int],
    size: int,
    score: Callable[[Sequence[Row]], torch.Tensor],
) -> np.ndarray:
    """Summed log-probs of the rows of items, `size` items at a time, float32 [items, R]; zeros where not needed."""
    found = np.zeros((len(items), len(items[0])), np.float32)
    blank, ranks = [BLANK] * len(items[0]), run_micro_batch.ranks
    parts = ranks.deal(batched(needed, size), [])
    rows = ([row for i in part for row in items[i]] or blank for part in parts)
    for done, (part, sums) in enumerate(zip(parts, run_micro_batch.start_logprobs(rows, score), strict=True), 1):
        found[list(part)] = sums.view(-1, len(blank)).numpy()[: len(part)]
        run_micro_batch.watch(done, len(parts), "batches of the reference")
    return ranks.total(found)


def kept_reference(
    run_micro_batch: MicroBatch, items: Items, needed: Sequence[int], size: int, identity: str, run: Run
) -> np.ndarray:
    """`reference_logprobs` of the items that a run trains on, kept in its folder.

    What is there is taken when it was computed for the same model, rows, precision and way of running.
    """
    kept = run.out / "reference.json"

    def key() -> str:
        told = f"{identity} {run_micro_batch.place.dtype} {run_micro_batch.way} {len(needed)}"
        return hashlib.sha256(told.encode()).hexdigest()

    if kept.exists():
        try:
            body = json.loads(kept.read_bytes())
            logps = np.asarray(body["logps"], np.float32).reshape(-1, len(items[0]))
            if not np.isfinite(logps).all():
                raise ValueError("not a number")
            if body["key"] == key() and len(logps) == len(needed):
                found = np.zeros((len(items), len(items[0])), np.float32)
                found[list(needed)] = logps
                return found
            run.notes.append(f"{kept} was of another model, rows or way of running, so it was computed again")
        except (ValueError, KeyError, TypeError, OverflowError):
            run.notes.append(f"{kept} was damaged, so the log-probs of the reference were computed again")
    found = reference_logprobs(run_micro_batch, items, needed, size, run_micro_batch.row_logprobs)
    if run_micro_batch.ranks.main:
        write_atomic(kept, json.dumps({"key": key(), "logps": found[list(needed)].tolist()}).encode())
    return found
