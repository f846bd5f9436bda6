"""How fast a run goes, how much of the device's arithmetic it uses, and when it will be over.

MFU is the share of the device's peak rate that the arithmetic of the model needs; `lpt_train.flops` says what counts.
"""

from __future__ import annotations

import contextlib
import platform
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from lpt_train.flops import attention_backward, attention_forward, matrix_backward, matrix_forward
from lpt_train.heads import causal_model
from lpt_train.packing import Row
from lpt_train.plan.gpus import by_device


def peak_rate(device: str, dtype: torch.dtype) -> float | None:
    """Operations a second of a device by its name, in half precision; None where it is not known."""
    found = by_device(device) if dtype in (torch.bfloat16, torch.float16) else None
    return found.teraflops * 1e12 if found is not None else None


class Work:
    """The arithmetic of a model, in floating-point operations, for rows that do not see one another.

    0 where it is not known: of a mixture of experts only some do work.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        config, head = causal_model(model).config, causal_model(model).get_output_embeddings()
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        sizes = (config.num_hidden_layers, config.num_attention_heads * width)
        self._attention, self._attention_back = attention_forward(*sizes), attention_backward(*sizes)
        self._body = self._head = self._body_back = self._head_back = 0.0
        self._counted: dict[int, tuple[Row, int]] = {}  # the row is kept, so that no other takes its place
        heads = {id(part) for part in head.modules()} if head is not None else set()
        for name, module in model.named_modules():
            # Layers with weights of their own: not what wraps them, nor the copy that an adapter keeps of a layer.
            weight = module._parameters.get("weight")
            if weight is None or not hasattr(module, "in_features") or "original_module" in name:
                continue
            inner: Any = module
            values = float(inner.in_features * inner.out_features)
            there, back = matrix_forward(values), matrix_backward(values, trained=weight.requires_grad)
            if id(module) in heads:
                self._head, self._head_back = self._head + there, self._head_back + back
            else:
                self._body, self._body_back = self._body + there, self._body_back + back
        if self._body == 0 or any(getattr(config, name, None) for name in ("num_experts", "num_local_experts")):
            self._body = self._head = self._body_back = self._head_back = 0.0
            self._attention = self._attention_back = 0.0

    def forward(self, rows: Sequence[Row]) -> float:
        """Of the forward pass alone."""
        return self.forward_of(*self._sizes(rows))

    def training(self, rows: Sequence[Row]) -> float:
        """Of forward and backward."""
        return self.training_of(*self._sizes(rows))

    def forward_of(self, tokens: int, square: int, counted: int) -> float:
        """As `forward`, of so many tokens in rows whose squared lengths add up to `square`; the head is applied to
        `counted` of them."""
        return tokens * self._body + counted * self._head + square * self._attention

    def training_of(self, tokens: int, square: int, counted: int) -> float:
        """As `training`, of the same."""
        back = tokens * self._body_back + counted * self._head_back + square * self._attention_back
        return self.forward_of(tokens, square, counted) + back

    def _sizes(self, rows: Sequence[Row]) -> tuple[int, int, int]:
        """What `forward_of` takes."""
        tokens = square = counted = 0
        for row in rows:
            if id(row) not in self._counted:  # summing a mask in each epoch would be felt beside a small step
                self._counted[id(row)] = (row, int(row.loss_mask[1:].sum()))
            length = len(row.ids)
            tokens, square, counted = tokens + length, square + length * length, counted + self._counted[id(row)][1]
        return tokens, square, counted


class Parts:
    """The seconds of the parts of a step and their MFU, each for itself; what is between two parts is in none."""

    def __init__(self, peak: float | None = None) -> None:
        self._peak, self._operations, self._began = peak, 0.0, time.perf_counter()

    def begin(self) -> None:
        """A part begins now."""
        self._began = time.perf_counter()

    def end(self, name: str, operations: float) -> dict[str, float]:
        """A part took so many operations of the model and ends now, its device waited for; the metrics of it."""
        took = time.perf_counter() - self._began
        self._operations += operations
        found = {f"{name}_seconds": took}
        if operations and self._peak:
            found[f"mfu_{name}"] = operations / (took * self._peak)
        return found

    def operations(self) -> float:
        """Of all parts since this was asked last."""
        found, self._operations = self._operations, 0.0
        return found


class Speed:
    """Tokens a second of the steps themselves, the MFU of the last one, and the seconds that are left.

    What lies between two steps (an evaluation, a checkpoint) is in no step. `evaluations` says how many are to come
    after a step: they are counted into what is left by those that were measured.
    """

    def __init__(
        self, start: int, total: int, peak: float | None = None, evaluations: Callable[[int], int] = lambda done: 0
    ) -> None:
        self._start, self._total, self._peak, self._evaluations = start, total, peak, evaluations
        self._tokens = self._measured = 0
        self._seconds = self._measuring = 0.0
        self._resumed = time.perf_counter()

    def begin(self, start: int) -> Speed:
        """The same, from now on and from step `start`."""
        return Speed(start, self._total, self._peak, self._evaluations)

    def step(self, done: int, tokens: int, operations: float | None = None) -> dict[str, float]:
        """Note that step `done` (counted from 1) took `tokens` tokens and `operations`; the metrics of it."""
        now_ = time.perf_counter()
        took, self._resumed = now_ - self._resumed, now_
        self._seconds += took
        self._tokens += tokens
        left = self._seconds / max(1, done - self._start) * (self._total - done)
        left += self._measuring / max(1, self._measured) * self._evaluations(done)
        found = {"tokens_per_second": self.tokens_per_second, "step_seconds": took, "eta_seconds": left}
        if operations and self._peak:
            found["mfu"] = operations / (took * self._peak)
        return found

    def parts(self) -> Parts:
        """A clock for the parts of a step."""
        return Parts(self._peak)

    @contextlib.contextmanager
    def evaluation(self) -> Iterator[None]:
        """Around an evaluation: its time is known to those that come, and to no step."""
        began = time.perf_counter()
        yield
        self._measuring += time.perf_counter() - began
        self._measured += 1
        self.resume()

    def resume(self) -> None:
        """What went before, an evaluation or a checkpoint, is no part of the next step."""
        self._resumed = time.perf_counter()

    @property
    def tokens_per_second(self) -> float:
        """Over all steps so far."""
        return self._tokens / max(1e-9, self._seconds)


def evaluations_after(done: int, total: int, every: int, together: int = 1) -> int:
    """How many evaluations are due after step `done`: one every so many steps (0: none), in groups of `together`, and
    the one after the last step."""
    if done >= total:
        return 0
    between = max(every, together) if every else total
    return (total - 1) // between - done // between + 1


def peak_memory_bytes() -> int:
    """The most memory this process held: on the GPU when it used one, else resident."""
    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return int(torch.cuda.max_memory_allocated())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak if platform.system() == "Darwin" else peak * 1024)
