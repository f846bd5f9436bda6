"""Several processes of one run, as torchrun starts them: who computes what, and how the sums of all become one.

Every process reads the same rows in the same order and starts from the same weights. The micro-batches of a step are
dealt to the processes in turn, and each divides by the denominator of the whole step, so that *sums* over the processes
are the loss and the gradient that one process would have computed: no mean of means, no row repeated to fill up a
sampler, no learning rate that depends on the number of processes. A process that gets no micro-batch of a short step
computes a blank one, so that nobody waits in vain.

Gradients are added up once a step, after its backward passes, in flat buckets: a replayed CUDA graph has no hooks to
overlap with, and over NVLink the sum of a LoRA gradient takes less than a thousandth of a step. Numbers for people go
over gloo, on the host: a process that has died is found out there, before the device waits for it.

Left out: pipeline, tensor and context parallelism.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist

from lpt_train.config import RunOptions
from manifests.errors import NOT_GIVEN, LptError, RefusedError, UsageError

Part = TypeVar("Part")
Number = float | torch.Tensor  # a tensor holds one value
_TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_BUCKET = 2**26  # values of a bucket: 256 MiB in float32
_GRACE = 5.0  # seconds that a process has, once asked to go, to say why
HOW = "torchrun --nproc-per-node 2 --no-python lpt train …"


@dataclass
class Ranks:
    """The place of this process among `world`; alone, everything here is free and changes nothing."""

    rank: int = 0
    world: int = 1
    sharding: str = "none"  # none: every process has all weights; fsdp2: each has a part of every tensor
    _buckets: list[_Bucket] = field(default_factory=list, repr=False)

    @property
    def main(self) -> bool:
        """Whether this is the process that writes and talks."""
        return self.rank == 0

    @property
    def sharded(self) -> bool:
        """Whether weights are spread over the processes, so that a forward pass of one needs the others."""
        return self.sharding != "none"

    def to_json(self) -> dict[str, Any]:
        """What a run records about its processes."""
        return {"world_size": self.world, "sharding": self.sharding}

    def deal(self, parts: Sequence[Part], blank: Part) -> list[Part]:
        """What of `parts` this process computes: every `world`-th, as many for each process, filled up with `blank`."""
        rounds = -(-len(parts) // self.world)
        mine = list(parts[self.rank :: self.world])
        return mine + [blank] * (rounds - len(mine))

    def sums(self, values: Mapping[str, Number]) -> dict[str, Number]:
        """The sums over all processes of numbers that have the same names in each; alone they stay where they are."""
        if self.world == 1:
            return dict(values)
        total = self.total(np.asarray(list(fetched(values).values()), np.float64))
        return dict(zip(values, total.tolist(), strict=True))

    def total(self, values: np.ndarray) -> np.ndarray:
        """The sum over all processes of an array of the same shape in each."""
        if self.world == 1:
            return values
        summed = torch.from_numpy(np.ascontiguousarray(values).copy())
        with self._together():
            dist.all_reduce(summed)
        return summed.numpy()

    def any(self, flag: bool) -> bool:
        """Whether `flag` is set in any process: all of them get the same answer."""
        return bool(self.sums({"flag": float(flag)})["flag"])

    def gathered(self, value: Any) -> list[Any]:
        """The value of each process, by rank."""
        if self.world == 1:
            return [value]
        found: list[Any] = [None] * self.world
        with self._together():
            dist.all_gather_object(found, value)
        return found

    def from_main(self, value: Part) -> Part:
        """The value that the main process gives; nobody goes on before it has come so far."""
        return self.gathered(value)[0]

    def require_same(self, what: str, value: str) -> None:
        """Raise `LptError` unless all processes have the same value: else their sums would mean nothing."""
        found = self.gathered(value)
        if len(set(found)) > 1:
            raise LptError(
                f"the processes of the run have different {what}", seen=", ".join(map(str, found)),
                next="start all of them with the same code, model, data and options",
            )  # fmt: skip

    @contextlib.contextmanager
    def main_first(self) -> Iterator[None]:
        """The main process goes through alone, then the others: what it made, they find."""
        if not self.main:
            self.from_main(None)
        yield
        if self.main:
            self.from_main(None)

    def sum_gradients(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Replace each gradient by its sum over the processes; sharded ones were summed by the backward pass."""
        if self.world == 1 or self.sharded:
            return
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        if not self._buckets:
            self._buckets = _buckets(gradients)
        for bucket in self._buckets:
            some = gradients[bucket.first : bucket.first + len(bucket.pieces)]
            torch._foreach_copy_(bucket.pieces, some)
            with self._together():
                dist.all_reduce(bucket.flat)
            torch._foreach_copy_(some, bucket.pieces)

    def seed(self, seed: int, step: int) -> None:
        """Give each process its own random numbers for a step (dropout): a function of seed, step and rank alone, so
        that there is nothing to save and a resumed run draws what the whole one would."""
        if self.world > 1:
            torch.manual_seed(int(np.random.SeedSequence([seed, step, self.rank]).generate_state(1)[0]))

    @contextlib.contextmanager
    def _together(self) -> Iterator[None]:
        """Around a collective call: what is raised when another process is gone says so."""
        try:
            yield
        except RuntimeError as error:  # torch's errors of communication are of this type
            if isinstance(error, torch.OutOfMemoryError):
                raise
            raise _alone(error) from error

    def lost(self, error: BaseException) -> LptError | None:
        """What to raise in place of an error that means that another process is gone; None for any other error."""
        of_gloo = isinstance(error, RuntimeError) and "gloo" in str(error).lower()
        return _alone(error) if self.world > 1 and (of_gloo or isinstance(error, dist.DistError)) else None


