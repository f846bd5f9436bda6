"""Sampling on the trainer's own parameters: a plain loop over a growing key-value cache (`--rollout generate`).

Each prompt is prefilled once and its cache is repeated for the group; rows that stopped are compacted away;
randomness comes from a generator of our own, so that a run that resumes draws what it would have drawn. Token ids go
in and come out, nothing is tokenised again, and each sampled token's log-prob is recorded under the very
distribution it was drawn from.

Why not `transformers`' own `generate`: it draws from the global generator, prefills each member of a group, keeps
finished rows, and its scores need another pass to become log-probs. Left out: static caches and CUDA graphs, models
whose state is no key-value cache, cutting the support (top-p, top-k) in training: the loss would compare two
different supports.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from transformers import DynamicCache

from lpt_train.heads import causal_model
from lpt_train.watch import Watch, unwatched
from manifests.errors import RefusedError

COMPACT_AT = 0.75  # of the rows in the batch still running; copying the cache costs about as much as a decoding step
CUDA_LOOK = 8  # decoding steps between two looks of the host at what has stopped


@dataclass(frozen=True)
class Completion:
    """One sampled completion: its ids (the stop token included), their log-probs in nats, and how it ended."""

    ids: list[int]
    logps: list[float]
    finish: Literal["stop", "length"]


@dataclass(frozen=True)
class Sampling:
    """How to sample. `temperature` 0 takes the likeliest token, and log-probs are then those at temperature 1."""

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    batch_size: int = 256  # completions sampled at the same time; a group is never cut


@torch.no_grad()
def sample(
    model: torch.nn.Module,
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,
    *,
    num_generations: int,
    stop_ids: Collection[int],
    generator: torch.Generator,
    autocast: contextlib.AbstractContextManager[Any] | None = None,
    watch: Watch = unwatched,
) -> list[list[Completion]]:
    """`num_generations` completions for each prompt, in the order of the prompts.

    `generator` lives on the model's device and is all the randomness there is. The model is put into evaluation mode
    for the duration. A completion ends with the first id of `stop_ids`, or is cut at `max_new_tokens` (`finish` is
    `length`).
    """
    was_training = model.training
    model.eval()
    device = causal_model(model).get_input_embeddings().weight.device
    stops = torch.tensor(sorted(stop_ids), device=device, dtype=torch.long)
    at_once = max(1, sampling.batch_size // num_generations)
    groups: list[list[Completion]] = []
    with autocast or contextlib.nullcontext():
        for start in range(0, len(prompts), at_once):
            rows = _sample_batch(model, prompts[start : start + at_once], sampling, num_generations, stops, generator)
            groups += [rows[i : i + num_generations] for i in range(0, len(rows), num_generations)]
            watch(len(groups), len(prompts), "prompts answered")
    model.train(was_training)
    return groups


def left_padded(prompts: Sequence[Sequence[int]], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and attention mask [P, T] with the padding in front, so that all prompts end in the last column."""
    width = max(len(prompt) for prompt in prompts)
    ids = torch.zeros(len(prompts), width, dtype=torch.long)
    mask = torch.zeros(len(prompts), width, dtype=torch.long)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.tensor(prompt, dtype=torch.long)
        mask[row, width - len(prompt) :] = 1
    return ids.to(device), mask.to(device)


