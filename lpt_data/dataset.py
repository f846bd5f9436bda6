"""Raw files read as one re-iterable stream of numbered rows; what cannot be read is quarantined, never dropped.

A row's number is its place in the input: all rows of all files, in the order given, the quarantined ones included;
blank lines are no rows. A pass adds what it found wrong to `quarantined()`, so a later pass may know more than an
earlier one.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from lpt_data import arrow_json, layouts
from lpt_data.batches import Batch, Quarantine, RecordBatch, TextBatch
from lpt_data.columns import Columns, Shape
from lpt_data.io.chunks import LARGE, MANY_RECORDS, Chunk
from lpt_data.io.readers import read
from lpt_data.io.sources import SourceFile, expand
from lpt_data.layouts import Layout
from lpt_data.record_text import KEYS, text_of
from lpt_data.text_arrays import invalid_utf8, may_be_blank, text_array, wide
from manifests.arrow import plain_rows
from manifests.canon import canonical_bytes, id_of, record_id, text_ids
from manifests.errors import BadInputError, RecordError

__all__ = ["Batch", "Dataset", "Quarantine", "RecordBatch", "TextBatch", "invalid_utf8", "text_array"]

_NOTHING: dict[str, Any] = {}


class Dataset:
    """One or more files of the same logical schema, read as rows of one kind; may be iterated any number of times."""

    def __init__(
        self, files: Sequence[SourceFile], kind: str, layout: Layout, text_column: str, columns: Sequence[str]
    ) -> None:
        self.files: tuple[SourceFile, ...] = tuple(files)
        self.kind = kind
        self.layout = layout.name
        self.text_column = text_column
        self.columns: tuple[str, ...] = tuple(columns)  # as seen in the first rows
        self.one_layout = True  # the same in all files
        self.first_rows: list[int] = []  # index of the first row of each file, known after a full pass
        self.watch_columns = False  # whether the next full pass looks at the columns of JSON rows
        self.uniform: Columns | None = None  # known after that pass, where all rows are of one plain shape
        self._layout = layout
        self._bad: dict[int, Quarantine] = {}
        self._rows: int | None = None

    @classmethod
    def open(
        cls,
        inputs: str | Sequence[str],
        *,
        kind: str | None = None,
        layout: str | None = None,
        text_column: str = "text",
    ) -> Dataset:
        """Find the files, read the first rows and settle layout and kind; BadInputError says what does not fit.

        `layout` overrides what the columns say; `text_column` names the column of plain text where it is not `text`.
        """
        files = expand(inputs)
        columns = _first_columns(files[0])
        chosen = layouts.choose(columns, kind, layout, text_column)
        return cls(files, kind or chosen.kinds[0], chosen, text_column, columns)

    # -- passes

    def texts(self, key: str = "text") -> Iterator[TextBatch]:
        """Yield the text under `key`, with record ids: `text`, `prompt`, `response`, `row`, or the name of a column.

        For records that are no plain text, `text` is all they say, `prompt` what precedes the last reply (system
        messages left out), `response` that reply, `row` the canonical JSON. A row whose text is missing, blank or of
        another type is quarantined. Raises BadInputError for a column that is not there.
        """
        plain = self.is_record(key)
        if not plain and key not in KEYS and key not in self.columns:
            raise self._no_column(key)
        if self.kind == "text" and key in ("prompt", "response") and key not in self.columns:
            raise self._no_column(key)
        for part in self._parts([self.text_column] if plain else None):
            batch = self._plain_texts(part) if plain else self._keyed_texts(part, key)
            if len(batch.rows):
                yield batch

    def is_record(self, key: str) -> bool:
        """Tell whether the text under `key` is all that a record holds, so that record ids tell texts apart."""
        return self.kind == "text" and key in ("text", "row", self.text_column)

    def records(self) -> Iterator[tuple[int, dict[str, Any], dict[str, Any]]]:
        """Yield each row as (row index, canonical record, other columns)."""
        for batch in self.record_batches():
            yield from zip(batch.rows, batch.records, batch.beside, strict=True)

    def identified(self) -> Iterator[tuple[int, dict[str, Any], dict[str, Any], bytes]]:
        """Yield each row as (row index, canonical record, other columns, record id)."""
        for batch in self.record_batches():
            names = [id_of(self.kind, data) for data in batch.data]
            yield from zip(batch.rows, batch.records, batch.beside, names, strict=True)

    def record_batches(self, *, plain: bool = False) -> Iterator[RecordBatch]:
        """Yield the rows that have a record in batches, with the canonical bytes of each record.

        With `plain`, batches of plain rows come as columns, where the files are large enough for kernels to pay.
        """
        consumed = self.consumed
        columns = plain and self.has_many_records
        for part in self._parts(None, whole=columns):
            batch = self._plain_batch(part) if columns else None
            if batch is not None:
                if len(batch.rows):
                    yield batch
                continue
            offsets, places = (part.start + part.chunk.offsets).tolist(), part.chunk.lines.tolist()
            rows, records, beside, written, lines = [], [], [], [], []
            for place, row, record, data in self._converted(part):
                rows.append(offsets[place])
                records.append(record)
                beside.append(_NOTHING if row.keys() <= consumed else self._beside(row))
                written.append(data)
                lines.append(places[place])
            if rows:
                yield RecordBatch(rows, records, beside, written, lines, part.file)

    @property
    def has_many_records(self) -> bool:
        """Whether plain records of these files are worth having as columns, and so the loading of kernels."""
        return sum(source.bytes for source in self.files) >= MANY_RECORDS

    def _plain_batch(self, part: _Part) -> RecordBatch | None:
        """The rows of a chunk as columns, None where one of them may be no plain record."""
        table, kind = part.chunk.records, self.kind
        if not isinstance(table, pa.Table):
            return None
        from lpt_data.plain import Parsed, Slices  # numba
        from lpt_data.plain_layouts import plain_of, texts_of

        offsets, lines = part.start + part.chunk.offsets, part.chunk.lines
        if kind == "text":
            texts = texts_of(table[self.text_column]) if self.text_column in table.column_names else None
            if texts is None:
                return None
            blank = [
                place
                for place in np.flatnonzero(may_be_blank(texts)).tolist()
                if not part.usable(place, texts[place].as_py(), self.text_column)
            ]
            if blank:
                good = np.delete(np.arange(len(texts)), blank)
                table, offsets, lines = table.take(good), offsets[good], lines[good]
        named = table.select([self.text_column]).rename_columns(["text"]) if kind == "text" else table
        found = plain_of(self.layout, kind, named)
        if found is None:
            return None if table.num_rows else RecordBatch([], [], [], [], [], part.file)
        extra = [name for name in table.column_names if name not in self.consumed]
        try:
            beside = plain_rows(table.select(extra)) if extra else [_NOTHING] * len(found)
        except UnicodeDecodeError:  # of a Parquet file: its row is to be found
            return None
        data = Slices(found.json, found.bounds)
        return RecordBatch(offsets, Parsed(data), beside, data, lines, part.file, found)

    def as_written(self) -> Iterator[tuple[int, dict[str, Any], bytes]]:
        """Yield each row that has a record as (row index, its columns as read, record id)."""
        for part in self._parts(None):
            for place, row, _, data in self._converted(part):
                yield part.row(place), row, id_of(self.kind, data)

    def identify(self, row: dict[str, Any]) -> bytes:
        """Return the record id of a row in the layout of this dataset; raises RecordError where it has no record."""
        return record_id(self.kind, self._layout.convert[self.kind](row))

    def batches(self) -> Iterator[Batch]:
        """Yield readable rows as they are, whatever the layout."""
        for part in self._parts(None):
            chunk = part.chunk
            yield Batch(part.start + chunk.offsets, chunk.lines, part.file, chunk.records, chunk.raw)

    def quarantined(self) -> list[Quarantine]:
        """Return the rows that a pass over this dataset could not use, by row; complete after one full pass."""
        return [self._bad[row] for row in sorted(self._bad)]

    @property
    def rows_in(self) -> int:
        """Rows of the input, quarantined ones included; reads the input once when no full pass has been made."""
        if self._rows is None:
            for _ in self._parts(None):
                pass
        assert self._rows is not None
        return self._rows

    @property
    def consumed(self) -> frozenset[str]:
        """Columns that become part of the record and are no columns beside it."""
        return frozenset((self.text_column, "text")) if self.text_column != "text" else self._layout.consumed

    def layout_of(self, file: int) -> tuple[str, str]:
        """Return (layout, text column) of a file."""
        return self.layout, self.text_column

    def restore(self, rows_in: int, first_rows: Sequence[int], quarantined: Sequence[Quarantine]) -> None:
        """Take over what an earlier pass over the same bytes found."""
        self._rows = rows_in
        self.first_rows = list(first_rows)
        self._bad.update({found.row: found for found in quarantined})

    # -- inside

    def _parts(self, columns: list[str] | None, *, whole: bool = False) -> Iterator[_Part]:
        """Yield the chunks of every file, collecting what is bad and closing the books at the end."""
        start = 0
        first_rows = []
        shape = Shape() if self.watch_columns and all(source.format == "jsonl" for source in self.files) else None
        for number, source in enumerate(self.files):
            first_rows.append(start)
            rows = 0
            for chunk in read(source, columns, whole=whole):
                for bad in chunk.bad:
                    self._reject(start + bad.offset, source.path, bad.line, bad.reason, bad.detail)
                if shape is not None and isinstance(chunk.records, list):
                    shape.see(chunk.records)
                elif shape is not None:
                    shape.see_types(chunk.types)
                yield _Part(self, start, number, chunk)
                rows += chunk.rows
            self._close(source, start, rows)
            start += rows
        self._rows = start
        self.first_rows = first_rows
        if shape is not None:
            self.uniform = shape.columns()

    def _close(self, source: SourceFile, start: int, rows: int) -> None:
        """Refuse a file without a single row, and one in which not a single row could be used."""
        if not rows:
            raise BadInputError("a file holds no rows", seen=source.path, next="leave it out, or make it again")
        bad = [self._bad[row] for row in range(start, start + rows) if row in self._bad] if self._bad else []
        if len(bad) == rows:
            shown = "; ".join(f"line {b.line}: {b.reason} ({b.detail})" for b in bad[:3])
            raise BadInputError(
                f"no row of {source.path} can be used",
                seen=f"{rows} rows, all bad; {shown}",
                next=layouts.told_apart(_first_columns(source), self._layout, bad[0].detail),
            )

    def _reject(self, row: int, file: str, line: int, reason: str, detail: str) -> None:
        self._bad.setdefault(row, Quarantine(row, file, line, reason, detail))

    def _plain_texts(self, part: _Part) -> TextBatch:
        column, records = self.text_column, part.chunk.records
        if isinstance(records, pa.Table):
            return self._arrow_texts(part, records)
        texts = [row.get(column) for row in records]
        offsets = part.chunk.offsets
        if not all(type(text) is str and text and not text.isspace() for text in texts):
            good = [i for i, text in enumerate(texts) if part.usable(i, text, column)]
            offsets, texts = offsets[good], [texts[i] for i in good]
        return TextBatch(part.start + offsets, pa.array(texts, pa.large_string()), text_ids(texts))

    def _arrow_texts(self, part: _Part, table: pa.Table) -> TextBatch:
        """Texts of a Parquet column without a Python row; ids come from the strings alone."""
        column = self.text_column
        if column not in table.column_names:
            raise self._no_column(column)
        array = text_array(table[column])
        if array is None:
            raise BadInputError(
                f"the column {column} is no text",
                seen=str(table[column].type),
                next="name a text column with --text-column",
            )
        array = wide(array)
        good = np.ones(len(array), bool)
        if self.files[part.file].format == "parquet":  # which promises UTF-8 and checks nothing; lines were checked
            good = ~invalid_utf8(array)
            for place in np.flatnonzero(~good).tolist():
                part.reject(place, "invalid_utf8", f"{column} is no UTF-8")
        for place in np.flatnonzero(good & may_be_blank(array)).tolist():
            good[place] = part.usable(place, array[place].as_py(), column)
        offsets, spans = part.chunk.offsets, part.chunk.spans.get(column)
        if not good.all():
            array, offsets = array.filter(pa.array(good)), offsets[good]
            spans = None if spans is None else spans.take(good)
        return TextBatch(part.start + offsets, array, self._text_ids(array), spans)

    def _text_ids(self, texts: pa.Array) -> np.ndarray:
        if sum(source.bytes for source in self.files) < LARGE:
            return text_ids(texts.to_pylist())
        from lpt_data.text_ids import ids_of  # numba, which small inputs do without

        return ids_of(texts)

    def _keyed_texts(self, part: _Part, key: str) -> TextBatch:
        rows, texts, ids = [], [], []
        for place, _, record, data in self._converted(part):
            text = self._value(part, place, record, key)
            if part.usable(place, text, key):
                rows.append(part.row(place))
                texts.append(text)
                ids.append(id_of(self.kind, data))
        packed = np.frombuffer(b"".join(ids), np.uint8).reshape(-1, 32)
        return TextBatch(np.array(rows, np.int64), pa.array(texts, pa.large_string()), packed)

    def _value(self, part: _Part, place: int, record: dict[str, Any], key: str) -> Any:
        """What a row says under a key: a column of that name comes before the text of the record."""
        if key in self.columns:
            records = part.chunk.records
            if isinstance(records, pa.Table):
                value = records[key][place].as_py() if key in records.column_names else None
            else:
                value = records[place].get(key)
            if key not in KEYS or isinstance(value, str):
                return value
        return text_of(self.kind, record, key)

    def _beside(self, row: dict[str, Any]) -> dict[str, Any]:
        """The columns of a row that are no part of its record."""
        consumed = self.consumed
        return {name: value for name, value in row.items() if name not in consumed}

    def _converted(self, part: _Part) -> Iterator[tuple[int, dict[str, Any], dict[str, Any], bytes]]:
        """Yield (place in the chunk, columns as read, canonical record, its bytes) of the rows that have a record."""
        convert, kind = self._layout.convert[self.kind], self.kind
        alias = self.text_column if self.text_column != "text" else None
        records = part.chunk.records
        typed = arrow_json.suspects(records.schema, self.consumed) if isinstance(records, pa.Table) else ()
        for place, row in part.dicts():
            if alias is not None:  # the named column takes the place of a column `text`, which would be in its way
                row = {**row, "text": row.get(alias)}
            try:
                if typed:
                    arrow_json.refuse_typed(row, typed)
                record = convert(row)
                data = canonical_bytes(kind, record)
            except RecordError as error:
                part.reject(place, error.reason, f"{error.what}; {error.seen}")
                continue
            if kind == "text" and not part.usable(place, record["text"], self.text_column):
                continue
            yield place, row, record, data

    def _no_column(self, key: str) -> BadInputError:
        near = difflib.get_close_matches(key, self.columns, n=1)
        known = ", ".join(k for k in KEYS if self.kind != "text" or k in ("text", "row"))
        return BadInputError(
            f"no column is called {key}",
            seen=f"columns: {', '.join(self.columns)}",
            next=f"did you mean {near[0]}?" if near else f"name one of them, or one of: {known}",
        )


def _first_columns(source: SourceFile) -> list[str]:
    """Names of the columns in the first rows of a file, in the order of their appearance."""
    rows, reasons = 0, []
    for chunk in read(source):
        if isinstance(chunk.records, pa.Table) or chunk.records:
            return chunk.names()
        rows += chunk.rows
        reasons += [f"line {b.line}: {b.reason} ({b.detail})" for b in chunk.bad[:3]]
    if not rows:
        raise BadInputError("a file holds no rows", seen=source.path, next="leave it out, or make it again")
    raise BadInputError(
        f"no row of {source.path} can be used",
        seen=f"{rows} rows, all bad; {'; '.join(reasons[:3])}",
        next="check the file",
    )


@dataclass(frozen=True)
class _Part:
    """A chunk with its place in the input."""

    dataset: Dataset
    start: int  # row index of the first row of the file
    file: int
    chunk: Chunk

    def row(self, place: int) -> int:
        return self.start + int(self.chunk.offsets[place])

    def reject(self, place: int, reason: str, detail: str) -> None:
        source = self.dataset.files[self.file]
        self.dataset._reject(self.row(place), source.path, int(self.chunk.lines[place]), reason, detail)

    def usable(self, place: int, text: Any, path: str) -> bool:
        """Tell whether a value is text that says something; quarantine its row where it is not."""
        if text is None:
            self.reject(place, "missing_field", f"no value under {path!r}")
        elif not isinstance(text, str):
            self.reject(place, "wrong_type", f"{path} must be text, it is {type(text).__name__}: {repr(text)[:80]}")
        elif not text or text.isspace():
            self.reject(place, "empty_text", f"{path} is blank")
        else:
            return True
        return False

    def dicts(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield (place, row); a Parquet row with text that is no UTF-8 is quarantined."""
        records = self.chunk.records
        if not isinstance(records, pa.Table):
            yield from enumerate(records)
            return
        try:
            yield from enumerate(plain_rows(records))
        except UnicodeDecodeError:
            for place in range(records.num_rows):
                try:
                    row = plain_rows(records.slice(place, 1))[0]
                except UnicodeDecodeError as error:
                    self.reject(place, "invalid_utf8", str(error))
                    continue
                yield place, row
