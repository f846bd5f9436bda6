"""Several datasets read as one: rows numbered through, each file in its own layout."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from lpt_data.dataset import Batch, Dataset, Quarantine, RecordBatch, TextBatch
from lpt_data.layouts import LAYOUTS


class Joined(Dataset):
    """Datasets of one kind, one after the other. `one_layout` tells whether all have the same layout."""

    def __init__(self, parts: Sequence[Dataset]) -> None:
        self.parts = tuple(parts)
        first = self.parts[0]
        files = [source for part in parts for source in part.files]
        columns = list(dict.fromkeys(name for part in parts for name in part.columns))
        super().__init__(files, first.kind, LAYOUTS[first.layout], first.text_column, columns)
        self.one_layout = len({(part.layout, part.text_column) for part in parts}) == 1
        self._layouts = [(part.layout, part.text_column) for part in parts for _ in part.files]
        if not self.one_layout:
            self.layout = "+".join(sorted({part.layout for part in parts}))

    @property
    def starts(self) -> list[int]:
        """Row at which each part starts, and the number of all rows at the end."""
        return np.concatenate([[0], np.cumsum([part.rows_in for part in self.parts])]).tolist()

    @property
    def rows_in(self) -> int:
        """Rows of all parts, quarantined ones included."""
        rows = sum(part.rows_in for part in self.parts)
        self.first_rows = [
            start + row for start, part in zip(self.starts, self.parts, strict=False) for row in part.first_rows
        ]
        return rows

    def layout_of(self, file: int) -> tuple[str, str]:
        """Return (layout, text column) of a file."""
        return self._layouts[file]

    def texts(self, key: str = "text") -> Iterator[TextBatch]:
        """Yield the texts of every part; rows are numbered through."""
        start = 0
        for part in self.parts:
            for batch in part.texts(key):
                yield replace(batch, rows=batch.rows + start)
            start += part.rows_in

    def record_batches(self, *, plain: bool = False) -> Iterator[RecordBatch]:
        """Yield the rows of every part that have a record; rows are numbered through."""
        start = 0
        for part in self.parts:
            for batch in part.record_batches(plain=plain):
                yield replace(batch, rows=[start + row for row in batch.rows])
            start += part.rows_in

    def batches(self) -> Iterator[Batch]:
        """Yield readable rows as they are."""
        start, file = 0, 0
        for part in self.parts:
            for batch in part.batches():
                yield replace(batch, rows=batch.rows + start, file=batch.file + file)
            start += part.rows_in
            file += len(part.files)

    def quarantined(self) -> list[Quarantine]:
        """Return the rows that could not be used, numbered through."""
        starts = self.starts
        return [
            replace(found, row=found.row + start)
            for start, part in zip(starts, self.parts, strict=False)
            for found in part.quarantined()
        ]

    def restore(self, rows_in: int, first_rows: Sequence[int], quarantined: Sequence[Quarantine]) -> None:
        """Take over what an earlier pass over the same bytes found."""
        bounds = [*first_rows, rows_in]
        file = 0
        for part in self.parts:
            start, file_end = bounds[file], file + len(part.files)
            end = bounds[file_end]
            mine = [replace(found, row=found.row - start) for found in quarantined if start <= found.row < end]
            part.restore(end - start, [row - start for row in bounds[file:file_end]], mine)
            file = file_end
        assert self.rows_in == rows_in  # tells the first rows, too
