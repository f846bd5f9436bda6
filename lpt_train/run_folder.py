"""Where a run may begin, and that a refused one leaves nothing behind. Free to import (no torch)."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from manifests.errors import BusyError, UsageError

MATRIX_LOCK = ".matrix.lock"  # what the folder of a matrix has from its first moment
_BEFORE_A_RECORD = ("tiny", "rewards.log", "checkpoints", ".lock")  # what a run makes before it


def check_new(out: Path) -> None:
    """Raise `UsageError` where a folder holds a run or a matrix already."""
    if (out / "run.json").exists():
        raise UsageError(
            "the folder holds a run already", seen=str(out),
            next=f"choose another --out, or go on with that run: --resume {out}",
        )  # fmt: skip
    if (out / MATRIX_LOCK).exists() or (out / "matrix.md").exists():
        raise UsageError(
            "the folder holds a matrix, whose runs lie in folders of their own", seen=str(out),
            next="choose another --out, one for the run alone",
        )  # fmt: skip


@contextlib.contextmanager
def nothing_left(out: Path) -> Iterator[None]:
    """Around a run that may be refused: where it ends before it has a record, what it made goes again.

    What a reward said stays, since the refusal names the log that has it; so does the lock of another run.
    """
    made = [folder for folder in (out, *out.parents) if not folder.exists()]
    own = [path for path in (out / name for name in _BEFORE_A_RECORD) if not path.exists()]
    try:
        yield
    except BaseException as error:
        if not (out / "run.json").exists() and not isinstance(error, BusyError):
            for path in own:
                _remove(path)
            with contextlib.suppress(OSError):  # one that holds something else stays
                for folder in made:
                    folder.rmdir()
        raise


def _remove(path: Path) -> None:
    """Remove the tiny model, a folder or a log that is empty, and a lock."""
    with contextlib.suppress(OSError):
        if path.name == "tiny":
            shutil.rmtree(path)
        elif path.is_dir():
            path.rmdir()
        elif path.name == ".lock" or path.stat().st_size == 0:
            path.unlink()
