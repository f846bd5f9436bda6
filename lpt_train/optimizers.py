"""What moves the parameters, by the names that transformers' Trainer has for `optim`.

    adamw_torch           AdamW of torch, fused on CUDA: 8 bytes a parameter on the device
    adamw_torch_offload   the same update to the bit, its moments in pinned host memory: 8 bytes a parameter there
    adamw_8bit            AdamW of bitsandbytes, moments in blocks of 8 bits: about 2 bytes a parameter, another update
    paged_adamw_8bit, paged_adamw_32bit   moments in memory that CUDA moves between device and host as it needs
    sgd                   no moments, weight decay as part of the gradient

What a moment costs, to the byte: `plan.memory.optimizer_bytes`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.adamw import adamw as adamw_update

from lpt_train.adapters import trainable
from lpt_train.config import Optim
from lpt_train.sharded import is_spread
from manifests.errors import RefusedError, UsageError

_MOMENTS = ("exp_avg", "exp_avg_sq")


def make_optimizer(model: torch.nn.Module, optim: Optim, *, offload: bool = False) -> torch.optim.Optimizer:
    """The optimizer over the parameters that train; weight decay on matrices, not on vectors (biases, norms).

    `offload` keeps the moments of `adamw_torch` in host memory: the same update, the same checkpoint. Raises
    `UsageError` for one that needs what is not here (bitsandbytes, a CUDA device).
    """
    parameters = trainable(model)
    if is_spread(parameters) and optim.optim not in ("adamw_torch", "sgd"):
        raise RefusedError(
            "the moments of this optimizer cannot be spread over processes",
            seen=f"optim={optim.optim}, sharding=fsdp2",
            next="--set optim=adamw_torch: each process has its part of the moments",
        )  # fmt: skip
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": optim.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    adam: dict[str, Any] = {
        "lr": optim.learning_rate, "betas": (optim.adam_beta1, optim.adam_beta2), "eps": optim.adam_epsilon,
    }  # fmt: skip
    on_cuda = parameters[0].is_cuda
    if optim.optim == "sgd":
        return torch.optim.SGD(groups, lr=optim.learning_rate)
    if optim.optim == "adamw_torch_offload" or (offload and optim.optim == "adamw_torch"):
        return OffloadedAdamW(groups, **adam, fused=on_cuda)
    if optim.optim == "adamw_torch":
        return torch.optim.AdamW(groups, **adam, fused=on_cuda)
    return _of_bitsandbytes(optim.optim, model, groups, adam, on_cuda)


class OffloadedAdamW(torch.optim.Optimizer):
    """AdamW whose moments lie in host memory and visit the device one parameter at a time.

    The update is torch's own (fused on CUDA) on the same numbers, so that parameters and checkpoints are those of
    `torch.optim.AdamW` bit for bit, and either goes on from a checkpoint of the other. A step moves 16 bytes a
    parameter over the bus and waits for them; nothing is overlapped.
    """

    def __init__(self, groups: Any, *, lr: float, betas: tuple[float, float], eps: float, fused: bool) -> None:
        super().__init__(groups, torch.optim.AdamW([torch.zeros(1)], lr, betas, eps).defaults | {"fused": fused})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One update of every parameter that has a gradient."""
        moved = None
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter] or self._start(parameter)
                here = {name: value.to(parameter.device, non_blocking=True) for name, value in state.items()}
                adamw_update(
                    [parameter], [parameter.grad], [here["exp_avg"]], [here["exp_avg_sq"]], [], [here["step"]],
                    foreach=False, fused=group["fused"], amsgrad=False, beta1=group["betas"][0],
                    beta2=group["betas"][1], lr=group["lr"], weight_decay=group["weight_decay"], eps=group["eps"],
                    maximize=False,
                )  # fmt: skip
                for name, value in state.items():
                    if here[name] is not value:
                        moved = value.copy_(here[name], non_blocking=True)
        if moved is not None:
            torch.cuda.current_stream().synchronize()  # a checkpoint reads host memory without asking the device

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up `state_dict`; its moments stay on the host."""
        super().load_state_dict({**state_dict, "state": {}})
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        for index, values in state_dict["state"].items():
            state = self._start(parameters[index])
            for name, value in values.items():
                state[name].copy_(value)

    def _start(self, parameter: torch.nn.Parameter) -> dict[str, torch.Tensor]:
        pinned: dict[str, Any] = {"device": "cpu", "pin_memory": parameter.is_cuda}
        state = self.state[parameter]
        state["step"] = torch.zeros((), dtype=torch.float32, **pinned)
        for name in _MOMENTS:
            state[name] = torch.zeros(parameter.shape, dtype=parameter.dtype, **pinned)
        return state


def restore(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load a state; what bitsandbytes had in paged memory goes back there (its own loading puts it on the device)."""
    optimizer.load_state_dict(state)
    if not getattr(optimizer, "is_paged", False):
        return
    paged: Any = optimizer
    for parameter, values in optimizer.state.items():
        for name in ("state1", "state2"):
            values[name] = paged.get_state_buffer(parameter, dtype=values[name].dtype).copy_(values[name])


def _of_bitsandbytes(
    name: str, model: torch.nn.Module, groups: list[dict[str, Any]], adam: dict[str, Any], on_cuda: bool
) -> torch.optim.Optimizer:
    if importlib.util.find_spec("bitsandbytes") is None:
        raise UsageError(
            f"optim={name} is bitsandbytes', which is not installed", seen=name,
            next="pip install bitsandbytes, or --set optim=adamw_torch_offload",
        )  # fmt: skip
    if name.startswith("paged") and not on_cuda:
        raise UsageError(
            "paged moments move between a CUDA device and its host", seen=f"optim={name} on the CPU",
            next="--set optim=adamw_8bit, or --set optim=adamw_torch",
        )  # fmt: skip
    import bitsandbytes

    kinds = {
        "adamw_8bit": bitsandbytes.optim.AdamW8bit, "paged_adamw_8bit": bitsandbytes.optim.PagedAdamW8bit,
        "paged_adamw_32bit": bitsandbytes.optim.PagedAdamW32bit,
    }  # fmt: skip
    optimizer = kinds[name](groups, **adam)
    # As transformers does: of a vocabulary most rows see no gradient in a step, and 8 bits forget them. Its way, by the
    # manager that bitsandbytes has for the whole process, would reach the next run's parameters as well.
    tables = {id(m.weight) for m in model.modules() if isinstance(m, torch.nn.Embedding)}
    plain = optimizer.get_config

    def get_config(gindex: int, pindex: int, group: dict[str, Any]) -> dict[str, Any]:
        wide = id(group["params"][pindex]) in tables
        return plain(gindex, pindex, group) | ({"optim_bits": 32} if wide else {})

    optimizer.get_config = get_config
    return optimizer
