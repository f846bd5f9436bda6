"""The memory of a run: predicted before it starts, made to fit, measured at its end, explained when it runs out.

The prediction is `plan.memory`'s, what gives way `plan.ladder`'s; here they meet the model, the device and the options.
"""

from __future__ import annotations

import contextlib
import json
import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from peft.tuners.lora import LoraLayer

from lpt_train.heads import causal_model
from lpt_train.micro_batch import MicroBatch
from lpt_train.models import Placement
from lpt_train.plan.ladder import Choice, advice, choose, fitting_batch
from lpt_train.plan.memory import Workload
from lpt_train.plan.shape import ModelShape, shape_of
from lpt_train.plan.workloads import RUNGS, asked, of_options
from lpt_train.ranks import SOLO, Ranks
from lpt_train.recompute import checkpoint_layers, on_host
from manifests.errors import BadInputError, LptError, RefusedError


@dataclass
class Fitted:
    """What a run was predicted to take, and what was done about it. `choice` is None for an unknown architecture."""

    shape: ModelShape | None
    choice: Choice | None
    budget: int | None  # bytes; None: nothing to fit into (the CPU, without max_memory_gb)
    size: int  # per_device_train_batch_size
    accumulation: int
    work: Workload = field(default_factory=lambda: Workload(tokens=0))  # as it is done
    notes: list[str] = field(default_factory=list)

    @property
    def offload_optimizer(self) -> bool:
        """Whether the moments of AdamW go to the host."""
        return self.work.offload_optimizer

    def activations(self, model: torch.nn.Module) -> contextlib.AbstractContextManager[None]:
        """The context of a forward pass whose activations wait where the choice says."""
        return on_host(model.parameters()) if self.work.offload_activations else contextlib.nullcontext()

    def to_json(self, measured: int | None) -> dict[str, Any]:
        """What the record of the run says; `measured` is the peak of allocated bytes on the device."""
        if self.choice is None:
            return {"predicted": None, "measured_peak_bytes": measured, "budget_bytes": self.budget}
        memory, work = self.choice.memory, self.choice.work
        return {
            "rungs": list(self.choice.rungs), "work": {name: getattr(work, name) for name in RUNGS},
            "budget_bytes": self.budget, "fits": self.choice.fits, "predicted": memory.to_json(),
            "measured_peak_bytes": measured, "predicted_over_measured": memory.peak / measured if measured else None,
        }  # fmt: skip

    def told(self, measured: int | None) -> list[str]:
        """The notes of the run, and the prediction beside what was measured."""
        if self.choice is None or measured is None:
            return self.notes
        return [*self.notes, f"memory: {_gb(self.choice.memory.peak)} predicted, {_gb(measured)} measured at the peak"]

    def answer(self, error: Exception) -> LptError:
        """What a user hears when memory ran out: the batch that is predicted to fit, and the next rung."""
        size, accumulation = self.size, self.accumulation
        ways = []
        if self.shape is not None and self.choice is not None:
            budget = self.budget or self.choice.memory.reserved
            fits = fitting_batch(
                self.shape, self.choice.work, budget, size=size, accumulation=accumulation, needed=budget
            )  # fmt: skip
            if fits is not None:
                ways.append(
                    f"--set per_device_train_batch_size={fits.per_device_train_batch_size} "
                    f"--set gradient_accumulation_steps={fits.gradient_accumulation_steps} (the same update; predicted "
                    "to fit)"
                )
            ways += [f"--set {setting}" for setting in advice(self.shape, self.choice.work)[: 2 if ways else 4]]
            if fits is None:
                ways.append("a smaller max_length; no batch of whole rows is predicted to fit")
        elif size > 1:
            ways.append(
                f"--set per_device_train_batch_size={max(1, size // 2)} "
                f"--set gradient_accumulation_steps={2 * accumulation} (about the same update)"
            )
        return LptError(
            "there is not enough memory for this batch", seen=str(error).splitlines()[0] if str(error) else "",
            next="; or ".join(ways) or "use a smaller model or a larger GPU",
        )  # fmt: skip


