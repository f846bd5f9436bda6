"""The process in which a program meets its tests: `lpt_train.rewards.code` starts a bare interpreter that runs `main`.

Two processes, both locked in (`confine`) before anything that was not written here runs:

    tests  ── call(arguments) ──▶  program        plain data both ways: numbers, text, lists, tuples, sets, dicts, bytes
           ◀── value or error ───

The program never sees the tests, what they expect, or the nonce that a verdict has to carry, so leaving early
(``sys.exit``, ``os._exit``), patched built-ins, objects that equal everything, or a printed verdict win nothing: what
comes back is rebuilt here as plain data, and a program that is gone has failed. Names that the tests use are those of
the trusted prefix; only what is missing there is asked of the program, and never a built-in.
"""

from __future__ import annotations

import builtins
import json
import os
import sys

TYPE_CHECKING = False  # the real one costs 5 ms of every trial
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeAlias

    Json: TypeAlias = Any

MAX_FRAME = 4 << 20  # bytes of one message
ENDS = (StopIteration, StopAsyncIteration)  # what Python takes for the end of a loop


def read_exact(descriptor: int, size: int) -> bytes:
    """So many bytes and not one more: what lies behind them stays in the pipe, out of this process's memory."""
    found = b""
    while len(found) < size:
        chunk = os.read(descriptor, size - len(found))
        if not chunk:
            raise EOFError("the other side is gone")
        found += chunk
    return found


def receive(descriptor: int) -> Json:
    """The next message: four bytes of length, then JSON."""
    size = int.from_bytes(read_exact(descriptor, 4), "big")
    if size > MAX_FRAME:
        raise ValueError("a message is too long")
    return json.loads(read_exact(descriptor, size))


def send(descriptor: int, message: Json) -> None:
    """Write one message."""
    body = json.dumps(message).encode("ascii")
    if len(body) > MAX_FRAME:
        raise ValueError("a message is too long")
    view = memoryview(len(body).to_bytes(4, "big") + body)
    while view:
        view = view[os.write(descriptor, view) :]


def pack(value: Any) -> Json:
    """Plain data as JSON that tells a tuple from a list and 1 from 1.0; TypeError for anything else."""
    if value is None or isinstance(value, (bool, str)):
        return value if value is None or type(value) is bool else str.__str__(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return ["float", float(value).hex()]
    if isinstance(value, complex):
        return ["complex", value.real.hex(), value.imag.hex()]
    if isinstance(value, (bytes, bytearray)):
        return [type(value).__name__, bytes(value).hex()]
    if isinstance(value, range):
        return ["range", value.start, value.stop, value.step]
    for kind in (list, tuple, set, frozenset):
        if isinstance(value, kind):
            return [kind.__name__, [pack(item) for item in value]]
    if isinstance(value, dict):
        return ["dict", [[pack(key), pack(item)] for key, item in value.items()]]
    raise TypeError(f"a {type(value).__name__} is no plain data")


def unpack(packed: Json) -> Any:
    """The value that `pack` was given, made of exact built-in types."""
    if not isinstance(packed, list):
        if isinstance(packed, (float, dict)):
            raise ValueError("no packed value")
        return packed
    kind, *rest = packed
    if kind == "float":
        return float.fromhex(rest[0])
    if kind == "complex":
        return complex(float.fromhex(rest[0]), float.fromhex(rest[1]))
    if kind in ("bytes", "bytearray"):
        return (bytes if kind == "bytes" else bytearray).fromhex(rest[0])
    if kind == "range":
        return range(*(int(n) for n in rest))
    if kind == "dict":
        return {unpack(key): unpack(item) for key, item in rest[0]}
    made = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}[kind]
    return made(unpack(item) for item in rest[0])


# -- the program's side


def serve_program(asked: int, answers: int, source: str) -> None:
    """Run a program, say what it defines, then answer calls until nobody asks."""
    space: dict[str, Any] = {"__name__": "program", "__builtins__": builtins}
    try:
        exec(compile(source, "<program>", "exec"), space)
    except BaseException as error:
        send(answers, {"error": [type(error).__name__, _words(error)]})
        return
    send(answers, {"names": [name for name, value in space.items() if type(name) is str and callable(value)]})
    while True:
        request = receive(asked)
        args, kwargs = unpack(request["args"]), unpack(request["kwargs"])
        try:
            value = space[request["name"]](*args, **kwargs)
            reply = {"value": pack(value)}
        except BaseException as error:
            reply = {"error": [type(error).__name__, _words(error)]}
        try:
            reply["args"] = pack(args)
        except (TypeError, ValueError, RecursionError):
            reply["args"] = None
        send(answers, reply)


def _words(error: BaseException) -> str:
    try:
        return str(error)[:200]
    except BaseException:
        return ""


# -- the tests' side


class ProgramError(BaseException):
    """The program is gone, or answered with what is no answer. No ``except Exception`` of a test takes it for one."""


class Untestable(BaseException):
    """The tests give the program what is no plain data: nobody can say whether it is right."""


