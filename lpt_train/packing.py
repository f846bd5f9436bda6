"""Rendered rows, which of them share a unit of a batch (best-fit-decreasing), and the order of the units.

Rows never see one another, packed or not: see `flat` and `varlen`. Packing keeps the number of tokens of a micro-batch
nearly constant; it changes no row.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from lpt_train.render import Encoded, Renderer
from manifests.bins import best_fit_decreasing as best_fit_decreasing
from manifests.errors import RecordError, RefusedError

Made = TypeVar("Made")


@dataclass(frozen=True)
class Row:
    """One rendered record: its number in the split, its `ids` and `loss_mask` (int32, uint8), both [T]."""

    index: int
    ids: np.ndarray
    loss_mask: np.ndarray

    @property
    def supervised(self) -> int:
        """How many of its tokens count."""
        return int(self.loss_mask.sum())


@dataclass(frozen=True)
class Rendered:
    """The rows that can be trained on; `dropped` is {reason: rows} of the others, `examples` some of their numbers."""

    rows: list[Row]
    dropped: dict[str, int]
    examples: dict[str, list[int]]

    @property
    def tokens(self) -> int:
        """Tokens of all rows."""
        return sum(len(row.ids) for row in self.rows)

    @property
    def supervised(self) -> int:
        """Supervised tokens of all rows."""
        return sum(row.supervised for row in self.rows)

    def to_json(self) -> dict[str, Any]:
        """What a run records about its rendering."""
        return {
            "rows": len(self.rows), "dropped": self.dropped, "dropped_examples": self.examples,
            "tokens": self.tokens, "supervised_tokens": self.supervised,
        }  # fmt: skip


def render_rows(
    records: Iterable[Mapping[str, Any]], renderer: Renderer, *, max_length: int, truncation: str = "drop"
) -> Rendered:
    """Render every record once. What cannot be rendered or does not fit is dropped under its reason, never silently.

    Records are `sft` (messages, tools) or `text`. Raises `RefusedError` when nothing is left.
    """

    def row(index: int, record: Mapping[str, Any]) -> Row:
        encoded = (
            renderer.encode_text(record["text"]) if "text" in record
            else renderer.encode(record["messages"], record.get("tools"))
        )  # fmt: skip
        encoded = fit(encoded, max_length, truncation)
        return Row(index, np.asarray(encoded.ids, np.int32), np.asarray(encoded.loss_mask, np.uint8))

    rows, dropped, examples, last = made_or_dropped(records, row)
    if not rows:
        raise RefusedError(
            "no row of the split can be trained on", seen=f"{dropped}; the last one: {last.what if last else ''}",
            next=(last.next if last and last.next else "give a longer max_length or other data"),
        )  # fmt: skip
    return Rendered(rows, dropped, examples)


def made_or_dropped(
    records: Iterable[Any], make: Callable[[int, Any], Made]
) -> tuple[list[Made], dict[str, int], dict[str, list[int]], RecordError | None]:
    """What `make` makes of each record, and of those it raises `RecordError` for: how many by reason, the numbers of
    the first five of each reason, the last error."""
    made: list[Made] = []
    dropped: Counter[str] = Counter()
    examples: dict[str, list[int]] = {}
    last: RecordError | None = None
    for index, record in enumerate(records):
        try:
            made.append(make(index, record))
        except RecordError as error:
            dropped[error.reason] += 1
            if dropped[error.reason] <= 5:
                examples.setdefault(error.reason, []).append(index)
            last = error
    return made, dict(sorted(dropped.items())), examples, last


def fit(encoded: Encoded, max_length: int, truncation: str) -> Encoded:
    """The row within `max_length` tokens. Raises `RecordError` with reason `too_long`, or `no_supervised_token` when
    cutting at the end (`keep_start`) leaves nothing that counts."""
    if len(encoded.ids) <= max_length:
        return encoded
    if truncation == "drop":
        raise RecordError(
            "the row is longer than max_length", reason="too_long", seen=f"{len(encoded.ids)} tokens > {max_length}",
            next="raise max_length, or cut rows at their end with truncation=keep_start",
        )  # fmt: skip
    cut = Encoded(encoded.ids[:max_length], encoded.loss_mask[:max_length])
    if not any(cut.loss_mask):
        raise RecordError(
            "cutting the row at max_length leaves no supervised token", reason="no_supervised_token",
            seen=f"{len(encoded.ids)} tokens > {max_length}", next="raise max_length",
        )  # fmt: skip
    return cut


@functools.lru_cache(maxsize=4)
def epoch_order(units: int, seed: int, epoch: int) -> np.ndarray:
    """The order of the units in an epoch (int64 [units]); a function of its arguments alone."""
    return np.random.default_rng([seed, epoch]).permutation(units)


def units_at(start: int, count: int, *, units: int, seed: int) -> list[int]:
    """Which units stand at places `start…start+count-1` of the endless stream of shuffled epochs.

    The place is all there is to a data cursor: a resumed run asks for the next one.
    """
    return [int(epoch_order(units, seed, place // units)[place % units]) for place in range(start, start + count)]
