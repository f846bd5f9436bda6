"""The proof that a run trained something: gradients, changed tensors, unchanged tensors.

Complete metrics are not an update: a run whose rewards, advantages and gradients were all zero has metrics too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch

from lpt_train.sharded import whole


class Proof:
    """Takes digests of every tensor at the start, counts gradients in between, and compares at the end."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._trainable_before = {n: tensor_digest(p) for n, p in model.named_parameters() if p.requires_grad}
        self._frozen_before = self._frozen()
        self.updates = 0
        self.nonzero_gradients = 0

    @property
    def start(self) -> str:
        """The digest over all trained tensors as they were at the start."""
        return _join(self._trainable_before)

    def observe(self, grad_norm: float) -> None:
        """Count one optimizer step and whether its gradient (global norm) was anything but zero."""
        self.updates += 1
        self.nonzero_gradients += grad_norm > 0

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps, so that the proof of a resumed run reaches back to its start."""
        return {
            "trainable": self._trainable_before, "frozen": self._frozen_before, "updates": self.updates,
            "nonzero_gradients": self.nonzero_gradients,
        }  # fmt: skip

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up the proof that `state` began."""
        self._trainable_before = dict(state["trainable"])
        self._frozen_before = state["frozen"]
        self.updates = state["updates"]
        self.nonzero_gradients = state["nonzero_gradients"]

    def finish(self) -> dict[str, Any]:
        """The proof as the run records it; `verdict` is `effective`, `no_effective_update` or `frozen_tensors_changed`.

        `start` and `end` are digests over all trained tensors: paired runs show the same start by them.
        """
        after = {n: tensor_digest(p) for n, p in self._model.named_parameters() if p.requires_grad}
        changed = sum(after[name] != digest for name, digest in self._trainable_before.items())
        frozen_unchanged = self._frozen() == self._frozen_before
        if not frozen_unchanged:
            verdict = "frozen_tensors_changed"
        elif changed and self.nonzero_gradients:
            verdict = "effective"
        else:
            verdict = "no_effective_update"
        return {
            "verdict": verdict, "updates": self.updates, "nonzero_gradients": self.nonzero_gradients,
            "trainable_tensors": len(after), "changed_tensors": changed, "frozen_unchanged": frozen_unchanged,
            "frozen_tensors": sum(not p.requires_grad for p in self._model.parameters()),
            "start": self.start, "end": _join(after),
        }  # fmt: skip

    def _frozen(self) -> str:
        return _join({n: tensor_digest(p) for n, p in self._model.named_parameters() if not p.requires_grad})


def tensor_digest(tensor: torch.Tensor) -> str:
    """sha256 of dtype, shape and bytes of a tensor, wherever it lives."""
    plain = whole(tensor.detach()).cpu().contiguous()
    digest = hashlib.sha256(f"{plain.dtype} {tuple(plain.shape)}\0".encode())
    digest.update(plain.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _join(digests: Mapping[str, str]) -> str:
    return hashlib.sha256("".join(f"{name} {digests[name]}\n" for name in sorted(digests)).encode()).hexdigest()