def fit(run_micro_batch: MicroBatch, config: Any, out: Path | None = None) -> Fitted:
    """Predict the steps of `run_micro_batch`, choose the cheapest rung that fits, and put it in place.

    `out` is the folder of a run that goes on: it keeps the rung that it began with, so that its steps are the same.
    """
    way = run_micro_batch.way
    work = workload(
        run_micro_batch.model, run_micro_batch.place, config, tokens=run_micro_batch.most_tokens,
        compiled=way in ("graph", "compiled"), kept_gradients=way == "graph",
        scored=math.ceil(run_micro_batch.most_scores / run_micro_batch.most_tokens) if way == "eager" else 0,
    )  # fmt: skip
    if run_micro_batch.head is not None:  # one number a row is read, and no vocabulary
        work = replace(work, counted=1)
    ranks = run_micro_batch.ranks
    fitted = fit_model(run_micro_batch.model, run_micro_batch.place, config, work, out, ranks=ranks)
    if fitted.choice is not None:
        run_micro_batch.chunk = fitted.choice.work.chunk
    if fitted.work.offload_activations and ranks.sharded:
        raise RefusedError(
            "what is gathered for a layer must not wait in host memory", seen="activation_offloading, sharding=fsdp2",
            next="--set gradient_checkpointing=true, or sharding=none",
        )  # fmt: skip
    run_micro_batch.offload_activations = fitted.work.offload_activations
    if fitted.work.offload_activations:
        run_micro_batch.leave_recordings("activation_offloading", "a replay has no moment to move them")
    if run_micro_batch.draws_twice():
        run_micro_batch.leave_recordings(
            "dropout", "what is computed again, by gradient_checkpointing or in an adapted head, must draw the same"
        )
    run_micro_batch.memory = fitted
    return fitted


def fit_model(
    model: torch.nn.Module,
    place: Placement,
    config: Any,
    work: Workload,
    out: Path | None = None,
    unchanged: tuple[str, ...] = (),
    ranks: Ranks = SOLO,
) -> Fitted:
    """As `fit`, for a loop that runs its batches itself; `unchanged` are the rungs that it cannot take.

    Several processes take the same rungs, those of the one with the least memory.
    """
    work, fixed = asked(config, work, recorded(out))
    there = [b for b in ranks.gathered(budget_bytes(place, config.run.max_memory_gb)) if b is not None]
    budget = min(there, default=None)
    size, accumulation = config.per_device_train_batch_size, config.gradient_accumulation_steps
    if ranks.sharded:
        checkpoint_layers(model, work.checkpoint_every)
        note = "memory is not predicted where weights are spread over processes"
        return Fitted(None, None, budget, size, accumulation, work, [note] if budget is not None else [])
    try:
        shape = shape_of(causal_model(model).config.to_dict(), type(causal_model(model)).__name__)
    except BadInputError as error:
        checkpoint_layers(model, work.checkpoint_every)
        note = f"memory is not predicted: {error.what} ({error.seen})"
        return Fitted(None, None, budget, size, accumulation, work, [note] if budget is not None else [])
    choice = choose(shape, work, budget, {*fixed, *unchanged})
    checkpoint_layers(model, choice.work.checkpoint_every)
    taken, notes = ", ".join(choice.rungs), []
    if not choice.fits:
        with_ = f" with {taken}" if taken else ""
        notes.append(
            f"memory: {_gb(choice.memory.reserved)} predicted{with_}, {_gb(budget or 0)} there; the run is tried"
        )
    elif taken:
        notes.append(f"memory: {taken}, so that the step fits into {_gb(budget or 0)}")
    return Fitted(shape, choice, budget, size, accumulation, choice.work, notes)


def workload(
    model: torch.nn.Module, place: Placement, config: Any, *, tokens: int, compiled: bool, kept_gradients: bool,
    scored: int = 0,
) -> Workload:  # fmt: skip
    """What the options and the model say about the memory of a step of micro-batches of up to `tokens` tokens."""
    adapted = {name.rpartition(".")[2] for name, module in model.named_modules() if isinstance(module, LoraLayer)}
    work = of_options(
        config, tokens=tokens, width=place.dtype.itemsize, compiled=compiled, kept_gradients=kept_gradients,
        on_cuda=place.device.type == "cuda", scored=scored,
    )  # fmt: skip
    return replace(work, targets=",".join(sorted(adapted)))


def recorded(out: Path | None) -> dict[str, Any]:
    """The rungs in the record of the run in `out`; empty for a new one, or one that says nothing."""
    try:
        body = json.loads((out / "run.json").read_bytes()) if out is not None else {}
        return dict(body["memory"]["work"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def budget_bytes(place: Placement, max_memory_gb: float) -> int | None:
    """What a run may take: `max_memory_gb` (10^9 bytes), on a GPU at most what is free; None: no bound."""
    asked_for = int(max_memory_gb * 1e9) if max_memory_gb else None
    if place.device.type != "cuda":
        return asked_for
    free = torch.cuda.mem_get_info(place.device)[0] + torch.cuda.memory_reserved(place.device)
    return free if asked_for is None else min(free, asked_for)


def measured_peak() -> int | None:
    """The most bytes of tensors that there were on the GPU since the run began; None without one."""
    return int(torch.cuda.max_memory_allocated()) if torch.cuda.is_available() else None


def _gb(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"
