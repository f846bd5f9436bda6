"""Columns of numbers out of rows of any layout, each value with its place; nothing is skipped."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lpt_data.io.readers import read
from lpt_data.io.sources import expand
from manifests.arrow import plain_rows
from manifests.errors import BadInputError


def rows_of(inputs: str | Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (FILE:LINE, row) of every row; BadInputError at the first that cannot be read."""
    for source in expand(inputs):
        for chunk in read(source):
            if chunk.bad:
                bad = chunk.bad[0]
                raise BadInputError(
                    "a row cannot be read", seen=f"{source.path}:{bad.line}: {bad.reason}", next="correct the row"
                )
            rows = chunk.records if isinstance(chunk.records, list) else plain_rows(chunk.records)
            for line, row in zip(chunk.lines.tolist(), rows, strict=True):
                yield f"{source.path}:{line}", row


NAME_IT = "name the column that the file has"


def number(row: Mapping[str, Any], column: str, place: str, advice: str = NAME_IT) -> float | None:
    """Return a value of a row as a number, true and false as 1 and 0; None for null. A format of text has text."""
    value = _of(row, column, place, advice)
    if value is None or value == "":
        return None
    try:
        found = math.nan if isinstance(value, (list, dict)) else float(value)
    except (TypeError, ValueError):
        found = math.nan
    if not math.isfinite(found):
        raise BadInputError(f"{column} is no number", seen=f"{place}: {value!r:.80}", next="a number, or null")
    return found


def name(row: Mapping[str, Any], column: str, place: str, advice: str = NAME_IT) -> str:
    """Return a value of a row as a name: text as it is, anything else as JSON."""
    value = _of(row, column, place, advice)
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)


def _of(row: Mapping[str, Any], column: str, place: str, advice: str) -> Any:
    if column not in row:
        raise BadInputError(
            f"a row has no column {column}", seen=f"{place} has {', '.join(map(str, list(row)[:12]))}",
            next=advice,
        )  # fmt: skip
    return row[column]
