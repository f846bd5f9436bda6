"""The log of the catalog: one line for each object, in the order they were recorded, each line naming the one before.

    line = {"at", "facets", "object", "prev", "seq", "type"} as JSON with sorted keys
    head = sha256("lpt-event/1" 0x00 line)

The chain shows any change to a line that others follow. It cannot show that its own tail was cut off: that is why
commands that write print the head, and why a copy of it belongs in a commit or a model card. The log is also the
spool of the DuckDB index: what the index has not read yet is simply further down.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from manifests.errors import BadInputError
from manifests.files import cannot_write, exclusive_lock, fsync_folder

GENESIS = "0" * 64
_FACETS = ("name", "version", "stage_id", "stage", "run_id")  # body fields that `find` is asked for most
_TAIL = 1 << 16


@dataclass(frozen=True)
class Event:
    """One line of the log; `end` is the byte at which the next one starts."""

    seq: int
    prev: str
    at: str
    type: str
    object: str
    facets: dict[str, Any]
    hash: str
    end: int


class EventLog:
    """The file `events.jsonl`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, object_id: str, body: dict[str, Any], *, wait: float = 30.0) -> Event:
        """Record an object under the lock and return its event once it is on the disk."""
        with exclusive_lock(self.path.with_suffix(".lock"), wait=wait, what="the log of the catalog"):
            try:
                self._heal()
                last = self.last()
                event = {
                    "seq": last.seq + 1 if last else 0,
                    "prev": last.hash if last else GENESIS,
                    "at": now(),
                    "type": body["type"],
                    "object": object_id,
                    "facets": {name: body[name] for name in _FACETS if isinstance(body.get(name), (str, int))},
                }
                line = orjson.dumps(event, option=orjson.OPT_SORT_KEYS)
                return _parse(line, self._write(line + b"\n"), self.path)
            except OSError as error:
                raise cannot_write(self.path, error) from error

    def read(self, start: int = 0) -> Iterator[Event]:
        """Yield the events from byte `start` on; a last line without its newline is not there yet."""
        file = self._open()
        if file is None:
            return
        with file:
            file.seek(start)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                start += len(line)
                yield _parse(line[:-1], start, self.path)

    def last(self) -> Event | None:
        """Return the last whole event, reading only the end of the file."""
        file = self._open()
        if file is None:
            return None
        with file:
            size = file.seek(0, os.SEEK_END)
            window = _TAIL
            while True:
                start = max(0, size - window)
                file.seek(start)
                data = file.read(size - start)
                whole = data.rfind(b"\n")
                before = data.rfind(b"\n", 0, whole) if whole >= 0 else -1
                if whole >= 0 and (before >= 0 or start == 0):
                    return _parse(data[before + 1 : whole], start + whole + 1, self.path)
                if start == 0:
                    return None
                window *= 4

    def verify(self) -> int:
        """Check that every line names the one before it; return how many there are, or raise at the first fault."""
        prev, count = GENESIS, 0
        for event in self.read():
            if event.prev != prev or event.seq != count:
                raise BadInputError(
                    f"line {count + 1} of the catalog's log does not follow the line before it",
                    seen=f"{self.path}: names {event.prev[:16]}…, the line before is {prev[:16]}…",
                    next="a line was changed, removed or inserted: restore events.jsonl from a copy, "
                    "or move it away and run: lpt catalog rebuild",
                )
            prev, count = event.hash, count + 1
        return count

    def _open(self) -> BinaryIO | None:
        """Open the log for reading; None when there is none yet."""
        try:
            if self.path.exists() and not self.path.is_file():  # reading a pipe would wait for ever
                raise BadInputError(
                    "the catalog's log is no regular file",
                    seen=str(self.path),
                    next="move it away: lpt catalog rebuild",
                )
            return open(self.path, "rb")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise BadInputError(
                "the catalog's log cannot be read", seen=f"{self.path}: {error.strerror}", next="check its permissions"
            ) from error

    def _write(self, data: bytes) -> int:
        fresh = not self.path.exists()
        handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            size = os.fstat(handle).st_size
            try:
                written = os.write(handle, data)
                if written != len(data):  # a full disk takes a part; the part must not stay
                    raise OSError(28, "No space left on device")
                os.fsync(handle)
            except OSError:
                os.ftruncate(handle, size)
                raise
            return size + len(data)
        finally:
            os.close(handle)
            if fresh:
                fsync_folder(self.path.parent)

    def _heal(self) -> None:
        """Put a last line that was cut off by a crash into a file of its own: it was never reported as done."""
        try:
            with open(self.path, "r+b") as file:
                size = file.seek(0, os.SEEK_END)
                if size == 0:
                    return
                file.seek(size - 1)
                if file.read(1) == b"\n":
                    return
                file.seek(0)
                data = file.read()
                keep = data.rfind(b"\n") + 1
                aside = self.path.with_name(f"events.torn-{time.time_ns()}.part")
                aside.write_bytes(data[keep:])
                file.truncate(keep)
                os.fsync(file.fileno())
        except FileNotFoundError:
            return


def now() -> str:
    """Return the time as ISO-8601 in UTC, to the microsecond."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _parse(line: bytes, end: int, path: Path) -> Event:
    try:
        body = orjson.loads(line)
        if not all(isinstance(body[name], str) for name in ("prev", "at", "type", "object")):
            raise TypeError("a field that must be text is none")
        digest = hashlib.sha256(b"lpt-event/1\0" + line).hexdigest()
        return Event(
            int(body["seq"]), body["prev"], body["at"], body["type"], body["object"], dict(body["facets"]), digest, end
        )
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise BadInputError(
            "a line of the catalog's log cannot be read",
            seen=f"{path}: the line that ends at byte {end}: {line[:80]!r}",
            next="restore events.jsonl from a copy, or move it away and run: lpt catalog rebuild",
        ) from error
