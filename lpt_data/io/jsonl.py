"""JSON lines: scanned into columns where they are flat and a caller wants columns, else parsed row by row, and as they
are written.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from lpt_data.io.chunks import LARGE, BadRow, Chunk, Spans, calm_allocator
from lpt_data.io.lines import MAX_LINE, cut_lines, parse_lines, split_lines, whole_lines
from lpt_data.io.sources import SourceFile, blocks, text_start

MOST_CUTS = 128  # places in a block where flat lines and others meet; with more of them, all lines are parsed


def raw_lines(source: SourceFile) -> Iterator[tuple[np.ndarray, list[bytes | None]]]:
    """Yield (1-based line numbers, lines) of the rows of a JSONL file, blank lines left out, too long ones None."""
    for number, lines in split_lines(blocks(source)):
        numbers, rows = _rows_of(number, lines)
        if rows:
            yield numbers, rows


def chosen_lines(source: SourceFile, chosen: np.ndarray, first: int = 0) -> Iterator[tuple[np.ndarray, list[bytes]]]:
    """Yield (rows, their lines) of the rows of a JSONL file that are chosen (bool, by row, the file's first row being
    number ``first``), a line that is too long as an empty one.
    """
    for run in whole_lines(blocks(source)):
        if isinstance(run, bytes) and source.bytes >= LARGE:
            from lpt_data.io.flat import line_bounds  # numba, which small inputs do without

            starts, ends = line_bounds(run)
            places = np.flatnonzero(chosen[first : first + len(starts)])
            bounds = zip(starts[places].tolist(), ends[places].tolist(), strict=True)
            yield places + first, [run[a:b].removesuffix(b"\r") for a, b in bounds]
            first += len(starts)
        else:
            _, lines = _rows_of(0, [*cut_lines(run)] if isinstance(run, bytes) else [None])
            places = np.flatnonzero(chosen[first : first + len(lines)])
            yield places + first, [lines[i] or b"" for i in places]
            first += len(lines)


def _rows_of(number: int, lines: list[bytes | None]) -> tuple[np.ndarray, list[bytes | None]]:
    """The numbers and lines that are not blank, the first one's number given."""
    numbers = np.arange(number, number + len(lines), dtype=np.int64)
    # Three passes in C over nearly every block instead of one in Python.
    if None in lines or not all(lines) or any(map(bytes.isspace, lines)):  # type: ignore[arg-type]
        filled = [i for i, line in enumerate(lines) if line is None or line.strip()]
        return numbers[filled], [lines[i] for i in filled]
    return numbers, lines


def read_jsonl(
    source: SourceFile, columns: Sequence[str] | None, keep: np.ndarray | None = None, *, whole: bool = False
) -> Iterator[Chunk]:
    """Read a file; with `columns`, flat rows are tables of them, with `whole`, flat rows and plain conversations are
    tables of all they have. Rows that are not kept (bool, by row) have no place in a table; what lies behind the end of
    `keep` is read, because the file has changed.
    """
    calm_allocator()
    start, number, at = 0, 1, 0
    scanned = _scanner(source, columns, keep, whole) if (columns or whole) and source.bytes >= LARGE else None
    for run in whole_lines(blocks(source)):
        found = scanned(run, number, start, at) if scanned is not None and isinstance(run, bytes) else None
        if found is None:
            lines: list[bytes | None] = [*cut_lines(run)] if isinstance(run, bytes) else [None]
            numbers, rows = _rows_of(number, lines)
            found = [_parsed(numbers, rows, start)] if rows else [], len(lines)
        chunks, count = found
        yield from chunks
        start += sum(chunk.rows for chunk in chunks)
        number += count
        at += len(run) if isinstance(run, bytes) else run


def _scanner(
    source: SourceFile, columns: Sequence[str] | None, keep: np.ndarray | None, whole: bool
) -> Callable[[bytes, int, int, int], tuple[list[Chunk], int] | None]:
    """A function of (lines, number of the first line, number of the first row, bytes of text before them) that scans
    flat lines into tables of these columns (all of them where `whole` rows are asked for) and parses those between; it
    returns the chunks and how many lines, or None where all of them had better be parsed.
    """
    from lpt_data.io import chats, flat  # numba, which small inputs do without

    keys: flat.Keys | None = None
    told = columns if keep is None and not source.compression else None  # whose strings can be read again
    before, mark = text_start(source) if told else (0, (0, 0, 0, 0))

    def scan(run: bytes) -> tuple[flat.Scan | chats.Chats | None, Sequence[str]]:
        nonlocal keys
        if keys is None:
            first = run.lstrip().partition(b"\n")[0]
            if whole and chats.begins(first):
                return chats.scan(run), (chats.COLUMN,)
            keys = flat.Keys.of(first)
        names = keys.names if whole and keys is not None else columns or ()
        if keys is None or not set(names) <= set(keys.names):
            return None, names
        return flat.scan(run, keys), names

    def scanned(run: bytes, number: int, start: int, at: int) -> tuple[list[Chunk], int] | None:
        nonlocal keys
        found, names = scan(run)
        if found is None:
            keys = None
            return None
        taken = found.flat(names)
        cuts = [0, *(np.flatnonzero(taken[1:] != taken[:-1]) + 1).tolist(), len(taken)]
        if len(cuts) > MOST_CUTS:
            keys = None
            return None
        chunks = []
        for first, last in itertools.pairwise(cuts) if len(taken) else ():
            part = slice(first, last)
            lines = number + found.numbers[part]
            if taken[first]:
                offsets = np.arange(start + first, start + last)
                kept = None if keep is None or start + last > len(keep) else keep[offsets]
                if kept is not None:
                    offsets, lines = offsets[kept], lines[kept]
                table, types = found.table(part, names, kept), found.types(part)
                spans = {}
                if told and isinstance(found, flat.Scan):
                    held = ((name, found.strings(part, name, before + at)) for name in told)
                    spans = {name: Spans(source.path, mark, *where) for name, where in held if where is not None}
                chunks.append(Chunk(offsets, lines, table, None, [], last - first, types, spans))
            else:
                bounds = zip(found.starts[part].tolist(), found.ends[part].tolist(), strict=True)
                raw = [run[a:b].removesuffix(b"\r") for a, b in bounds]
                chunks.append(_parsed(lines, raw, start + first))
        return chunks, found.lines

    return scanned


def _parsed(numbers: np.ndarray, lines: Sequence[bytes | None], start: int) -> Chunk:
    """The chunk of some lines, the first of which is row ``start`` of the file."""
    bad: list[BadRow] = []
    offsets = np.arange(start, start + len(lines), dtype=np.int64)
    if None in lines:
        detail = f"longer than {MAX_LINE >> 20} MiB"
        bad = [
            BadRow(start + i, int(numbers[i]), "line_too_long", detail) for i, line in enumerate(lines) if line is None
        ]
        held = [i for i, line in enumerate(lines) if line is not None]
        offsets, places, kept = offsets[held], numbers[held], [lines[i] for i in held]
    else:
        places, kept = numbers, list(lines)
    raw: list[bytes] = kept  # type: ignore[assignment]
    rows, wrong = parse_lines(raw)
    if wrong:
        bad += [BadRow(int(offsets[w.place]), int(places[w.place]), w.reason, w.detail) for w in wrong]
        bad.sort()
        good = [i for i, row in enumerate(rows) if row is not None]
        offsets, places = offsets[good], places[good]
        raw, rows = [raw[i] for i in good], [rows[i] for i in good]
    return Chunk(offsets, places, rows, raw, bad, len(lines))
