"""Observers: small callables that watch a run at five named points, and may ask it to skip, to stop or to go back.

    step_start   before the rows of a step are read                     skip, stop, roll_back
    rollout      completions are sampled and scored (grpo)              skip, stop, roll_back
    update       loss and gradients are there, no weight has moved yet  skip, stop, roll_back
    evaluation   the evaluation split was measured                      stop, roll_back
    step_end     the step is over, the weights have moved               stop, roll_back

A step that is skipped moves no weight and counts as done. A run that is stopped this way is `done`, with the reason in
its record. Going back is to the newest checkpoint; what was asked for is in the notes of the run. What an observer
raises ends the run. An observer whose answers depend on what it saw has `state()` and `restore(state)`: its JSON goes
into the checkpoints, so that a resumed run is the uninterrupted one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from manifests.errors import UsageError

Point = Literal["step_start", "rollout", "update", "evaluation", "step_end"]
What = Literal["skip", "stop", "roll_back"]
_NOTHING_LEFT_TO_SKIP = ("evaluation", "step_end")
_WEIGHT = ("skip", "stop", "roll_back")  # of several wishes the last in this list is followed


@dataclass(frozen=True)
class Moment:
    """What an observer sees: the point, how many steps are done of how many, metrics so far, the records of the step.

    `model` is for reading; who changes it changes the run.
    """

    point: Point
    done: int
    total: int
    model: torch.nn.Module
    metrics: Mapping[str, float] = field(default_factory=dict)
    record_ids: Sequence[str] = ()


@dataclass(frozen=True)
class Ask:
    """What an observer wants, and why, as a person should read it."""

    what: What
    reason: str


Observer = Callable[[Moment], Ask | None]


def ask_all(observers: Sequence[Observer], moment: Moment) -> Ask | None:
    """Show a moment to all; of what they ask, the weightiest. Raises `UsageError` for what the point does not take."""
    asked = [answer for observer in observers if (answer := observer(moment)) is not None]
    for answer in asked:
        late = moment.point in _NOTHING_LEFT_TO_SKIP and answer.what == "skip"
        if late or answer.what not in _WEIGHT:
            raise UsageError(
                f"an observer cannot ask for that at {moment.point}", seen=answer,
                next="skip at step_start, rollout or update; stop or roll_back at any point",
            )  # fmt: skip
    return max(asked, key=lambda answer: _WEIGHT.index(answer.what), default=None)


def states(observers: Sequence[Observer]) -> dict[str, Any]:
    """What the observers that have a state put into a checkpoint, by place and name of their class."""
    return {_name(i, o): o.state() for i, o in enumerate(observers) if hasattr(o, "state")}


def restore(observers: Sequence[Observer], saved: Mapping[str, Any]) -> None:
    """Give the observers the states that a checkpoint kept; one that is new to the run begins afresh."""
    for i, observer in enumerate(observers):
        if hasattr(observer, "restore") and _name(i, observer) in saved:
            observer.restore(saved[_name(i, observer)])


def _name(place: int, observer: Observer) -> str:
    return f"{place} {type(observer).__name__}"
