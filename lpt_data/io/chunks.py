"""What every reader yields: some rows of one file, and those among them that cannot be read."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from lpt_data.io.sources import Mark

FIRST = 1 << 19  # bytes of JSON lines that the names of columns, and so a layout, are taken from
LARGE = 1 << 20  # bytes of a file from which on kernels are worth their loading, where others will be loaded anyway
# Bytes of files from which on records are worth having as columns, where no kernel is needed otherwise: 25 us are saved
# for a row of 0.7 KB, and loading takes 0.35 s.
MANY_RECORDS = 8 << 20


class BadRow(NamedTuple):
    """A row that cannot be read: its offset among the rows of the file, its line (1-based), and why."""

    offset: int
    line: int
    reason: str
    detail: str


@dataclass(frozen=True)
class Spans:
    """Some strings of an uncompressed file of JSON, in its order and without their quotation marks: where they lie, so
    that they need not be held (`lpt_data.io.spans` reads them again).
    """

    path: str
    mark: Mark  # of the file before it was read for the first time
    starts: np.ndarray  # int64 [n], bytes from the beginning of the file
    sizes: np.ndarray  # int32 [n], bytes as written

    def take(self, places: np.ndarray) -> Spans:
        """Return some of them (ascending places, or bool [n])."""
        return Spans(self.path, self.mark, self.starts[places], self.sizes[places])

    def goes_on(self, after: Spans) -> bool:
        """Tell whether others, at least one, lie behind the last of these in the same file, as it was then."""
        same = (self.path, self.mark) == (after.path, after.mark)
        return same and bool(self.starts[-1] + self.sizes[-1] <= after.starts[0])


@dataclass(frozen=True)
class Chunk:
    """Some consecutive rows of one file."""

    offsets: np.ndarray  # int64 [n], index of each readable row among the rows of the file
    lines: np.ndarray  # int64 [n], 1-based: line (JSONL, CSV), element (JSON array) or row (Parquet)
    records: list[dict[str, Any]] | pa.Table
    raw: list[bytes] | None  # JSONL only
    bad: list[BadRow]
    rows: int  # rows covered, bad ones included
    types: dict[str, type] | None = None  # JSONL scanned into a table: those of all columns, where each has one
    spans: Mapping[str, Spans] = field(
        default_factory=dict
    )  # where the strings of a column lie, if they do in the file

    def names(self) -> list[str]:
        """Names of the columns in the order of their appearance, of JSON lines in the first FIRST bytes."""
        if isinstance(self.records, pa.Table):
            return list(self.records.column_names)
        sizes = np.cumsum([len(line) for line in self.raw or ()])
        few = self.records[: int(np.searchsorted(sizes, FIRST)) + 1] if self.raw else self.records
        return list(dict.fromkeys(name for row in few for name in row))


@functools.cache
def calm_allocator() -> None:
    """Keep glibc from handing memory back to the kernel and asking for it again at every row.

    Its limit for giving back starts at 128 KiB and grows to twice the largest mapped block that was ever freed. orjson
    grows and shrinks its result at the end of the heap, which under the small limit costs more than writing the JSON: 5
    us against 0.3 us for a row of 1.8 kB. Freeing one block of 16 MiB settles it; under other allocators this does
    nothing.
    """
    bytearray(16 << 20)
