"""Early stopping: the best evaluation so far, and the end of a run that no longer gets better.

The rule is that of transformers' `EarlyStoppingCallback`: an evaluation that is not better than the best one by more
than a threshold counts against the run; a better one begins the count anew.
"""

from __future__ import annotations

import math
from typing import Any

from lpt_train.config import RunOptions
from lpt_train.observers import Ask, Moment
from manifests.errors import UsageError


def check_patience(options: RunOptions, eval_split: object | None) -> None:
    """Raise `UsageError` for patience without evaluations that could try it."""
    if options.early_stopping_patience and (eval_split is None or not options.eval_steps):
        raise UsageError(
            "early stopping needs evaluations",
            seen=f"early_stopping_patience={options.early_stopping_patience}, eval_steps={options.eval_steps}, "
            f"{'no' if eval_split is None else 'an'} evaluation split",
            next="--eval NAME:validation with --set eval_steps=50, or early_stopping_patience=0",
        )


class EarlyStop:
    """An observer: notes the best value of a metric and asks to stop after `patience` evaluations without a better one.

    Less is better where the name of the metric ends with `loss`, else more. Without a name it is `eval_loss`, or
    `eval_accuracy` where a run measures that. The evaluation before the first step does not count: it has no weights
    that could be kept.
    """

    def __init__(self, options: RunOptions) -> None:
        self._patience, self._threshold = options.early_stopping_patience, options.early_stopping_threshold
        self._metric = options.metric_for_best_model
        self.best: dict[str, Any] | None = None  # {"step", "metric", "value"}
        self.waited = 0

    def __call__(self, moment: Moment) -> Ask | None:
        """Judge an evaluation."""
        if moment.point != "evaluation" or moment.done == 0:
            return None
        name = self._metric or next((n for n in ("eval_loss", "eval_accuracy") if n in moment.metrics), "")
        value = moment.metrics.get(name)
        if value is None:
            raise UsageError(
                f"the evaluation has no metric {name or 'to stop by'}", seen=", ".join(sorted(moment.metrics)),
                next="set metric_for_best_model to one of them",
            )  # fmt: skip
        sign = -1.0 if name.endswith("loss") else 1.0
        gain = sign * (value - self.best["value"]) if self.best else math.inf
        if math.isfinite(value) and gain > self._threshold:
            self.waited = 0
        else:
            self.waited += 1
        if math.isfinite(value) and gain > 0:
            self.best = {"step": moment.done, "metric": name, "value": value}
        return self.wish()

    def wish(self) -> Ask | None:
        """To stop, once it has waited long enough."""
        if not 0 < self._patience <= self.waited:
            return None
        best = f"{self.best['metric']} {self.best['value']:.6g} at step {self.best['step']}" if self.best else "none"
        return Ask("stop", f"no better evaluation in the last {self.waited}; the best: {best}")

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"best": self.best, "waited": self.waited}

    def restore(self, state: dict[str, Any]) -> None:
        """Take up what `state` kept."""
        self.best, self.waited = state["best"], state["waited"]
