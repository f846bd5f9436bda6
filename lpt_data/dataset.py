"""Raw files read as one re-iterable stream of numbered rows; what cannot be read is quarantined, never dropped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from lpt_data.io import SourceFile


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
    """Parsed rows of one file, in order; quarantined rows leave gaps in ``rows``."""

    rows: np.ndarray  # int64 [n]
    lines: np.ndarray  # int64 [n], 1-based place in the file
    file: int  # index into Dataset.files
    records: list[dict[str, Any]] | pa.Table
    raw: list[bytes] | None  # JSONL only: the line as written, without its line ending


@dataclass(frozen=True)
class TextBatch:
    """The text under one key for a batch of rows."""

    rows: np.ndarray  # int64 [n]
    texts: pa.Array  # large_string [n]
    ids: np.ndarray  # uint8 [n, 32], canonical record ids


class Dataset:
    """One or more files of the same logical schema, read as rows of one kind."""

    files: tuple[SourceFile, ...]
    kind: str
    layout: str

    @classmethod
    def open(
        cls, inputs: Sequence[str], *, kind: str | None = None, layout: str | None = None, text_column: str = "text"
    ) -> Dataset:
        """Find the files, read their first rows and settle the layout and the kind."""
        return cls()

    def texts(self, key: str = "text") -> Iterator[TextBatch]:
        """Batches of the text under ``key`` (text, prompt, response, row, or a column) with record ids."""
        return iter(())

    def records(self) -> Iterator[tuple[int, dict[str, Any], dict[str, Any]]]:
        """Each row as (row index, canonical record, other columns)."""
        return iter(())

    def batches(self) -> Iterator[Batch]:
        """Each batch of parsed rows, whatever the layout."""
        return iter(())

    def quarantined(self) -> list[Quarantine]:
        """Rows that some pass over this dataset could not use, by row; complete after one full pass."""
        return []

    @property
    def rows_in(self) -> int:
        """Rows of the input, quarantined ones included; known after one full pass."""
        return 0
