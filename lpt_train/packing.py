"""Rendered rows to batches: padded, or packed best-fit-decreasing with isolation.

Packed rows do not see one another: positions start again at 0 in each and attention is block-diagonal, so the logits
of a row are those it has alone. Axes: `B` rows of a batch, `T` columns.

The block-diagonal mask is [B, 1, T, T]; attention over variable lengths without one is the business of a faster path.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from lpt_train.heads import causal_model, decoder
from lpt_train.render import Encoded, Renderer
from manifests.bins import best_fit_decreasing as best_fit_decreasing
from manifests.errors import RecordError, RefusedError


@dataclass(frozen=True)
class Row:
    """One rendered record: its number in the split, its `ids` and `loss_mask` (int32, uint8), both [T]."""

    index: int
    ids: np.ndarray
    loss_mask: np.ndarray

    @property
    def supervised(self) -> int:
        """How many of its tokens count."""
        return int(self.loss_mask.sum())


@dataclass(frozen=True)
class Rendered:
    """The rows that can be trained on; `dropped` is {reason: rows} of the others, `examples` some of their numbers."""

    rows: list[Row]
    dropped: dict[str, int]
    examples: dict[str, list[int]]

    @property
    def tokens(self) -> int:
        """Tokens of all rows."""
        return sum(len(row.ids) for row in self.rows)

    @property
    def supervised(self) -> int:
        """Supervised tokens of all rows."""
        return sum(row.supervised for row in self.rows)

    def to_json(self) -> dict[str, Any]:
        """What a run records about its rendering."""
        return {
            "rows": len(self.rows), "dropped": self.dropped, "dropped_examples": self.examples,
            "tokens": self.tokens, "supervised_tokens": self.supervised,
        }  # fmt: skip


@dataclass(frozen=True)
class Batch:
    """Tensors of one micro-batch; `sequence_ids_B_T` is 0 on padding and 1, 2, … on the rows packed side by side."""

    input_ids_B_T: torch.Tensor
    position_ids_B_T: torch.Tensor
    sequence_ids_B_T: torch.Tensor
    loss_mask_B_T: torch.Tensor

    @property
    def tokens(self) -> int:
        """Tokens that are not padding."""
        return int((self.sequence_ids_B_T > 0).sum())

    @property
    def supervised(self) -> int:
        """Tokens that count in the loss."""
        return int(self.loss_mask_B_T.sum())

    def attention_mask(self, dtype: torch.dtype | None = None) -> torch.Tensor:
        """[B, T] of 0 and 1 where each line is one row; else block-diagonal causal [B, 1, T, T], True where attended.

        With `dtype` the block-diagonal mask is additive (0 or the lowest number), which eager attention wants.
        """
        ids = self.sequence_ids_B_T
        if int(ids.max()) <= 1:
            return (ids > 0).long()
        causal_T_T = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool, device=ids.device).tril()
        # Padding is one more block, so that no line of the softmax is empty.
        mask = (ids[:, None, :, None] == ids[:, None, None, :]) & causal_T_T
        if dtype is None:
            return mask
        return torch.zeros(mask.shape, dtype=dtype, device=ids.device).masked_fill_(~mask, torch.finfo(dtype).min)

    def to(self, device: torch.device) -> Batch:
        """The same batch on another device."""
        return Batch(*(getattr(self, name).to(device, non_blocking=True) for name in self.__dataclass_fields__))


def render_rows(
    records: Iterable[Mapping[str, Any]], renderer: Renderer, *, max_length: int, truncation: str = "drop"
) -> Rendered:
    """Render every record once. What cannot be rendered or does not fit is dropped under its reason, never silently.

    Records are `sft` (messages, tools) or `text`. Raises `RefusedError` when nothing is left.
    """
    rows: list[Row] = []
    dropped: Counter[str] = Counter()
    examples: dict[str, list[int]] = {}
    last: RecordError | None = None
    for index, record in enumerate(records):
        try:
            encoded = (
                renderer.encode_text(record["text"]) if "text" in record
                else renderer.encode(record["messages"], record.get("tools"))
            )  # fmt: skip
            encoded = fit(encoded, max_length, truncation)
        except RecordError as error:
            dropped[error.reason] += 1
            examples.setdefault(error.reason, []).append(index) if len(examples.get(error.reason, [])) < 5 else None
            last = error
            continue
        rows.append(Row(index, np.asarray(encoded.ids, np.int32), np.asarray(encoded.loss_mask, np.uint8)))
    if not rows:
        raise RefusedError(
            "no row of the split can be trained on", seen=f"{dict(dropped)}; the last one: {last.what if last else ''}",
            next=(last.next if last and last.next else "give a longer max_length or other data"),
        )  # fmt: skip
    return Rendered(rows, dict(sorted(dropped.items())), examples)


def fit(encoded: Encoded, max_length: int, truncation: str) -> Encoded:
    """The row within `max_length` tokens. Raises `RecordError` with reason `too_long`, or `no_supervised_token` when
    cutting at the end (`keep_start`) leaves nothing that counts."""
    if len(encoded.ids) <= max_length:
        return encoded
    if truncation == "drop":
        raise RecordError(
            "the row is longer than max_length", reason="too_long", seen=f"{len(encoded.ids)} tokens > {max_length}",
            next="raise max_length, or cut rows at their end with truncation=keep_start",
        )  # fmt: skip
    cut = Encoded(encoded.ids[:max_length], encoded.loss_mask[:max_length])
    if not any(cut.loss_mask):
        raise RecordError(
            "cutting the row at max_length leaves no supervised token", reason="no_supervised_token",
            seen=f"{len(encoded.ids)} tokens > {max_length}", next="raise max_length",
        )  # fmt: skip
    return cut


def collate(units: Sequence[Sequence[Row]], pad_id: int) -> Batch:
    """One line per unit, its rows side by side, padded on the right to the longest line.

    The first token of a row never counts: nothing before it in its row predicts it.
    """
    width = max(sum(len(row.ids) for row in unit) for unit in units)
    shape = (len(units), width)
    ids, positions, sequences = np.full(shape, pad_id, np.int64), np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    mask = np.zeros(shape, np.float32)
    for line, unit in enumerate(units):
        start = 0
        for number, row in enumerate(unit, 1):
            end = start + len(row.ids)
            ids[line, start:end] = row.ids
            positions[line, start:end] = np.arange(end - start)
            sequences[line, start:end] = number
            mask[line, start + 1 : end] = row.loss_mask[1:]
            start = end
    return Batch(*(torch.from_numpy(array) for array in (ids, positions, sequences, mask)))


@functools.lru_cache(maxsize=4)
def epoch_order(units: int, seed: int, epoch: int) -> np.ndarray:
    """The order of the units in an epoch (int64 [units]); a function of its arguments alone."""
    return np.random.default_rng([seed, epoch]).permutation(units)


def units_at(start: int, count: int, *, units: int, seed: int) -> list[int]:
    """Which units stand at places `start…start+count-1` of the endless stream of shuffled epochs.

    The place is all there is to a data cursor: a resumed run asks for the next one.
    """
    return [int(epoch_order(units, seed, place // units)[place % units]) for place in range(start, start + count)]


@torch.no_grad()
def check_isolation(model: torch.nn.Module, max_length: int) -> None:
    """Raise `RefusedError` unless two rows packed side by side get the hidden states that each has alone.

    Finds architectures whose layers carry state past the mask (recurrent ones), or ignore it.
    """
    config = causal_model(model).config
    window = getattr(config, "sliding_window", None)
    if window and max_length > window and "sliding_attention" in (getattr(config, "layer_types", None) or []):
        raise RefusedError(
            "packing hides the sliding window of this model's attention", seen=f"window {window} < {max_length}",
            next="use packing=false, or a max_length within the window",
        )  # fmt: skip
    rows = [Row(n, np.arange(n, n + 4, dtype=np.int32), np.ones(4, np.uint8)) for n in (1, 3)]
    device = causal_model(model).get_input_embeddings().weight.device
    was_training = model.training
    model.eval()
    packed, *alone = (
        decoder(model)(**forward_inputs(collate(units, 0).to(device), model)).last_hidden_state.float()
        for units in ([rows], [rows[:1]], [rows[1:]])
    )
    model.train(was_training)
    apart = torch.cat([part[0] for part in alone])
    if not bool((packed[0] - apart).abs().max() <= 0.02 * apart.abs().max()):
        raise RefusedError(
            "packed rows are not isolated in this model", seen=type(causal_model(model)).__name__,
            next="use packing=false",
        )  # fmt: skip


def forward_inputs(batch: Batch, model: torch.nn.Module) -> dict[str, Any]:
    """The arguments of a forward pass over `batch`, with the mask in the form this model's attention takes."""
    config = causal_model(model).config
    sdpa = getattr(config, "_attn_implementation", "sdpa") == "sdpa"
    dtype = None if sdpa else causal_model(model).get_input_embeddings().weight.dtype
    return {
        "input_ids": batch.input_ids_B_T, "attention_mask": batch.attention_mask(dtype),
        "position_ids": batch.position_ids_B_T, "use_cache": False,
    }  # fmt: skip
