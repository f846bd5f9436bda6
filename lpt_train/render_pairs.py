"""Preference records to pairs of rows that share their prompt, token for token."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lpt_train.packing import Row, fit
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

    def to_json(self) -> dict[str, Any]:
        """What a run records about its rendering."""
        return {
            "pairs": len(self.pairs), "dropped": self.dropped, "dropped_examples": self.examples,
            "tokens": sum(pair.tokens for pair in self.pairs),
            "supervised_tokens": sum(pair.chosen.supervised + pair.rejected.supervised for pair in self.pairs),
        }  # fmt: skip


def render_pairs(
    records: Iterable[Mapping[str, Any]], renderer: Renderer, *, max_length: int, truncation: str = "drop"
) -> RenderedPairs:
    """Render both sides of every record once; what cannot be trained on is dropped under its reason.

    Besides the renderer's reasons: `too_long`, `no_supervised_token` (a completion that truncation left nothing of) and
    `identical_after_truncation`. Raises `RefusedError` when nothing is left.
    """
    pairs: list[Pair] = []
    dropped: Counter[str] = Counter()
    examples: dict[str, list[int]] = {}
    last = ""
    for index, record in enumerate(records):
        try:
            pairs.append(_pair(index, record, renderer, max_length, truncation))
        except RecordError as error:
            dropped[error.reason] += 1
            examples.setdefault(error.reason, []).append(index) if len(examples.get(error.reason, [])) < 5 else None
            last = f"{error.what} ({error.seen})"
    if not pairs:
        raise RefusedError(
            "no pair of the split can be trained on", seen=f"{dict(dropped)}; the last one: {last}",
            next="give a longer max_length or other data",
        )  # fmt: skip
    return RenderedPairs(pairs, dict(sorted(dropped.items())), examples)


def _pair(index: int, record: Mapping[str, Any], renderer: Renderer, max_length: int, truncation: str) -> Pair:
    prompt_ids = renderer.encode_prompt(record["prompt"])
    sides = []
    for name in ("chosen", "rejected"):
        whole = renderer.encode([*record["prompt"], *record[name]])
        if whole.ids[: len(prompt_ids)] != prompt_ids:
            raise RecordError(
                "the prompt is not the same tokens once a completion follows it", reason="prompt_not_a_prefix",
                field=name, next="remove blanks at the start of the completion",
            )  # fmt: skip
        mask = [0] * len(prompt_ids) + whole.loss_mask[len(prompt_ids) :]
        fitting = fit(Encoded(whole.ids, mask), max_length, truncation)
        if not any(fitting.loss_mask):
            raise RecordError("no token of a completion counts", reason="no_supervised_token", field=name)
        sides.append(Row(index, np.asarray(fitting.ids, np.int32), np.asarray(fitting.loss_mask, np.uint8)))
    if np.array_equal(sides[0].ids, sides[1].ids):
        raise RecordError(
            "both sides are the same tokens", reason="identical_after_truncation", field="rejected",
            seen=f"{len(sides[0].ids)} tokens", next="raise max_length, or remove such pairs",
        )  # fmt: skip
    return Pair(*sides)
