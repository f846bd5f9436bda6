"""What TRL's trainers are given: our rendered ids and masks, in our order; TRL tokenises nothing.

A unit is what one line of a batch holds: rows packed together (sft), a pair (dpo), or a completion with the mismatched
row that the estimate of KTO is taken from. Axes: `B` rows, `T` tokens of the longest.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

from lpt_train.admitted import AdmittedSplit
from lpt_train.config import SFTConfig
from lpt_train.config_kto import KTOConfig
from lpt_train.config_preference import PreferenceConfig
from lpt_train.data_order import Scheduled, data_order
from lpt_train.packing import Row, epoch_order, render_rows, units_at
from lpt_train.preference import loss_options
from lpt_train.render import Renderer
from lpt_train.render_pairs import Completion, Pair, mismatched, render_completions, render_pairs
from lpt_train.sft import sft_tokenized_id
from lpt_train.steps import completions_id, rendering_notes
from manifests.errors import RefusedError

Tensors = dict[str, torch.Tensor]
IGNORED = -100  # the label of a token that does not count


@dataclass(frozen=True)
class Work:
    """All that a run reads, and how units become a batch."""

    algorithm: str
    units: Sequence[Any]
    order: Sequence[int]  # the unit at each place of the run
    per_step: int  # units of a full step
    collate: Callable[[Sequence[Any]], Tensors]
    tokens: Callable[[Any], int]  # of a unit
    supervised: Callable[[Any], int]  # of a unit
    data: dict[str, Any]  # what the run records about its rendering
    tokenized_id: str
    told: dict[str, Any] = field(default_factory=dict)  # options of TRL's that are this algorithm's own
    held_out: Sequence[Any] = ()
    held_out_batch: int = 1  # units
    notes: list[str] = field(default_factory=list)

    @property
    def steps(self) -> int:
        """Optimizer steps of the whole run."""
        return math.ceil(len(self.order) / self.per_step)

    def place(self, step: int) -> int:
        """Units read before a step."""
        return min(step * self.per_step, len(self.order))

    def taken(self, step: int) -> list[Any]:
        """The units that a step reads."""
        return [self.units[number] for number in self.order[self.place(step) : self.place(step + 1)]]


def sft_work(
    config: SFTConfig, split: AdmittedSplit, held_out: AdmittedSplit | None, renderer: Renderer, padding: int
) -> Work:
    """Rows with the mask of the replies, packed when asked. Raises `RefusedError` for the steps of a mixture."""
    rendered = render_rows(split.rows(), renderer, max_length=config.max_length, truncation=config.truncation)
    order = data_order(split, rendered.rows, config)
    if isinstance(order, Scheduled):
        raise RefusedError(
            "TRL cannot follow the steps of a mixture", seen=split.ref,
            next="--engine lean, or --set mix_schedule=ignore",
        )  # fmt: skip
    found = None
    if held_out is not None:
        found = render_rows(held_out.rows(), renderer, max_length=config.max_length, truncation=config.truncation)
    return Work(
        algorithm="sft", units=order.units, per_step=order.per_step,
        order=units_at(0, order.total_units, units=len(order.units), seed=config.run.seed),
        collate=partial(_rows_batch, padding=padding, packed=config.packing),
        tokens=lambda unit: sum(len(row.ids) for row in unit), supervised=lambda unit: sum(r.supervised for r in unit),
        data={**rendered.to_json(), **order.to_json()}, held_out=[[row] for row in found.rows] if found else (),
        held_out_batch=config.per_device_eval_batch_size, tokenized_id=sft_tokenized_id(split, renderer, config, order),
        notes=rendering_notes(rendered, config.max_length, held_out=found),
    )  # fmt: skip


def dpo_work(
    config: PreferenceConfig, split: AdmittedSplit, held_out: AdmittedSplit | None, renderer: Renderer, padding: int
) -> Work:
    """Pairs whose sides share their prompt token for token."""
    limits: dict[str, Any] = {"max_length": config.max_length, "truncation": config.truncation}
    rendered = render_pairs(split.rows(), renderer, **limits)
    found = None if held_out is None else render_pairs(held_out.rows(), renderer, **limits)
    return Work(
        algorithm="dpo", units=rendered.pairs, **_places(config, len(rendered.pairs)),
        collate=partial(_pairs_batch, padding=padding), tokens=lambda pair: pair.tokens,
        supervised=lambda pair: pair.chosen.supervised + pair.rejected.supervised,
        data={**rendered.to_json(), "epoch_order_sha256": _order_digest(len(rendered.pairs), config.run.seed)},
        held_out=found.pairs if found else (), held_out_batch=config.per_device_eval_batch_size,
        tokenized_id=completions_id(split, renderer, **limits),
        told={"loss_type": [config.loss_type], "beta": loss_options(config).beta},
        notes=rendering_notes(rendered, config.max_length, "pairs", held_out=found)
        + _means_note(config, len(rendered.pairs)),
    )  # fmt: skip


def kto_work(
    config: KTOConfig, split: AdmittedSplit, held_out: AdmittedSplit | None, renderer: Renderer, padding: int
) -> Work:
    """Completions with their labels, each with a mismatched row of our choice: never its own prompt's completion."""
    if held_out is not None:
        raise RefusedError(
            "--engine trl does not measure KTO on an evaluation split", seen=held_out.ref,
            next="leave --eval out, or --engine lean",
        )  # fmt: skip
    limits: dict[str, Any] = {"max_length": config.max_length, "truncation": config.truncation}
    rendered = render_completions(split.rows(), renderer, **limits)
    order = epoch_order(len(rendered.completions), config.run.seed, 0)
    others = mismatched(rendered.completions, order, config.max_length)
    notes = _means_note(config, len(rendered.completions))
    if config.gradient_accumulation_steps > 1:
        notes.append(
            "TRL estimates KTO's distance to the reference anew in each micro-batch; --engine lean in each step"
        )
    return Work(
        algorithm="kto", units=list(zip(rendered.completions, others, strict=True)),
        **_places(config, len(rendered.completions)), collate=partial(_completions_batch, padding=padding),
        tokens=lambda unit: len(unit[0].row.ids) + len(unit[1].ids), supervised=lambda unit: unit[0].row.supervised,
        data=rendered.to_json(), tokenized_id=completions_id(split, renderer, **limits),
        notes=rendering_notes(rendered, config.max_length, "completions") + notes,
    )  # fmt: skip


