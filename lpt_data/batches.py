"""What a dataset yields: rows as they are, their texts, their records; and the rows that could not be used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from lpt_data.io.chunks import Spans

if TYPE_CHECKING:
    from lpt_data.plain import Plain


@dataclass(frozen=True)
class Quarantine:
    """A row that could not be used: where it is and why."""

    row: int  # index in the input, over all files in the order given
    file: str
    line: int  # 1-based: line of a JSONL or CSV file, row of a Parquet file, element of a JSON array
    reason: str
    detail: str = ""


@dataclass(frozen=True)
class Batch:
    """Readable rows of one file, in order; quarantined rows leave gaps in ``rows``."""

    rows: np.ndarray  # int64 [n]
    lines: np.ndarray  # int64 [n], 1-based place in the file
    file: int  # index into Dataset.files
    records: list[dict[str, Any]] | pa.Table
    raw: list[bytes] | None  # JSONL only: the line as written, without its line ending


@dataclass(frozen=True)
class TextBatch:
    """The text under one key for a batch of rows."""

    rows: np.ndarray  # int64 [n]
    texts: pa.Array  # large_string [n], no nulls, none blank
    ids: np.ndarray  # uint8 [n, 32], canonical record ids
    spans: Spans | None = None  # where the texts lie in the file, if they can be read there again

    def chosen(self, which: np.ndarray) -> TextBatch:
        """Return some of the rows (bool [n])."""
        spans = None if self.spans is None else self.spans.take(which)
        return TextBatch(self.rows[which], self.texts.filter(pa.array(which)), self.ids[which], spans)


@dataclass(frozen=True)
class RecordBatch:
    """Rows that have a record, as Python values, which of plain rows are made when they are looked at."""

    rows: Sequence[int] | np.ndarray
    records: Sequence[dict[str, Any]]  # canonical
    beside: Sequence[dict[str, Any]]  # the other columns of each row; not to be changed
    data: Sequence[bytes]  # canonical bytes of the records
    lines: Sequence[int] | np.ndarray  # 1-based place of each row in the file
    file: int  # index into Dataset.files
    plain: Plain | None = None  # the same records as columns, where they are plain
