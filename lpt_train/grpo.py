"""GRPO on an admitted `rlvr` split, one loop from top to bottom.

    prompts -> rollout -> scores from worker processes -> group advantages -> clipped update -> log -> checkpoint

Axes: `P` prompts, `G` completions a prompt, `B` rows of a micro-batch, `T` tokens. A reward is never changed into an
advantage in place. Completions that could not be scored, groups whose rewards are all equal and, when asked,
completions that were cut leave the loss altogether: its numerator and its denominator. A step for which nothing is
left is no update; it is counted. Checkpoints lie between generations, so none holds half-used rollouts and N + N
steps are 2 N steps, bit for bit.

Left out: refilling a batch whose groups say nothing (DAPO's dynamic sampling), several processes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from lpt_train.adapters import load_for_training
from lpt_train.admitted import AdmittedSplit, check_contract, check_tokenizer, check_trains, split_notes
from lpt_train.advantages import GroupAdvantages, group_advantages
from lpt_train.answers import accuracy
from lpt_train.checkpoint import Restored
from lpt_train.config_grpo import GRPOConfig
from lpt_train.early_stop import check_patience
from lpt_train.heads import TokenLogprobs, check_head, token_logprobs
from lpt_train.losses.policy import StepCounts, policy_loss
from lpt_train.memory import Fitted, fit_model, workload
from lpt_train.models import Placement, check_vocabulary, load_model, load_tokenizer, model_digest, placement, resolve
from lpt_train.observers import Observer
from lpt_train.optimizers import make_optimizer
from lpt_train.packing import units_at
from lpt_train.plan.workloads import of_sampling
from lpt_train.proof import Proof
from lpt_train.render import Renderer
from lpt_train.rewards import FROM_RECORD, parse_rewards, verifiers_for
from lpt_train.rewards.pool import RewardPool, Score
from lpt_train.rollouts import RolloutLog, completion_texts, group_sizes, rollout_metrics, row_sizes
from lpt_train.runs import Progress, Run, RunResult, seed_everything
from lpt_train.sampler.generate import Completion, Sampling, sample
from lpt_train.schedule import schedule_of
from lpt_train.speed import Parts, Work
from lpt_train.tasks import Task, probes, read_tasks
from lpt_train.updates import Updates
from manifests.catalog import Catalog
from manifests.errors import LptError, UsageError
from manifests.files import make_folder

BLIND = 3  # generations in a row in which no completion could be scored: the run ends
TRUNCATED = 0.95  # share of completions cut in the first generation from which the run says that nothing can be learned


@dataclass(frozen=True)
class Row:
    """One completion that trains: the ids of its prompt, what was sampled, and its advantage."""

    prompt_ids: list[int]
    completion: Completion
    advantage: float


@dataclass(frozen=True)
class Policy:
    """The model that learns, what moves it, what it is held against (None without a KL term), and what it takes."""

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    reference: torch.nn.Module | None
    place: Placement
    memory: Fitted
    work: Work


def train(
    config: GRPOConfig,
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
    `BadInputError` for rewards that cannot be trusted, and `LptError` when a run cannot go on (a value is not
    finite, nothing can be scored); the run is then recorded as failed.
    """
    out, options = Path(out), config.run
    check_trains(split, "grpo")
    check_patience(options, eval_split)
    place = placement(options.device, options.dtype)
    source = resolve(config.model, out, seed=options.seed)
    renderer = Renderer(load_tokenizer(source), for_training=False)  # rollouts begin at what serving gives
    check_tokenizer(split, renderer.fingerprint, renderer.name)
    tasks, dropped = read_tasks(split, renderer, config.max_prompt_length)
    held_out, unread = read_held_out(eval_split, renderer, config)
    total = total_steps(config, len(tasks))
    rates = schedule_of(config.optim, total)
    terms = parse_rewards(config.reward)
    if any(term.name == FROM_RECORD for term in terms):
        verifiers_for({task.verifier for task in [*tasks, *held_out]})

    seed_everything(options.seed)  # before the adapter draws its first values
    policy = make_policy(config, source, place, out if resume else None)
    check_vocabulary(policy.model, renderer.tokenizer)
    generator = torch.Generator(place.device).manual_seed(options.seed)
    sampling = Sampling(config.max_completion_length, config.temperature, batch_size=config.rollout_batch_size)
    proof = Proof(policy.model)
    make_folder(out)
    with RewardPool(
        terms, workers=config.reward_workers, seconds=config.reward_timeout, memory_mb=config.reward_memory_mb,
        log=out / "rewards.log",
    ) as pool:  # fmt: skip
        pool.check(probes([*tasks, *held_out]))
        run = Run.create(
            out, "grpo", config, split, {"name": source, "digest": model_digest(source)}, seed=options.seed,
            tokenizer=renderer.told(),
            eval_split=eval_split, catalog=catalog, resume=resume,
        )  # fmt: skip
        run.notes += split_notes(split, eval_split) + unread
        skipped, blind, rollouts = 0, 0, RolloutLog(out / "rollouts.jsonl")
        run.rollouts = rollouts.path

        def back(checkpoint: Restored) -> None:
            nonlocal skipped
            skipped = checkpoint.extra["skipped_steps"]
            generator.set_state(checkpoint.tensors["sampler"])
            rollouts.begin(checkpoint.step)

        updates = Updates(
            run, policy.model, policy.optimizer, proof, config, total, multiplier=rates,
            cursor=lambda done: {"place": prompts_before(done, config), "units": len(tasks)},
            tokenizer=renderer.tokenizer, zero_grad=policy.optimizer.zero_grad, progress=progress,
            evaluate=partial(held_out_accuracy, policy, held_out, renderer, pool, config) if held_out else None,
            more=lambda: {"extra": {"skipped_steps": skipped}, "tensors": {"sampler": generator.get_state()}},
            back=back, observers=observers, together=config.steps_of_generation,
        )  # fmt: skip
        run.memory = policy.memory
        parts = updates.parts()
        if not resume or updates.take_up() is None:
            rollouts.begin(0)
        with run.guarded(proof) as stop:
            for start in updates.steps(stop):
                first = prompts_before(start, config)
                chosen = units_at(first, config.prompts_per_generation, units=len(tasks), seed=options.seed)
                tasks_P = [tasks[i] for i in chosen]
                prompts_P = [task.prompt_ids for task in tasks_P]

                # Rollout, rewards, advantages.
                parts.begin()
                groups_P_G = sample(
                    policy.model, prompts_P, sampling, stop_ids=renderer.stop_ids,
                    num_generations=config.num_generations, generator=generator, autocast=place.autocast(),
                )  # fmt: skip
                spent = parts.end("generation", policy.work.forward_of(*group_sizes(prompts_P, groups_P_G)))
                texts_P_G = completion_texts(renderer, groups_P_G)
                scores_P_G = score(pool, tasks_P, texts_P_G)
                rewards_P_G = reward_tensor(scores_P_G)
                advantages = group_advantages(rewards_P_G, scale_rewards=config.scale_rewards)
                rollouts.write(start, tasks_P, groups_P_G, texts_P_G, scores_P_G, advantages)
                sampled = rollout_metrics(groups_P_G, rewards_P_G, advantages)
                blind = 0 if sampled["unscorable"] < 1 else blind + 1
                complain(run, sampled, pool, blind=blind, first=start == 0)
                record_ids = [task.record_id for task in tasks_P]
                if not updates.rolled_out(start, sampled | spent, record_ids):
                    continue

                # The optimizer steps of this generation, each on those of its completions that say something.
                tokens = sum(len(c.ids) for group in groups_P_G for c in group)
                for turn, rows in enumerate(steps_of(config, prompts_P, groups_P_G, advantages)):
                    step = start + turn
                    updated = update(policy, rows, config, parts) if rows else {}
                    moved = (
                        updates.apply(step, {"loss": updated["loss"]}, record_ids) if rows
                        else {"learning_rate": updates.rate(step)}
                    )  # fmt: skip
                    skipped += not rows
                    if turn > 0:
                        updated.pop("mismatch", None)  # the policy has moved since it sampled
                    metrics = {**sampled, **(spent if turn == 0 else {}), **updated, **moved, "skipped_steps": skipped}
                    updates.end(step, metrics, tokens=tokens if turn == 0 else 0, operations=parts.operations())
    return updates.finish(
        failures=[f"reward: {reason}: {text}" for reason, text in pool.examples.items()],
        extra={
            "data": {"tasks": len(tasks), "dropped": dropped}, "skipped_steps": skipped,
            "rollouts_path": str(rollouts.path), "rewards": {
                "terms": config.reward or FROM_RECORD, "unscorable": dict(pool.failures), "network": pool.network,
            },
        },
    )  # fmt: skip


