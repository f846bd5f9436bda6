"""Where a run may begin, and that a refused one leaves nothing behind. Free to import (no torch)."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from manifests.errors import UsageError

MATRIX_LOCK = ".matrix.lock"  # what the folder of a matrix has from its first moment


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
    """Around a run that may be refused: where it ends before it has a record, the folders that it made go again."""
    made = [folder for folder in (out, *out.parents) if not folder.exists()]
    tiny = not (out / "tiny").exists()
    try:
        yield
    except BaseException:
        if not (out / "run.json").exists():
            with contextlib.suppress(OSError):  # one that holds something else stays
                if tiny:
                    shutil.rmtree(out / "tiny", ignore_errors=True)
                for folder in made:
                    folder.rmdir()
        raise
