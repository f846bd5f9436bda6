"""Where the checkpoints of a run lie: which are complete, which is the newest, and how one takes the place of another.

step-000010/        a complete one; its number may grow past six digits
.old-step-000010/   the same step as it was before it was written again; complete, and used while step-000010 is not
.tmp-…/             half-written or half-deleted; never used
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Collection
from pathlib import Path

from manifests.files import FILE, fsync_folder, sweep_killed

STATE = "state.json"  # written last: a folder that has it is complete
_OLD = ".old-"
_NAME = re.compile(r"(?:\.old-)?step-([0-9]+)")


def name_of(step: int) -> str:
    """The name of the checkpoint of a step."""
    return f"step-{step:06d}"


def step_of(path: Path) -> int:
    """The step of a checkpoint by its name."""
    return int(path.name.rpartition("-")[2])


def checkpoints(directory: Path) -> list[Path]:
    """The complete checkpoints of a folder, oldest first: by number, one for each step."""
    found: dict[int, Path] = {}
    for path in sorted(directory.glob("*step-*")):  # .old-step-… before step-…, which replaces it
        named = _NAME.fullmatch(path.name)
        if named and (path / STATE).is_file():
            found[int(named[1])] = path
    return [found[step] for step in sorted(found)]


def latest(directory: Path) -> Path | None:
    """The newest complete checkpoint of a folder, if there is one."""
    found = checkpoints(directory)
    return found[-1] if found else None


def recover(directory: Path) -> None:
    """Finish what a kill interrupted: an old checkpoint gets its name back or, where it was replaced, goes."""
    sweep_killed(directory.parent, FILE)  # the record or the metrics of a run that was killed
    for old in directory.glob(f"{_OLD}step-*"):
        final = directory / old.name.removeprefix(_OLD)
        if (final / STATE).is_file():
            _set_aside(old)
        else:
            _set_aside(final)
            old.rename(final)
    fsync_folder(directory)
    _sweep(directory)


def put_in_place(temporary: Path, final: Path, keep_last: int, keep: Collection[str] = ()) -> None:
    """Give a written folder its name, on disk, and then remove all but it, the newest and those named in `keep`.

    At no moment is there less than there was: one that is replaced stays usable under another name meanwhile.
    """
    directory = final.parent
    if (final / STATE).is_file():
        final.rename(directory / f"{_OLD}{final.name}")
    else:
        _set_aside(final)
    temporary.rename(final)
    fsync_folder(directory)
    _set_aside(directory / f"{_OLD}{final.name}")
    others = [path for path in checkpoints(directory) if path != final]
    for old in others[: max(0, len(others) + 1 - keep_last)]:
        if old.name not in keep:
            _set_aside(old)
    _sweep(directory)


def forget_after(final: Path) -> None:
    """Remove the checkpoints of later steps than a checkpoint's: they come again."""
    found = checkpoints(final.parent)
    for later in found[found.index(final) + 1 :]:
        _set_aside(later)
    _sweep(final.parent)


def _set_aside(path: Path) -> None:
    """Renamed before it is deleted: a half-deleted folder must not look like a checkpoint."""
    if path.exists():
        path.rename(path.with_name(f".tmp-gone-{path.name}-{os.getpid()}"))


def _sweep(directory: Path) -> None:
    for leftover in directory.glob(".tmp-*"):
        shutil.rmtree(leftover, ignore_errors=True)
