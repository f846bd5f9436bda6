"""The learning rate as a function of how far a training is: what a mixture is tied to, and what a trainer follows."""

from __future__ import annotations

import math


def rate(kind: str, fraction: float, warmup: float, decay: float) -> float:
    """Return the learning rate at a fraction of training, as a multiple of its peak.

    constant | linear | cosine (the last two fall to 0 from the end of the warm-up) | wsd (warm-up, stable, then linear
    to 0 over the last `decay`).
    """
    if warmup and fraction < warmup:
        return fraction / warmup
    if kind == "constant":
        return 1.0
    if kind == "wsd":
        return 1.0 if fraction <= 1 - decay else max(0.0, (1 - fraction) / decay)
    done = (fraction - warmup) / (1 - warmup)
    return 1 - done if kind == "linear" else 0.5 * (1 + math.cos(math.pi * done))
