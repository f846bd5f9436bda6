"""Rows to one line of tokens without padding: what a micro-batch is on its way through the model.

Axes: `T` tokens of the line, `S` rows of it, `N` tokens that count. A row is an attention segment of its own and its
positions start at 0. On a GPU shapes must repeat to be compiled and replayed, so a line can be filled up (`Shape`): the
filler is segments of its own behind the rows, and targets of weight 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from lpt_train.packing import Row


@dataclass(frozen=True)
class FlatBatch:
    """Tensors of one micro-batch. `weights_N` is 1 on targets and 0 on filler, `rows_N` the row of each target."""

    input_ids_1_T: torch.Tensor  # int64
    position_ids_1_T: torch.Tensor  # int64
    cu_seqlens: torch.Tensor  # int32 [S + 1]: where each row begins, and the end
    predict_N: torch.Tensor  # int64: the position whose hidden state predicts the target
    targets_N: torch.Tensor  # int64
    weights_N: torch.Tensor  # float32
    rows_N: torch.Tensor  # int64
    longest: int  # no segment has more tokens
    tokens: int  # without filler
    supervised: int

    def to(self, device: torch.device) -> FlatBatch:
        """The same batch on another device."""
        return self.with_tensors(
            {name: tensor.to(device, non_blocking=True) for name, tensor in self.tensors().items()}
        )

    def with_tensors(self, tensors: Mapping[str, torch.Tensor]) -> FlatBatch:
        """The same batch around other tensors."""
        others: dict[str, Any] = dict(tensors)
        return replace(self, **others)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Its tensors by name."""
        every = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {name: value for name, value in every.items() if isinstance(value, torch.Tensor)}


@dataclass(frozen=True)
class Shape:
    """How a line is filled up: tokens and targets to multiples of a step, segments to a fixed number.

    `longest` bounds the length of a segment, filler included.
    """

    longest: int
    tokens: int = 1
    targets: int = 1
    rows: int = 0

    @classmethod
    def of(cls, longest: int, most_tokens: int, most_rows: int, chunk: int) -> Shape:
        """At most eight different lengths of a line, and of its targets, for lines of up to `most_tokens` tokens."""
        step = math.ceil(most_tokens / 8 / 128) * 128
        return cls(longest, step, math.ceil(step / chunk) * chunk, most_rows + math.ceil(step / longest))


def flatten(rows: Sequence[Row], pad_id: int, shape: Shape) -> FlatBatch:
    """The rows end to end. The first token of a row is never a target: nothing before it in its row predicts it."""
    lengths = [len(row.ids) for row in rows]
    used = sum(lengths)
    total = math.ceil(used / shape.tokens) * shape.tokens
    while used < total:
        lengths.append(min(shape.longest, total - used))
        used += lengths[-1]
    starts = np.cumsum([0, *lengths])
    segments = max(shape.rows, len(lengths))
    ends = np.full(segments + 1, total, np.int32)
    ends[: len(starts)] = starts
    ids = np.full(total, pad_id, np.int64)
    real = int(starts[len(rows)])
    ids[:real] = np.concatenate([row.ids for row in rows])
    counted = [np.flatnonzero(row.loss_mask[1:]) + 1 + start for row, start in zip(rows, starts, strict=False)]
    at = np.concatenate(counted)
    targets = math.ceil(max(len(at), 1) / shape.targets) * shape.targets
    predict, wanted, weights, of_row = (np.zeros(targets, kind) for kind in (np.int64, np.int64, np.float32, np.int64))
    predict[: len(at)], wanted[: len(at)], weights[: len(at)] = at - 1, ids[at], 1.0
    of_row[: len(at)] = np.repeat(np.arange(len(rows)), [len(part) for part in counted])
    positions = np.concatenate([np.arange(n) for n in lengths])
    line = (torch.from_numpy(array) for array in (ids[None], positions[None], ends, predict, wanted, weights, of_row))
    return FlatBatch(*line, shape.longest, real, len(at))  # type: ignore[call-arg, arg-type]
