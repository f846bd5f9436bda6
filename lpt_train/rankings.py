"""Preference records as rankings: completions of one prompt, each once, and which of them is better than which.

A record is a ranking of two. Where records of one prompt belong together (`ranking` is `prompts` or `plackett_luce`),
a completion that is compared K-1 times is one row, so that it passes through the model once; a prompt weighs 1 however
many answers it has, because pairs of one prompt are no independent observations (Ouyang et al. 2022, section 3.5).
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lpt_train.admitted import AdmittedSplit
from lpt_train.config_reward import RewardConfig
from lpt_train.packing import Row, made_or_dropped, tokens_of
from lpt_train.render import Renderer
from lpt_train.render_pairs import Pair, render_pair
from manifests.canon import canonical_json
from manifests.errors import BadInputError, RecordError, RefusedError

MARGIN = "margin"  # the column beside a pair, TRL's


@dataclass(frozen=True)
class Ranking:
    """Rows of one prompt; `pairs` are (better, worse) places in them, of the records with these numbers."""

    rows: tuple[Row, ...]
    pairs: tuple[tuple[int, int], ...]
    margins: tuple[float, ...]  # by which the better one should win, in units of reward
    records: tuple[int, ...]
    order: tuple[int, ...] = ()  # places of the rows, best first, where they are ranked as a whole

    @property
    def tokens(self) -> int:
        """Tokens of all rows."""
        return sum(len(row.ids) for row in self.rows)


@dataclass(frozen=True)
class Rankings:
    """What can be trained on; `dropped` is {reason: pairs}, `flipped` the number of pairs whose sides were exchanged.

    `with_margins` tells whether margins are the split's own and not all zero for want of any.
    """

    rankings: list[Ranking]
    dropped: dict[str, int]
    examples: dict[str, list[int]]
    flipped: int
    with_margins: bool

    @property
    def rows(self) -> list[Row]:
        """All rows, ranking by ranking."""
        return [row for ranking in self.rankings for row in ranking.rows]

    @property
    def pairs(self) -> int:
        """How many pairs there are."""
        return sum(len(ranking.pairs) for ranking in self.rankings)

    def to_json(self) -> dict[str, Any]:
        """What a run records about its rendering."""
        sizes = Counter(len(ranking.rows) for ranking in self.rankings)
        return {
            "pairs": self.pairs, "prompts": len(self.rankings), "completions": len(self.rows),
            "completions_a_prompt": {str(size): sizes[size] for size in sorted(sizes)}, "dropped": self.dropped,
            "dropped_examples": self.examples, **tokens_of(self.rows), "margins": self.with_margins,
        }  # fmt: skip


def render_rankings(split: AdmittedSplit, renderer: Renderer, config: RewardConfig, *, flip: bool = False) -> Rankings:
    """Render the records of a split; what cannot be trained on is dropped under its reason.

    With `flip` the share `flip_labels` of them has its sides exchanged, chosen by seed and record id. Besides the
    reasons of `render_pairs`: `margin_not_a_number`, and `no_total_order` for the pairs of a prompt whose completions
    have no single order. Raises `RefusedError` when nothing is left.
    """
    margins = _margins(split, config)
    flipped = 0

    def made(index: int, record: Mapping[str, Any]) -> tuple[bytes, Pair, float, int]:
        nonlocal flipped
        margin = 0.0 if margins is None else _number(margins[index])
        pair = render_pair(index, record, renderer, config.max_length, config.truncation)
        if flip and is_flipped(split.record_ids[index], config.run.seed, config.flip_labels):
            pair, flipped = Pair(pair.rejected, pair.chosen), flipped + 1
        return canonical_json(record.get("prompt")), pair, margin, index

    found, dropped, examples, last = made_or_dropped(split.rows(), made)
    if config.ranking == "pairs":
        rankings = [_ranking([one]) for one in found]
    else:
        of_prompt: dict[bytes, list[tuple[bytes, Pair, float, int]]] = {}
        for one in found:
            of_prompt.setdefault(one[0], []).append(one)
        rankings = [_ranking(records) for records in of_prompt.values()]
    if config.ranking == "plackett_luce":
        rankings = _ordered(rankings, dropped, examples)
    if not rankings:
        why = f"{last.what} ({last.seen})" if last else "no prompt has completions of one single order"
        raise RefusedError(
            "no pair of the split can be trained on", seen=f"{dropped}; the last one: {why}",
            next=(last.next if last and last.next else "give a longer max_length or other data"),
        )  # fmt: skip
    return Rankings(rankings, dropped, examples, flipped, margins is not None)


def is_flipped(record_id: str, seed: int, share: float) -> bool:
    """Whether a control exchanges the sides of a record: by its id and the seed, whatever stands beside it."""
    drawn = hashlib.sha256(f"lpt-flip/1\0{seed}\0{record_id}".encode()).digest()[:8]
    return int.from_bytes(drawn, "big") < share * 2**64


def total_order(count: int, pairs: Iterable[tuple[int, int]]) -> tuple[int, ...] | None:
    """The only order of `count` places, best first, that agrees with all (better, worse) pairs; None without one."""
    distinct = set(pairs)
    worse_than: dict[int, list[int]] = {place: [] for place in range(count)}
    above = [0] * count
    for better, worse in distinct:
        worse_than[better].append(worse)
        above[worse] += 1
    first = [place for place in range(count) if not above[place]]
    order: list[int] = []
    while len(first) == 1:
        order.append(best := first.pop())
        for worse in worse_than[best]:
            above[worse] -= 1
            if not above[worse]:
                first.append(worse)
    return tuple(order) if len(order) == count else None


def _ranking(records: Sequence[tuple[bytes, Pair, float, int]]) -> Ranking:
    places: dict[bytes, int] = {}
    rows: list[Row] = []

    def place(row: Row) -> int:
        key = row.ids.tobytes()
        if key not in places:
            places[key] = len(rows)
            rows.append(row)
        return places[key]

    pairs = tuple((place(pair.chosen), place(pair.rejected)) for _, pair, _, _ in records)
    return Ranking(tuple(rows), pairs, tuple(m for _, _, m, _ in records), tuple(i for _, _, _, i in records))


def _ordered(rankings: list[Ranking], dropped: dict[str, int], examples: dict[str, list[int]]) -> list[Ranking]:
    """The rankings that have one order, with it; the pairs of the others are counted as dropped."""
    kept = []
    for ranking in rankings:
        order = total_order(len(ranking.rows), ranking.pairs)
        if order is None:
            dropped["no_total_order"] = dropped.get("no_total_order", 0) + len(ranking.pairs)
            some = examples.setdefault("no_total_order", [])
            some += ranking.records[: 5 - len(some)]
        else:
            kept.append(Ranking(ranking.rows, ranking.pairs, ranking.margins, ranking.records, order))
    return kept


def _margins(split: AdmittedSplit, config: RewardConfig) -> list[Any] | None:
    """The column of margins as the split has it; None where it is not used."""
    if config.margin == "none" or config.ranking == "plackett_luce":
        return None
    margins = split.beside(MARGIN)
    if margins is None and config.margin == "column":
        raise BadInputError(
            f"{split.ref} has no column {MARGIN}", seen=", ".join(split.table.column_names),
            next="add the column before the split is admitted, or --set margin=none",
        )  # fmt: skip
    return margins


def _number(value: Any) -> float:
    """A margin as a number; a column whose values differed in type holds them as text."""
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise RecordError(
            "the margin of a pair is not a number", reason="margin_not_a_number", field=MARGIN, seen=repr(value)[:80],
            next="correct the column, or --set margin=none",
        )  # fmt: skip
    return number
