"""The process that runs rewards: no tensor library, no network, bounded memory and CPU time, killable at any moment.

`lpt_train.rewards.pool` starts this file as a script and speaks length-prefixed JSON with it over two pipes. JSON,
because what runs here is a user's function over a model's text: an unpickled reply could run code in the trainer.
``print`` in a reward goes to standard error, never into the pipe.

Left out: a sandbox for a user's functions. The limits hold against accidents (loops, leaks, crashes), not against an
attacker; programs that a model wrote run in processes of their own (`lpt_train.rewards.confine`).
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import inspect
import json
import math
import os
import resource
import signal
import struct
import sys
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO

import orjson

HEADER = struct.Struct(">I")
CLONE_NEWUSER, CLONE_NEWNET, PR_SET_PDEATHSIG = 0x10000000, 0x40000000, 1
# Audit events that would reach a network, or a program that the audit hook does not follow into.
NETWORK_EVENTS = ("socket.", "subprocess.Popen", "os.exec", "os.posix_spawn", "os.system", "os.fork")

Scored = tuple[list[Any], list[str], str]  # values, reasons ("" where there is one), detail of one failure
BatchFunction = Callable[[dict[str, list[str]], str], Scored]  # columns and what is asked of a verifier


def read_frame(stream: BinaryIO) -> dict[str, Any] | None:
    """The next message, or None at the end of the stream."""
    header = stream.read(HEADER.size)
    if len(header) < HEADER.size:
        return None
    return parse(stream.read(HEADER.unpack(header)[0]))


def parse(body: bytes) -> dict[str, Any]:
    """The message that `frame` wrote; ValueError for what is none."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return json.loads(body)  # orjson has no lone surrogates


def frame(message: dict[str, Any]) -> bytes:
    """A message as it travels: four bytes of length, then JSON, where lone surrogates survive as escapes."""
    try:
        body = orjson.dumps(message)
    except TypeError:
        body = json.dumps(message).encode("ascii")
    return HEADER.pack(len(body)) + body


def leave_network(*, hook: bool = True) -> str:
    """Cuts the network off: an empty network namespace where the kernel allows one, else an audit hook; says which.

    Without `hook` no audit hook is set: the verifiers of the table open no connection, and `code` starts processes.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    uid, gid = os.getuid(), os.getgid()
    if libc.unshare(CLONE_NEWNET) == 0:
        return "namespace"
    if libc.unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0:
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            # Some kernels hand out the namespace and refuse the maps: the network is gone, names of users are lost.
            with contextlib.suppress(OSError), open(f"/proc/self/{name}", "w", encoding="ascii") as handle:
                handle.write(text)
        return "namespace"
    if not hook:
        return "none needed"

    def refuse(event: str, _args: tuple[Any, ...]) -> None:
        if event.startswith(NETWORK_EVENTS):
            raise PermissionError(f"rewards run without network and without other programs ({event})")

    sys.addaudithook(refuse)
    return "audit hook"


def limit(memory_bytes: int) -> None:
    """Bounds the address space, writes no core, and ends with the thread that started it (Linux)."""
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def limit_cpu(seconds: float) -> None:
    """Allows so many more seconds of CPU time, in case that nobody is left to kill this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    soft = math.ceil(usage.ru_utime + usage.ru_stime + seconds) + 1
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))


def checked(value: Any) -> tuple[float | None, str]:
    """A returned reward as a finite float, or None with the reason."""
    if value is None:
        return None, "no_score_given"
    try:
        number = float(value) if not isinstance(value, (str, bytes)) else None
    except (TypeError, ValueError, OverflowError):
        number = None
    if number is None:
        return None, "not_a_number"
    return (number, "") if math.isfinite(number) else (None, "not_finite")


def failed(n: int, error: BaseException) -> Scored:
    """What a call that raised leaves for its ``n`` items."""
    reason = "memory_limit_reached" if isinstance(error, MemoryError) else "error_raised"
    return [None] * n, [reason] * n, f"{type(error).__name__}: {error}"[:300]


def verifier_batch(columns: dict[str, list[str]], verifier_of: Callable[[str], Any], function: str) -> Scored:
    """Asks the verifier of its name about each item: `score`, or a function of the answer alone."""
    values: list[Any] = []
    reasons: list[str] = []
    detail = ""
    for completion, answer, name in zip(columns["completions"], columns["answers"], columns["verifiers"], strict=True):
        try:
            asked = getattr(verifier_of(name), function)
            value, reason = checked(asked(completion, answer)) if function == "score" else (asked(answer), "")
        except Exception as error:
            (value,), (reason,), detail = failed(1, error)
        values.append(value)
        reasons.append(reason)
    return values, reasons, detail


def function_batch(function: Callable[..., Any], columns: dict[str, list[str]]) -> Scored:
    """Calls a user's function once with the columns that it can take; its result must have one value per
    completion."""
    n = len(columns["completions"])
    offered = {**columns, "answer": columns["answers"]}
    try:
        parameters = inspect.signature(function).parameters
        takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        if "completions" in parameters or takes_all:
            result = function(**{k: list(v) for k, v in offered.items() if takes_all or k in parameters})
        else:
            result = function(list(columns["completions"]), list(columns["answers"]))
        result = list(result)
    except Exception as error:
        return failed(n, error)
    if len(result) != n:
        return [None] * n, ["wrong_length"] * n, f"{len(result)} values for {n} completions"
    pairs = [checked(value) for value in result]
    return [value for value, _ in pairs], [reason for _, reason in pairs], ""


def load_term(name: str) -> BatchFunction:
    """The batch function of one term: a user's ``module:function``, a verifier of the table, or the record's own."""
    if ":" in name:
        module, _, attribute = name.partition(":")
        function = getattr(importlib.import_module(module), attribute)
        if not callable(function):
            raise TypeError(f"{name} is a {type(function).__name__}, not a function")
        return lambda columns, _asked: function_batch(function, columns)
    from lpt_train.rewards import FROM_RECORD, REWARDS

    if name == FROM_RECORD:
        return lambda columns, asked: verifier_batch(columns, lambda verifier: REWARDS[verifier], asked)
    return lambda columns, asked: verifier_batch(columns, lambda _: REWARDS[name], asked)


def serve(requests: BinaryIO, replies: BinaryIO) -> None:
    """Reads the settings, says whether all terms could be loaded, then answers one batch after the other."""
    settings = read_frame(requests)
    if settings is None:
        return

    def reply(message: dict[str, Any]) -> None:
        replies.write(frame(message))
        replies.flush()

    sys.path[:] = settings["path"]
    network = leave_network(hook=any(":" in name for name in settings["terms"]))
    limit(settings["memory_bytes"])
    terms: list[BatchFunction] = []
    for name in settings["terms"]:
        try:
            terms.append(load_term(name))
        except (Exception, SystemExit) as error:
            reply({"error": f"{name}: {type(error).__name__}: {error}"[:300]})
            return
    reply({"network": network})
    while (request := read_frame(requests)) is not None:
        limit_cpu(settings["seconds"])
        values, reasons, detail = terms[request["term"]](request["columns"], request["asked"])
        reply({"values": values, "reasons": reasons, "detail": detail})


def main(_argv: Sequence[str] = ()) -> None:
    """Takes the pipes away from standard input and output, then serves."""
    requests = os.fdopen(os.dup(0), "rb")
    replies = os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    serve(requests, replies)


if __name__ == "__main__":
    main()
