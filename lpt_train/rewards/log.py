"""What reward workers print, kept within bounds: a reward that prints a line an item would fill the disk of a long run.

rewards.log       the newest lines; its first says how many bytes were left out before it
rewards.log.1     those before, replaced as a whole when rewards.log is full
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

MOST = 4 << 20  # bytes of each of the two files
READ = 1 << 16
LAST_WORDS = 2.0  # seconds for what is left in the pipe when the workers have ended


class BoundedLog:
    """A pipe whose other end writes to `path`; give `descriptor` to processes as their standard error.

    `left_out` counts the bytes that are in neither file.
    """

    def __init__(self, path: Path, *, most: int = MOST) -> None:
        self.path, self.most, self.left_out = path, most, 0
        self._file = path.open("ab")
        self._reader, self.descriptor = os.pipe()
        self._thread = threading.Thread(target=self._drain, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Write what is still in the pipe; a process that outlives its worker and holds it is not waited for."""
        os.close(self.descriptor)
        self._thread.join(LAST_WORDS)

    def _drain(self) -> None:
        with os.fdopen(self._reader, "rb", buffering=0) as pipe:
            while chunk := pipe.read(READ):
                try:
                    self._keep(chunk)
                except OSError:  # a full disk stops no reward
                    self.left_out += len(chunk)
        self._file.close()

    def _keep(self, chunk: bytes) -> None:
        if self._file.tell() + len(chunk) > self.most:
            before = self.path.with_name(f"{self.path.name}.1")
            self.left_out += before.stat().st_size if before.exists() else 0
            self._file.close()
            self.path.replace(before)
            self._file = self.path.open("ab")
            self._file.write(b"(%d bytes before %s were left out)\n" % (self.left_out, before.name.encode()))
        self._file.write(chunk)
        self._file.flush()