def prompts_before(step: int, config: GRPOConfig) -> int:
    """How many prompts the generations before a step have read."""
    return step // config.steps_of_generation * config.prompts_per_generation


def read_held_out(split: AdmittedSplit | None, renderer: Renderer, config: GRPOConfig) -> tuple[list[Task], list[str]]:
    """The tasks that measure, and what to say about those left out; raises what the training split would raise."""
    if split is None:
        return [], []
    check_contract(split, "grpo")
    check_tokenizer(split, renderer.fingerprint, renderer.name)
    tasks, dropped = read_tasks(split, renderer, config.max_prompt_length)
    reasons = ", ".join(f"{reason} {count}" for reason, count in dropped.items())
    return tasks, [f"{sum(dropped.values())} of {len(split)} rows are not evaluated on: {reasons}"] if dropped else []


def total_steps(config: GRPOConfig, tasks: int) -> int:
    """Optimizer steps of the run; raises `UsageError` when `max_steps` is no whole number of generations."""
    if config.run.max_steps < 0:
        generations = math.ceil(config.run.num_train_epochs * tasks / config.prompts_per_generation)
        return max(1, generations) * config.steps_of_generation
    if config.run.max_steps % config.steps_of_generation:
        raise UsageError(
            "max_steps is no whole number of generations",
            seen=f"{config.run.max_steps} steps, {config.steps_of_generation} for each generation",
            next=f"give a multiple of {config.steps_of_generation}: completions are not kept from one run to the next",
        )
    return config.run.max_steps


