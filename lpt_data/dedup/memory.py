"""How much memory a deduplication may take, and what is given up first.

The cap is on the whole process as the outside clock sees it (peak resident size): what Python, Arrow and the kernels
held when the stage began counts. Of what is left, the *books* (numbers of every row that must be at hand) come first:
WORKING bytes a row while rows are read and compared, BOOKS at the end, when the decisions are made and nothing else is
needed any more. Texts, signatures and shingle sets have the rest and lie in the spill file when that is not enough.
Pages of files are never mapped, so none of them count.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from manifests.errors import BadInputError, UsageError

SHARE = 0.6  # of the memory that is available, unless told otherwise
RESERVE = 160 << 20  # kernels and libraries as they are loaded 60 MB, writers of tables up to 110 MB
KERNELS = 64 << 20  # the first part of it: what may still be loaded while meanings are compared
WORKING = 166  # bytes a row beside text, signature and shingles while rows are compared (measured)
BOOKS = 336  # bytes a row when the decisions are made and recorded, should nearly every row go (measured)
MEANING = 240  # bytes a row on top of WORKING while meanings are compared: keys of texts, vectors of rows (measured)
A_BYTE = 10  # bytes that the kernels hold for each byte of a row: itself twice, a token and a hash for each other one
A_WORKER = 12 << 20  # bytes of the batches that each thread beyond the first has in hand (measured)
LEAST_WORK = 16 << 20  # bytes without which spilling would be all that is done
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
_CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Budget:
    """A cap on the process and what it held at the start, both in bytes."""

    cap: int
    source: str  # where the cap comes from, for the report
    resident: int  # what the threads will have in hand included
    a_row: int = 0  # bytes a row on top, MEANING where meanings are compared

    @property
    def books(self) -> int:
        """Bytes a row when the most is known of it: while it is compared, or when the decisions are made."""
        return max(BOOKS, WORKING + self.a_row)

    def room(self, rows: int) -> int:
        """Bytes for texts, signatures and shingle sets while ``rows`` rows are compared."""
        return self.cap - self.resident - RESERVE - rows * (WORKING + self.a_row)

    def hold(self, rows: int, *, at_least: bool = False) -> int:
        """Bytes of texts and signatures of ``rows`` rows that may stay in memory until the end.

        Raises BadInputError with the cap that is needed when nearly nothing is left (``at_least``: of more rows still).
        """
        free = self.cap - self.resident - RESERVE - rows * self.books
        if free < LEAST_WORK:
            raise BadInputError(
                "the memory that was given is not enough even with everything spilled",
                seen=f"{shown(self.cap)} ({self.source}) for {'at least ' if at_least else ''}{rows:,} rows; the "
                f"program itself holds {shown(self.resident)}, the books of a row {self.books} bytes",
                next=f"--memory {-(-self.needed(rows) // 10**7)}0MB or more, or fewer rows at a time",
            )
        return min(free, self.room(rows) // 2)

    def row(self, size: int) -> None:
        """Raise BadInputError when the kernels cannot take a row of ``size`` bytes: they hold all of its tokens."""
        needed = self.resident + RESERVE + size * A_BYTE
        if needed > self.cap:
            raise BadInputError(
                "a row is too large for the memory that was given",
                seen=f"{shown(size)} in one row, {shown(self.cap)} ({self.source})",
                next=f"--memory {-(-needed // 10**7)}0MB or more, or take the row out",
            )

    def needed(self, rows: int) -> int:
        """A cap that is enough for so many rows, in bytes: a little more than the least, as the program varies."""
        return self.resident + RESERVE + rows * self.books * 10 // 9 + 3 * LEAST_WORK

    def left(self, rows: int) -> int:
        """Bytes that are free as of now for vectors and their comparison; what makes rows readable is held already."""
        return max(self.cap - resident_bytes() - KERNELS - rows * self.a_row, LEAST_WORK)

    def claim(self, size: int, rows: int, what: str, instead: str) -> None:
        """Raise BadInputError where so many bytes are not free, with the cap that is needed and what else would do."""
        free = self.left(rows)
        if size > free:
            needed = self.cap + size - free + LEAST_WORK
            raise BadInputError(
                f"{what} does not fit in the memory that was given",
                seen=f"{shown(size)} needed, {shown(free)} of {shown(self.cap)} ({self.source}) left",
                next=f"--memory {-(-needed // 10**7)}0MB or more, or {instead}",
            )


def budget(memory: str | None, workers: int = 1) -> Budget:
    """The cap asked for, or SHARE of the memory that is available; UsageError for a size that makes no sense."""
    asked, resident = parse_bytes(memory), resident_bytes() + (workers - 1) * A_WORKER
    if asked is not None:
        return Budget(asked, "--memory", resident)
    return Budget(int(SHARE * available_bytes()), f"{SHARE:.0%} of the memory available", resident)


def parse_bytes(size: str | None) -> int | None:
    """A size such as "4GB" or "512MiB" in bytes; None stays None."""
    if size is None:
        return None
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMG]?I?B?)\s*", size.upper())
    if not match or match[2] not in _UNITS:
        raise UsageError("not an amount of memory", seen=size, next="--memory 4GB")
    return int(float(match[1]) * _UNITS[match[2]])


def shown(amount: float) -> str:
    """An amount of bytes for people: 3.2 GB, 240 MB, 12 KB."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("KB", 10**3)):
        if amount >= size:
            return f"{amount / size:.{1 if unit == 'GB' else 0}f} {unit}"
    return f"{amount:.0f} bytes"


def resident_bytes() -> int:
    """What this process holds in memory now; 0 where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def give_back() -> None:
    """Return freed memory to the system, which the allocators keep for what may come: the next part has another one."""
    pa.default_memory_pool().release_unused()
    with contextlib.suppress(OSError, AttributeError):  # not under every C library
        ctypes.CDLL(None).malloc_trim(0)


def available_bytes(root: Path = _CGROUPS, proc: Path = Path("/proc")) -> int:
    """The memory that may still be used, in bytes: what the machine has free, or what its cgroups leave of it."""
    free = [_machine(proc)]
    try:
        groups = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        groups = []
    for line in groups:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            free += _left(root, path, "memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            free += _left(root / "memory", path, "memory.limit_in_bytes", "memory.usage_in_bytes")
    return min(free)


def _machine(proc: Path) -> int:
    try:
        found = re.search(r"MemAvailable:\s+(\d+) kB", (proc / "meminfo").read_text())
    except OSError:
        found = None
    if found:
        return int(found[1]) * 1024
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (ValueError, OSError):
        return sys.maxsize


def _left(root: Path, path: str, limit: str, usage: str) -> list[int]:
    """What each cgroup from the process's own up to the root leaves; caches of files do not count as used there."""
    left = []
    folder = root / path.lstrip("/")
    for place in (folder, *folder.parents):
        if not place.is_relative_to(root):
            break
        try:
            most = (place / limit).read_text().strip()
            used = int((place / usage).read_text())
            cached = re.search(r"^(?:total_)?inactive_file (\d+)$", (place / "memory.stat").read_text(), re.M)
        except (OSError, ValueError):
            continue
        if most != "max" and int(most) < 2**60:
            left.append(max(int(most) - used + (int(cached[1]) if cached else 0), 0))
    return left