def _sample_batch(
    model: torch.nn.Module,
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,
    num_generations: int,
    stops: torch.Tensor,
    generator: torch.Generator,
) -> list[Completion]:
    """Samples one batch: prefill [P, T], repeat for the groups, then one token for each running row at a time."""
    device, steps = stops.device, sampling.max_new_tokens
    ids_P_T, mask_P_T = left_padded(prompts, device)
    cache = DynamicCache(config=causal_model(model).config)
    output = model(
        input_ids=ids_P_T, attention_mask=mask_P_T, position_ids=(mask_P_T.cumsum(1) - 1).clamp(min=0),
        past_key_values=cache, use_cache=True, logits_to_keep=1,
    )  # fmt: skip
    if getattr(output, "past_key_values", None) is not cache:
        raise RefusedError(
            "this model's state is no key-value cache, so it cannot be sampled from here",
            seen=type(causal_model(model)).__name__, next="use a transformer model",
        )  # fmt: skip
    cache.batch_repeat_interleave(num_generations)
    logits_B_V = output.logits[:, -1].repeat_interleave(num_generations, 0)
    mask_B_T = mask_P_T.repeat_interleave(num_generations, 0)
    position_B = mask_B_T.sum(1)

    total = len(logits_B_V)
    ids_N_S = torch.zeros(total, steps, dtype=torch.long, device=device)
    logps_N_S = torch.zeros(total, steps, dtype=torch.float32, device=device)
    row_B = torch.arange(total, device=device)  # which of the N rows each row of the running batch is
    look = CUDA_LOOK if device.type == "cuda" else 1
    for step in range(steps):
        token_B, logp_B = draw(logits_B_V, sampling, generator)
        ids_N_S[row_B, step], logps_N_S[row_B, step] = token_B, logp_B
        if step + 1 == steps:
            break
        if (step + 1) % look == 0:
            # A row that ran on past its stop until it was looked at is cut at the stop when it is read out below.
            running_B = ~torch.isin(ids_N_S[row_B, : step + 1], stops).any(1)
            running = int(running_B.sum())
            if running == 0:
                break
            if running <= COMPACT_AT * len(row_B):
                keep = running_B.nonzero().squeeze(1)
                cache.batch_select_indices(keep)
                row_B, token_B, position_B, mask_B_T = row_B[keep], token_B[keep], position_B[keep], mask_B_T[keep]
        mask_B_T = torch.cat([mask_B_T, mask_B_T.new_ones(len(row_B), 1)], dim=1)
        output = model(
            input_ids=token_B[:, None], attention_mask=mask_B_T, position_ids=position_B[:, None],
            past_key_values=cache, use_cache=True,
        )  # fmt: skip
        logits_B_V = output.logits[:, -1]
        position_B = position_B + 1
    return list(_read_out(ids_N_S, logps_N_S, stops))


def draw(logits_B_V: torch.Tensor, sampling: Sampling, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """A token for each row and its log-prob: the largest p / Exp(1) is a draw from p, without a host round trip."""
    greedy = sampling.temperature == 0
    logp_B_V = torch.log_softmax(logits_B_V.float() / (1.0 if greedy else sampling.temperature), dim=-1)
    if greedy:
        token_B = logp_B_V.argmax(-1)
    else:
        logp_B_V = cut_support(logp_B_V, sampling.top_p, sampling.top_k)
        noise_B_V = torch.empty_like(logp_B_V).exponential_(generator=generator)
        token_B = (logp_B_V - noise_B_V.log()).argmax(-1)
    return token_B, logp_B_V.gather(-1, token_B[:, None]).squeeze(-1)


def cut_support(logp_B_V: torch.Tensor, top_p: float, top_k: int) -> torch.Tensor:
    """Log-probs of the distribution that is left by top-k (0: all), then by the smallest set with mass `top_p`."""
    if top_k > 0:
        lowest_B_1 = logp_B_V.topk(min(top_k, logp_B_V.shape[-1]), dim=-1).values[:, -1:]
        logp_B_V = torch.log_softmax(logp_B_V.masked_fill(logp_B_V < lowest_B_1, -torch.inf), dim=-1)
    if top_p < 1.0:
        ordered_B_V, order_B_V = logp_B_V.sort(dim=-1, descending=True)
        before_B_V = ordered_B_V.exp().cumsum(-1) - ordered_B_V.exp()  # mass of the tokens that are likelier
        dropped_B_V = torch.zeros_like(before_B_V, dtype=torch.bool).scatter(-1, order_B_V, before_B_V >= top_p)
        logp_B_V = torch.log_softmax(logp_B_V.masked_fill(dropped_B_V, -torch.inf), dim=-1)
    return logp_B_V


def _read_out(ids_N_S: torch.Tensor, logps_N_S: torch.Tensor, stops: torch.Tensor) -> Iterator[Completion]:
    stop_ids = set(stops.tolist())
    for ids, logps in zip(ids_N_S.tolist(), logps_N_S.tolist(), strict=True):
        end = next((at for at, token in enumerate(ids) if token in stop_ids), None)
        length = len(ids) if end is None else end + 1
        yield Completion(ids[:length], logps[:length], "length" if end is None else "stop")
