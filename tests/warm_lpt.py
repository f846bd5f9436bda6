"""Programs in processes of their own that need not load other people's libraries first, which takes seconds.

One process loads those (torch and transformers among them), uses none of them, and is forked for every program. Ours
are imported by each program anew; its arguments, folder, environment, streams and end are its own. What is otherwise
than from a shell: the start, and that the peak of its memory begins with the libraries. Where there is a CUDA device,
which does not survive a fork, each program is begun afresh.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COMMAND = "from cli.main import run; run()"
ALIKE = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}  # read while libraries are loaded


@dataclass
class Program:
    """A running program; `wait` gives what it wrote and how it ended, as `subprocess` tells it."""

    arguments: list[str]
    pid: int
    warm: Warm
    out: Path
    err: Path

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self) -> subprocess.CompletedProcess[str]:
        code = self.warm.answer()
        out, err = self.out.read_text("utf-8"), self.err.read_text("utf-8")
        return subprocess.CompletedProcess(self.arguments, code, out, err)


class Warm:
    """The process that is forked. One program at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        environment = {**os.environ, **ALIKE}
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
        )

    def answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the process that is forked has ended"
        return json.loads(line)

    @contextlib.contextmanager
    def start(
        self, *arguments: object, cwd: Path, env: Mapping[str, str] | None = None, code: str = COMMAND
    ) -> Iterator[Program]:
        """`python -c CODE ARGUMENTS`, by default `lpt ARGUMENTS`; killed where it is left before its end."""
        assert self._process.stdin is not None
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        words = list(map(str, arguments))
        asked = {
            "code": code, "arguments": words, "cwd": str(cwd), "env": {**(os.environ if env is None else env), **ALIKE},
            "out": str(folder / "out"), "err": str(folder / "err"),
        }  # fmt: skip
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        program = Program(words, self.answer(), self, folder / "out", folder / "err")
        try:
            yield program
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                program.send_signal(signal.SIGKILL)
                self.answer()
            raise

    def run(self, *arguments: object, cwd: Path, env: Mapping[str, str] | None = None, code: str = COMMAND) -> Any:
        """The program's `subprocess.CompletedProcess`."""
        with self.start(*arguments, cwd=cwd, env=env, code=code) as program:
            return program.wait()

    def close(self) -> None:
        with self._process:
            assert self._process.stdin is not None
            self._process.stdin.close()


def _take_over(asked: dict[str, Any]) -> None:
    """Make of this forked process the one that was asked for, and run it to its end."""
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["env"])
    sys.argv, sys.path[0] = ["-c", *asked["arguments"]], ""
    writing = os.O_WRONLY | os.O_CREAT
    for number, (path, flags) in enumerate(
        ((os.devnull, os.O_RDONLY), (asked["out"], writing), (asked["err"], writing))
    ):
        opened = os.open(path, flags, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    if sys.modules["torch"].cuda.is_available():
        os.execv(sys.executable, [sys.executable, "-c", asked["code"], *asked["arguments"]])
    sys.modules["__main__"] = main = types.ModuleType("__main__")
    code: object = 0
    try:
        exec(compile(asked["code"], "<string>", "exec"), main.__dict__)
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    # As the interpreter ends, but for the modules, whose pages would be copied to be taken apart.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 1)


def _serve() -> None:
    """Fork for each line of standard input; tell the process and then how it ended."""
    for name in ("duckdb", "numba", "peft", "polars", "pyarrow.dataset", "pyarrow.parquet", "pydantic", "typer.main"):
        importlib.import_module(name)
    gc.freeze()
    for line in sys.stdin:
        if (pid := os.fork()) == 0:
            _take_over(json.loads(line))
        os.write(1, b"%d\n" % pid)
        os.write(1, b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


if __name__ == "__main__":
    _serve()
