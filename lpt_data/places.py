"""Where a stage writes: outputs checked before any work, a lock for each, and nothing left behind by a kill."""

from __future__ import annotations

import functools
import hashlib
import os
import resource
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from lpt_data.dataset import Dataset
from lpt_data.io.sources import Mark, SourceFile, format_of, input_changed, mark_of
from manifests.digests import bytes_sha256
from manifests.errors import BadInputError
from manifests.files import cannot_write, make_folder, write_atomic

if TYPE_CHECKING:
    from manifests.catalog import Catalog


def check_outputs(outputs: Sequence[Path], dataset: Dataset, references: Sequence[SourceFile] = ()) -> None:
    """Refuse, before any work, an output that is an input, a folder, of no known format or in no writable folder."""
    inputs = {os.path.realpath(source.path): source.path for source in (*dataset.files, *references)}
    for path in outputs:
        format_of(path)
        try:
            os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError as error:  # a name too long, a folder that may not be entered
            raise cannot_write(path, error) from error
        if os.path.realpath(path) in inputs:
            raise BadInputError("an output is one of the inputs", seen=str(path), next="choose another name for --out")
        if path.is_dir():
            raise BadInputError("an output is a folder", seen=str(path), next="name a file, such as out.jsonl")
        folder = path.parent
        if not folder.is_dir():
            raise BadInputError("the folder of an output does not exist", seen=str(folder), next=f"mkdir -p {folder}")
        _check_writable(folder, path)


def _check_writable(folder: Path, path: Path) -> None:
    """Try it: permissions alone do not tell for read-only disks, nor for the superuser."""
    probe = folder / f".tmp-{os.getpid()}-probe"
    try:
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise cannot_write(path, error) from error


def file_entry(path: Path, rows: int) -> dict[str, Any]:
    """Return how an output is recorded."""
    return {"path": str(path), "bytes": path.stat().st_size, "sha256": bytes_sha256(path), "rows": rows}


def intact(file: Mapping[str, Any]) -> bool:
    """Tell whether a recorded file is there and has the bytes that were recorded."""
    return os.path.isfile(file["path"]) and bytes_sha256(file["path"]) == file["sha256"]


def mark(path: str) -> Mark:
    """Return the mark of an input, to notice that it becomes another one meanwhile."""
    try:
        return mark_of(os.stat(path))
    except OSError:
        raise input_changed(path) from None


def check_marks(marks: Mapping[str, Mark]) -> None:
    """Raise InputChangedError for an input, by path, whose mark is another by now."""
    for path, before in marks.items():
        if mark(path) != before:
            raise input_changed(path)


def decisions_entry(catalog: Catalog, stage_id: str, rows: int) -> dict[str, Any]:
    """Return how the decisions of a stage are recorded: the path within the catalog."""
    path = catalog.decisions_path(stage_id)
    return {"path": str(path.relative_to(catalog.directory)), "sha256": bytes_sha256(path), "rows": rows}


def lock_path(catalog: Catalog, output: Path) -> Path:
    """Return the lock file of an output; it lies in the catalog, not beside the output."""
    name = hashlib.sha256(os.fsencode(os.path.realpath(output))).hexdigest()[:16]
    return make_folder(catalog.directory / "locks") / f"output-{name}.lock"


def note_leftovers(lock: Path, temporaries: Sequence[Path]) -> None:
    """Write down the names of unfinished files, so that the next run under this lock can remove what a kill leaves."""
    write_atomic(lock.with_suffix(".unfinished"), orjson.dumps([os.path.abspath(path) for path in temporaries]))


def remove_leftovers(lock: Path) -> None:
    """Remove the unfinished files that an earlier run under this lock wrote down."""
    note = lock.with_suffix(".unfinished")
    try:
        names = orjson.loads(note.read_bytes())
    except (OSError, ValueError):
        return
    for name in names if isinstance(names, list) else []:
        path = Path(str(name))
        if path.name.startswith(".tmp-"):
            path.unlink(missing_ok=True)
    note.unlink(missing_ok=True)


def peak_memory_bytes() -> int:
    """Return the largest resident size of this process or of one of its ended children.

    Linux counts in ru_maxrss what the process was before it became this program: a large parent's size, when it forks.
    """
    unit = 1 if sys.platform == "darwin" else 1024
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * unit
    try:
        high = Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]
        return max(int(high) * 1024, children)
    except (OSError, IndexError, ValueError):
        return max(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit, children)


@functools.cache
def code_digest() -> str:
    """Return the digest of the code that decides and reads: results of one version are not taken for those of
    another.
    """
    import lpt_data
    import manifests

    digest = hashlib.sha256()
    for path in _sources(Path(str(lpt_data.__file__)).parent, Path(str(manifests.__file__)).parent):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _sources(*folders: Path) -> Iterator[Path]:
    for folder in folders:
        yield from sorted(folder.rglob("*.py"))
