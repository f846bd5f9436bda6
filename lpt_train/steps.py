"""What the loops share about their steps: cutting a step into micro-batches, its end, what was dropped before it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch

from lpt_train.admitted import AdmittedSplit
from lpt_train.checkpoint import Restored
from lpt_train.packing import Row, cut_notes, epoch_order
from lpt_train.render import Renderer
from lpt_train.sharded import whole
from manifests.digests import tokenized_id
from manifests.errors import RefusedError


def batched(items: Sequence[Any], size: int) -> list[Sequence[Any]]:
    """`items` cut into pieces of `size`, the last one shorter."""
    return [items[i : i + size] for i in range(0, len(items), size)]


def most(values: Iterable[int], size: int) -> int:
    """The sum of the `size` largest: what no micro-batch of so many exceeds."""
    return sum(sorted(values, reverse=True)[:size])


def scores(rows: Iterable[Row]) -> int:
    """Pairs of tokens of one row, over some rows: what a head of attention scores where no kernel spares it."""
    return sum(len(row.ids) ** 2 for row in rows)


def whole_steps(back: Restored, *, rows_a_step: int, total: int) -> None:
    """Refuse to lengthen a run that ended in a step of fewer rows: of a longer run that step would have been full."""
    if back.step < total and back.cursor["place"] != back.step * rows_a_step:
        raise RefusedError(
            "the run ended in a step of fewer rows than the others, so that it is no part of a longer one",
            seen=f"{back.cursor['place']} rows in {back.step} steps of {rows_a_step}",
            next="start a new run with --model set to this one",
        )


def dropped_notes(dropped: Mapping[str, int], kept: int, what: str = "rows") -> list[str]:
    """What a run says about the rows that it could not train on."""
    total = sum(dropped.values())
    if not total:
        return []
    reasons = ", ".join(f"{reason} {count}" for reason, count in dropped.items())
    longer = "; a larger max_length keeps those that are too long" if "too_long" in dropped else ""
    return [f"{total} of {total + kept} {what} were dropped: {reasons}{longer}"]


class Renderings(Protocol):
    """What rendering a split made: rows, reasons for which records were dropped, and what is recorded of both."""

    @property
    def rows(self) -> list[Row]:
        """All of them."""

    @property
    def dropped(self) -> dict[str, int]:
        """{reason: records}."""

    def to_json(self) -> dict[str, Any]:
        """What a run records about its rendering."""


def rendering_notes(
    rendered: Renderings, max_length: int, what: str = "rows", *, held_out: Renderings | None = None
) -> list[str]:
    """What a run says about what was dropped and cut of its split and of the one that it is evaluated on.

    `what` is the name under which its records are counted.
    """
    notes = []
    for whose, one in (("", rendered), ("evaluation ", held_out)):
        if one is not None:
            notes += dropped_notes(one.dropped, one.to_json()[what], whose + what)
            notes += cut_notes(one.rows, max_length, whose + ("sides" if what == "pairs" else what))
    return notes


def visited(total: int, units: int, size: int, seed: int) -> list[int]:
    """The units that a run of `total` places reads in its first epoch, in whole batches of `size`, in their order.

    What is computed of them batch by batch is the same however long the run is made later.
    """
    whole = min(units, -(-min(total, units) // size) * size)
    return [int(unit) for unit in epoch_order(units, seed, 0)[:whole]]


def clipped(parameters: Iterable[torch.nn.Parameter], max_norm: float) -> torch.Tensor:
    """Scale the gradients to a global norm of at most `max_norm` (0: leave them) and return the norm they had, where
    they lie: nobody waits for it here."""
    parameters = list(parameters)
    norm = whole(torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None]))
    torch.nn.utils.clip_grads_with_norm_(parameters, max_norm or math.inf, norm)
    return norm


def completions_id(split: AdmittedSplit, renderer: Renderer, *, max_length: int, truncation: str) -> str:
    """The id of what the accelerator sees where only completions count: rows, order, tokenizer, length, mask policy."""
    return tokenized_id({
        "content_root": split.content_root, "order_sha256": split.order_sha256, **renderer.identity(),
        "max_length": max_length, "truncation": truncation, "packing": False, "mask": "completions",
    })  # fmt: skip


def one_by_one(
    lines: Callable[[int], Iterable[Any]],
    gradients: Callable[[list[Any]], Any],
    record_ids: Callable[[list[Any]], list[str]],
    step: int,
) -> Iterator[list[str]]:
    """Compute the gradients of each unit of a step by itself; its records, for as long as its gradients stand."""
    for unit in lines(step):
        gradients([unit])
        yield record_ids([unit])
