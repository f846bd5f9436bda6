"""Memory for time inside a layer: its inner values computed again in the backward pass, or kept in host memory.

Gradients are those of a plain backward pass, bit for bit on CPU. Checkpointing is the non-reentrant kind: the reentrant
one gives an adapter no gradients, because the input of a frozen model needs none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from lpt_train.heads import decoder, draws
from manifests.errors import RefusedError

_SMALL = 4096  # values: below it a trip to the host costs more than the memory is worth


def checkpoint_layers(model: torch.nn.Module, every: int) -> int:
    """Let every `every`-th layer keep its input alone while the model trains (0: none); the number of those that do.

    Raises `RefusedError` for an architecture whose layers cannot.
    """
    layers: Any = getattr(decoder(model), "layers", None)
    if not every and layers is None:
        return 0
    if layers is None or not all(isinstance(layer, GradientCheckpointingLayer) for layer in layers):
        raise RefusedError(
            "the layers of this model cannot be computed again", seen=type(decoder(model)).__name__,
            next="--set gradient_checkpointing=false",
        )  # fmt: skip
    # Without dropout nothing is drawn; a recording of a CUDA graph may not read the state of the generator.
    again = partial(checkpoint, use_reentrant=False, preserve_rng_state=draws(model))
    for number, layer in enumerate(layers, start=1):
        layer.gradient_checkpointing = bool(every) and number % every == 0
        layer._gradient_checkpointing_func = again
    return len(layers) // every if every else 0


@contextlib.contextmanager
def on_host(parameters: Iterable[torch.nn.Parameter]) -> Iterator[None]:
    """Within it, what autograd keeps waits in pinned host memory; parameters, small tensors and host tensors stay."""
    own = {parameter.untyped_storage().data_ptr() for parameter in parameters}

    def pack(tensor: torch.Tensor) -> torch.Tensor | tuple[torch.device, torch.Tensor]:
        if tensor.device.type == "cpu" or tensor.numel() < _SMALL or tensor.untyped_storage().data_ptr() in own:
            return tensor
        kept = torch.empty(tensor.size(), dtype=tensor.dtype, pin_memory=True)
        return tensor.device, kept.copy_(tensor, non_blocking=True)

    def unpack(kept: torch.Tensor | tuple[torch.device, torch.Tensor]) -> torch.Tensor:
        return kept if isinstance(kept, torch.Tensor) else kept[1].to(kept[0], non_blocking=True)

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        yield
