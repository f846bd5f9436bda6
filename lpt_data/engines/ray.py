"""A Ray cluster as an engine: pure functions of this package run on its workers, results come back in order.

The driver, which is this process, reads the input and writes the output; nodes need no access to its files, but the
same version of this package, which is looked at before any work. A worker or a node that is lost costs time: Ray runs
its tasks again, and makes again what lay in its memory as long as the driver holds what that was made of (`put`).

Without an address a cluster of this machine's cores is started and ended with the work. Ray's own messages, which it
prints on standard output, are kept aside. Nothing here opens a connection but to the cluster.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from lpt_data.places import code_digest
from manifests.errors import BadInputError, LptError, UsageError

RETRIES = 20  # of one task, for a worker that is lost
OWN_STORE = 1 << 30  # bytes of shared memory of a cluster that is started here; the rest spills to disk
_REACH_SECONDS = 5.0
_PROBE_SECONDS = 120.0
_ASK_AGAIN_SECONDS = 0.2
# No phoning home, no log lines of the C++ side, no warning about accelerators that nothing here uses.
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_BACKEND_LOG_LEVEL": "fatal",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_SCHEDULER_EVENTS": "0",
}


class Cluster:
    """Submits functions to Ray; at most ``ahead`` parts are under way, so memory does not grow with the input."""

    def __init__(self, ray: Any, messages: list[str]) -> None:
        self._ray = ray
        self._messages = messages
        self._remote: dict[Any, Any] = {}
        self.tasks = 0
        alive = [node for node in ray.nodes() if node["Alive"]]
        self.nodes = len(alive)
        self.cpus = max(int(sum(node["Resources"].get("CPU", 0) for node in alive)), 1)
        self.ahead = 2 * self.cpus + 2

    def submit(self, function: Callable[..., Any], *args: Any, returns: int = 1) -> Any:
        """Start ``function(*args)`` on a worker; returns a reference, or a list of them for several ``returns``.

        References among ``args`` arrive as their values, those inside lists as references (see `fetch`).
        """
        if function not in self._remote:
            self._remote[function] = self._ray.remote(max_retries=RETRIES)(function)
        self.tasks += 1
        return self._remote[function].options(num_returns=returns).remote(*args)

    def put(self, value: Any) -> Any:
        """Lay a value into the cluster's memory once, for several parts; it stays while the reference is held."""
        return self._ray.put(value)

    def get(self, reference: Any) -> Any:
        """Wait for a value. Raises what the function raised, LptError when its workers were lost again and again."""
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, LptError):
                raise error.cause from None
            raise
        except self._ray.exceptions.RayError as error:
            raise LptError(
                "the cluster lost a part of the work, and again each time it was tried",
                seen=str(error).strip().splitlines()[0],
                next="look at the nodes (ray status), then run the same command again, or --engine local",
            ) from error

    def map(self, function: Callable[..., Any], items: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
        """Call a function with the arguments of each item, and yield the results in order."""
        waiting: deque[Any] = deque()
        for item in items:
            waiting.append(self.submit(function, *item))
            if len(waiting) >= self.ahead:
                yield self.get(waiting.popleft())
        while waiting:
            yield self.get(waiting.popleft())

    def told(self) -> dict[str, Any]:
        """What the report says of the cluster: its size at the start, the parts, and what Ray had to say."""
        messages = [message.strip().splitlines()[0][:300] for message in self._messages if message.strip()]
        return {"name": "ray", "nodes": self.nodes, "cpus": self.cpus, "tasks": self.tasks, "messages": messages[:10]}


def fetch(reference: Any) -> Any:
    """The value of a reference, on a worker: for parts that need many values one after the other."""
    import ray

    return ray.get(reference)


@contextlib.contextmanager
def cluster(address: str | None = None) -> Iterator[Cluster]:
    """Connect to a cluster: at ``address``, at $RAY_ADDRESS, else one that is started here.

    Raises UsageError when Ray is not installed, BadInputError when no cluster answers or its nodes have another version
    of this package. A connection that this process has already is used and left open.
    """
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ModuleNotFoundError as error:
        raise UsageError(
            "the engine ray needs a package that is not installed",
            seen=error.name,
            next="pip install 'lpt[ray]', or --engine local",
        ) from error
    messages: list[str] = []
    mine = not ray.is_initialized()
    with _kept_aside(messages):
        try:
            if mine:
                _connect(ray, address or os.environ.get("RAY_ADDRESS") or "local")
            opened = Cluster(ray, messages)
            _same_code(ray)
            yield opened
        finally:
            if mine:
                ray.shutdown()


def _connect(ray: Any, address: str) -> None:
    here = address == "local"
    options: dict[str, Any] = {"include_dashboard": False, "object_store_memory": OWN_STORE} if here else {}
    if not here and address != "auto":
        _reach(address)
    try:
        with _silenced():
            ray.init(address=address, log_to_driver=False, logging_level="CRITICAL", **options)
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        raise _unreachable(address, error) from error


def _reach(address: str) -> None:
    """Raise BadInputError when nothing listens there; Ray itself would try for a minute."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_REACH_SECONDS):
            pass
    except (OSError, ValueError) as error:
        raise _unreachable(address, error) from error


def _unreachable(address: str, error: Exception) -> BadInputError:
    first = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return BadInputError(
        "no Ray cluster that can be used answers",
        seen=f"{address}: {first}",
        next="ray start --head, then --ray-address HOST:6379; --ray-address local starts one here",
    )


def _same_code(ray: Any) -> None:
    """Raise BadInputError unless every node has this version of the package."""
    mine = code_digest()
    look = ray.remote(num_cpus=0, max_retries=RETRIES)(_their_code)
    nodes = [node for node in ray.nodes() if node["Alive"]]
    asked = [_ask(look, node) for node in nodes]
    for node, answer in zip(nodes, asked, strict=True):
        found = _code_of(ray, look, node, answer)
        if found not in (mine, None):
            raise BadInputError(
                "a node of the cluster has not this version of lpt",
                seen=f"{node['NodeManagerAddress']}: {found} is not {mine}",
                next="install the same version on every node, then run the same command again",
            )


def _ask(look: Any, node: dict[str, Any]) -> Any:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On

    return look.options(scheduling_strategy=On(node["NodeID"], soft=False)).remote()


def _code_of(ray: Any, look: Any, node: dict[str, Any], answer: Any) -> str | None:
    """The version on a node, or why it could not be told; None for a node that has left, which gets no work.

    Of a node that has just joined the scheduler may not know yet: it is asked again.
    """
    until = time.monotonic() + _PROBE_SECONDS
    while True:
        try:
            return ray.get(answer, timeout=_PROBE_SECONDS)
        except ray.exceptions.RayError as error:
            if not any(one["Alive"] and one["NodeID"] == node["NodeID"] for one in ray.nodes()):
                return None
            if not isinstance(error, ray.exceptions.TaskUnschedulableError) or time.monotonic() > until:
                return str(error).strip().splitlines()[-1]
        time.sleep(_ASK_AGAIN_SECONDS)
        answer = _ask(look, node)


def _their_code() -> str:
    return code_digest()


@contextlib.contextmanager
def _silenced() -> Iterator[None]:
    """Let nothing through to standard error: the C++ side announces there, by itself, that it will be quiet."""
    if sys.stderr is not None:
        sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


@contextlib.contextmanager
def _kept_aside(messages: list[str]) -> Iterator[None]:
    """Collect what Ray's listener would print on standard output, where it would end up in the middle of our JSON."""
    from ray._private import worker

    printing = getattr(worker, "print_to_stdstream", None)
    if printing is None:  # a test sees whether a newer Ray prints by another name
        yield
        return
    worker.print_to_stdstream = partial(_collect, messages)
    try:
        yield
    finally:
        worker.print_to_stdstream = printing


def _collect(messages: list[str], data: dict[str, Any], *_: Any, **__: Any) -> None:
    messages.extend(map(str, data.get("lines", ())))
