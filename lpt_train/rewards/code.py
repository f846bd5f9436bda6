"""Python programs judged by their unit tests, in processes that are locked in and can be killed.

The answer of a record is JSON text: ``{"tests": TEXT or [ASSERTION, …], "entry_point": NAME, "prefix": TEXT,
"solution": TEXT}``, the last two optional. The tests call the function of that name; a function ``check`` of theirs is
called with it (HumanEval), bare assertions are run (MBPP). ``prefix`` is what the program is a continuation of: its
imports and helpers, trusted, because they are the problem's. ``solution`` is a program that passes, for self tests.
The program is the last Python fence of the completion, or all of it. It must be plain functions over plain data; see
`trial` for how it is kept from its own verdict and `confine` for what it cannot do.

Too much CPU time, memory or waiting is a failure of the program: 0. The clock stands still while a program waits for a
processor, up to its time once more; one that even so had less than its time is None: a busy machine fails nobody. What
this machine cannot lock in is not run, and what cannot be read is None. Left out: programs judged by what they print,
tests of classes, packages besides the standard library.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lpt_train.rewards import trial
from lpt_train.rewards.verifier import Canary, Verifier

WALL_SECONDS = 4.0  # of one trial, not counting what it waits for a processor; its CPU time is limited to less
LEAST_WAIT = 0.05  # share of the time; a wait for a processor that is shorter gives no more time
# Of one process, by the names of its resource limits: seconds, bytes of memory and of a file, open files, threads.
LIMITS = {"CPU": 2, "AS": 512 << 20, "FSIZE": 8 << 20, "NOFILE": 32, "NPROC": 64}
START = (
    "import sys; sys.path.insert(0, sys.argv[1]); import trial; trial.main()"  # a module, so that it is compiled once
)
MAX_SOURCE = 200_000  # characters of a program, of tests, of a prefix
MAX_FOLDER = 32 << 20  # bytes that a program may have written when somebody looks
LOOK_EVERY = 0.05  # seconds between two looks
MAX_VERDICT = 1 << 16  # bytes

_FENCE = re.compile(r"```[ \t]*([^\s`]*)[^\n`]*\n(.*?)```", re.DOTALL)  # of any language, so that ends are no starts
_PYTHON = ("", "python", "python3", "py")


@dataclass(frozen=True)
class Problem:
    """The answer of a record."""

    tests: str
    entry_point: str
    prefix: str = ""
    solution: str | None = None


def problem(answer: str) -> Problem | None:
    """The tests of a record's answer, None where they cannot be read."""
    try:
        value = json.loads(answer)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    tests = value.get("tests", value.get("test", value.get("test_list")))
    if isinstance(tests, list) and all(isinstance(line, str) for line in tests):
        tests = "\n".join(tests)
    entry, prefix = value.get("entry_point"), value.get("prefix", "")
    solution = value.get("solution")
    if not isinstance(tests, str) or not isinstance(entry, str) or not isinstance(prefix, str):
        return None
    if not tests.strip() or not entry.isidentifier() or not isinstance(solution, str | None):
        return None
    if max(len(tests), len(prefix), len(solution or "")) > MAX_SOURCE:
        return None
    return Problem(tests, entry, prefix, solution)


def program(completion: str, given: Problem) -> str:
    """The program of a completion: its last Python fence or all of it, behind the prefix that it continues."""
    found = _FENCE.findall(completion) if "```" in completion else []
    fences = [code for language, code in found if language.lower() in _PYTHON]
    code = fences[-1] if fences else completion
    whole = re.search(rf"^(?:async[ \t]+)?def[ \t]+{re.escape(given.entry_point)}\b", code, re.MULTILINE)
    return f"{given.prefix}\n\n{code}" if whole and given.prefix else given.prefix + code


def run(
    source: str, given: Problem, *, limits: Mapping[str, int] = LIMITS, seconds: float = WALL_SECONDS
) -> tuple[str, str]:
    """Return (verdict, detail): passed, failed, broken (the tests), busy (the machine gave it too little time), unsafe
    (this machine cannot lock it in)."""
    nonce = secrets.token_hex(16)
    job = {"tests": given.tests, "entry_point": given.entry_point, "prefix": given.prefix, "nonce": nonce}
    folder = tempfile.mkdtemp(prefix="lpt-trial-")
    settings = {"folder": folder, "limits": dict(limits)}
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-X", "utf8", "-c", START, str(Path(trial.__file__).resolve().parent)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={"PATH": os.defpath, "HOME": folder, "TMPDIR": folder, "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "0"},
        cwd=folder,
        start_new_session=True,
    )
    try:
        said = _watched(process, [settings, source, job], folder, seconds)
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        shutil.rmtree(folder, ignore_errors=True)
    if said.get("verdict") in ("unsafe", "busy") and "nonce" not in said:
        return str(said["verdict"]), str(said.get("detail", ""))
    if said.get("nonce") != nonce:
        return "failed", str(said.get("detail", "the trial ended without a verdict"))
    return str(said["verdict"]), str(said["detail"])


