"""The command line in this process: an interpreter start costs more than most commands."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import json
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LPT = Path(sys.executable).parent / "lpt"


@dataclass(frozen=True)
class Outcome:
    """What a command left: its exit code and what it wrote."""

    code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> dict[str, Any]:
        """Standard output, which must be one JSON object and nothing else."""
        body = json.loads(self.stdout)
        assert isinstance(body, dict)
        return body

    @property
    def said(self) -> str:
        """Standard error with every run of white space as one space, so that line breaks do not matter."""
        return " ".join(self.stderr.split())


def invoke(*arguments: object, cwd: Path, stdin: str = "") -> Outcome:
    """`lpt ARGUMENTS` in `cwd`, in this process; the streams are no terminals."""
    from cli import main

    out, err = io.StringIO(), io.StringIO()
    argv, sys.argv = sys.argv, ["lpt", *map(str, arguments)]
    instream, sys.stdin = sys.stdin, io.StringIO(stdin)
    try:
        with contextlib.chdir(cwd), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                main.run()
                code = 0
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        sys.argv, sys.stdin = argv, instream
    return Outcome(code, out.getvalue(), err.getvalue())


def spawn(*arguments: object, cwd: Path, **options: Any) -> Outcome:
    """`lpt ARGUMENTS` as a user starts it."""
    ran = subprocess.run([LPT, *map(str, arguments)], cwd=cwd, capture_output=True, timeout=120, **options)
    return Outcome(ran.returncode, ran.stdout.decode(), ran.stderr.decode())


def on_a_terminal(*arguments: object, cwd: Path, columns: int | None = None) -> tuple[int, bytes]:
    """The exit code of `lpt ARGUMENTS`, and what a real terminal of so many columns is sent, colours and all."""
    master, slave = pty.openpty()
    if columns is not None:
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    process = subprocess.Popen([LPT, *map(str, arguments)], cwd=cwd, env=environment, stdout=slave, stderr=slave)
    os.close(slave)
    seen = b""
    with contextlib.suppress(OSError):  # Linux: the other side is closed
        while chunk := os.read(master, 65536):
            seen += chunk
    os.close(master)
    return process.wait(timeout=60), seen


def refused(outcome: Outcome, code: int, *words: str) -> Outcome:
    """Assert an error in its three parts, with its exit code, these words, no traceback and no data."""
    assert outcome.code == code, outcome
    assert "Traceback" not in outcome.stderr
    assert outcome.stderr.startswith("error: ") or "\nerror: " in outcome.stderr, outcome
    assert "\n  seen: " in outcome.stderr
    assert "\n  next: " in outcome.stderr
    for word in words:
        assert word in outcome.said, outcome.stderr
    return outcome


def contents(*folders: Path) -> dict[str, str]:
    """Every file under the folders with the digest of its bytes; lock files and the index, which are no records, not.

    Temporary names count: nothing may be left lying about.
    """
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest()
        for folder in folders
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "locks" not in path.parts and not path.name.startswith("catalog.duckdb")
    }


@contextlib.contextmanager
def unchanged(*folders: Path) -> Iterator[None]:
    """Assert that what runs inside adds, changes and removes no file."""
    before = contents(*folders)
    yield
    assert contents(*folders) == before


def jsonl(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """The rows as lines of JSON."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def sums(n: int, start: int = 0) -> list[dict[str, Any]]:
    """Countdown problems, each with its own key."""
    return [{"nums": [i + 2, 2 * i + 3], "target": 3 * i + 5} for i in range(start, start + n)]


def mount(folder: Path, *options: str) -> bool:
    """Mount a tmpfs over the folder; False where this user may not."""
    done = subprocess.run(["mount", "-t", "tmpfs", *options, "tmpfs", str(folder)], check=False, capture_output=True)
    return done.returncode == 0