SOLO = Ranks()


@dataclass
class _Bucket:
    """Gradients `first, first + 1, …` as pieces of one flat tensor; buckets of a kind share their memory."""

    first: int
    flat: torch.Tensor
    pieces: list[torch.Tensor]


def _buckets(gradients: Sequence[torch.Tensor]) -> list[_Bucket]:
    spans: list[list[int]] = []
    held = 0
    for index, gradient in enumerate(gradients):
        same = bool(spans) and gradients[spans[-1][0]].dtype == gradient.dtype
        if not same or held + gradient.numel() > _BUCKET:
            spans.append([])
            held = 0
        spans[-1].append(index)
        held += gradient.numel()
    made = []
    memory: dict[torch.dtype, torch.Tensor] = {}
    sizes = [sum(gradients[i].numel() for i in span) for span in spans]
    for span, size in sorted(zip(spans, sizes, strict=True), key=lambda pair: -pair[1]):
        first = gradients[span[0]]
        flat = memory.setdefault(first.dtype, torch.empty(size, dtype=first.dtype, device=first.device))[:size]
        pieces = flat.split([gradients[i].numel() for i in span])
        made.append(_Bucket(span[0], flat, [p.view(gradients[i].shape) for p, i in zip(pieces, span, strict=True)]))
    return sorted(made, key=lambda bucket: bucket.first)


def fetched(values: Mapping[str, Number]) -> dict[str, float]:
    """The values of numbers: those on a device come in one transfer, so that the host waits for it once.

    What lies on the host is read there, which is no wait: collecting the others beside it would be one for each.
    """
    tensors = {name: value.detach() for name, value in values.items() if isinstance(value, torch.Tensor)}
    device = next((value.device for value in tensors.values() if value.device.type != "cpu"), torch.device("cpu"))
    there = {name: value for name, value in tensors.items() if value.device.type == device.type}
    found = dict(values)
    if there:
        line = torch.stack([value.to(device, torch.float64).reshape(()) for value in there.values()])
        found |= dict(zip(there, line.tolist(), strict=True))
    return {name: float(value) for name, value in found.items()}


def launched() -> int:
    """How many processes torchrun started this one among; 1 when it did not."""
    return int(os.environ["WORLD_SIZE"]) if all(os.environ.get(name) for name in _TORCHRUN) else 1


