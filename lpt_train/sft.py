"""Supervised fine-tuning (and continued pre-training on text): the whole loop, top to bottom."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from lpt_train.adapters import load_for_training
from lpt_train.admitted import AdmittedSplit, check_contract, check_tokenizer, check_trains, split_notes
from lpt_train.config import SFTConfig
from lpt_train.data_order import Scheduled, Shuffled, Unit, data_order
from lpt_train.early_stop import check_patience
from lpt_train.flat import FlatBatch
from lpt_train.heads import check_head
from lpt_train.losses.sft import sft_loss
from lpt_train.memory import fit
from lpt_train.micro_batch import BLANK, Extras, MicroBatch
from lpt_train.models import Placement, check_vocabulary, load_tokenizer, model_digest, pad_id, placement, resolve
from lpt_train.observers import Observer
from lpt_train.optimizers import make_optimizer
from lpt_train.packing import Rendered, Row, render_rows
from lpt_train.proof import Proof
from lpt_train.ranks import Number, Ranks, fetched, join
from lpt_train.render import Renderer
from lpt_train.runs import Progress, Run, RunResult, seed_everything
from lpt_train.speed import Work
from lpt_train.steps import batched, most, one_by_one, rendering_notes, scores
from lpt_train.updates import Updates
from manifests.catalog import Catalog
from manifests.digests import tokenized_id


def train(
    config: SFTConfig,
    *,
    split: AdmittedSplit,
    out: Path | str,
    catalog: Catalog | None = None,
    progress: Progress | None = None,
    eval_split: AdmittedSplit | None = None,
    resume: bool = False,
    observers: Sequence[Observer] = (),
) -> RunResult:
    """Train `config.model` on an admitted split and return the run; everything it makes is under `out`.

    Raises `RefusedError` for a split of another contract or tokenizer and for a resume with another split or options,
    and `LptError` when the loss or a gradient is not finite (the run is recorded as failed, its last checkpoint kept).
    """
    out, options = Path(out), config.run
    check_trains(split, "sft")
    check_patience(options, eval_split)
    ranks, place = join(options), placement(options.device, options.dtype)
    with ranks.main_first():
        source = resolve(config.model, out, seed=options.seed)
    tokenizer = load_tokenizer(source)
    renderer = Renderer(tokenizer, max_length=config.max_length)
    check_tokenizer(split, renderer.fingerprint, renderer.name)
    rendered = render_rows(split.rows(), renderer, max_length=config.max_length, truncation=config.truncation)
    held_out = _held_out(eval_split, renderer, config)
    order = data_order(split, rendered.rows, config, ranks.world)
    seed_everything(options.seed)  # before the adapter draws its first values
    model = load_for_training(source, config.lora, place)
    check_vocabulary(model, tokenizer)
    check_head(model)
    run_micro_batch = _micro_batch(model, place, config, order.units, pad_id(tokenizer), ranks)
    memory = fit(run_micro_batch, config, out if resume else None)
    optimizer, proof = make_optimizer(model, config.optim, offload=memory.offload_optimizer), Proof(model)
    run = Run.create(
        out, "sft", config, split, {"name": source, "digest": model_digest(source)}, seed=options.seed,
        tokenizer=renderer.told(),
        tokenized_id=sft_tokenized_id(split, renderer, config, order), eval_split=eval_split, catalog=catalog,
        resume=resume, ranks=ranks,
    )  # fmt: skip
    run.memory = memory
    run.notes += (
        rendering_notes(rendered, config.max_length, held_out=held_out) + renderer.notes_for(split.kind)
        + split_notes(split, eval_split, config.max_length) + order.notes + run_micro_batch.notes
    )  # fmt: skip

    def gradients(units: Sequence[Unit]) -> dict[str, Number]:
        """Forward and backward of the rows of a step, under one denominator: their supervised tokens."""
        parts = batched(units, config.per_device_train_batch_size)
        batches = [[row for unit in part for row in unit] for part in parts]
        supervised = sum(row.supervised for rows in batches for row in rows)
        denominator = torch.tensor(float(supervised))
        mine = ranks.deal(batches, [BLANK])
        losses = [run_micro_batch(rows, {"denominator": denominator})["loss"] for rows in mine]
        return ranks.sums({"loss": torch.stack(losses).sum()}) | {"supervised_tokens": supervised}

    def record_ids(units: Sequence[Unit]) -> list[str]:
        return [split.record_ids[row.index] for unit in units for row in unit]

    work = Work(model)
    updates = Updates(
        run, model, optimizer, proof, config, order.steps, multiplier=order.multiplier, cursor=order.cursor,
        tokenizer=tokenizer, zero_grad=run_micro_batch.zero_grad, progress=progress,
        evaluate=partial(evaluate, run_micro_batch, held_out.rows, config) if held_out else None,
        record_ids=lambda step: record_ids(order.lines(step)), observers=observers, dtype=place.dtype,
        alone=partial(one_by_one, order.lines, gradients, record_ids),
    )  # fmt: skip
    if resume:
        updates.take_up(rows_a_step=order.per_step)

    with run.guarded(proof) as stop:
        for step in updates.steps(stop):
            units = order.lines(step)
            metrics = updates.apply(step, gradients(units))

            rows = [row for unit in units for row in unit]
            metrics |= {
                "tokens": (tokens := sum(len(row.ids) for row in rows)), "epoch": order.epoch(step + 1),
                **order.metrics(step),
            }  # fmt: skip
            updates.end(step, metrics, tokens=tokens, operations=work.training(rows))
    return updates.finish(extra={"data": {**rendered.to_json(), **order.to_json()}, "execution": run_micro_batch.way})


def _micro_batch(
    model: torch.nn.Module,
    place: Placement,
    config: SFTConfig,
    units: Sequence[Sequence[Row]],
    padding: int,
    ranks: Ranks,
) -> MicroBatch:
    size = config.per_device_train_batch_size
    return MicroBatch(
        model, place, _objective, execution=config.execution, longest=config.max_length, pad_id=padding,
        most_tokens=most((sum(len(row.ids) for row in unit) for unit in units), size),
        most_rows=most(map(len, units), size), most_scores=most(map(scores, units), size), chunk=config.logits_chunk,
        ranks=ranks,
    )  # fmt: skip


def _objective(logp_N: torch.Tensor, batch: FlatBatch, extras: Extras) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    return sft_loss(logp_N, batch.weights_N, extras["denominator"]), {}


def evaluate(run_micro_batch: MicroBatch, rows: Sequence[Row], config: SFTConfig) -> dict[str, float]:
    """`eval_loss`: mean negative log-likelihood in nats over all supervised tokens of `rows`, without dropout."""
    model = run_micro_batch.model
    was_training = model.training
    model.eval()
    ranks, total, tokens = run_micro_batch.ranks, 0.0, 0
    for part in ranks.deal(batched(rows, config.per_device_eval_batch_size), [BLANK]):
        logp_N, batch = run_micro_batch.logprobs(part)
        total += float(sft_loss(logp_N, batch.weights_N, 1.0))
        tokens += batch.supervised
    model.train(was_training)
    summed = fetched(ranks.sums({"total": total, "tokens": tokens}))
    return {"eval_loss": summed["total"] / summed["tokens"]}


def _held_out(split: AdmittedSplit | None, renderer: Renderer, config: SFTConfig) -> Rendered | None:
    if split is None:
        return None
    check_contract(split, "sft")
    check_tokenizer(split, renderer.fingerprint, renderer.name)
    return render_rows(split.rows(), renderer, max_length=config.max_length, truncation=config.truncation)


def sft_tokenized_id(split: AdmittedSplit, renderer: Renderer, config: SFTConfig, order: Shuffled | Scheduled) -> str:
    """The id of what the accelerator sees: rows, order, tokenizer, length, packing and mask policy."""
    return tokenized_id({
        "content_root": split.content_root, "order_sha256": split.order_sha256, **renderer.identity(),
        "max_length": config.max_length, "truncation": config.truncation, "packing": config.packing,
        "mask": "all" if split.kind == "text" else "assistant",
        **({"mix_schedule": order.schedule["plan_hash"]} if isinstance(order, Scheduled) else {}),
    })  # fmt: skip