def _watched(process: subprocess.Popen[bytes], messages: list[Any], folder: str, seconds: float) -> dict[str, Any]:
    """Feed a trial and return its verdict; one that takes too long or writes too much has none."""
    began, more = time.monotonic(), 0.0
    assert process.stdin is not None
    assert process.stdout is not None
    found = bytearray()
    with contextlib.suppress(BrokenPipeError):  # it ended before it had read all
        for message in messages:
            trial.send(process.stdin.fileno(), message)
    while True:
        left = began + seconds + more - time.monotonic()
        if left <= 0:
            waited = _waited(process.pid, seconds + more)
            if more >= seconds or waited - more < LEAST_WAIT * seconds:
                break
            more = min(seconds, waited)
            continue
        if not select.select([process.stdout], [], [], min(LOOK_EVERY, left))[0]:
            if _written(folder) > MAX_FOLDER:
                return {"detail": "the program wrote too much"}
            continue
        chunk = os.read(process.stdout.fileno(), MAX_VERDICT)
        found += chunk
        size = int.from_bytes(found[:4], "big") if len(found) >= 4 else MAX_VERDICT
        if not chunk or len(found) >= min(4 + size, MAX_VERDICT):
            with contextlib.suppress(ValueError):
                said = json.loads(bytes(found[4 : 4 + size]))
                return said if isinstance(said, dict) else {}
            return {}
    if more - waited < -LEAST_WAIT * seconds:  # of `seconds` of its own it had less
        return {"verdict": "busy", "detail": f"no verdict within {seconds + more:g} s on a busy machine"}
    return {"detail": f"no verdict within {seconds:g} s"}


def _waited(session: int, elapsed: float) -> float:
    """Seconds that the processes of a trial were ready to run and no processor was free; where the kernel does not
    tell, all the seconds in which they did not run."""
    waited = ran = 0.0
    told = True
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError, ValueError):  # it has just ended
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) != session:
                continue
            ran += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
            try:
                waited += int((entry / "schedstat").read_text().split()[1]) / 1e9
            except FileNotFoundError:
                told = False
    return waited if told else elapsed - ran


def _written(folder: str) -> int:
    total = 0
    for path in Path(folder).rglob("*"):
        with contextlib.suppress(OSError):
            total += path.lstat().st_size
    return total


def score(completion: str, answer: str) -> float | None:
    """1.0 when the program passes all tests, 0.0 when not; None where the tests cannot be read, run or locked in."""
    given = problem(answer)
    if given is None:
        return None
    source = program(completion, given)
    if len(source) > MAX_SOURCE:
        return 0.0
    verdict, detail = run(source, given)
    if verdict == "unsafe":
        raise OSError(f"this machine cannot lock a program in: {detail}")
    return {"passed": 1.0, "failed": 0.0}.get(verdict)


def parse_gold(answer: str) -> bool:
    """Whether the answer names tests and the function that they call."""
    return problem(answer) is not None


def gold_completion(answer: str) -> str | None:
    """A completion that must score 1: the solution that travels with the tests, None without one."""
    given = problem(answer)
    return None if given is None or given.solution is None else given.solution


def wrong_completion(answer: str) -> str | None:
    """A completion that must score 0: a function of the right name that leaves early."""
    given = problem(answer)
    return None if given is None else f"def {given.entry_point}(*args, **kwargs):\n    import sys\n    sys.exit(0)\n"


_GOLD = '{"tests": ["assert add(1, 2) == 3", "assert add(-1, 1) == 0"], "entry_point": "add"}'
VERIFIER = Verifier(
    name="code",
    score=score,
    parse_gold=parse_gold,
    gold_completion=gold_completion,
    wrong_completion=wrong_completion,
    canaries=(
        Canary("```python\ndef add(a, b):\n    return a + b\n```", _GOLD, 1.0),
        Canary("def add(a, b):\n    return a - b\n", _GOLD, 0.0),
        Canary("import os\ndef add(a, b):\n    os._exit(0)\n", _GOLD, 0.0),
        Canary("class A(int):\n    __eq__ = lambda *_: True\ndef add(a, b):\n    return A()\n", _GOLD, 0.0),
        Canary("def add(a, b):\n    return a + b\n", '{"tests": "assert (", "entry_point": "add"}', None),
    ),
)
