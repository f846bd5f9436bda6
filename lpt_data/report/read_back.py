"""Rows as a stage read them: their texts, found again in the files that it names, while those are unchanged.

A page shows what was decided about, so a file whose bytes are others now is not read at all, and the page says so.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lpt_data.dataset import Dataset, TextBatch
from lpt_data.progress import Progress
from lpt_data.record_text import KEYS
from lpt_data.report.compare import LONGEST
from manifests.digests import bytes_sha256
from manifests.errors import LptError

WHOLE = 64 << 20  # bytes of input up to which the length of every row is measured


@dataclass(frozen=True)
class Excerpt:
    """The start of a text, and how many characters there are in all."""

    text: str
    characters: int


@dataclass
class Found:
    """What was read back; `lengths` has -1 for rows that could not be read, and is None where nobody looked."""

    by_row: dict[int, Excerpt] = field(default_factory=dict)
    by_id: dict[str, Excerpt] = field(default_factory=dict)
    lengths: np.ndarray | None = None  # int64 [rows_in], characters
    notes: list[str] = field(default_factory=list)


def read_back(
    body: Mapping[str, Any], rows: Collection[int], ids: Collection[str], progress: Progress, *, measure: bool = True
) -> Found:
    """Find the texts of rows by their number in the input of a stage, and of records of its references by their id.

    Lengths of all rows are measured, with `measure`, where the input is small enough. Never raises for a file: what
    cannot be read is noted.
    """
    found = Found()
    inputs = body.get("inputs") or []
    if measure and sum(int(entry["bytes"]) for entry in inputs) > WHOLE:
        found.notes.append(f"the input is larger than {WHOLE >> 20} MiB, so the lengths of its rows are not measured")
        measure = False
    if measure:
        found.lengths = np.full(int(body["rows_in"]), -1, np.int64)
    wanted = np.array(sorted(rows), np.int64)
    for entry in inputs:
        start = int(entry.get("first_row") or 0)
        end = start + int(entry.get("rows") or 0)
        if measure or ((wanted >= start) & (wanted < end)).any():
            _from_input(body, entry, wanted, found, progress)
    missing = {name for name in ids if name}
    for entry in body.get("references") or []:
        if missing:
            _from_reference(body, entry, missing, found, progress)
    return found


def _from_input(
    body: Mapping[str, Any], entry: Mapping[str, Any], wanted: np.ndarray, found: Found, progress: Progress
) -> None:
    start = int(entry.get("first_row") or 0)
    mine = wanted[(wanted >= start) & (wanted < start + int(entry.get("rows") or 0))]
    left = len(mine)
    try:
        for batch in _texts(body, entry, found):
            numbers = batch.rows + start
            if found.lengths is not None:
                found.lengths[numbers] = pc.utf8_length(batch.texts).to_numpy(zero_copy_only=False)
            for place in np.flatnonzero(np.isin(numbers, mine)).tolist():
                found.by_row[int(numbers[place])] = excerpt(batch.texts, place)
                left -= 1
            progress(int(numbers[-1]) + 1, int(body["rows_in"]), "texts of the report")
            if not left and found.lengths is None:
                break
    except LptError as error:
        found.notes.append(f"{entry['path']}: {error.what}; its rows are not shown")


def _from_reference(
    body: Mapping[str, Any], entry: Mapping[str, Any], missing: set[str], found: Found, progress: Progress
) -> None:
    try:
        for batch in _texts(body, entry, found):
            for place, name in enumerate(batch.ids):
                known = name.tobytes().hex()
                if known in missing:
                    found.by_id[known] = excerpt(batch.texts, place)
                    missing.discard(known)
            progress(int(batch.rows[-1]) + 1, None, "texts of the references")
            if not missing:
                break
    except LptError as error:
        found.notes.append(f"{entry['path']}: {error.what}; its rows are not shown")


def _texts(body: Mapping[str, Any], entry: Mapping[str, Any], found: Found) -> Iterator[TextBatch]:
    path = str(entry["path"])
    if not os.path.isfile(path):
        found.notes.append(f"{path} is not there any more; its rows are not shown")
        return
    if bytes_sha256(path) != entry.get("sha256"):
        found.notes.append(f"{path} has changed since the stage read it; its rows are not shown")
        return
    layout, column = entry.get("layout"), str(entry.get("text_column", "text"))
    dataset = Dataset.open([path], kind=body.get("kind"), layout=layout, text_column=column)
    yield from dataset.texts(_key(body, dataset))


def _key(body: Mapping[str, Any], dataset: Dataset) -> str:
    """Return what the stage compared, so that a score is shown beside the text that it was computed from."""
    key = str(body["config"].get("key", "text")).partition("+")[0] if body.get("stage") == "dedup" else "text"
    return key if key in KEYS or key in dataset.columns else "text"


def excerpt(texts: pa.Array, place: int) -> Excerpt:
    """Return the start of one text of a batch without building the whole of it."""
    start = pc.utf8_slice_codeunits(texts[place], 0, LONGEST).as_py()
    return Excerpt(start, int(pc.utf8_length(texts[place]).as_py()))
