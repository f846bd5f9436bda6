"""The bytes of the tensors that operations make, as they come and go: the measured side of predictions on CPU."""

from __future__ import annotations

import weakref
from functools import partial

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only


class LiveBytes(TorchDispatchMode):
    """Within it, `live` is the bytes of all storages made here that are still there, `peak` the most there were.

    What exists before counts when `see` is told of it. Scratch space inside one operation is not seen.
    """

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._known: dict[int, weakref.ref] = {}

    def see(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._known or not storage.nbytes():
            return
        self.live += storage.nbytes()
        self.peak = max(self.peak, self.live)
        self._known[key] = weakref.ref(storage, partial(self._gone, key, storage.nbytes()))

    def _gone(self, key: int, size: int, _: object) -> None:
        self.live -= size
        del self._known[key]

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        tree_map_only(torch.Tensor, self.see, out)
        return out


def saved_bytes(work, parameters) -> int:
    """Bytes that autograd keeps of what `work` computes, each storage once, without the parameters themselves."""
    own = {parameter.untyped_storage()._cdata for parameter in parameters}
    seen: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            seen[storage._cdata] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        kept = work()
    total = sum(storage.nbytes() for storage in seen.values())
    del kept
    return total
