"""Token log-probabilities and entropies from hidden states, in float32, a chunk of positions at a time.

The [tokens, vocabulary] logits of a batch never exist at once: only positions that count are projected, `chunk` of
them at a time, and the backward pass projects each chunk again instead of keeping it. Axes: `B` rows, `T` tokens, `N`
counted positions, `H` hidden, `V` vocabulary.

Does not fuse the projection with the softmax; a kernel that does must first match these values and gradients.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
from peft import PeftModel
from torch.utils.checkpoint import checkpoint

from manifests.errors import RefusedError


@dataclass(frozen=True)
class TokenLogprobs:
    """`logp_B_T[b, t] = log p(ids[b, t] | ids[b, <t])` and the entropy of that distribution, in nats, float32.

    Both are 0 where the mask is 0. `entropy_B_T` is zeros throughout when entropy was not asked for.
    """

    logp_B_T: torch.Tensor
    entropy_B_T: torch.Tensor


def token_logprobs(
    model: torch.nn.Module,
    input_ids_B_T: torch.Tensor,
    attention_mask_B_T: torch.Tensor | None,
    completion_mask_B_T: torch.Tensor,
    *,
    temperature: float = 1.0,
    chunk: int = 1024,
    entropy: bool = True,
    position_ids_B_T: torch.Tensor | None = None,
) -> TokenLogprobs:
    """Log-prob and entropy of every token that `completion_mask_B_T` marks, differentiable in both.

    `attention_mask_B_T` is 1 on tokens and 0 on padding, on either side (or a ready [B, 1, T, T] mask, or None for full
    rows); positions count the tokens of a row unless `position_ids_B_T` gives them. The first token of a row has no
    distribution, so a mask that marks column 0 is refused. `temperature` divides the logits.
    """
    if bool(completion_mask_B_T[:, 0].any()):
        raise RefusedError(
            "the first token of a row cannot be predicted", seen="a mask that is 1 in column 0",
            next="mask the first token of each row",
        )  # fmt: skip
    if position_ids_B_T is None and attention_mask_B_T is not None and attention_mask_B_T.dim() == 2:
        position_ids_B_T = (attention_mask_B_T.long().cumsum(1) - 1).clamp(min=0)
    hidden_B_T_H = decoder(model)(
        input_ids=input_ids_B_T, attention_mask=attention_mask_B_T, position_ids=position_ids_B_T, use_cache=False
    ).last_hidden_state
    rows, columns = completion_mask_B_T.bool().nonzero(as_tuple=True)
    logp_N, entropy_N = head_logprobs(
        model, hidden_B_T_H[rows, columns - 1], input_ids_B_T[rows, columns], temperature, chunk, entropy
    )
    empty_B_T = torch.zeros(input_ids_B_T.shape, dtype=torch.float32, device=input_ids_B_T.device)
    return TokenLogprobs(empty_B_T.index_put((rows, columns), logp_N), empty_B_T.index_put((rows, columns), entropy_N))


def head_logprobs(
    model: torch.nn.Module,
    hidden_N_H: torch.Tensor,
    targets_N: torch.Tensor,
    temperature: float = 1.0,
    chunk: int = 1024,
    entropy: bool = True,
    *,
    compiled: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-prob [N] and entropy [N] of `targets_N` from the hidden states that predict them.

    A frozen head of plain shape takes a shorter way where no entropy is asked for: see `_FrozenHead`. `compiled` fuses
    the passes over its logits.
    """
    head = causal_model(model).get_output_embeddings()
    adjust = _adjustment(causal_model(model).config)
    if not entropy and _is_frozen_and_plain(head, adjust):
        logp_N = _FrozenHead.apply(hidden_N_H, head.weight, targets_N, 1.0 / temperature, chunk, compiled)
        return logp_N, torch.zeros_like(logp_N)

    def project(hidden: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = adjust(head(hidden).float()) / temperature
        normaliser = torch.logsumexp(logits, dim=-1)
        logp = logits.gather(-1, targets[:, None]).squeeze(-1) - normaliser
        if not entropy:
            return logp, torch.zeros_like(logp)
        return logp, normaliser - (torch.exp(logits - normaliser[:, None]) * logits).sum(-1)

    parts = []
    again = draws(head)  # projected once more in the backward pass, an adapter of the head must drop the same inputs
    for start in range(0, len(targets_N), chunk):
        piece = hidden_N_H[start : start + chunk], targets_N[start : start + chunk]
        if torch.is_grad_enabled():
            parts.append(checkpoint(project, *piece, use_reentrant=False, preserve_rng_state=again))
        else:
            parts.append(project(*piece))
    if not parts:
        nothing = hidden_N_H.float().sum(-1)  # keeps the graph, so that backward over an empty selection is legal
        return nothing, nothing
    return torch.cat([logp for logp, _ in parts]), torch.cat([ent for _, ent in parts])


def head_logits(model: torch.nn.Module, hidden_N_H: torch.Tensor) -> torch.Tensor:
    """Logits [N, V] in float32 of hidden states. For a few positions at a time: the whole vocabulary is kept."""
    logits_N_V = causal_model(model).get_output_embeddings()(hidden_N_H).float()
    return _adjustment(causal_model(model).config)(logits_N_V)


class _FrozenHead(torch.autograd.Function):
    """Log-probs under a vocabulary head that does not train.

    The gradient of each log-prob with respect to its hidden state, `(onehot - softmax) @ W`, is computed in the forward
    pass while the logits of the chunk are there, and scaled in the backward pass: two products with the vocabulary
    instead of three, and N x H values kept instead of N x V.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_N_H: torch.Tensor,
        weight_V_H: torch.Tensor,
        targets_N: torch.Tensor,
        scale: float,
        chunk: int,
        compiled: bool,
    ) -> torch.Tensor:
        wanted = ctx.needs_input_grad[0]
        stats = _compiled_stats() if compiled else _softmax_stats
        wide = torch.promote_types(weight_V_H.dtype, torch.float32)
        logp_N = torch.empty(len(targets_N), dtype=wide, device=hidden_N_H.device)
        gradient_N_H = torch.empty(hidden_N_H.shape, dtype=weight_V_H.dtype, device=hidden_N_H.device)
        with torch.autocast(hidden_N_H.device.type, enabled=False):
            for start in range(0, len(targets_N), chunk):
                part = slice(start, start + chunk)
                logits = _wide_product(hidden_N_H[part].to(weight_V_H.dtype), weight_V_H)
                logp_N[part], slope = stats(logits, targets_N[part], scale, weight_V_H.dtype)
                if wanted:
                    torch.mm(slope, weight_V_H, out=gradient_N_H[part])
        ctx.save_for_backward(gradient_N_H if wanted else None)
        ctx.dtype = hidden_N_H.dtype
        return logp_N

    @staticmethod
    def backward(ctx: Any, *outer: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (gradient_N_H,) = ctx.saved_tensors
        return (outer[0][:, None] * gradient_N_H).to(ctx.dtype), None, None, None, None, None


def _wide_product(hidden_n_H: torch.Tensor, weight_V_H: torch.Tensor) -> torch.Tensor:
    if hidden_n_H.is_cuda and weight_V_H.dtype is not torch.float32:
        return torch.mm(hidden_n_H, weight_V_H.t(), out_dtype=torch.float32)  # not rounded on the way out
    return torch.mm(hidden_n_H, weight_V_H.t()).to(torch.promote_types(weight_V_H.dtype, torch.float32))


def _softmax_stats(
    logits_n_V: torch.Tensor, targets_n: torch.Tensor, scale: float, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs [n] of the targets, and d log-prob / d logits [n, V] in `dtype`."""
    logits_n_V = logits_n_V * scale
    normaliser_n_1 = torch.logsumexp(logits_n_V, dim=-1, keepdim=True)
    logp_n = (logits_n_V.gather(-1, targets_n[:, None]) - normaliser_n_1).squeeze(-1)
    onehot_n_V = torch.arange(logits_n_V.shape[1], device=logits_n_V.device)[None] == targets_n[:, None]
    return logp_n, ((onehot_n_V.to(logits_n_V.dtype) - torch.exp(logits_n_V - normaliser_n_1)) * scale).to(dtype)


@functools.cache
def _compiled_stats() -> Any:
    return torch.compile(_softmax_stats, dynamic=False)


def _is_frozen_and_plain(head: Any, adjust: _Adjust) -> bool:
    plain = type(head) is torch.nn.Linear and head.bias is None and adjust.multiply == 1.0 and adjust.cap is None
    return plain and not head.weight.requires_grad


def causal_model(model: torch.nn.Module) -> Any:
    """The causal language model inside `model`, with adapters still active in its layers."""
    if isinstance(model, PeftModel):
        if model.active_peft_config.is_prompt_learning:
            raise RefusedError(
                "this adapter lives in the prompt, not in the layers", seen=model.active_peft_config.peft_type,
                next="use LoRA",
            )  # fmt: skip
        return model.get_base_model()
    return model


def decoder(model: torch.nn.Module) -> torch.nn.Module:
    """The part of `model` that ends in hidden states, without the projection on the vocabulary or on a reward."""
    causal = causal_model(model)
    body = getattr(causal, causal.base_model_prefix, None)
    head = causal.get_output_embeddings() or getattr(causal, "score", None)
    if body is None or body is causal or head is None:
        raise RefusedError(
            "this architecture has no separate decoder and head", seen=type(causal).__name__,
            next="use a causal language model of transformers",
        )  # fmt: skip
    return body


def draws(model: torch.nn.Module) -> bool:
    """Whether a forward pass in training mode draws random numbers: dropout."""
    return any(isinstance(module, torch.nn.Dropout) and module.p > 0 for module in model.modules())


@torch.no_grad()
def check_head(model: torch.nn.Module) -> None:
    """Raise `RefusedError` unless the chunked path gives the log-probs of the model's own forward on four tokens.

    Architectures may scale, cap or bias their logits in `forward`; those known are handled, and this finds the others.
    """
    device = causal_model(model).get_input_embeddings().weight.device
    ids_1_T = torch.arange(1, 5, device=device)[None]
    was_training = model.training
    model.eval()
    logits_1_T_V = model(input_ids=ids_1_T, use_cache=False).logits.float()
    hidden_1_T_H = decoder(model)(input_ids=ids_1_T, use_cache=False).last_hidden_state
    ours_N, _ = head_logprobs(model, hidden_1_T_H[0, :-1], ids_1_T[0, 1:], entropy=False)
    model.train(was_training)
    theirs_N = torch.log_softmax(logits_1_T_V, -1)[0, :-1].gather(-1, ids_1_T[0, 1:, None]).squeeze(-1)
    gap = float((ours_N - theirs_N).abs().max())
    tolerance = 1e-3 if causal_model(model).get_output_embeddings().weight.dtype is torch.float32 else 2e-2
    if not gap <= tolerance * (1 + float(theirs_N.abs().max())):
        raise RefusedError(
            "the log-probs taken from the hidden states are not this model's", seen=f"largest difference {gap:.3g}",
            next="this architecture changes its logits in a way that is not handled; use another model",
        )  # fmt: skip


class _Adjust:
    """What some architectures do to their logits after the projection, by the names of their configs."""

    def __init__(self, multiply: float = 1.0, cap: float | None = None) -> None:
        self.multiply, self.cap = multiply, cap

    def __call__(self, logits: torch.Tensor) -> torch.Tensor:
        if self.multiply != 1.0:
            logits = logits * self.multiply
        return logits if self.cap is None else self.cap * torch.tanh(logits / self.cap)


def _adjustment(config: Any) -> _Adjust:
    multiply = getattr(config, "logit_scale", None) or 1.0  # Cohere
    multiply = multiply / (getattr(config, "logits_scaling", None) or 1.0)  # Granite
    return _Adjust(multiply, getattr(config, "final_logit_softcapping", None))  # Gemma 2 and later
