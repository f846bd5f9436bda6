"""The file that takes what does not fit in memory: no name, so nothing is left of it however the process ends.

The file is unlinked as it is made. The kernel frees its space with the last handle, after success, error and kill -9
alike; there is nothing for a next run to find. Reads copy into fresh arrays, for pages of a mapped file would count as
memory of the process.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

import numpy as np

from manifests.files import cannot_write

_PIECE = 1 << 30  # bytes of one system call


class Spill:
    """A nameless file in a folder, made at the first byte. Appending is for one thread at a time, reading for any."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = Path(tempfile.gettempdir() if folder is None else folder)
        self.bytes = 0  # written so far
        self._file: IO[bytes] | None = None
        self._lock = threading.Lock()

    def append(self, arrays: Iterable[np.ndarray]) -> int:
        """Write arrays one after the other and return where the first begins; BadInputError when the disk is full."""
        with self._lock:
            start = at = self.bytes
            if self._file is None:
                with self._on_the_disk():
                    self._file = tempfile.TemporaryFile(dir=self.folder, prefix=".tmp-", buffering=0)  # noqa: SIM115
            for array in arrays:
                values = np.ascontiguousarray(array)
                self.write(at, values)
                at += values.nbytes
            self.bytes = at
            return start

    def reserve(self, size: int) -> int:
        """Set bytes aside that are written in any order and return where they begin; until then they are zeros."""
        start = self.append([])
        assert self._file is not None
        with self._lock:
            with self._on_the_disk():
                os.ftruncate(self._file.fileno(), start + size)
            self.bytes = start + size
        return start

    def write(self, start: int, values: np.ndarray) -> None:
        """Write a contiguous array over bytes that were set aside; BadInputError when the disk is full."""
        assert self._file is not None
        rest = _bytes_of(values)
        while rest:
            with self._on_the_disk():
                done = os.pwrite(self._file.fileno(), rest[:_PIECE], start)
            rest, start = rest[done:], start + done

    def read(self, start: int, dtype: np.dtype | type, count: int) -> np.ndarray:
        """Read ``count`` values from byte ``start`` on."""
        values = np.empty(count, dtype)
        if count:
            self.read_into(start, values)
        return values

    def read_into(self, start: int, values: np.ndarray) -> None:
        """Fill a contiguous array with what was written from byte ``start`` on."""
        assert self._file is not None
        rest = _bytes_of(values)
        while rest:
            with self._on_the_disk():
                done = os.preadv(self._file.fileno(), [rest[:_PIECE]], start)
            if not done:
                raise EOFError(f"the spill file ends at byte {start}")
            rest, start = rest[done:], start + done

    @contextlib.contextmanager
    def _on_the_disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise cannot_write(f"the spill file in {self.folder}", error) from error

    def close(self) -> None:
        """Give the space back."""
        if self._file is not None:
            self._file.close()

    def __enter__(self) -> Spill:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Queues:
    """Arrays laid into numbered queues and read back whole; what does not fit in ``room`` bytes goes to the file."""

    def __init__(self, count: int, dtype: np.dtype | type, spill: Spill, room: int) -> None:
        self._dtype = np.dtype(dtype)
        self._spill = spill
        self._most = max(room // max(count, 1), 1 << 12)  # bytes that one queue keeps in memory
        self._fresh: list[list[np.ndarray]] = [[] for _ in range(count)]
        self._waiting = [0] * count
        self._places: list[list[tuple[int, int]]] = [[] for _ in range(count)]  # (start, items) in the file

    def add(self, number: int, values: np.ndarray) -> None:
        """Append a one-dimensional array to a queue."""
        self._fresh[number].append(values)
        self._waiting[number] += values.nbytes
        if self._waiting[number] >= self._most:
            items = self._waiting[number] // self._dtype.itemsize
            self._places[number].append((self._spill.append(self._fresh[number]), items))
            self._fresh[number], self._waiting[number] = [], 0

    def read(self, number: int) -> np.ndarray:
        """All that was laid into a queue, in order."""
        places, fresh = self._places[number], self._fresh[number]
        values = np.empty(sum(n for _, n in places) + sum(map(len, fresh)), self._dtype)
        at = 0
        for start, items in places:
            self._spill.read_into(start, values[at : at + items])
            at += items
        for part in fresh:
            values[at : at + len(part)] = part
            at += len(part)
        return values


def _bytes_of(array: np.ndarray) -> memoryview:
    return memoryview(array.data).cast("B") if array.size else memoryview(b"")
