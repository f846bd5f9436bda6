"""Attention over rows laid end to end: each token sees the tokens before it in its own row and no others.

Registered with transformers as `lpt_varlen`. A batch is one line of T tokens; `cu_seqlens` (int32 [rows + 1]) says
where its rows begin and end. In half precision on CUDA it is torch's flash attention for variable lengths, without a
mask of any size; elsewhere a loop over the rows, which is also the plain reference of the tests.

What it does not know (capped scores, sinks, dropout of attention) it refuses, so that a model that needs them is found
out before it trains.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch.nn import functional
from torch.nn.attention.varlen import varlen_attn
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
        query, key, value = (part[start:end].transpose(0, 1)[None] for part in (query_T_N_D, key_T_K_D, value_T_K_D))
        mask = None
        if window and end - start > window:
            full = torch.ones(end - start, end - start, dtype=torch.bool, device=query.device)
            mask = full.tril() & full.triu(1 - window)
        out = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=mask is None, scale=scaling, enable_gqa=True
        )
        parts.append(out[0].transpose(0, 1))
    return torch.cat(parts)


AttentionInterface.register(NAME, varlen_attention)
