"""Attention over rows laid end to end: each token sees the tokens before it in its own row and no others.

Registered with transformers as `lpt_varlen`. A batch is one line of T tokens; `cu_seqlens` (int32 [rows + 1]) says
where its rows begin and end. In half precision on CUDA it is torch's flash attention for variable lengths, without a
mask of any size; in other precisions there rows of like length are filled up and go together, for a loop over them
launches thousands of small kernels a step. On a CPU it is that loop, which is also the plain reference of the tests.

What it does not know (capped scores, sinks, dropout of attention) it refuses, so that a model that needs them is found
out before it trains.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.varlen import varlen_attn
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface

from manifests.errors import RefusedError

NAME = "lpt_varlen"
# Fewer key heads than query heads: later versions of torch want to be told.
_GROUPED: dict[str, Any] = {"enable_gqa": True} if "enable_gqa" in inspect.signature(varlen_attn).parameters else {}
_CHANGES_SCORES = ("softcap", "s_aux", "head_mask", "position_bias")


def varlen_attention(
    module: torch.nn.Module,
    query_1_N_T_D: torch.Tensor,
    key_1_K_T_D: torch.Tensor,
    value_1_K_T_D: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    *,
    cu_seqlens: torch.Tensor | None = None,
    longest: int = 0,
    sliding_window: int | None = None,
    **more: Any,
) -> tuple[torch.Tensor, None]:
    """Attended values [1, T, N, D] of a line of rows, or of one row when `cu_seqlens` is None.

    No row is longer than `longest`, an int and not a tensor: reading it must not wait for the device.

    Raises `RefusedError` for dropout and for arguments that change the scores in a way that is not handled.
    """
    unknown = [name for name in _CHANGES_SCORES if more.get(name) is not None] + ["dropout"] * (dropout > 0)
    if unknown:
        raise RefusedError("this attention has parts that rows laid end to end do not handle", seen=", ".join(unknown))
    if len(query_1_N_T_D) != 1 or query_1_N_T_D.shape[2] != key_1_K_T_D.shape[2]:
        raise RefusedError(
            "this attention takes whole rows laid end to end", seen=f"queries {tuple(query_1_N_T_D.shape)}",
            next="set another attn_implementation for batches with padding or a cache",
        )  # fmt: skip
    # Under autocast a rotation in float32 leaves queries and keys wider than values.
    query_T_N_D, key_T_K_D, value_T_K_D = (
        part[0].transpose(0, 1).to(value_1_K_T_D.dtype) for part in (query_1_N_T_D, key_1_K_T_D, value_1_K_T_D)
    )
    if cu_seqlens is not None and value_T_K_D.is_cuda and value_T_K_D.dtype in (torch.bfloat16, torch.float16):
        window = (sliding_window - 1 if sliding_window else -1, 0)
        out_T_N_D = varlen_attn(
            query_T_N_D.contiguous(), key_T_K_D.contiguous(), value_T_K_D.contiguous(), cu_seqlens, cu_seqlens,
            longest, longest, scale=scaling, window_size=window, **_GROUPED,
        )  # fmt: skip
        assert isinstance(out_T_N_D, torch.Tensor)  # nothing else was asked for
        return out_T_N_D[None], None
    if cu_seqlens is not None and value_T_K_D.is_cuda:
        of_line = _groups_of(cu_seqlens)
        return _by_groups(query_T_N_D, key_T_K_D, value_T_K_D, of_line, scaling, sliding_window)[None], None
    ends = [0, len(query_T_N_D)] if cu_seqlens is None else cu_seqlens.tolist()
    return _each_row(query_T_N_D, key_T_K_D, value_T_K_D, ends, scaling, sliding_window)[None], None


def _each_row(
    query_T_N_D: torch.Tensor,
    key_T_K_D: torch.Tensor,
    value_T_K_D: torch.Tensor,
    ends: list[int],
    scaling: float | None,
    window: int | None,
) -> torch.Tensor:
    parts = []
    for start, end in zip(ends[:-1], ends[1:], strict=True):
        if start == end:
            continue
        line = query_T_N_D[None, start:end], key_T_K_D[None, start:end], value_T_K_D[None, start:end]
        parts.append(_attended(*line, scaling, window)[0])
    return torch.cat(parts)


def _attended(
    query_S_L_N_D: torch.Tensor,
    key_S_L_K_D: torch.Tensor,
    value_S_L_K_D: torch.Tensor,
    scaling: float | None,
    window: int | None,
) -> torch.Tensor:
    """Causal attention within each of S rows of L tokens, [S, L, N, D]; no token sees filler at the end of its row."""
    longest, mask = query_S_L_N_D.shape[1], None
    if window and longest > window:
        mask = torch.ones(longest, longest, dtype=torch.bool, device=query_S_L_N_D.device)
        mask = mask.tril() & mask.triu(1 - window)
    query, key, value = (part.transpose(1, 2) for part in (query_S_L_N_D, key_S_L_K_D, value_S_L_K_D))
    out_S_N_L_D = functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=mask is None, scale=scaling, enable_gqa=True
    )
    return out_S_N_L_D.transpose(1, 2)


@dataclass(frozen=True)
class Groups:
    """Rows of like length, filled up to tables of places.

    `tokens` [S, L] of each group says which token of the line lies at each place (at filler the first one);
    `places` [T] says where each token of the line lies among the places of all groups.
    """

    tokens: tuple[torch.Tensor, ...]
    places: torch.Tensor


def groups(ends: Sequence[int], device: torch.device) -> Groups:
    """Groups of the rows of a line, longest first; no row is filled up to more than one and a half times its length."""
    lengths = np.diff(ends)
    order = [int(row) for row in np.argsort(-lengths, kind="stable") if lengths[row]]
    places, parts, at, used = np.empty(ends[-1], np.int64), [], 0, 0
    while at < len(order):
        longest = int(lengths[order[at]])
        end = at + 1
        while end < len(order) and 3 * lengths[order[end]] >= 2 * longest:
            end += 1
        tokens = np.zeros((end - at, longest), np.int64)
        for number, row in enumerate(order[at:end]):
            mine = np.arange(ends[row], ends[row + 1])
            tokens[number, : len(mine)] = mine
            places[mine] = used + number * longest + np.arange(len(mine))
        parts.append(torch.from_numpy(tokens).to(device))
        at, used = end, used + tokens.size
    return Groups(tuple(parts), torch.from_numpy(places).to(device))


# The tensor, its version and its groups: all layers of a pass ask for those of the same.
_latest: tuple[Callable[[], torch.Tensor | None], int, Groups] | None = None


def _groups_of(cu_seqlens: torch.Tensor) -> Groups:
    global _latest
    if cu_seqlens.is_inference():  # has no version
        return groups(cu_seqlens.tolist(), cu_seqlens.device)
    known = _latest
    if known is None or known[0]() is not cu_seqlens or known[1] != cu_seqlens._version:
        of_line = groups(cu_seqlens.tolist(), cu_seqlens.device)
        known = _latest = (weakref.ref(cu_seqlens), cu_seqlens._version, of_line)
    return known[2]


def _by_groups(
    query_T_N_D: torch.Tensor,
    key_T_K_D: torch.Tensor,
    value_T_K_D: torch.Tensor,
    of_line: Groups,
    scaling: float | None,
    window: int | None,
) -> torch.Tensor:
    """Attention of each group at once, by plain products that are computed again in the backward pass: the kernel for
    float32 that keeps no scores either adds its gradients in any order, and a resumed run would not be the same.
    """

    def attended(*line: torch.Tensor) -> torch.Tensor:
        parts = []
        for tokens_S_L in of_line.tokens:
            query, key, value = (
                part.index_select(0, tokens_S_L.flatten()).view(*tokens_S_L.shape, *part.shape[1:]) for part in line
            )
            parts.append(_attended(query, key, value, scaling, window).flatten(0, 1))
        return torch.cat(parts).index_select(0, of_line.places)

    with sdpa_kernel(SDPBackend.MATH):
        return checkpoint(
            attended, query_T_N_D, key_T_K_D, value_T_K_D, use_reentrant=False, preserve_rng_state=False,
            context_fn=lambda: (nullcontext(), sdpa_kernel(SDPBackend.MATH)),
        )  # fmt: skip


AttentionInterface.register(NAME, varlen_attention)
