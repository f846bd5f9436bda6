"""Options of the spike guard. Free to import (no torch)."""

from __future__ import annotations

from dataclasses import dataclass

from lpt_train.config_checks import at_least
from manifests.errors import UsageError


@dataclass(frozen=True)
class GuardOptions:
    """What a run does about batches whose loss or gradient is absurd."""

    spike_guard: bool = False  # batches with spikes move no weight, are set aside; off: what is not finite ends a run
    spike_factor: float = 10.0  # times the running median of the loss or the gradient norm: a spike
    spike_window: int = 64  # updates of the running median
    spike_limit: int = 5  # batches that may be set aside; one more ends the run
    spike_lr_factor: float = 0.5  # what a spike multiplies the learning rate by …
    spike_cooldown: int = 20  # … for so many optimizer steps

    def __post_init__(self) -> None:
        at_least("spike_factor", self.spike_factor, 1)
        at_least("spike_window", self.spike_window, 8)
        at_least("spike_limit", self.spike_limit, 1)
        at_least("spike_cooldown", self.spike_cooldown, 0)
        if not 0 < self.spike_lr_factor <= 1:
            raise UsageError(
                "spike_lr_factor lowers the rate", seen=self.spike_lr_factor, next="give a value in (0, 1], such as 0.5"
            )
