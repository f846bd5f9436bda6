"""Products of float16 vectors on the tensor cores, block by block; the GPU half of `neighbours`.

Products of 11-bit numbers are exact in float32, where the tensor cores add them up; the block itself is float16, half
the memory traffic, and MARGIN allows for its rounding. A block never leaves the device: what is at or above the
threshold is found there and only its places are copied.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

_ROWS, _COLUMNS = 16_384, 65_536  # of a block: 2 GiB in float16, 1 GiB for the mask


def blocks(
    vectors: np.ndarray,
    threshold: float,
    queries: int,
    within: bool,
    most: int,
    too_many: Callable[[int, float], Exception],
    tell: Callable[[int, int], None] = lambda done, total: None,
    device: str = "cuda",
) -> tuple[np.ndarray, np.ndarray]:
    """The places a < b of products >= threshold, as `neighbours._blocks`."""
    import torch

    total = len(vectors)
    held = torch.from_numpy(np.ascontiguousarray(vectors)).to(device)
    kept: list[np.ndarray] = []
    count = 0
    with torch.inference_mode():
        for row in range(0, queries, _ROWS):
            rows = held[row : min(row + _ROWS, queries)]
            tell(row, queries)
            for column in range(row if within else queries, total, _COLUMNS):
                mask = (rows @ held[column : column + _COLUMNS].T) >= threshold
                if column < row + len(rows):  # the diagonal lies in this block
                    mask.triu_(row - column + 1)
                places = mask.nonzero()
                if not len(places):
                    continue
                count += len(places)
                if count > most:
                    raise too_many(count, threshold)
                places += torch.tensor([row, column], device=device)
                kept.append(places.to(torch.int32).cpu().numpy())
    found = np.concatenate(kept) if kept else np.zeros((0, 2), np.int32)
    return np.ascontiguousarray(found[:, 0]), np.ascontiguousarray(found[:, 1])


def scores(
    vectors: np.ndarray, a: np.ndarray, b: np.ndarray, at_a_time: int = 1 << 18, device: str = "cuda"
) -> np.ndarray:
    """Cosine of pairs in float64, as `neighbours.scores`."""
    import torch

    held = torch.from_numpy(np.ascontiguousarray(vectors)).to(device)
    found = np.empty(len(a))
    with torch.inference_mode():
        lengths = torch.cat([part.double().norm(dim=1) for part in held.split(at_a_time)])
        lengths[lengths == 0] = torch.inf
        for at in range(0, len(a), at_a_time):
            here = slice(at, at + at_a_time)
            one, other = (torch.from_numpy(side[here]).to(device).long() for side in (a, b))
            products = (held[one].double() * held[other].double()).sum(1)
            found[here] = (products / (lengths[one] * lengths[other])).clamp(max=1.0).cpu().numpy()
    return found
