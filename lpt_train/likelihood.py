"""How likely a model finds the records of an admitted split: loss, perplexity and bits per byte of `sft` and `text`
records, log-probs of both sides of `preference` records.

Loss is nats a supervised token: it depends on the tokenizer. Bits per byte do not: the same nats over the UTF-8 bytes
of what the assistant says (of the document, for text), so that models with different tokenizers compare. The nats of
stop tokens count in both, their bytes do not exist. A row longer than `max_length` is left out and counted, never cut,
because a cut row is another one for another tokenizer. Means are over tokens, intervals are clustered by record.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from lpt_train.admitted import AdmittedSplit
from lpt_train.answers import choose
from lpt_train.estimates import mean, ratio
from lpt_train.flat import FlatBatch
from lpt_train.heads import causal_model
from lpt_train.measured import Measure, Subject, by_domain, check_subject, domains_of, record
from lpt_train.micro_batch import Extras, MicroBatch, row_sums
from lpt_train.models import pad_id
from lpt_train.packing import Row, render_rows
from lpt_train.render_pairs import render_pairs
from lpt_train.steps import dropped_notes
from lpt_train.watch import Watch, unwatched
from manifests.catalog import Catalog
from manifests.errors import RefusedError

BATCH_TOKENS = 16_384  # of a forward pass
_ROWS = 256  # of a forward pass


@dataclass(frozen=True)
class RecordLoss:
    """One record: nats over its supervised tokens, how many these are, and the bytes of the text that they spell."""

    record_id: str
    nll: float
    tokens: int
    bytes: int
    domain: str = ""


@dataclass(frozen=True)
class PairLogprobs:
    """One pair: summed log-probs of the tokens of both completions, in nats, and how many tokens these are."""

    record_id: str
    chosen: float
    rejected: float
    chosen_tokens: int
    rejected_tokens: int
    domain: str = ""

    @property
    def margin(self) -> float:
        """How much likelier the chosen completion is, in nats."""
        return self.chosen - self.rejected


@dataclass(frozen=True)
class Likelihood:
    """What a model makes of a split: item by item, and in measures; `dropped` is {reason: records} left out."""

    items: tuple[RecordLoss, ...] | tuple[PairLogprobs, ...]
    measures: tuple[Measure, ...]
    settings: Mapping[str, Any]
    dropped: Mapping[str, int]
    notes: tuple[str, ...] = ()
    object_id: str | None = None

    def measure(self, name: str) -> Measure:
        """The measure of that name over all items."""
        return next(found for found in self.measures if found.name == name and not found.domain)

    def to_json(self) -> dict[str, Any]:
        """The body of `lpt.eval/1` but for what was evaluated and when."""
        columns = [name for name in type(self.items[0]).__dataclass_fields__ if name != "domain"]
        return {
            **self.settings, "n": len(self.items), "dropped": dict(self.dropped),
            "measures": [measure.to_json() for measure in self.measures],
            "items": [{name: getattr(item, name) for name in columns} for item in self.items],
        }  # fmt: skip


def likelihood(
    subject: Subject,
    split: AdmittedSplit,
    *,
    n: int | None = None,
    seed: int = 0,
    max_length: int = 4096,
    domain_column: str | None = None,
    catalog: Catalog | None = None,
    watch: Watch = unwatched,
) -> Likelihood:
    """Log-probs of every record of an `sft`, `text` or `preference` split, and what follows from them.

    sft, text: `loss` (nats a token), `perplexity`, `bits_per_byte`. preference: `accuracy` (the chosen completion is
    the likelier one), `margin` (nats), both also per token (`accuracy_per_token`, `margin_per_token`), `chosen_nll` and
    `rejected_nll` (nats a token). Each over all records and, where rows carry one, for each domain; with `n` over so
    many rows, drawn by `seed` whatever the model.
    """
    if split.kind not in ("sft", "text", "preference"):
        raise RefusedError(
            f"the records of {split.ref} have no text to be likely", seen=split.contract,
            next="give an sft, text or preference split; lpt eval samples answers on an rlvr one",
        )  # fmt: skip
    check_subject(subject, split)
    of = _pairs if split.kind == "preference" else _losses
    drawn = split if n is None else split.take(choose(range(len(split)), n, seed))
    items, measures, dropped, notes = of(subject, drawn, max_length, domain_column, watch)
    settings: dict[str, Any] = {"kind": split.kind, "max_length": max_length}
    if split.kind != "text":
        settings |= subject.renderer.rendering()
    if n is not None:
        settings |= {"rows": n, "seed": seed}
        notes.append(f"{n} of {len(split)} rows, drawn by seed {seed}")
    found = Likelihood(items, measures, settings, dropped, (*notes, *subject.renderer.notes_for(split.kind)))
    return replace(found, object_id=record(catalog, subject, split, found.to_json()))


def _losses(
    subject: Subject, split: AdmittedSplit, max_length: int, column: str | None, watch: Watch
) -> tuple[tuple[RecordLoss, ...], tuple[Measure, ...], dict[str, int], list[str]]:
    domains, notes = domains_of(split, column)
    rendered = render_rows(split.rows(), subject.renderer, max_length=max_length)
    sizes = {index: spoken_bytes(row) for index, row in enumerate(split.rows())}
    sums = row_logprobs(subject, rendered.rows, notes, watch)
    items = tuple(
        RecordLoss(split.record_ids[row.index], -total, row.supervised, sizes[row.index], domains[row.index])
        for row, total in zip(rendered.rows, sums, strict=True)
    )
    notes += dropped_notes(rendered.dropped, len(items))
    return items, by_domain(items, loss_measures), rendered.dropped, notes


def _pairs(
    subject: Subject, split: AdmittedSplit, max_length: int, column: str | None, watch: Watch
) -> tuple[tuple[PairLogprobs, ...], tuple[Measure, ...], dict[str, int], list[str]]:
    domains, notes = domains_of(split, column)
    rendered = render_pairs(split.rows(), subject.renderer, max_length=max_length)
    rows = [row for pair in rendered.pairs for row in (pair.chosen, pair.rejected)]
    sums = iter(row_logprobs(subject, rows, notes, watch))
    items = tuple(
        PairLogprobs(
            split.record_ids[(at := pair.chosen.index)], next(sums), next(sums), pair.chosen.supervised,
            pair.rejected.supervised, domains[at],
        )
        for pair in rendered.pairs
    )  # fmt: skip
    notes += dropped_notes(rendered.dropped, len(items), "pairs")
    return items, by_domain(items, pair_measures), rendered.dropped, notes


def loss_measures(items: Sequence[RecordLoss], domain: str) -> Iterator[Measure]:
    """Loss, perplexity and bits per byte of some records."""
    nll, tokens = [item.nll for item in items], [item.tokens for item in items]
    loss = ratio(nll, tokens)
    yield Measure.of("loss", loss, domain)
    yield Measure.of("perplexity", loss.map(_exp), domain)
    # A row whose supervised text is empty (a lone stop token) has no bytes; rows together do, or nothing is said.
    if any(item.bytes for item in items):
        bits = ratio([value / math.log(2) for value in nll], [item.bytes for item in items])
        yield Measure.of("bits_per_byte", bits, domain)
    total = float(sum(tokens))
    yield Measure("tokens", total, total, total, len(items), domain)


def pair_measures(items: Sequence[PairLogprobs], domain: str) -> Iterator[Measure]:
    """How well log-probs order some pairs, and how likely each side is."""
    a_token = [item.chosen / item.chosen_tokens - item.rejected / item.rejected_tokens for item in items]
    margins = [item.margin for item in items]
    yield Measure.of("accuracy", mean([_won(margin) for margin in margins]), domain)
    yield Measure.of("accuracy_per_token", mean([_won(margin) for margin in a_token]), domain)
    yield Measure.of("margin", mean(margins), domain)
    yield Measure.of("margin_per_token", mean(a_token), domain)
    for side in ("chosen", "rejected"):
        nll = ratio([-getattr(item, side) for item in items], [getattr(item, f"{side}_tokens") for item in items])
        yield Measure.of(f"{side}_nll", nll, domain)


def spoken_bytes(row: Mapping[str, Any]) -> int:
    """UTF-8 bytes of what a record teaches: a document, or the assistant's turns with their calls as they are kept."""
    if "text" in row:
        return len(row["text"].encode())
    total = 0
    for message in row["messages"]:
        if message.get("role") == "assistant":
            total += len((message.get("content") or "").encode())
            for call in message.get("tool_calls") or ():
                total += sum(len(str(call["function"].get(name) or "").encode()) for name in ("name", "arguments"))
    return total


