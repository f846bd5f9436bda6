"""KTO: single completions marked good or bad, against an estimate of the distance to the reference. The whole loop.

The reference is the model as the run starts from it; its log-probs, of the completions and of the mismatched rows that
the estimate is taken from, are computed once before the first update and kept for other runs (`reference`). The
estimate is logged as `kl`, in nats a completion: k1 over the mismatched rows of a step, 0 where that is negative
(`losses.kto.kl_estimate`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lpt_train.adapters import load_for_training
from lpt_train.admitted import AdmittedSplit, check_contract, check_tokenizer, check_trains, split_notes
from lpt_train.config_kto import KTOConfig
from lpt_train.data_order import shuffled
from lpt_train.early_stop import check_patience
from lpt_train.flat import FlatBatch
from lpt_train.heads import check_head
from lpt_train.losses.kto import kl_estimate, kto
from lpt_train.memory import fit
from lpt_train.micro_batch import Extras, MicroBatch, row_sums
from lpt_train.models import Placement, check_vocabulary, load_tokenizer, model_digest, pad_id, placement, resolve
from lpt_train.observers import Observer
from lpt_train.optimizers import make_optimizer
from lpt_train.packing import Row, epoch_order
from lpt_train.proof import Proof
from lpt_train.ranks import Number
from lpt_train.reference import kept_reference
from lpt_train.render import Renderer
from lpt_train.render_pairs import Completion, RenderedCompletions, mismatched, render_completions
from lpt_train.runs import Progress, Run, RunResult, seed_everything
from lpt_train.speed import Work
from lpt_train.steps import batched, completions_id, most, one_by_one, rendering_notes, visited
from lpt_train.updates import Updates
from lpt_train.watch import watch_of
from manifests.catalog import Catalog


def train(
    config: KTOConfig,
    *,
    split: AdmittedSplit,
    out: Path | str,
    catalog: Catalog | None = None,
    progress: Progress | None = None,
    eval_split: AdmittedSplit | None = None,
    resume: bool = False,
    observers: Sequence[Observer] = (),
) -> RunResult:
    """Train `config.model` on an admitted split of pairs or marked completions and return the run.

    Raises `RefusedError` for a split of another contract or tokenizer, for a class without completions and for a resume
    with another split or options, and `LptError` when the loss or a gradient is not finite.
    """
    out, options = Path(out), config.run
    check_trains(split, "kto")
    check_patience(options, eval_split)
    place = placement(options.device, options.dtype)
    source = resolve(config.model, out, seed=options.seed)
    tokenizer = load_tokenizer(source)
    renderer = Renderer(tokenizer, max_length=config.max_length)
    check_tokenizer(split, renderer.fingerprint, renderer.name)
    rendered = _render(split, renderer, config)
    held_out = None if eval_split is None else _held_out(eval_split, renderer, config)
    completions, size = rendered.completions, config.per_device_train_batch_size
    others = mismatched(completions, epoch_order(len(completions), options.seed, 0), config.max_length)
    seed_everything(options.seed)  # before the adapter draws its first values
    model = load_for_training(source, config.lora, place)
    check_vocabulary(model, tokenizer)
    check_head(model)
    run_micro_batch = _micro_batch(model, place, config, [c.row for c in completions], others, pad_id(tokenizer))
    memory = fit(run_micro_batch, config, out if resume else None)
    optimizer, proof = make_optimizer(model, config.optim, offload=memory.offload_optimizer), Proof(model)

    order = shuffled(range(len(completions)), config)
    identity = completions_id(split, renderer, max_length=config.max_length, truncation=config.truncation)
    run = Run.create(
        out, "kto", config, split, {"name": source, "digest": model_digest(source)}, seed=options.seed,
        tokenizer=renderer.told(),
        tokenized_id=identity, eval_split=eval_split, catalog=catalog, resume=resume,
    )  # fmt: skip
    run.memory = memory
    run_micro_batch.watch = watch_of(progress)
    run.notes += (
        rendering_notes(rendered, config.max_length, "completions", held_out=held_out)
        + renderer.notes_for(split.kind) + split_notes(split, eval_split, config.max_length)
    )  # fmt: skip
    run.notes += run_micro_batch.notes + _balance_notes(completions, config)
    needed = visited(order.total_units, len(completions), size, options.seed)
    of_own, of_others = (
        kept_reference(
            run, name, run_micro_batch, [(row,) for row in rows], needed, size, run_micro_batch.row_logprobs
        )[:, 0]
        for name, rows in (("train", [c.row for c in completions]), ("train, mismatched", others))
    )
    measure = (
        partial(evaluate, run_micro_batch, _measured(run, run_micro_batch, held_out, config), config)
        if held_out
        else None
    )

    def gradients(taken: Sequence[int]) -> dict[str, Number]:
        """Forward and backward of the completions of a step, against one estimate for all, however it is cut; the
        host waits for that estimate."""
        apart = [run_micro_batch.row_logprobs([others[i] for i in part]) for part in batched(taken, size)]
        ratio = torch.cat(apart).float().cpu() - torch.from_numpy(of_others[taken])
        point, parts = kl_estimate(ratio), []
        for part in batched(taken, size):
            extras = _extras([completions[i] for i in part], of_own[part], size, 1 / len(taken), point)
            parts.append(run_micro_batch([completions[i].row for i in part], extras))
        return {"kl": point, **{name: torch.stack([part[name] for part in parts]).sum() for name in parts[0]}}

    def record_ids(taken: Sequence[int]) -> list[str]:
        return [split.record_ids[completions[i].row.index] for i in taken]

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
            metrics = _class_means(updates.apply(step, gradients(taken)))

            rows, apart = [completions[i].row for i in taken], [others[i] for i in taken]
            metrics |= {
                "tokens": (tokens := sum(len(row.ids) for row in (*rows, *apart))),
                "epoch": order.epoch(step + 1),
            }
            operations = work.training(rows) + work.forward(apart)
            updates.end(step, metrics, tokens=tokens, operations=operations)
    return updates.finish(extra={"data": rendered.to_json(), "execution": run_micro_batch.way})


@dataclass(frozen=True)
class Measured:
    """Completions to measure on, the mismatched rows of the estimate, and the reference log-probs of both."""

    completions: Sequence[Completion]
    others: Sequence[Row]
    reference: np.ndarray
    reference_of_others: np.ndarray


@torch.no_grad()
def evaluate(run_micro_batch: MicroBatch, held: Measured, config: KTOConfig) -> dict[str, float]:
    """Loss, rewards of each class and distance to the reference over all completions as `eval_…`, without dropout."""
    model, objective = run_micro_batch.model, _objective(config)
    was_training = model.training
    model.eval()
    every = batched(range(len(held.completions)), config.per_device_eval_batch_size)
    apart = []
    for part in every:
        apart.append(run_micro_batch.plain_logprobs([held.others[i] for i in part]).float().cpu())
    point = kl_estimate(torch.cat(apart) - torch.from_numpy(held.reference_of_others))
    parts = []
    for part in every:
        chosen = [held.completions[i] for i in part]
        logp_N, batch = run_micro_batch.logprobs([completion.row for completion in chosen])
        extras = _extras(chosen, held.reference[list(part)], len(chosen), 1 / len(held.completions), point)
        loss, report = objective(logp_N, batch, {name: tensor.to(logp_N.device) for name, tensor in extras.items()})
        parts.append({"loss": loss, **report})
    model.train(was_training)
    sums = {name: float(torch.stack([part[name] for part in parts]).sum()) for name in parts[0]}
    return {f"eval_{name}": value for name, value in (_class_means(sums) | {"kl": float(point)}).items()}


def _objective(config: KTOConfig) -> Any:
    def objective(
        logp_N: torch.Tensor, batch: FlatBatch, extras: Extras
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        weight_S, good_S = extras["weight_S"], extras["desirable_S"] > 0
        sums_S = torch.nn.functional.pad(row_sums(logp_N, batch), (0, len(weight_S)))[: len(weight_S)]
        ratio_S = sums_S - extras["reference_S"]
        loss_S = kto(
            ratio_S, good_S, extras["point"], beta=config.beta, desirable_weight=config.desirable_weight,
            undesirable_weight=config.undesirable_weight,
        )  # fmt: skip
        reward_S, real_S = config.beta * ratio_S.detach(), weight_S > 0
        report = {
            "good": (good_S & real_S).float().sum(), "bad": (~good_S & real_S).float().sum(),
            "good_reward": reward_S[None] @ (good_S & real_S).float()[:, None],
            "bad_reward": reward_S[None] @ (~good_S & real_S).float()[:, None],
        }  # fmt: skip
        return (weight_S * loss_S).sum(), {name: value.reshape(()) for name, value in report.items()}

    return objective


_OF_CLASSES = ("good", "bad", "good_reward", "bad_reward")


def _class_means(sums: dict[str, float]) -> dict[str, float]:
    """Sums over a step as means over the completions of each class; a class that a step has none of is left out, and
    what is no sum over a class stays."""
    found = {name: value for name, value in sums.items() if name not in _OF_CLASSES}
    if sums["good"]:
        found["rewards/chosen"] = sums["good_reward"] / sums["good"]
    if sums["bad"]:
        found["rewards/rejected"] = sums["bad_reward"] / sums["bad"]
    if sums["good"] and sums["bad"]:
        found["rewards/margins"] = found["rewards/chosen"] - found["rewards/rejected"]
    return found


def _extras(
    completions: Sequence[Completion], reference: np.ndarray, size: int, weight: float, point: torch.Tensor
) -> dict[str, torch.Tensor]:
    """What the objective needs of the rows of a micro-batch, filled up to `size` rows of weight 0."""
    weight_S, good_S, reference_S = torch.zeros(3, size)
    weight_S[: len(completions)] = weight
    good_S[: len(completions)] = torch.tensor([float(completion.desirable) for completion in completions])
    reference_S[: len(completions)] = torch.from_numpy(reference)
    return {"weight_S": weight_S, "desirable_S": good_S, "reference_S": reference_S, "point": point}


def _measured(run: Run, run_micro_batch: MicroBatch, held_out: RenderedCompletions, config: KTOConfig) -> Measured:
    completions, size = held_out.completions, config.per_device_eval_batch_size
    others = mismatched(completions, epoch_order(len(completions), config.run.seed, 0), config.max_length)
    every = range(len(completions))
    own, apart = (
        kept_reference(
            run, name, run_micro_batch, [(row,) for row in rows], every, size, run_micro_batch.plain_logprobs
        )[:, 0]
        for name, rows in (("eval", [c.row for c in completions]), ("eval, mismatched", others))
    )
    return Measured(completions, others, own, apart)


def _render(split: AdmittedSplit, renderer: Renderer, config: KTOConfig) -> RenderedCompletions:
    return render_completions(split.rows(), renderer, max_length=config.max_length, truncation=config.truncation)


def _held_out(split: AdmittedSplit, renderer: Renderer, config: KTOConfig) -> RenderedCompletions:
    check_contract(split, "kto")
    check_tokenizer(split, renderer.fingerprint, renderer.name)
    return _render(split, renderer, config)


def _balance_notes(completions: Sequence[Completion], config: KTOConfig) -> list[str]:
    good = sum(completion.desirable for completion in completions)
    share = config.desirable_weight * good / max(1e-9, config.undesirable_weight * (len(completions) - good))
    if 3 / 4 <= share <= 4 / 3:
        return []
    return [
        f"{good} good and {len(completions) - good} bad completions weigh {share:.2f} to 1; the paper keeps it within "
        "3:4 and 4:3 by desirable_weight and undesirable_weight"
    ]


def _micro_batch(
    model: torch.nn.Module,
    place: Placement,
    config: KTOConfig,
    rows: Sequence[Row],
    others: Sequence[Row],
    padding: int,
) -> MicroBatch:
    size = config.per_device_train_batch_size
    lengths = [[len(row.ids) for row in part] for part in (rows, others)]
    return MicroBatch(
        model, place, _objective(config), execution=config.execution, longest=config.max_length, pad_id=padding,
        most_tokens=max(most(part, size) for part in lengths), most_rows=size, chunk=config.logits_chunk,
        most_scores=max(most((n * n for n in part), size) for part in lengths),
    )  # fmt: skip
