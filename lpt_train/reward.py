"""Training a reward model on preference pairs: the whole loop, top to bottom.

All completions of a micro-batch run in one forward pass; the reward of each is read at its last token. After the last
step the rewards of the evaluation split are looked at closely: see `reward_report`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerFast

from lpt_train.admitted import AdmittedSplit, check_contract, check_tokenizer, check_trains, split_notes
from lpt_train.config_reward import RewardConfig
from lpt_train.data_order import shuffled
from lpt_train.early_stop import check_patience
from lpt_train.heads import causal_model
from lpt_train.memory import fit
from lpt_train.micro_batch import MicroBatch
from lpt_train.models import check_vocabulary, load_tokenizer, model_digest, placement, resolve
from lpt_train.observers import Observer
from lpt_train.optimizers import make_optimizer
from lpt_train.packing import Row
from lpt_train.proof import Proof
from lpt_train.rankings import Ranking, Rankings, render_rankings
from lpt_train.ranks import Number
from lpt_train.render import Renderer
from lpt_train.reward_batch import Bounds, inputs, joined, ranking_loss, reward_micro_batch, rewards_of, rows_of
from lpt_train.reward_head import padding_for
from lpt_train.reward_model import load_reward_for_training
from lpt_train.reward_report import NO_SPLIT, STOPPED, reward_report
from lpt_train.runs import Progress, Run, RunResult, seed_everything
from lpt_train.speed import Work
from lpt_train.steps import batched, completions_id, one_by_one, rendering_notes
from lpt_train.updates import Updates
from manifests.catalog import Catalog

CONTROL = "control"  # the verdict of a run on labels that were made wrong on purpose: no gate takes it


def train(
    config: RewardConfig,
    *,
    split: AdmittedSplit,
    out: Path | str,
    catalog: Catalog | None = None,
    progress: Progress | None = None,
    eval_split: AdmittedSplit | None = None,
    resume: bool = False,
    observers: Sequence[Observer] = (),
) -> RunResult:
    """Train a reward model from `config.model` on an admitted `preference` split and return the run.

    Raises `RefusedError` for a split of another contract or tokenizer and for a resume with another split or options,
    and `LptError` when the loss or a gradient is not finite (the run is recorded as failed, its last checkpoint kept).
    """
    out, options, size = Path(out), config.run, config.per_device_train_batch_size
    check_trains(split, "reward")
    check_patience(options, eval_split)
    place = placement(options.device, options.dtype)
    source = resolve(config.model, out, seed=options.seed)
    tokenizer = load_tokenizer(source)
    renderer = Renderer(tokenizer, max_length=config.max_length)
    check_tokenizer(split, renderer.fingerprint, renderer.name)
    rendered = render_rankings(split, renderer, config, flip=True)
    held_out = None if eval_split is None else _held_out(eval_split, renderer, config)
    rankings, bounds = rendered.rankings, Bounds.of(rendered.rankings, size)
    seed_everything(options.seed)  # before the adapter draws its first values; the head has a generator of its own
    model = load_reward_for_training(source, config.lora, place, options.seed)
    check_vocabulary(model, tokenizer)
    identity = completions_id(split, renderer, max_length=config.max_length, truncation=config.truncation)
    padding, notes = _padding(model, tokenizer, rows_of([*rankings, *(held_out.rankings if held_out else ())]))
    run_micro_batch = reward_micro_batch(model, place, config, bounds, padding)
    memory = fit(run_micro_batch, config, out if resume else None)
    optimizer, proof = make_optimizer(model, config.optim, offload=memory.offload_optimizer), Proof(model)

    order = shuffled(rankings, config)
    run = Run.create(
        out, "reward", config, split, {"name": source, "digest": model_digest(source)}, seed=options.seed,
        tokenizer=renderer.told(),
        tokenized_id=identity, eval_split=eval_split, catalog=catalog, resume=resume,
    )  # fmt: skip
    run.memory = memory
    if config.flip_labels:
        run.mark(CONTROL, {"flip_labels": config.flip_labels, "flipped": rendered.flipped, "pairs": rendered.pairs})
    run.notes += rendering_notes(rendered, config.max_length, "pairs", held_out=held_out)
    run.notes += renderer.notes_for(split.kind) + split_notes(split, eval_split) + notes + run_micro_batch.notes
    measure = None
    if held_out is not None:
        measure = partial(evaluate, run_micro_batch, held_out, config)
    else:
        run.notes.append(f"not calibrated: {NO_SPLIT}")

    def gradients(taken: Sequence[Ranking]) -> dict[str, Number]:
        """Forward and backward of the rankings of a step: each part has the weight of its share, so sums are means."""
        parts = [run_micro_batch(rows_of(part), inputs(part, bounds, 1 / len(taken))) for part in batched(taken, size)]
        return joined(parts)

    def record_ids(taken: Sequence[Ranking]) -> list[str]:
        return [split.record_ids[record] for ranking in taken for record in ranking.records]

    work = Work(model)
    updates = Updates(
        run, model, optimizer, proof, config, order.steps, multiplier=order.multiplier, cursor=order.cursor,
        tokenizer=tokenizer, zero_grad=run_micro_batch.zero_grad, progress=progress, evaluate=measure,
        record_ids=lambda step: record_ids(order.lines(step)), observers=observers, dtype=place.dtype,
        alone=partial(one_by_one, order.lines, gradients, record_ids),
    )  # fmt: skip
    if resume:
        updates.take_up(rows_a_step=order.per_step)

    with run.guarded(proof) as stop:
        for step in updates.steps(stop):
            taken = order.lines(step)
            metrics = updates.apply(step, gradients(taken))

            metrics |= {"epoch": order.epoch(step + 1), "tokens": (tokens := sum(ranking.tokens for ranking in taken))}
            updates.end(step, metrics, tokens=tokens, operations=work.training(rows_of(taken)))
        whole = updates.done == updates.total or not stop
        looked_at = reward_report(run_micro_batch, held_out, eval_split, config, out) if whole else STOPPED
    read = {**rendered.to_json(), "epoch_order_sha256": order.to_json()["epoch_order_sha256"]}
    return updates.finish(extra={"data": read, "execution": run_micro_batch.way, "reward_model": looked_at})


def evaluate(run_micro_batch: MicroBatch, held_out: Rankings, config: RewardConfig) -> dict[str, float]:
    """Loss and metrics over all pairs of the evaluation split as `eval_…`, without dropout."""
    rewards_R = rewards_of(run_micro_batch, held_out.rows, 2 * config.per_device_eval_batch_size)
    every = held_out.rankings
    extras = inputs(every, Bounds.of(every, len(every)), 1 / len(every))
    loss, report = ranking_loss(rewards_R, extras, config)
    return {f"eval_{name}": float(value) for name, value in {"loss": loss, **report}.items()}


def _padding(model: torch.nn.Module, tokenizer: PreTrainedTokenizerFast, rows: Iterable[Row]) -> tuple[int, list[str]]:
    """Make model and tokenizer name a padding that transformers cannot take for the end of a row."""
    padding, text = padding_for(tokenizer, (int(row.ids[-1]) for row in rows))
    before = tokenizer.pad_token
    config: Any = causal_model(model).config
    config.pad_token_id = padding
    if before == text:
        return padding, []
    tokenizer.pad_token = text
    return padding, [f"the padding of the saved tokenizer is {text}: rows end with {before or 'no padding of its own'}"]


def _held_out(split: AdmittedSplit, renderer: Renderer, config: RewardConfig) -> Rankings:
    check_contract(split, "reward")
    check_tokenizer(split, renderer.fingerprint, renderer.name)
    return render_rankings(split, renderer, config)
