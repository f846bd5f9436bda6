"""The layouts in which benchmarks are published, told by their columns, and what is a question and an answer in each.

| layout | columns | question | answer |
|---|---|---|---|
| gsm8k | question, answer | question | answer |
| humaneval | prompt, canonical_solution (, entry_point, test) | prompt | canonical_solution, which is code |
| mbpp | text or prompt, code, test_list | text or prompt | code |
| mmlu | question, choices (or A, B, C, D), answer; or a CSV file of these six without a head | see below | choices |
| math | problem, solution | problem | solution |
| bbh | input, target; also inside `examples` | input | target |
| lpt | lpt_item, question, answer, code | question | answer |

A question of MMLU of fewer than STEM_WORDS words ("Which of the following is true?") is what its choices make it: they
are then part of the question. A longer one stands by itself, and its choices are weighed as the answer is.

JSON files may hold one object each (MATH), or an object with a list under `examples` (BBH).
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import pyarrow as pa

from lpt_data.io.lines import MAX_LINE
from lpt_data.io.readers import read
from lpt_data.io.sources import SourceFile, blocks, expand
from manifests.arrow import plain_rows
from manifests.canon import record_id
from manifests.errors import BadInputError, RecordError

STEM_WORDS = 13
_LETTERS = ("A", "B", "C", "D")
_COLUMNS = ("question", *_LETTERS, "answer")
_MOST_BYTES = 1 << 28  # of one JSON file, which is held whole

Row = Mapping[str, Any]
Said = tuple[str, str, str]  # question, answer, code


@dataclass(frozen=True)
class Entry:
    """One item: `index` is its row over all files; `code` what a program has to be compared with, or nothing."""

    index: int
    record_id: bytes
    question: str
    answer: str
    code: str = ""


@dataclass(frozen=True)
class Published:
    """A benchmark read in the layout in which it is published."""

    layout: str
    files: tuple[SourceFile, ...]
    entries: tuple[Entry, ...]
    unread: tuple[tuple[int, str], ...]  # (row, reason)


# -- one function per layout


def _gsm8k(row: Row) -> Said:
    return _text(row, "question"), _text(row, "answer"), ""


def _humaneval(row: Row) -> Said:
    solution = _text(row, "canonical_solution")
    return _text(row, "prompt"), solution, solution


def _mbpp(row: Row) -> Said:
    code = _text(row, "code")
    return _text(row, "text" if "text" in row else "prompt"), code, code


def _mmlu(row: Row) -> Said:
    stem = _text(row, "question")
    choices = row.get("choices") if "choices" in row else [row.get(letter) for letter in _LETTERS]
    choices = _listed(choices)
    if not choices:
        raise RecordError("an item has no choices", reason="missing_choices", field="choices")
    said = "\n".join(choices)
    return (f"{stem}\n{said}" if len(stem.split()) < STEM_WORDS else stem), said, ""


def _math(row: Row) -> Said:
    return _text(row, "problem"), _text(row, "solution"), ""


def _bbh(row: Row) -> Said:
    return _text(row, "input"), _text(row, "target"), ""


def _lpt(row: Row) -> Said:
    return _text(row, "question"), _text(row, "answer", empty=True), _text(row, "code", empty=True)


# The first whose columns are there is the layout. gsm8k is the last: its columns are those of mmlu without the choices.
LAYOUTS: dict[str, tuple[tuple[tuple[str, ...], ...], Callable[[Row], Said]]] = {
    "lpt": ((("lpt_item", "question", "answer"),), _lpt),
    "humaneval": ((("prompt", "canonical_solution"),), _humaneval),
    "mbpp": ((("text", "code", "test_list"), ("prompt", "code", "test_list")), _mbpp),
    "mmlu": ((("question", "choices", "answer"), _COLUMNS), _mmlu),
    "math": ((("problem", "solution"),), _math),
    "bbh": ((("input", "target"),), _bbh),
    "gsm8k": ((("question", "answer"),), _gsm8k),
}


def read_published(paths: Sequence[str], layout: str | None = None) -> Published | None:
    """Read files in the layout that their columns tell, or in the one named; None where the columns tell none.

    Raises BadInputError for files that cannot be read, for columns that are not those of the layout named, and where
    no row is an item.
    """
    files = expand(paths)
    entries: list[Entry] = []
    unread: list[tuple[int, str]] = []
    chosen = layout
    for row, found in enumerate(_rows(files)):
        if isinstance(found, str):
            unread.append((row, found))
            continue
        chosen = chosen or detect(found)
        if chosen is None:
            return None
        try:
            question, answer, code = LAYOUTS[chosen][1](found)
            name = _own_name(found) if chosen == "lpt" else _name(chosen, question, answer)
        except RecordError as error:
            unread.append((row, error.reason))
            continue
        entries.append(Entry(row, name, question, answer, code))
    if chosen is None:
        return None
    if not entries:
        reasons = ", ".join(sorted({reason for _, reason in unread})) or "no rows"
        raise BadInputError(
            f"no row can be read as an item of a benchmark{f' in the layout {layout}' if layout else ''}",
            seen=f"{paths[0]}: {reasons}",
            next="; ".join(f"{n}: {' or '.join('+'.join(need) for need in have)}" for n, (have, _) in LAYOUTS.items()),
        )
    return Published(chosen, tuple(files), tuple(entries), tuple(unread))


def detect(columns: Mapping[str, Any] | Sequence[str]) -> str | None:
    """Return the layout whose columns are among these, or None."""
    present = set(columns)
    return next((n for n, (have, _) in LAYOUTS.items() if any(present.issuperset(need) for need in have)), None)


def _name(layout: str, question: str, answer: str) -> bytes:
    """The record id of an item: a chat where the layout is one that trains as well, else the text that it asks."""
    if layout == "gsm8k":
        turns = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        return record_id("sft", {"messages": turns})
    return record_id("text", {"text": question})


def _own_name(row: Row) -> bytes:
    said = _text(row, "record_id")
    if not re.fullmatch("[0-9a-f]{64}", said):
        raise RecordError("record_id is none", reason="wrong_type", field="record_id", seen=said[:80])
    return bytes.fromhex(said)


def _text(row: Row, column: str, *, empty: bool = False) -> str:
    value = row.get(column)
    if isinstance(value, str) and (value.strip() or empty):
        return value
    reason = "missing_field" if value is None or value == "" else "wrong_type"
    raise RecordError(f"{column} is no text", reason=reason, field=column, seen=repr(value)[:80])


def _listed(value: Any) -> list[str]:
    """Choices as texts; CSV holds them as JSON."""
    if isinstance(value, str):
        try:
            value = orjson.loads(value)
        except ValueError:
            return []
    return [str(choice) for choice in value if choice is not None] if isinstance(value, (list, tuple)) else []


# -- rows as published


def _rows(files: Sequence[SourceFile]) -> Iterator[dict[str, Any] | str]:
    """Yield each row of all files, or the reason why it cannot be read."""
    for source in files:
        if source.format == "json":
            yield from _of_json(source)
        elif source.format == "csv":
            yield from _of_csv(source)
        else:
            yield from _of_reader(source)


def _of_reader(source: SourceFile) -> Iterator[dict[str, Any] | str]:
    for chunk in read(source):
        records = plain_rows(chunk.records) if isinstance(chunk.records, pa.Table) else chunk.records
        found: dict[int, dict[str, Any] | str] = dict(zip(chunk.offsets.tolist(), records, strict=True))
        found |= {bad.offset: bad.reason for bad in chunk.bad}
        yield from (found[offset] for offset in sorted(found))


def _of_json(source: SourceFile) -> Iterator[dict[str, Any] | str]:
    if source.bytes > _MOST_BYTES:
        raise BadInputError("a JSON file of a benchmark is too large", seen=source.path, next="save it as JSON lines")
    try:
        body = orjson.loads(b"".join(blocks(source)))
    except ValueError:
        yield from _of_reader(source)  # JSON lines under another extension
        return
    if isinstance(body, dict):
        examples = body.get("examples")
        body = examples if isinstance(examples, list) else [body]
    yield from (row if isinstance(row, dict) else "not_an_object" for row in body)


def _of_csv(source: SourceFile) -> Iterator[dict[str, Any] | str]:
    """Rows of a CSV file; MMLU's have no head: a question, four choices and a letter in the first line, too."""
    text = b"".join(blocks(source)).decode("utf-8", "replace") if source.bytes <= _MOST_BYTES else ""
    csv.field_size_limit(MAX_LINE)  # of the whole process, as `lpt_data.io.readers` sets it
    first = next(csv.reader(io.StringIO(text)), [])
    if len(first) == 6 and first[5].strip() in _LETTERS and tuple(first[1:5]) != _LETTERS:
        for cells in csv.reader(io.StringIO(text)):
            yield (
                dict(zip(("question", *_LETTERS, "answer"), cells, strict=True)) if len(cells) == 6 else "wrong_columns"
            )
        return
    yield from _of_reader(source)
