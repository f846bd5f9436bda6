"""Weights spread over the processes of a run (FSDP2): each holds a part of every tensor, gathers a layer to use it.

Gathered around a call are the parameters of the module that is called. What a loop calls is the decoder and then rows
of the vocabulary head, never the model's own `forward`; so the way from tokens to log-probs is made one module
(`Through`), which gathers embedding, norm and head, and each layer of the decoder gathers its own.

Gradients are summed, not averaged: the loss has its denominator already. A checkpoint is written whole, from tensors
gathered one at a time, so that it is the checkpoint of any number of processes, and of a run without FSDP.

Every process loads the whole model before it keeps its part: the model must fit one device once, its gradients and the
optimizer's moments need not.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from lpt_train.models import Placement
from manifests.errors import RefusedError


class Through(torch.nn.Module):
    """A function of a model's parameters as a module of its own, so that they are gathered around its calls."""

    def __init__(self, model: torch.nn.Module, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.model = model
        self._function = function

    def forward(self, *args: Any) -> torch.Tensor:
        """The value of the function, while the weights are whole."""
        return self._function(*args)


def shard(
    model: torch.nn.Module,
    function: Callable[..., torch.Tensor],
    layers: Iterable[torch.nn.Module],
    *,
    world: int,
    place: Placement,
) -> Through:
    """Spread the parameters of `model` over the processes and return `function` as the module to call.

    Weights are gathered in the precision of the forward pass and gradients summed in float32: casting what was gathered
    would keep a second copy of it until the backward pass. The parameters are other objects afterwards: make optimizers
    and lists of them later.
    """
    odd = {str(p.dtype) for p in model.parameters() if not p.is_floating_point()}
    if odd:
        raise RefusedError(
            "a base of quantised weights is not spread over processes", seen=", ".join(sorted(odd)),
            next="sharding=none: each process has the whole base, or leave out load_in_4bit",
        )  # fmt: skip
    mesh = init_device_mesh(place.device.type, (world,))
    narrow = None if place.dtype is torch.float32 else place.dtype
    policy = MixedPrecisionPolicy(narrow, torch.float32 if narrow else None, cast_forward_inputs=False)
    through = Through(model, function)
    for module in (*layers, through):
        # The outermost one too: left whole after a forward pass without gradients, its weights would not be the ones
        # that the optimizer moves and a checkpoint reads.
        fully_shard(module, mesh=mesh, reshard_after_forward=True, mp_policy=policy)
        assert isinstance(module, FSDPModule)
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)  # a sum with a factor is known to NCCL alone
    return through


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself or, of a part of one, the whole: then every process must ask for it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def part(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """What this process holds of a whole tensor when `like` is spread; every process must have the same whole."""
    if not isinstance(like, DTensor) or isinstance(tensor, DTensor):
        return tensor
    return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


def is_spread(parameters: Iterable[torch.nn.Parameter]) -> bool:
    """Whether one of the parameters is spread over processes."""
    return any(isinstance(parameter, DTensor) for parameter in parameters)


@contextlib.contextmanager
def made_whole(model: torch.nn.Module, optimizer: Any, *, keep: bool = True, back: bool = False) -> Iterator[Any]:
    """For a checkpoint: the model with its trained tensors whole in host memory, and an optimizer whose state is.

    Every process must come here. Without `keep` it only helps the others. With `back`, what the tensors were changed to
    is spread over the processes again, and the optimizer given here takes a whole state. A model that is not spread is
    left as it is.
    """
    spread: list[tuple[torch.nn.Module, str, torch.nn.Parameter]] = [
        (module, name, parameter)
        for module in model.modules()
        for name, parameter in module._parameters.items()
        if parameter is not None and isinstance(parameter, DTensor) and parameter.requires_grad
    ]
    if not spread:
        yield optimizer
        return
    full: dict[int, torch.nn.Parameter] = {}  # shared tensors stay shared
    for _, _, parameter in spread:
        if id(parameter) not in full:
            value = whole(parameter.detach())
            full[id(parameter)] = torch.nn.Parameter(value.cpu() if keep else value.new_empty(0))
    seen = _WholeOptimizer(optimizer, keep=keep)
    # After a load FSDP looks at its parts, which are not there meanwhile.
    hooks = {module: module._load_state_dict_post_hooks for module, _, _ in spread}
    try:
        for module, name, parameter in spread:
            module._parameters[name] = full[id(parameter)]
            module._load_state_dict_post_hooks = OrderedDict()
        yield seen
    finally:
        for module, name, parameter in spread:
            module._parameters[name] = parameter
            module._load_state_dict_post_hooks = hooks[module]
    if back:
        with torch.no_grad():
            for _, _, parameter in spread:
                parameter.copy_(part(full[id(parameter)].detach(), parameter))


class _WholeOptimizer:
    """What a checkpoint asks of an optimizer, with whole tensors in place of parts."""

    def __init__(self, optimizer: torch.optim.Optimizer, *, keep: bool) -> None:
        self._optimizer = optimizer
        state = optimizer.state_dict()
        self._state: dict[int, dict[str, Any]] = {}
        for index, values in state["state"].items():
            for name, value in values.items():
                full = whole(value) if isinstance(value, torch.Tensor) else value
                if keep:
                    self._state.setdefault(index, {})[name] = full.cpu() if isinstance(full, torch.Tensor) else full
        self._groups = state["param_groups"]

    def state_dict(self) -> dict[str, Any]:
        """The state, gathered when this was made."""
        return {"state": self._state, "param_groups": self._groups}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up a whole state: of what is shaped as its parameter, each process keeps its part."""
        parameters = [parameter for group in self._optimizer.param_groups for parameter in group["params"]]
        parts = {
            index: {
                name: part(value, parameters[index]) if _shaped_as(value, parameters[index]) else value
                for name, value in values.items()
            }
            for index, values in state["state"].items()
        }
        self._optimizer.load_state_dict({"state": parts, "param_groups": state["param_groups"]})


def _shaped_as(value: Any, parameter: torch.Tensor) -> bool:
    return isinstance(value, torch.Tensor) and value.shape == parameter.shape