def refuse_several(algorithm: str) -> None:
    """Raise `RefusedError` where several processes would each train the same run, for an algorithm that runs in one."""
    if launched() > 1:
        raise RefusedError(
            f"{algorithm} runs in one process", seen=f"{launched()} processes started by torchrun",
            next="start it without torchrun; sft and the losses on preference pairs take several",
        )  # fmt: skip


def join(options: RunOptions) -> Ranks:
    """Take part in the run that torchrun started, or be alone; each process has its own GPU where there is one.

    Raises `UsageError` for more processes than GPUs, and for weights to be spread over a single process.
    """
    if not all(os.environ.get(name) for name in _TORCHRUN):
        if options.sharding != "none":
            raise UsageError(
                "weights are spread over several processes", seen=f"sharding={options.sharding} in one process",
                next=f"{HOW}, or sharding=none",
            )  # fmt: skip
        return SOLO
    cuda = options.device != "cpu" and torch.cuda.is_available()
    place = int(os.environ.get("LOCAL_RANK", os.environ["RANK"]))
    if cuda and place >= torch.cuda.device_count():
        raise UsageError(
            "a process needs a GPU of its own", seen=f"{torch.cuda.device_count()} GPUs, process {place + 1} here",
            next=f"torchrun --nproc-per-node {torch.cuda.device_count()} …, or --set device=cpu",
        )  # fmt: skip
    if cuda:
        torch.cuda.set_device(place)
    if not dist.is_initialized():
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, _leave_soon)
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if cuda else "gloo", timeout=timedelta(seconds=options.ddp_timeout)
        )  # fmt: skip
    return Ranks(dist.get_rank(), dist.get_world_size(), options.sharding)


def leave() -> None:
    """Close what `join` opened, at the orderly end of a process."""
    if dist.is_initialized():
        dist.destroy_process_group()


def _leave_soon(_number: int, _frame: Any) -> None:
    """torchrun ends the others when one process fails: time to say what happened, and no more."""
    timer = threading.Timer(_GRACE, os._exit, [128 + signal.SIGTERM])
    timer.daemon = True
    timer.start()


def first_to_fail(problem: LptError) -> bool:
    """Whether this process is the first of its run to fail: it tells what happened, the others only follow it.

    Without torchrun's store (a run that never began, another launcher) every process tells its own.
    """
    store = _store()
    if store is None:
        return True
    with contextlib.suppress(RuntimeError):
        if store.add("told", 1) > 1:
            return False
        what = f"process {os.environ['RANK']}: {problem.what}"
        store.set("reason", json.dumps({"what": what, "seen": problem.seen}))
    return True


def _alone(error: BaseException) -> LptError:
    """That another process is gone, with its reason if it left one."""
    left = _reason_left()
    if left is not None:
        return LptError(f"another process of the run failed: {left['what']}", seen=left["seen"] or NOT_GIVEN)
    seen = re.sub(r"^\[\S+\] ", "", str(error).splitlines()[0])  # without the place in torch's source
    return LptError(
        "another process of the run has ended or does not answer", seen=seen.partition(". ")[0][:300],
        next="torchrun says which one; go on from the last checkpoint with --resume",
    )  # fmt: skip


def _reason_left() -> dict[str, str] | None:
    store = _store()
    if store is None:
        return None
    with contextlib.suppress(RuntimeError):
        for _ in range(10):  # it is written just before the process ends
            if store.check(["reason"]):
                return dict(json.loads(store.get("reason")))
            time.sleep(0.1)
    return None


def _store() -> Any:
    """The key-value store of torchrun's agent, apart from what torch keeps there; None where it does not answer."""
    if launched() == 1:
        return None
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    try:
        store = dist.TCPStore(host, port, is_master=False, timeout=timedelta(seconds=5), wait_for_workers=False)
    except RuntimeError:
        return None
    return dist.PrefixStore(f"lpt/{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", store)
