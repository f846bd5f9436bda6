"""Preference records to pairs of rows that share their prompt, token for token; and to marked completions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lpt_train.packing import Row, fitted, made_or_dropped, tokens_of
from lpt_train.render import Encoded, Renderer
from manifests.errors import RecordError, RefusedError


@dataclass(frozen=True)
class Pair:
    """Two rows that begin with the same prompt; only tokens of the completions count."""

    chosen: Row
    rejected: Row

    @property
    def tokens(self) -> int:
        """Tokens of both rows."""
        return len(self.chosen.ids) + len(self.rejected.ids)


@dataclass(frozen=True)
class RenderedPairs:
    """The pairs that can be trained on; `dropped` is {reason: pairs}, `examples` some of their numbers."""

    pairs: list[Pair]
    dropped: dict[str, int]
    examples: dict[str, list[int]]

    @property
    def rows(self) -> list[Row]:
        """Both sides of every pair."""
        return [row for pair in self.pairs for row in (pair.chosen, pair.rejected)]

    def to_json(self) -> dict[str, Any]:
        """What a run records about its rendering."""
        return {
            "pairs": len(self.pairs), "dropped": self.dropped, "dropped_examples": self.examples,
            **tokens_of(self.rows),
        }  # fmt: skip


def render_pairs(
    records: Iterable[Mapping[str, Any]], renderer: Renderer, *, max_length: int, truncation: str = "drop"
) -> RenderedPairs:
    """Render both sides of every record once; what cannot be trained on is dropped under its reason.

    Besides the renderer's reasons: `too_long`, `no_supervised_token` (a completion that truncation left nothing of) and
    `identical_after_truncation`. Raises `RefusedError` when nothing is left.
    """
    pairs, dropped, examples, last = made_or_dropped(
        records, lambda index, record: render_pair(index, record, renderer, max_length, truncation)
    )
    if not pairs:
        why = f"{last.what} ({last.seen})" if last else ""
        raise RefusedError(
            "no pair of the split can be trained on", seen=f"{dropped}; the last one: {why}",
            next="give a longer max_length or other data",
        )  # fmt: skip
    return RenderedPairs(pairs, dropped, examples)


@dataclass(frozen=True)
class Completion:
    """A row of which only the completion counts, marked good or bad; its prompt is the first `prompt_tokens` tokens."""

    row: Row
    desirable: bool
    prompt_tokens: int


@dataclass(frozen=True)
class RenderedCompletions:
    """The completions that can be trained on; `dropped` is {reason: completions}."""

    completions: list[Completion]
    dropped: dict[str, int]

    @property
    def rows(self) -> list[Row]:
        """The row of every completion."""
        return [completion.row for completion in self.completions]

    def to_json(self) -> dict[str, Any]:
        """What a run records about its rendering."""
        good = sum(completion.desirable for completion in self.completions)
        return {
            "completions": len(self.completions), "desirable": good, "undesirable": len(self.completions) - good,
            "dropped": self.dropped, **tokens_of(self.rows),
        }  # fmt: skip


def render_completions(
    records: Iterable[Mapping[str, Any]], renderer: Renderer, *, max_length: int, truncation: str = "drop"
) -> RenderedCompletions:
    """Render `kto` records, or both sides of preference records, as marked completions.

    Raises `RefusedError` when nothing is left, or nothing of one class.
    """
    sides = (
        (index, record, name, good)
        for index, record in enumerate(records)
        for name, good in _sides(record)
    )  # fmt: skip

    def completion(_: int, side: tuple[int, Mapping[str, Any], str, bool]) -> Completion:
        index, record, name, good = side
        row, prompt_tokens = _side(index, record, name, renderer, max_length, truncation)
        return Completion(row, good, prompt_tokens)

    found, dropped, _, _ = made_or_dropped(sides, completion)
    good = sum(completion.desirable for completion in found)
    if not 0 < good < len(found):
        raise RefusedError(
            "KTO needs good and bad completions", seen=f"{good} good of {len(found)}; dropped: {dropped}",
            next="give a longer max_length, or rows of both labels",
        )  # fmt: skip
    return RenderedCompletions(found, dropped)


def _sides(record: Mapping[str, Any]) -> list[tuple[str, bool]]:
    """The completions of a record, by the name of their field, and whether each is good."""
    return [("completion", bool(record["label"]))] if "label" in record else [("chosen", True), ("rejected", False)]


def mismatched(completions: list[Completion], order: np.ndarray, max_length: int) -> list[Row]:
    """For each completion, its prompt with the completion of the next one in `order` whose prompt is another.

    Cut at `max_length` like any other row. Raises `RefusedError` when all prompts are the same.
    """
    prompts = [completion.row.ids[: completion.prompt_tokens].tobytes() for completion in completions]
    rows: list[Row | None] = [None] * len(completions)
    for place, number in enumerate(order):
        for step in range(1, len(order)):
            other = completions[order[(place + step) % len(order)]]
            if prompts[order[(place + step) % len(order)]] != prompts[number]:
                break
        else:
            raise RefusedError("all prompts are the same, so that none can be paired with another's completion")
        own = completions[number]
        ids = np.concatenate([own.row.ids[: own.prompt_tokens], other.row.ids[other.prompt_tokens :]])
        mask = np.concatenate([own.row.loss_mask[: own.prompt_tokens], other.row.loss_mask[other.prompt_tokens :]])
        rows[number] = Row(own.row.index, ids[:max_length], mask[:max_length])
    return [row for row in rows if row is not None]


def _side(
    index: int, record: Mapping[str, Any], name: str, renderer: Renderer, max_length: int, truncation: str
) -> tuple[Row, int]:
    """The prompt of a record with one of its completions, and the tokens of the prompt."""
    prompt = record.get("prompt") or []  # the renderer says what is wrong with none
    prompt_ids = renderer.encode_prompt(prompt, encoded=True)
    whole = renderer.encode([*prompt, *record[name]])
    if whole.ids[: len(prompt_ids)] != prompt_ids:
        raise RecordError(
            "the prompt is not the same tokens once a completion follows it", reason="prompt_not_a_prefix",
            field=name, next="remove blanks at the start of the completion",
        )  # fmt: skip
    mask = [0] * len(prompt_ids) + whole.loss_mask[len(prompt_ids) :]
    row = fitted(index, Encoded(whole.ids, mask), max_length, truncation)
    if not row.supervised:
        raise RecordError("no token of a completion counts", reason="no_supervised_token", field=name)
    return row, len(prompt_ids)


def render_pair(index: int, record: Mapping[str, Any], renderer: Renderer, max_length: int, truncation: str) -> Pair:
    """Both sides of one record; raises `RecordError` with the reason for which it cannot be trained on."""
    sides = [_side(index, record, name, renderer, max_length, truncation)[0] for name in ("chosen", "rejected")]
    if np.array_equal(sides[0].ids, sides[1].ids):
        raise RecordError(
            "both sides are the same tokens", reason="identical_after_truncation", field="rejected",
            seen=f"{len(sides[0].ids)} tokens", next="raise max_length, or remove such pairs",
        )  # fmt: skip
    return Pair(*sides)