@torch.no_grad()
def row_logprobs(subject: Subject, rows: Sequence[Row], notes: list[str], watch: Watch = unwatched) -> list[float]:
    """Summed log-probs of the targets of each row, in nats, in their order; rows of like length run together."""
    order = sorted(range(len(rows)), key=lambda at: (len(rows[at].ids), at))
    sums = [0.0] * len(rows)
    with _end_to_end(subject, rows, notes) as run:
        for part in _batches([len(rows[at].ids) for at in order]):
            numbers = [order[at] for at in part]
            logp_N, batch = run.logprobs([rows[at] for at in numbers])
            for number, total in zip(numbers, row_sums(logp_N.double(), batch).tolist(), strict=False):
                sums[number] = total
            watch(part.stop, len(rows), "rows read")
    return sums


@contextlib.contextmanager
def _end_to_end(subject: Subject, rows: Sequence[Row], notes: list[str]) -> Iterator[MicroBatch]:
    """The model with rows laid end to end, or row by row where it does not take that; as it was again afterwards."""
    longest = max(len(row.ids) for row in rows)
    model = causal_model(subject.model)
    own = getattr(model.config, "_attn_implementation", "sdpa")

    def runner(way: str) -> MicroBatch:
        return MicroBatch(
            subject.model, subject.place, _no_objective, execution=way, longest=longest, most_tokens=longest,
            most_rows=_ROWS, pad_id=pad_id(subject.renderer.tokenizer),
        )  # fmt: skip

    try:
        run = runner("eager")
    except RefusedError as error:
        notes.append(f"rows are read one by one, the model does not take them end to end: {error.seen}")
        run = runner("rows")
    try:
        yield run
    finally:
        model.set_attn_implementation(own)


def _batches(lengths: Sequence[int]) -> Iterator[range]:
    """Runs of rows, in ascending order of length, of at most `BATCH_TOKENS` tokens and `_ROWS` rows; one at least."""
    start = used = 0
    for at, length in enumerate(lengths):
        if at > start and (used + length > BATCH_TOKENS or at - start >= _ROWS):
            yield range(start, at)
            start, used = at, 0
        used += length
    yield range(start, len(lengths))


def _no_objective(
    logp_N: torch.Tensor, batch: FlatBatch, extras: Extras
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    return logp_N.sum(), {}


def _won(margin: float) -> float:
    """1 for a likelier chosen side; equal log-probs decide nothing: a half."""
    return 0.5 if margin == 0 else float(margin > 0)


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf
