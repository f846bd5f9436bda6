"""How far a model has moved from another one: the Kullback-Leibler divergence of what it writes.

Completions are sampled from the model at temperature 1. At each of their positions the divergence of the two next-token
distributions is summed over the whole vocabulary and not read off the one token that was drawn: unbiased like the
estimate from log-ratios, never negative, of far less variance. Its sum over a completion is the divergence of
completions of at most that length.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lpt_train.admitted import AdmittedSplit
from lpt_train.answers import choose
from lpt_train.estimates import mean, ratio
from lpt_train.heads import decoder, head_logits
from lpt_train.measured import Measure, Subject, check_subject
from lpt_train.sampler.generate import Completion, Sampling, left_padded, sample
from lpt_train.steps import dropped_notes
from manifests.errors import BadInputError, RecordError, RefusedError

_CHUNK = 512  # positions whose two distributions exist at the same time
_ROWS = 16  # of a forward pass


def drift(
    subject: Subject,
    baseline: Subject,
    split: AdmittedSplit,
    *,
    n: int | None = None,
    max_completion_length: int = 256,
    max_prompt_length: int = 4096,
    batch_size: int = 256,
    seed: int = 0,
) -> tuple[list[Measure], list[str]]:
    """KL(model ‖ baseline) on completions of `n` prompts of the split: `kl` nats a completion, `kl_per_token`; notes.

    The prompts are drawn by seed from those that fit (all when None); the notes say how many rows have none. One
    completion a prompt; intervals are over prompts. Raises `RefusedError` when the models have not the same tokenizer:
    their distributions are over other tokens.
    """
    if subject.renderer.fingerprint != baseline.renderer.fingerprint:
        raise RefusedError(
            "the models have different tokenizers, so that there is no divergence between them",
            seen=f"{subject.renderer.name}, {baseline.renderer.name}",
            next="compare bits per byte, or leave --drift out",
        )  # fmt: skip
    check_subject(subject, split)
    fitting, dropped = prompts_of(split, subject, max_prompt_length)
    prompts = choose(fitting, n, seed)
    generator = torch.Generator(subject.place.device).manual_seed(seed)
    sampling = Sampling(max_completion_length, 1.0, batch_size=batch_size)
    groups = sample(
        subject.model, prompts, sampling, num_generations=1, stop_ids=subject.renderer.stop_ids, generator=generator,
        autocast=subject.place.autocast(),
    )  # fmt: skip
    completions = [group[0] for group in groups]
    sums = divergences(subject, baseline, prompts, completions)
    lengths = [float(len(completion.ids)) for completion in completions]
    measures = [Measure.of("kl", mean(sums)), Measure.of("kl_per_token", ratio(sums, lengths))]
    return measures, [f"drift: {note}" for note in dropped_notes(dropped, len(fitting))]


def prompts_of(split: AdmittedSplit, subject: Subject, longest: int) -> tuple[list[list[int]], dict[str, int]]:
    """The prompts of a split in token ids, and how many rows were dropped for which reason.

    Of `sft` records the prompt is what comes before the last assistant turn. Raises `BadInputError` when none is left.
    """
    found: list[list[int]] = []
    dropped: dict[str, int] = {}
    for row in split.rows():
        messages = row["prompt"] if "prompt" in row else (row.get("messages") or [])[:-1]
        try:
            ids = subject.renderer.encode_prompt(messages, row.get("tools")) if messages else []
            reason = "no_prompt" if not ids else "prompt_too_long" if len(ids) > longest else ""
        except RecordError as error:
            reason = error.reason
        if reason:
            dropped[reason] = dropped.get(reason, 0) + 1
        else:
            found.append(ids)
    if not found:
        raise BadInputError(
            "no row of the split has a prompt to complete", seen=f"{len(split)} rows; dropped {dropped}"
        )
    return found, dropped


@torch.no_grad()
def divergences(
    subject: Subject, baseline: Subject, prompts: Sequence[Sequence[int]], completions: Sequence[Completion]
) -> list[float]:
    """The summed divergence of each completion, in nats."""
    found: list[float] = []
    for start in range(0, len(prompts), _ROWS):
        part = range(start, min(start + _ROWS, len(prompts)))
        rows = [[*prompts[at], *completions[at].ids] for at in part]
        hidden = [_hidden(model, rows, [len(completions[at].ids) for at in part]) for model in (subject, baseline)]
        kl_N = torch.cat([
            _kl(*(
                head_logits(model.model, states[at : at + _CHUNK])
                for model, states in zip((subject, baseline), hidden, strict=True)
            ))
            for at in range(0, len(hidden[0]), _CHUNK)
        ])  # fmt: skip
        for piece in kl_N.double().cpu().split([len(completions[at].ids) for at in part]):
            found.append(float(piece.sum()))
    return found


def _hidden(model: Subject, rows: Sequence[Sequence[int]], lengths: Sequence[int]) -> torch.Tensor:
    """The hidden states [N, H] that predict the last `lengths` tokens of each row."""
    ids_B_T, mask_B_T = left_padded(rows, model.place.device)
    with model.place.autocast():
        states_B_T_H = decoder(model.model)(
            input_ids=ids_B_T, attention_mask=mask_B_T, position_ids=(mask_B_T.cumsum(1) - 1).clamp(min=0),
            use_cache=False,
        ).last_hidden_state  # fmt: skip
    return torch.cat([states_B_T_H[row, -1 - length : -1] for row, length in enumerate(lengths)])


def _kl(logits_N_V: torch.Tensor, other_N_V: torch.Tensor) -> torch.Tensor:
    """KL(p ‖ q) [N] of two rows of logits."""
    logp_N_V, logq_N_V = logits_N_V.log_softmax(-1), other_N_V.log_softmax(-1)
    return (logp_N_V.exp() * (logp_N_V - logq_N_V)).sum(-1).clamp(min=0)
