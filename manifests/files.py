"""Writing so that a reader, a crash or a full disk never meets half a file, and locks that say who holds them."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import socket
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from manifests.errors import BadInputError, BusyError

FILE = "file"  # what `atomic_path` writes is called, for `sweep_killed`
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_POLL = 0.05  # seconds between two tries for a lock
_NEXT = {
    errno.ENOSPC: "free some space, or write to another disk, and run the same command again",
    errno.EDQUOT: "free some of your quota, or write to another disk, and run the same command again",
    errno.EROFS: "choose a folder that can be written to",
    errno.EACCES: "choose a folder that you may write to, or change its permissions",
    errno.EPERM: "choose a folder that you may write to, or change its permissions",
    errno.ENOENT: "make the folder first, or correct the path",
    errno.ENOTDIR: "a part of the path is a file; correct the path",
    errno.EISDIR: "name a file, not a folder",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.EFBIG: "write to a file system without that limit",
    errno.EEXIST: "choose another name",
    errno.ENOTEMPTY: "choose another name",
}


def cannot_write(path: Path | str, error: OSError) -> BadInputError:
    """Return the three-part error for a failed write to `path`."""
    advice = _NEXT.get(error.errno or 0, "check the path and the disk")
    return BadInputError(f"{path} cannot be written", seen=error.strerror or repr(error), next=advice)


@contextlib.contextmanager
def atomic_path(path: Path | str) -> Iterator[Path]:
    """Yield a path beside `path` to write to; on success it becomes `path`, on disk; on any error it is removed.

    Raises BadInputError in three parts when the disk is full or the folder is read-only. The temporary name starts with
    a dot and keeps the extension: writers that choose a format by extension still can, and globs do not see it.
    """
    final = Path(path)
    suffixes = "".join(final.suffixes[-2:])
    temporary = final.with_name(unfinished_name(FILE) + suffixes)
    try:
        yield temporary
        fsync_file(temporary)
        os.replace(temporary, final)
        fsync_folder(final.parent)
    except OSError as error:
        if error.filename not in (None, str(temporary), str(final)):
            raise  # another file's trouble, met while this one was being written
        raise cannot_write(final, error) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def write_atomic(path: Path | str, data: bytes) -> None:
    """Write `data` to `path` whole or not at all."""
    with atomic_path(path) as temporary, open(temporary, "wb") as file:
        file.write(data)


def fsync_file(path: Path | str) -> None:
    """Flush the contents of a file, or of a folder's list of names, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def fsync_folder(path: Path | str) -> None:
    """Flush a folder's names to the disk; a file system that cannot do that for folders is no error."""
    with contextlib.suppress(OSError):
        fsync_file(path)


def unfinished_name(what: str) -> str:
    """A temporary name that says whose it is, so that `sweep_killed` knows what a kill left behind."""
    return f".tmp-{what}-{_owners()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"


def _owners() -> str:
    """The processes among which a pid names one: of this machine and, on Linux, of this boot and namespace of pids.

    Machines and containers of one host name that share a folder see none of each other's pids. The first namespace has
    one number on every Linux, so it tells containers of a machine apart and the boot tells machines apart.
    """
    owners = socket.gethostname()
    with contextlib.suppress(OSError):
        owners += f"-b{_BOOT.read_text()[:8]}"  # a letter first: no version of a name takes it for a pid
    with contextlib.suppress(OSError):
        owners += f"-{os.stat('/proc/self/ns/pid').st_ino}"
    return owners


def sweep_killed(parent: Path, what: str) -> None:
    """Remove what killed processes left under `unfinished_name`, files and folders; a living one keeps its own, and so
    does every process of another machine, boot or namespace of pids."""
    prefix = f".tmp-{what}-{_owners()}-"
    for left in parent.iterdir() if parent.is_dir() else ():
        pid = left.name.removeprefix(prefix).partition("-")[0]
        if left.name.startswith(prefix) and pid.isdigit() and not _alive(int(pid)):
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                with contextlib.suppress(OSError):  # another process has swept it, or this one may not
                    left.unlink()


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def make_folder(path: Path | str) -> Path:
    """Make a folder and those above it, or raise BadInputError in three parts."""
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(path, error) from error
    return Path(path)


@contextlib.contextmanager
def exclusive_lock(path: Path | str, *, wait: float = 5.0, what: str = "this file") -> Iterator[None]:
    """Hold a lock file; after `wait` seconds raise BusyError naming the process that holds it.

    The kernel drops the lock when its process ends, however it ends, so a lock file left behind blocks nobody and is
    not deleted: deleting it would let two processes hold locks on two files of one name.
    """
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise cannot_write(path, error) from error
    try:
        _acquire(handle, path, wait, what)
        _write_holder(handle)
        yield
    finally:
        with contextlib.suppress(OSError):
            os.ftruncate(handle, 0)
        os.close(handle)


def _acquire(handle: int, path: Path | str, wait: float, what: str) -> None:
    deadline = time.monotonic() + wait
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise BusyError(
                    f"{what} is in use by another process",
                    seen=f"{_read_holder(handle)} holds {path}",
                    next=f"wait for it to end, then run the same command again (waited {wait:g} s)",
                ) from None
            time.sleep(_POLL)
        except OSError as error:  # some network file systems have no locks
            raise BadInputError(
                f"{path} cannot be locked", seen=error.strerror, next="use a folder on a local disk"
            ) from error


def _write_holder(handle: int) -> None:
    command = " ".join(sys.argv)[:200]
    with contextlib.suppress(OSError):  # the note is a courtesy: a full disk must not turn it into an error
        os.ftruncate(handle, 0)
        os.pwrite(handle, json.dumps({"pid": os.getpid(), "command": command}).encode(), 0)


def _read_holder(handle: int) -> str:
    try:
        holder = json.loads(os.pread(handle, 4096, 0))
        return f"pid {holder['pid']} `{holder['command']}`"
    except (OSError, ValueError, KeyError, TypeError):
        return "a process that left no name"