class Remote:
    """The program as the tests see it; `calls` counts what was asked of it."""

    def __init__(self, asks: int, answered: int) -> None:
        self.asks, self.answered, self.calls = asks, answered, 0

    def receive(self) -> dict[str, Any]:
        """The program's next message; `ProgramError` where there is none."""
        try:
            reply = receive(self.answered)
        except (OSError, EOFError, ValueError, RecursionError) as error:
            raise ProgramError(f"the program ended or answered nonsense: {type(error).__name__}") from None
        if not isinstance(reply, dict):
            raise ProgramError("the program answered nonsense")
        return reply

    def function(self, name: str) -> Callable[..., Any]:
        """A function that calls the one of that name in the program."""

        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            try:
                send(self.asks, {"name": name, "args": pack(list(args)), "kwargs": pack(kwargs)})
            except OSError:
                raise ProgramError("the program ended") from None
            except TypeError as error:
                raise Untestable(f"an argument of the tests: {error}") from None
            reply = self.receive()
            if "error" in reply:
                raise _raised(reply["error"])
            try:
                value, after = unpack(reply["value"]), unpack(reply.get("args"))
            except Exception:
                raise ProgramError("the program answered nonsense") from None
            _write_back(args, after)
            return value

        call.__name__ = name
        return call


def _raised(error: Any) -> Exception:
    """The error that the program raised, as a built-in one of that name where there is one.

    Never one that ends a loop of the tests: `all(map(…))` over cases would be over before the first was judged.
    """
    name, words = error if isinstance(error, list) and len(error) == 2 else ("Exception", "")
    kind = getattr(builtins, name, None) if isinstance(name, str) else None
    if isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, ENDS):
        try:
            return kind(words)
        except TypeError:
            pass
    return Exception(f"{name}: {words}")


def _write_back(args: tuple[Any, ...], after: Any) -> None:
    """Change what the program changed in place."""
    for mine, theirs in zip(args, after if isinstance(after, list) else (), strict=False):
        if type(mine) is not type(theirs) or mine == theirs:
            continue
        if isinstance(mine, (list, bytearray)):
            mine[:] = theirs
        elif isinstance(mine, (dict, set)):
            mine.clear()
            mine.update(theirs)


def run_tests(remote: Remote, job: dict[str, Any]) -> tuple[str, str]:
    """Return (verdict, detail): passed, failed, or broken where the tests themselves cannot be run."""
    space: dict[str, Any] = {"__name__": "tests", "__builtins__": builtins}
    entry = job["entry_point"]
    for rest in ("", "\n    pass\n"):  # what stops at the head of a function has helpers of the problem all the same
        try:
            exec(compile(job["prefix"] + rest, "<prefix>", "exec"), space)
            break
        except Exception:  # or in the middle of one, and is none the worse for it
            space = {"__name__": "tests", "__builtins__": builtins}
    try:
        code = compile(job["tests"], "<tests>", "exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return "broken", f"the tests cannot be compiled: {_words(error)}"
    loaded = remote.receive()
    if "error" in loaded or not isinstance(loaded.get("names"), list):
        return "failed", f"the program does not load: {loaded.get('error')}"[:200]
    for name in loaded["names"]:
        if isinstance(name, str) and name not in space and not hasattr(builtins, name):
            space[name] = remote.function(name)
    space[entry] = remote.function(entry)
    exec(code, space)
    check = space.get("check")
    if check is not None and getattr(getattr(check, "__code__", None), "co_filename", "") == "<tests>":
        check(remote.function(entry))
    return ("passed", "") if remote.calls else ("broken", "the tests never call the program")


def main() -> None:
    """Read the folder and the limits, then the program; fork it off; then read the tests and judge."""
    import confine  # from the folder of this file, which is taken off the path

    sys.path.remove(sys.argv[1])
    verdict = os.dup(1)
    settings = receive(0)
    folder, limits = settings["folder"], settings["limits"]
    source = receive(0)
    confine.die_with_parent()
    os.chdir(folder)
    asked, asks = os.pipe()
    answered, answers = os.pipe()
    null = os.open(os.devnull, os.O_RDWR)
    if os.fork() == 0:
        confine.die_with_parent()
        for standard in (0, 1, 2):
            os.dup2(null, standard)
        keep = (0, 1, 2, asked, answers)
        _close_others(keep)
        confine.confine(folder, limits)
        serve_program(asked, answers, source)
        os._exit(0)
    os.dup2(null, 1)
    os.dup2(null, 2)
    _close_others((0, 1, 2, verdict, asks, answered))
    try:
        confine.confine(folder, limits)
    except OSError as error:
        send(verdict, {"verdict": "unsafe", "detail": str(error)})
        os._exit(1)
    job = receive(0)
    try:
        said, detail = run_tests(Remote(asks, answered), job)
    except Untestable as error:
        said, detail = "broken", str(error)[:200]
    except BaseException as error:
        said, detail = "failed", f"{type(error).__name__}: {_words(error)}"[:200]
    send(verdict, {"nonce": job["nonce"], "verdict": said, "detail": detail})
    os._exit(0)


def _close_others(keep: tuple[int, ...]) -> None:
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor not in keep:
            try:
                os.close(descriptor)
            except OSError:
                continue
