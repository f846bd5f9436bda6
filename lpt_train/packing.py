"""Rendered rows, which of them share a unit of a batch (best-fit-decreasing), and the order of the units.

Rows never see one another, packed or not: see `flat` and `varlen`. Packing keeps the number of tokens of a micro-batch
nearly constant; it changes no row.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from lpt_train.render import Encoded, Renderer
from manifests.bins import best_fit_decreasing as best_fit_decreasing
from manifests.errors import RecordError, RefusedError

Made = TypeVar("Made")


@dataclass(frozen=True)
class Lost:
    """What cutting took of a row: supervised tokens, and whether it ends amid a reply, which so lost its stop token."""

    supervised: int
    stop: bool


@dataclass(frozen=True)
class Row:
    """One rendered record: its number in the split, its `ids` and `loss_mask` (int32, uint8), both [T].

    `lost` is what cutting it to its length took; None of a whole row.
    """

    index: int
    ids: np.ndarray
    loss_mask: np.ndarray
    lost: Lost | None = None

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
            **tokens_of(self.rows),
        }  # fmt: skip


def tokens_of(rows: Sequence[Row]) -> dict[str, Any]:
    """What a run records of its rows: tokens, how many of them count, and what was cut."""
    tokens, supervised = sum(len(row.ids) for row in rows), sum(row.supervised for row in rows)
    lost = [row.lost for row in rows if row.lost is not None]
    return {
        "tokens": tokens, "supervised_tokens": supervised, "supervised_share": round(supervised / max(1, tokens), 4),
        "cut": {
            "rows": len(lost), "without_stop": sum(one.stop for one in lost),
            "supervised_tokens": sum(one.supervised for one in lost),
        },
    }  # fmt: skip


def cut_notes(rows: Sequence[Row], max_length: int, what: str = "rows") -> list[str]:
    """What a run says about the rows that it trains on the beginning of alone."""
    told = tokens_of(rows)
    cut = told["cut"]
    if not cut["rows"]:
        return []
    return [
        f"{cut['rows']} of {len(rows)} {what} were cut to {max_length} tokens: {cut['without_stop']} end in the middle "
        f"of a reply, without its stop token; {cut['supervised_tokens']:,} supervised tokens were lost, "
        f"{told['supervised_share']:.0%} of what is left is supervised"
    ]


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
        return fitted(index, encoded, max_length, truncation)

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


def fitted(index: int, encoded: Encoded, max_length: int, truncation: str) -> Row:
    """The row within `max_length` tokens, which knows what was cut of it; raises as `fit` does."""
    kept, mask = fit(encoded, max_length, truncation), encoded.loss_mask
    lost = None
    if len(kept.ids) < len(mask):
        end = len(kept.ids)
        lost = Lost(sum(mask[end:]), stop=bool(mask[end - 1] and mask[end]))
    return Row(index, np.asarray(kept.ids, np.int32), np.asarray(kept.loss_mask, np.uint8), lost)


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
