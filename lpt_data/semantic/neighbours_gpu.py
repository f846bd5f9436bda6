"""Products of float16 vectors on the tensor cores, block by block; the GPU half of `neighbours`.

Products of 11-bit numbers are exact in float32, where the tensor cores add them up; the block itself is float16, half
the memory traffic, and MARGIN allows for its rounding. A block never leaves the device: what is at or above the
threshold is found there and only its places are copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from lpt_data.semantic.pile import Scored
from lpt_data.semantic.room import Rows, passes

_ROWS, _COLUMNS = 16_384, 65_536  # of a block: 2 GiB in float16, 1 GiB for the mask
_SCORED = 1 << 18  # pairs scored at once


def blocks(
    vectors: Rows,
    threshold: float,
    queries: int,
    within: bool,
    tell: Callable[[int, int], None] = lambda done, total: None,
    device: str = "cuda",
) -> Iterator[Scored]:
    """The pairs a < b of products >= threshold, scored in float64, as `neighbours._blocks`."""
    import torch

    total = len(vectors)
    with torch.inference_mode():
        held = torch.empty(tuple(vectors.shape), dtype=torch.float16, device=device)
        for here, some in passes(vectors):
            held[here] = torch.from_numpy(np.ascontiguousarray(some)).to(device)
        lengths = torch.cat([part.double().norm(dim=1) for part in held.split(_SCORED)])
        lengths[lengths == 0] = torch.inf
        for row in range(0, queries, _ROWS):
            rows = held[row : min(row + _ROWS, queries)]
            tell(row, queries)
            for column in range(row if within else queries, total, _COLUMNS):
                mask = (rows @ held[column : column + _COLUMNS].T) >= threshold
                if column < row + len(rows):  # the diagonal lies in this block
                    mask.triu_(row - column + 1)
                places = mask.nonzero()
                places += torch.tensor([row, column], device=device)
                for some in places.split(_SCORED):
                    if len(some):
                        yield _scored(held, lengths, some[:, 0], some[:, 1])


def _scored(held: Any, lengths: Any, a: Any, b: Any) -> Scored:
    """Cosine of pairs in float64, as `neighbours.scores`."""
    import torch

    cosine = (held[a].double() * held[b].double()).sum(1) / (lengths[a] * lengths[b])
    first, second = (side.to(torch.int32).cpu().numpy() for side in (a, b))
    return Scored(first, second, cosine.clamp(max=1.0).cpu().numpy())
