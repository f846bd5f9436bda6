"""The cleaning stage: every text of every row through the rules, one decision for each reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from lpt_data.clean.outcome import Document, Drop, Rewrite
from lpt_data.clean.places import changed_columns, text_columns
from lpt_data.clean.plan import Plan, make_plan
from lpt_data.clean.table import RULES
from lpt_data.columns import dump
from lpt_data.config import CleanConfig
from lpt_data.dataset import Dataset
from lpt_data.progress import Progress
from lpt_data.stage import StageResult
from lpt_data.survivors import REWRITTEN
from manifests import decisions
from manifests.canon import record_id
from manifests.errors import RecordError

EXAMPLES = 2  # shown of each reason
_EXCERPT = 120  # characters of a text shown


@dataclass
class Cleaned:
    """What the rules made of one text."""

    text: str
    reasons: dict[str, tuple[str, str]] = field(default_factory=dict)  # of rewrites, with the text before and after
    drop: Drop | None = None


def clean_text(text: str, plan: Plan) -> Cleaned:
    """Take a text through the rules of a plan, in their order; the first that drops it ends the way."""
    done = Cleaned(text)
    doc = Document(text, plan.languages)
    for rule, limits in plan.steps:
        if rule.marks and not doc.marks & rule.marks:
            continue
        outcome = rule.apply(doc, limits)
        if isinstance(outcome, Rewrite):
            done.reasons.setdefault(outcome.reason, (doc.text, outcome.text))
            done.text = outcome.text
            doc = Document(outcome.text, plan.languages)
        elif isinstance(outcome, Drop):
            done.drop = outcome
            break
    return done


def decide(dataset: Dataset, config: CleanConfig, progress: Progress) -> StageResult:
    """Decide what is dropped and what is rewritten: `lpt_data.stage.run_stage` writes the rest.

    Raises UsageError for a config that makes no sense, before reading.
    """
    plan, columns = make_plan(config), text_columns(dataset)
    books = _Books(plan)
    for row, raw, name in _rows(dataset):
        books.ids.append(name)
        books.rows.append(row)
        _clean_row(dataset, books, columns, row, raw, name)
        if not len(books.rows) % 1000:
            progress(row + 1, None, "rows cleaned")
    record_ids = np.zeros((dataset.rows_in, 32), np.uint8)
    record_ids[books.rows] = np.frombuffer(b"".join(books.ids), np.uint8).reshape(-1, 32)
    return StageResult(books.decisions(), record_ids, books.extra(), rewritten=books.table())


def _rows(dataset: Dataset) -> Iterator[tuple[int, dict[str, Any], bytes]]:
    """Yield (row, its columns as written, record id); of plain text only the text is read."""
    if dataset.kind != "text" or "record_id" in dataset.columns:
        yield from dataset.as_written()
        return
    for batch in dataset.texts("text"):
        names = batch.ids.tobytes()
        for i, (row, text) in enumerate(zip(batch.rows.tolist(), batch.texts.to_pylist(), strict=True)):
            yield row, {dataset.text_column: text}, names[32 * i : 32 * i + 32]


def _clean_row(
    dataset: Dataset, books: _Books, columns: tuple[str, ...], row: int, raw: dict[str, Any], name: bytes
) -> None:
    """Clean the texts of one row and enter what came of it; the first text that is dropped takes the row along."""
    reasons: dict[str, tuple[str, str]] = {}
    dropped: Cleaned | None = None

    def change(text: str) -> str:
        nonlocal dropped
        if dropped is not None:
            return text
        done = clean_text(text, books.plan)
        books.chars += len(text)
        if done.drop is not None:
            dropped = done
            return text
        for reason, texts in done.reasons.items():
            reasons.setdefault(reason, texts)
        return done.text

    new = changed_columns(raw, columns, change)
    if dropped is not None and dropped.drop is not None:
        books.drop(row, name, dropped.drop, dropped.text)
    elif new:
        try:
            after = _identity(dataset, raw, new)
        except RecordError as error:  # what is left is no record of its kind any more
            books.drop(row, name, Drop(error.reason, 0.0, f"after cleaning: {error.what}"), "")
            return
        if "record_id" in raw:
            new["record_id"] = after.hex()
        books.rewrite(row, name, after, new, reasons)


def _identity(dataset: Dataset, raw: dict[str, Any], new: dict[str, Any]) -> bytes:
    if dataset.kind == "text":
        return record_id("text", {"text": new[dataset.text_column]})
    return dataset.identify({**raw, **new})


class _Books:
    """Decisions and rewritten rows as they come."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.rows: list[int] = []
        self.ids: list[bytes] = []  # of the rows as they leave
        self.chars = 0
        self._told: dict[str, list[Any]] = {n: [] for n in ("row", "record_id", "action", "reason", "score", "detail")}
        self._changed: tuple[list[int], list[bytes]] = ([], [])
        self._examples: dict[str, list[dict[str, Any]]] = {}
        self._funnel: Counter[str] = Counter()

    def drop(self, row: int, name: bytes, why: Drop, text: str) -> None:
        self._tell(row, name, "remove", why.reason, why.score, why.detail)
        if len(self._examples.setdefault(why.reason, [])) < EXAMPLES:
            told = {"before": hidden(text)[:_EXCERPT], "after": "", "score": why.score, "detail": why.detail}
            self._examples[why.reason].append({"row": row, **told})

    def rewrite(
        self, row: int, name: bytes, after: bytes, new: dict[str, Any], reasons: dict[str, tuple[str, str]]
    ) -> None:
        self.ids[-1] = after
        self._changed[0].append(row)
        self._changed[1].append(dump(new))
        detail = decisions.rewrite_detail(name.hex(), after.hex())
        for reason, (before, text) in reasons.items():
            self._tell(row, name, "rewrite", reason, None, detail)
            if len(self._examples.setdefault(reason, [])) < EXAMPLES:
                first, second = _differing(before if reason.endswith("_masked") else hidden(before), hidden(text))
                if reason.endswith("_masked"):
                    first = "(not shown)"
                self._examples[reason].append({"row": row, "before": first, "after": second})

    def _tell(self, row: int, name: bytes, action: str, reason: str, score: float | None, detail: str) -> None:
        for column, value in zip(self._told.values(), (row, name, action, reason, score, detail), strict=True):
            column.append(value)
        self._funnel[reason] += 1

    def decisions(self) -> pa.Table:
        """What was dropped, and what was rewritten with a line for each reason."""
        told = dict(self._told)
        ids = np.frombuffer(b"".join(told.pop("record_id")), np.uint8).reshape(-1, 32)
        types = {"row": pa.int64(), "score": pa.float64()}
        columns = {name: pa.array(values, types.get(name, pa.string())) for name, values in told.items()}
        return decisions.table({**columns, "record_id": ids})

    def table(self) -> pa.Table:
        """The rewritten rows, as `lpt_data.survivors.REWRITTEN`."""
        rows, columns = self._changed
        ends = np.cumsum([0, *map(len, columns)], dtype=np.int64)
        buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(columns))]
        packed = pa.Array.from_buffers(pa.large_binary(), len(columns), buffers)
        return pa.Table.from_arrays([pa.array(rows, pa.int64()), packed], schema=REWRITTEN)

    def extra(self) -> dict[str, Any]:
        """The rules with their thresholds, and examples of each reason, the most frequent first."""
        return {
            "rules": self.plan.to_json(),
            "rules_skipped": self.plan.skipped,
            "rows_rewritten": len(self._changed[0]),
            "characters": self.chars,
            "examples": {reason: self._examples[reason] for reason, _ in self._funnel.most_common()},
        }


def hidden(text: str) -> str:
    """The text as an example may show it: personal data and secrets masked, whatever the config lets through."""
    for rule in RULES.values():
        if rule.private and isinstance(outcome := rule.apply(Document(text), rule.limits), Rewrite):
            text = outcome.text
    return text


def _differing(before: str, after: str) -> tuple[str, str]:
    """Excerpts of two texts, each from shortly before the first character that differs."""
    size = min(len(before), len(after))
    same = next((i for i in range(0, size, 4096) if before[i : i + 4096] != after[i : i + 4096]), size)
    while same < size and before[same] == after[same]:
        same += 1
    start = max(0, same - _EXCERPT // 4)
    return before[start : start + _EXCERPT], after[start : start + _EXCERPT]
