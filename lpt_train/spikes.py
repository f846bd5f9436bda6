"""The spike guard: a batch with an absurd loss or gradient moves no weight, and its records are named.

A loss or a gradient norm is a spike when it is not finite, or more than `spike_factor` times its running median over
the updates that were made (a loss: and one nat above it, so that a loss near zero may double). The batch is set aside:
written to `quarantine.jsonl` with the ids of its records and, where the loop can tell, the one whose gradient alone is
the largest. The learning rate is lowered for a while. Two spikes in a row speak against the weights, not the batches:
the run goes back to a checkpoint from before them and leaves those batches out. After `spike_limit` of them it fails.

All of it is a function of what the run computed, and its state lies in the checkpoints: a resumed run decides alike.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import orjson

from lpt_train.config_guard import GuardOptions
from lpt_train.observers import Ask, Moment
from manifests.errors import LptError
from manifests.files import write_atomic

_NATS = 1.0  # a loss that is less than this above its median is no spike
_FEWEST = 8  # updates before a median says anything
_IN_A_ROW = 2  # spikes after which the weights are the suspects


class SpikeGuard:
    """An observer that asks to skip the updates of batches that would spoil the weights."""

    def __init__(self, options: GuardOptions, path: Path, *, writes: bool = True) -> None:
        self._options, self.path, self._writes = options, path, writes
        self._usual: dict[str, deque[float]] = {
            name: deque(maxlen=options.spike_window) for name in ("loss", "grad_norm")
        }  # fmt: skip
        self.quarantined: list[dict[str, Any]] = []
        self.in_a_row = 0  # spikes since the last update
        self.unnamed = False  # whether the newest entry still wants its suspect

    def __call__(self, moment: Moment) -> Ask | None:
        """Judge a batch by what it would do to the weights."""
        if moment.point != "update":
            return None
        digest = batch_sha256(moment.record_ids)
        if moment.record_ids and any(entry["batch_sha256"] == digest for entry in self.quarantined):
            return Ask("skip", "the batch is in quarantine")
        reason = self._reason(moment.metrics)
        if reason is None:
            for name, values in self._usual.items():
                values.append(moment.metrics[name])
            self.in_a_row = 0
            return None
        self.in_a_row += 1
        self.quarantined.append({
            "step": moment.done + 1, "reason": reason, "batch_sha256": digest,
            **{name: _plain(moment.metrics[name]) for name in self._usual},
            **{f"median_{name}": median(values) if values else None for name, values in self._usual.items()},
            "suspect": None, "suspect_grad_norm": None, "record_ids": list(moment.record_ids),
        })  # fmt: skip
        self.unnamed = True
        again = self.in_a_row >= _IN_A_ROW
        return Ask("roll_back" if again else "skip", f"{reason} in step {moment.done + 1}")

    @property
    def suspected(self) -> int | None:
        """The number of updates after which the weights are under suspicion, while spikes follow one another."""
        return self.quarantined[-self.in_a_row]["step"] - 1 if self.in_a_row >= _IN_A_ROW else None

    def accuse(self, norms: Mapping[str, float]) -> None:
        """Name the record with the largest gradient (norm of each record alone) in the newest entry, and write it.

        Raises `LptError` when that was one spike too many.
        """
        newest, self.unnamed = self.quarantined[-1], False
        if norms:
            worst = max(norms, key=lambda name: norms[name] if math.isfinite(norms[name]) else math.inf)
            newest |= {"suspect": worst, "suspect_grad_norm": _plain(norms[worst])}
        self.write()
        if len(self.quarantined) > self._options.spike_limit:
            named = Counter(entry["suspect"] for entry in self.quarantined if entry["suspect"]).most_common(1)
            raise LptError(
                f"{len(self.quarantined)} batches spiked, more than spike_limit={self._options.spike_limit} allows",
                seen=f"{newest['reason']} in step {newest['step']}: loss {newest['loss']}, gradient norm "
                f"{newest['grad_norm']}",
                next=f"look at the records in {self.path}" + (f", {named[0][0]} first" if named else "")
                + "; then leave them out, or lower learning_rate",
            )  # fmt: skip

    def rate_factor(self, step: int) -> float:
        """What the learning rate of a step is multiplied by: lowered after a spike, and before it after going back."""
        recent = sum(step < entry["step"] + self._options.spike_cooldown for entry in self.quarantined)
        return float(self._options.spike_lr_factor**recent)

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        usual = {name: list(values) for name, values in self._usual.items()}
        return {"usual": usual, "in_a_row": self.in_a_row, "quarantined": list(self.quarantined)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up what `state` kept."""
        for name, values in state["usual"].items():
            self._usual[name] = deque(values, maxlen=self._options.spike_window)
        self.in_a_row = state["in_a_row"]
        self.quarantined = list(state["quarantined"])

    def write(self) -> None:
        """Bring the file up to date; a run without a spike has none."""
        if self._writes and (self.quarantined or self.path.exists()):
            write_atomic(self.path, b"".join(orjson.dumps(entry) + b"\n" for entry in self.quarantined))

    def _reason(self, metrics: Mapping[str, float]) -> str | None:
        for name, values in self._usual.items():
            what = "loss" if name == "loss" else "gradient"
            if not math.isfinite(metrics[name]):
                return f"{what}_not_finite"
            if len(values) < _FEWEST:
                continue
            usual = median(values)
            above = usual + _NATS if name == "loss" else 0.0
            if usual > 0 and metrics[name] > max(self._options.spike_factor * usual, above):
                return f"{what}_spike"
        return None


def batch_sha256(record_ids: Sequence[str]) -> str:
    """The digest of the records of a step, whatever their order."""
    return hashlib.sha256("\n".join(sorted(record_ids)).encode()).hexdigest()


def _plain(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)
