"""Training on preference pairs (DPO and its variants, SimPO, CPO, ORPO): the whole loop, top to bottom.

Both sides of a pair run in one forward pass. The reference policy is the model as the run starts from it; its log-probs
are computed once, before the first update, and kept for other runs of the same model and pairs (`reference`).

Losses with a reference log `kl_k1`, in nats a reply: the mean of log(pi/ref) over both replies of a pair, which is the
estimator k1 (Schulman 2020) of KL(pi || ref), but on the replies of the data and not on samples of the policy. It is 0
at the start, and below 0 where the policy has come to give the replies less probability; `lpt eval --drift` samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lpt_train.adapters import load_for_training
from lpt_train.admitted import AdmittedSplit, check_contract, check_tokenizer, check_trains, split_notes
from lpt_train.config_preference import ALGORITHMS, PreferenceConfig
from lpt_train.data_order import shuffled
from lpt_train.early_stop import check_patience
from lpt_train.flat import FlatBatch
from lpt_train.heads import check_head
from lpt_train.losses.preference import LOSSES, Loss, Options, Pairs
from lpt_train.memory import fit
from lpt_train.micro_batch import BLANK, Extras, MicroBatch, row_sums
from lpt_train.models import Placement, check_vocabulary, load_tokenizer, model_digest, pad_id, placement, resolve
from lpt_train.observers import Observer
from lpt_train.optimizers import make_optimizer
from lpt_train.packing import Row
from lpt_train.proof import Proof
from lpt_train.ranks import Number, Ranks, fetched, join
from lpt_train.reference import kept_reference
from lpt_train.render import Renderer
from lpt_train.render_pairs import Pair, RenderedPairs, render_pairs
from lpt_train.runs import Progress, Run, RunResult, seed_everything
from lpt_train.speed import Work
from lpt_train.steps import batched, completions_id, most, one_by_one, rendering_notes, scores, visited
from lpt_train.updates import Updates
from lpt_train.watch import watch_of
from manifests.catalog import Catalog


def train(
    config: PreferenceConfig,
    *,
    split: AdmittedSplit,
    out: Path | str,
    catalog: Catalog | None = None,
    progress: Progress | None = None,
    eval_split: AdmittedSplit | None = None,
    resume: bool = False,
    observers: Sequence[Observer] = (),
) -> RunResult:
    """Train `config.model` on an admitted `preference` split and return the run; everything it makes is under `out`.

    Raises `RefusedError` for a split of another contract or tokenizer and for a resume with another split or options,
    and `LptError` when the loss or a gradient is not finite (the run is recorded as failed, its last checkpoint kept).
    """
    out, options = Path(out), config.run
    algorithm = next(name for name, losses in ALGORITHMS.items() if config.loss_type in losses)
    check_trains(split, algorithm)
    check_patience(options, eval_split)
    ranks, place = join(options), placement(options.device, options.dtype)
    with ranks.main_first():
        source = resolve(config.model, out, seed=options.seed)
    tokenizer = load_tokenizer(source)
    renderer = Renderer(tokenizer, max_length=config.max_length)
    check_tokenizer(split, renderer.fingerprint, renderer.name)
    rendered = _render(split, renderer, config)
    held_out = None if eval_split is None else _held_out(eval_split, algorithm, renderer, config)
    pairs, size = rendered.pairs, config.per_device_train_batch_size
    seed_everything(options.seed)  # before the adapter draws its first values
    model = load_for_training(source, config.lora, place)
    check_vocabulary(model, tokenizer)
    check_head(model)
    run_micro_batch = _micro_batch(model, place, config, pairs, pad_id(tokenizer), ranks)
    memory = fit(run_micro_batch, config, out if resume else None)
    optimizer, proof = make_optimizer(model, config.optim, offload=memory.offload_optimizer), Proof(model)

    order = shuffled(range(len(pairs)), config, ranks.world)
    identity = completions_id(split, renderer, max_length=config.max_length, truncation=config.truncation)
    run = Run.create(
        out, algorithm, config, split, {"name": source, "digest": model_digest(source)}, seed=options.seed,
        tokenizer=renderer.told(),
        tokenized_id=identity, eval_split=eval_split, catalog=catalog, resume=resume, ranks=ranks,
    )  # fmt: skip
    run.memory = memory
    run_micro_batch.watch = watch_of(progress)
    run.notes += (
        rendering_notes(rendered, config.max_length, "pairs", held_out=held_out)
        + renderer.notes_for(split.kind) + split_notes(split, eval_split, config.max_length)
    )  # fmt: skip
    needed, logps, held_logps = visited(order.total_units, len(pairs), size, options.seed), None, None
    if LOSSES[config.loss_type].reference:
        of = partial(kept_reference, run)
        logps = of("train", run_micro_batch, _items(pairs), needed, size, run_micro_batch.row_logprobs)
        if held_out is not None:
            held, eval_size = _items(held_out.pairs), config.per_device_eval_batch_size
            held_logps = of("eval", run_micro_batch, held, range(len(held)), eval_size, run_micro_batch.plain_logprobs)
    measure = partial(evaluate, run_micro_batch, held_out.pairs, held_logps, config) if held_out else None
    run.notes += run_micro_batch.notes

    def gradients(taken: Sequence[int]) -> dict[str, Number]:
        """Forward and backward of the pairs of a step: each part is weighted by its share, so that sums are means."""
        chosen_tokens, parts = sum(pairs[i].chosen.supervised for i in taken), []
        for part in ranks.deal(batched(taken, size), []):
            extras = _extras(_of(logps, part), size, 1 / len(taken), 1 / chosen_tokens)
            parts.append(run_micro_batch(_rows([pairs[i] for i in part]), extras))
        return ranks.sums(_sums(parts))

    def record_ids(taken: Sequence[int]) -> list[str]:
        return [split.record_ids[pairs[i].chosen.index] for i in taken]

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

            metrics |= {"epoch": order.epoch(step + 1), "tokens": (tokens := sum(pairs[i].tokens for i in taken))}
            operations = work.training(_rows([pairs[i] for i in taken]))
            updates.end(step, metrics, tokens=tokens, operations=operations)
    read = {**rendered.to_json(), "epoch_order_sha256": order.to_json()["epoch_order_sha256"]}
    return updates.finish(extra={"data": read, "execution": run_micro_batch.way})


@torch.no_grad()
def evaluate(
    run_micro_batch: MicroBatch, pairs: Sequence[Pair], reference: np.ndarray | None, config: PreferenceConfig
) -> dict[str, float]:
    """Loss and rewards over all `pairs` as `eval_…`, without dropout."""
    model = run_micro_batch.model
    was_training = model.training
    model.eval()
    objective, sums = _objective(config), []
    chosen_tokens = sum(pair.chosen.supervised for pair in pairs)
    for numbers in run_micro_batch.ranks.deal(batched(range(len(pairs)), config.per_device_eval_batch_size), []):
        logp_N, batch = run_micro_batch.logprobs(_rows([pairs[i] for i in numbers]))
        extras = _extras(_of(reference, numbers), max(1, len(numbers)), 1 / len(pairs), 1 / chosen_tokens)
        extras = {name: tensor.to(logp_N.device) for name, tensor in extras.items()}
        loss, report = objective(logp_N, batch, extras)
        sums.append({"loss": loss, **report})
    model.train(was_training)
    return {f"eval_{name}": value for name, value in fetched(run_micro_batch.ranks.sums(_sums(sums))).items()}


def _sums(parts: Sequence[dict[str, torch.Tensor]]) -> dict[str, Number]:
    return {name: torch.stack([part[name] for part in parts]).sum() for name in parts[0]}


def _objective(config: PreferenceConfig) -> Any:
    loss, options = LOSSES[config.loss_type], loss_options(config)

    def objective(
        logp_N: torch.Tensor, batch: FlatBatch, extras: Extras
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        weight_P, reference_P_2 = extras["weight_P"], extras["reference_P_2"]
        sums_P_2, tokens_P_2 = (_of_pairs(row_sums(v, batch), weight_P) for v in (logp_N, torch.ones_like(logp_N)))
        pairs = Pairs(*sums_P_2.T, *reference_P_2.T, *tokens_P_2.T)
        loss_P = loss.of(pairs, options)
        total = (weight_P * loss_P).sum()
        if options.chosen_nll:
            total = total - options.chosen_nll * extras["per_token"] * (weight_P > 0).float() @ pairs.chosen_P
        with torch.no_grad():
            chosen, rejected = options.beta * pairs.chosen_ratio_P, options.beta * pairs.rejected_ratio_P
            report = {
                "rewards/chosen": chosen, "rewards/rejected": rejected, "rewards/margins": chosen - rejected,
                "rewards/accuracies": (chosen > rejected).float(), "logps/chosen": pairs.chosen_P,
                "logps/rejected": pairs.rejected_P,
            }  # fmt: skip
            if loss.reference:
                report["kl_k1"] = (pairs.chosen_ratio_P + pairs.rejected_ratio_P) / 2
            report = {name: (weight_P * value_P).sum() for name, value_P in report.items()}
        return total, report

    return objective


def loss_options(config: PreferenceConfig) -> Options:
    """What the loss takes, its own defaults filled in."""
    loss: Loss = LOSSES[config.loss_type]
    return Options(
        beta=loss.beta if config.beta is None else config.beta, label_smoothing=config.label_smoothing,
        simpo_gamma=config.simpo_gamma,
        chosen_nll=config.cpo_alpha if config.loss_type == "cpo" else loss.chosen_nll,
    )  # fmt: skip


def _of_pairs(rows_S: torch.Tensor, weight_P: torch.Tensor) -> torch.Tensor:
    """The values of rows as [P, 2], chosen and rejected; of a filler pair a harmless value."""
    values_P_2 = torch.nn.functional.pad(rows_S, (0, max(0, 2 * len(weight_P) - len(rows_S))))
    values_P_2 = values_P_2[: 2 * len(weight_P)].view(-1, 2)
    return torch.where(weight_P[:, None] > 0, values_P_2, torch.ones_like(values_P_2))


def _of(reference: np.ndarray | None, numbers: Sequence[int]) -> list[np.ndarray]:
    """The reference log-probs of some pairs; zeros for a loss without a reference."""
    return [np.zeros(2, np.float32) if reference is None else reference[i] for i in numbers]


def _items(pairs: Sequence[Pair]) -> list[tuple[Row, Row]]:
    return [(pair.chosen, pair.rejected) for pair in pairs]


def _rows(pairs: Sequence[Pair]) -> list[Row]:
    return [row for pair in pairs for row in (pair.chosen, pair.rejected)] or [BLANK, BLANK]


def _extras(reference: Sequence[np.ndarray], size: int, weight: float, per_token: float) -> dict[str, torch.Tensor]:
    """Weights and reference log-probs of the pairs of a micro-batch, filled up to `size` pairs of weight 0."""
    weight_P, reference_P_2 = torch.zeros(size), torch.zeros(size, 2)
    weight_P[: len(reference)] = weight
    if reference:
        reference_P_2[: len(reference)] = torch.from_numpy(np.stack(reference))
    return {"weight_P": weight_P, "reference_P_2": reference_P_2, "per_token": torch.tensor(per_token)}


def _micro_batch(
    model: torch.nn.Module,
    place: Placement,
    config: PreferenceConfig,
    pairs: Sequence[Pair],
    padding: int,
    ranks: Ranks,
) -> MicroBatch:
    size = config.per_device_train_batch_size
    return MicroBatch(
        model, place, _objective(config), execution=config.execution, longest=config.max_length, pad_id=padding,
        most_tokens=most((pair.tokens for pair in pairs), size), most_rows=2 * size,
        most_scores=most((scores((pair.chosen, pair.rejected)) for pair in pairs), size), chunk=config.logits_chunk,
        ranks=ranks,
    )  # fmt: skip


def _render(split: AdmittedSplit, renderer: Renderer, config: PreferenceConfig) -> RenderedPairs:
    return render_pairs(split.rows(), renderer, max_length=config.max_length, truncation=config.truncation)


def _held_out(split: AdmittedSplit, algorithm: str, renderer: Renderer, config: PreferenceConfig) -> RenderedPairs:
    check_contract(split, algorithm)
    check_tokenizer(split, renderer.fingerprint, renderer.name)
    return _render(split, renderer, config)