def _places(config: PreferenceConfig | KTOConfig, units: int) -> dict[str, Any]:
    """The order of a run over shuffled epochs, and the units of a step."""
    per_step = config.per_device_train_batch_size * config.gradient_accumulation_steps
    total = config.run.max_steps * per_step
    if config.run.max_steps < 1:
        total = math.ceil(units * config.run.num_train_epochs)
    return {"order": units_at(0, total, units=units, seed=config.run.seed), "per_step": per_step}


def _means_note(config: PreferenceConfig | KTOConfig, units: int) -> list[str]:
    """That the last step is weighed in another way where its micro-batches are not all full."""
    places, size = _places(config, units), config.per_device_train_batch_size
    last = len(places["order"]) % places["per_step"]
    if last <= size or last % size == 0:
        return []
    return [f"TRL takes the mean of the means of micro-batches: in the last step, of {last}, the units weigh unequally"]


def _order_digest(units: int, seed: int) -> str:
    return hashlib.sha256(epoch_order(units, seed, 0).tobytes()).hexdigest()


def _rows_batch(units: Sequence[Sequence[Row]], *, padding: int, packed: bool) -> Tensors:
    """TRL's own batch of rows: padded [B, T], or end to end [1, tokens] with positions that start anew in each row."""
    examples = [
        {
            "input_ids": [int(token) for row in unit for token in row.ids], "seq_lengths": [len(r.ids) for r in unit],
            "labels": [
                int(token) if counts else IGNORED
                for row in unit
                for token, counts in zip(row.ids, row.loss_mask, strict=True)
            ],
        }
        for unit in units
    ]  # fmt: skip
    return DataCollatorForLanguageModeling(padding, padding_free=packed)(examples)


def _padded(rows: Sequence[Row], padding: int, prefix: str = "") -> Tensors:
    """`input_ids`, `attention_mask` and `completion_mask` [B, T], filled up on the right."""
    longest = max(len(row.ids) for row in rows)
    ids = torch.full((len(rows), longest), padding)
    there, counts = torch.zeros(2, len(rows), longest, dtype=torch.int64)
    for line, row in enumerate(rows):
        ids[line, : len(row.ids)] = torch.from_numpy(row.ids)
        there[line, : len(row.ids)] = 1
        counts[line, : len(row.ids)] = torch.from_numpy(row.loss_mask)
    return {f"{prefix}input_ids": ids, f"{prefix}attention_mask": there, f"{prefix}completion_mask": counts}


def _pairs_batch(pairs: Sequence[Pair], *, padding: int) -> Tensors:
    """The chosen sides, then the rejected ones."""
    return _padded([pair.chosen for pair in pairs] + [pair.rejected for pair in pairs], padding)


def _completions_batch(units: Sequence[tuple[Completion, Row]], *, padding: int) -> Tensors:
    labels = torch.tensor([completion.desirable for completion, _ in units])
    rows, others = [completion.row for completion, _ in units], [other for _, other in units]
    return {**_padded(rows, padding), **_padded(others, padding, "KL_"), "label": labels}