def make_policy(config: GRPOConfig, source: str, place: Placement, out: Path | None = None) -> Policy:
    """Model, optimizer and, with a KL term, the reference: the start model, unless it is the adapter switched off."""
    model = load_for_training(source, config.lora, place)
    check_head(model)
    reference = None
    off_is_start = config.lora.use_peft and not config.lora.changes_base
    if config.beta > 0 and not off_is_start:
        reference = load_model(source, dtype=place.dtype, device=place.device).requires_grad_(False)
    a_row = config.max_prompt_length + config.max_completion_length
    work = workload(
        model, place, config, tokens=config.per_device_train_batch_size * a_row, compiled=False, kept_gradients=False
    )
    work = replace(of_sampling(config, work, a_row), frozen_copies=int(reference is not None))
    memory = fit_model(model, place, config, work, out, unchanged=("chunk",))
    optimizer = make_optimizer(model, config.optim, offload=memory.offload_optimizer)
    return Policy(model, optimizer, reference, place, memory, Work(model))


def score(pool: RewardPool, tasks_P: Sequence[Task], texts_P_G: Sequence[Sequence[str]]) -> list[list[Score]]:
    """The scores of all completions, in the shape of the groups."""
    flat = iter(pool.score([task.item(text) for task, texts in zip(tasks_P, texts_P_G, strict=True) for text in texts]))
    return [[next(flat) for _ in texts] for texts in texts_P_G]


def reward_tensor(scores_P_G: Sequence[Sequence[Score]]) -> torch.Tensor:
    """Rewards [P, G] in float64, NaN where a completion could not be scored."""
    return torch.tensor(
        [[math.nan if s.total is None else s.total for s in scores] for scores in scores_P_G], dtype=torch.float64
    )


def steps_of(
    config: GRPOConfig,
    prompts_P: Sequence[list[int]],
    groups_P_G: Sequence[Sequence[Completion]],
    advantages: GroupAdvantages,
) -> Iterator[list[Row]]:
    """The rows of each optimizer step of a generation, `num_iterations` times over; a list may be empty."""
    rows: list[Row | None] = []
    values, counted = advantages.advantages_P_G.tolist(), advantages.counted_P_G.tolist()
    for p, (prompt_ids, group) in enumerate(zip(prompts_P, groups_P_G, strict=True)):
        for g, completion in enumerate(group):
            cut = config.mask_truncated_completions and completion.finish == "length"
            rows.append(Row(prompt_ids, completion, values[p][g]) if counted[p][g] and not cut else None)
    for _ in range(config.num_iterations):
        for start in range(0, len(rows), config.step_size):
            yield [row for row in rows[start : start + config.step_size] if row is not None]


def update(policy: Policy, rows: Sequence[Row], config: GRPOConfig, parts: Parts | None = None) -> dict[str, float]:
    """Gradients of one optimizer step and its metrics (means over the step's counted tokens).

    When a generation is used once, the sampling policy is the policy itself, the ratio is 1 with its gradient;
    otherwise the ratio is taken to the log-probs recorded at sampling. `mismatch` is mean |log-prob here - log-prob
    recorded|; `parts` takes the time.
    """
    parts = parts or Parts()
    parts.begin()
    counts = StepCounts(sum(len(row.completion.ids) for row in rows), len(rows), config.max_completion_length)
    names = ("loss", "clip_low", "clip_high", "ratio_kl", "kl", "entropy", "mismatch")
    sums = dict.fromkeys(names, 0.0)
    # Similar lengths side by side: less padding, the same sums.
    ordered = sorted(rows, key=lambda row: len(row.prompt_ids) + len(row.completion.ids))
    for start in range(0, len(ordered), config.per_device_train_batch_size):
        batch = collate(ordered[start : start + config.per_device_train_batch_size], policy.place.device)
        with policy.memory.activations(policy.model):
            found = logprobs(policy.model, batch, config, policy.place)
        loss = policy_loss(
            found.logp_B_T, batch.sampled_logp_B_T if config.steps_of_generation > 1 else None, batch.advantages_B,
            batch.mask_B_T, counts, epsilon=config.epsilon, epsilon_high=config.epsilon_high,
            loss_type=config.loss_type, beta=config.beta,
            ref_logp_B_T=reference_logp(policy, batch, config) if config.beta > 0 else None,
        )  # fmt: skip
        loss.loss.backward()
        gap = ((found.logp_B_T.detach() - batch.sampled_logp_B_T).abs() * batch.mask_B_T).sum()
        shares = (loss.clipped_low, loss.clipped_high, loss.ratio_kl, loss.reference_kl, found.entropy_B_T.sum(), gap)
        sums["loss"] += float(loss.loss.detach())
        for name, value in zip(names[1:], shares, strict=True):
            sums[name] += float(value.detach()) / counts.tokens
    if config.beta == 0:
        del sums["kl"]
    return sums | parts.end("training", training_operations(policy, rows, config))


