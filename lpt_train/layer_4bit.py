"""A linear layer over 4-bit codes. Imports bitsandbytes: `quantised` loads it where it is asked for.

The library's own layer takes another kernel where no gradient is wanted (on some CPUs it also repacks its codes, with
scales rounded to bfloat16), so that a policy and its own reference differ before the first step. Here the product is
the same with and without gradients: decode, multiply; codes are decoded again in the backward pass and not kept.
"""

from __future__ import annotations

from typing import Any

import bitsandbytes
import torch
from bitsandbytes.functional import dequantize_4bit


class Linear4bit(bitsandbytes.nn.Linear4bit):
    """y = x Wᵀ + b with W decoded in the compute dtype; x may have any floating dtype, which y gets back."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[…, in] to […, out]."""
        with torch.autocast(x.device.type, enabled=False):
            codes: Any = self.weight
            out = _Product.apply(x.to(self.compute_dtype), codes, codes.quant_state)
            if self.bias is not None:
                out = out + self.bias.to(out.dtype)
            return out.to(x.dtype)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, codes: torch.Tensor, state: Any) -> torch.Tensor:
        ctx.save_for_backward(codes)
        ctx.state = state
        return x @ dequantize_4bit(codes, state).to(x.dtype).t()

    @staticmethod
    def backward(ctx: Any, *outer: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (codes,) = ctx.saved_tensors
        with torch.autocast(outer[0].device.type, enabled=False):
            return outer[0] @ dequantize_4bit(codes, ctx.state).to(outer[0].dtype), None, None