def training_operations(policy: Policy, rows: Sequence[Row], config: GRPOConfig) -> float:
    """Of forward and backward of the rows of a step, and of the reference over them where there is a KL term."""
    sizes = row_sizes((row.prompt_ids, row.completion) for row in rows)
    reference = policy.work.forward_of(*sizes) if config.beta > 0 else 0.0
    return policy.work.training_of(*sizes) + reference


@dataclass(frozen=True)
class MicroBatch:
    """Rows padded at the end; the mask is 1 on sampled tokens, the stop token included."""

    ids_B_T: torch.Tensor
    attention_B_T: torch.Tensor
    mask_B_T: torch.Tensor
    sampled_logp_B_T: torch.Tensor
    advantages_B: torch.Tensor


def collate(rows: Sequence[Row], device: torch.device) -> MicroBatch:
    """Prompt and completion ids side by side, as they were sampled: nothing is tokenised again."""
    width = max(len(row.prompt_ids) + len(row.completion.ids) for row in rows)
    ids, attention, mask = (torch.zeros(len(rows), width, dtype=torch.long) for _ in range(3))
    sampled = torch.zeros(len(rows), width)
    for i, row in enumerate(rows):
        start, end = len(row.prompt_ids), len(row.prompt_ids) + len(row.completion.ids)
        ids[i, :end] = torch.tensor([*row.prompt_ids, *row.completion.ids])
        attention[i, :end] = 1
        mask[i, start:end] = 1
        sampled[i, start:end] = torch.tensor(row.completion.logps)
    advantages = torch.tensor([row.advantage for row in rows])
    return MicroBatch(*(tensor.to(device) for tensor in (ids, attention, mask, sampled, advantages)))


def logprobs(model: torch.nn.Module, batch: MicroBatch, config: GRPOConfig, place: Placement) -> TokenLogprobs:
    """Log-probs and entropies of the sampled tokens, at the temperature they were sampled at."""
    with place.autocast():
        return token_logprobs(
            model, batch.ids_B_T, batch.attention_B_T, batch.mask_B_T, temperature=config.temperature,
            chunk=config.logits_chunk,
        )  # fmt: skip


@torch.no_grad()
def reference_logp(policy: Policy, batch: MicroBatch, config: GRPOConfig) -> torch.Tensor:
    """Log-probs under the start model: a frozen copy, or the same model with its adapter switched off."""
    if policy.reference is not None:
        return logprobs(policy.reference, batch, config, policy.place).logp_B_T
    was_training = policy.model.training
    policy.model.eval()
    with policy.model.disable_adapter():  # type: ignore[operator]
        found = logprobs(policy.model, batch, config, policy.place)
    policy.model.train(was_training)
    return found.logp_B_T


def held_out_accuracy(
    policy: Policy, tasks: Sequence[Task], renderer: Renderer, pool: RewardPool, config: GRPOConfig
) -> dict[str, float]:
    """Greedy accuracy on the evaluation split, as metrics."""
    sampling = Sampling(config.max_completion_length, 0.0, batch_size=config.rollout_batch_size)
    found = accuracy(policy.model, renderer, tasks, pool, sampling, autocast=policy.place.autocast)
    return {"eval_accuracy": found.accuracy, "eval_low": found.low, "eval_high": found.high, "eval_n": float(found.n)}


def complain(run: Run, sampled: dict[str, float], pool: RewardPool, *, blind: int, first: bool) -> None:
    """Say early what makes a run useless; end one that is blind."""
    if first and sampled["truncated_share"] > TRUNCATED:
        run.notes.append(
            f"{sampled['truncated_share']:.0%} of the first completions were cut at max_completion_length, so that few "
            "hold an answer; raise it, or start from a model that stops"
        )
    if blind >= BLIND:
        raise LptError(
            f"no completion of the last {BLIND} generations could be scored", seen=dict(pool.failures) | pool.examples,
            next="correct the reward, or allow it more with reward_timeout and reward_memory_mb",
        )  # fmt: skip
