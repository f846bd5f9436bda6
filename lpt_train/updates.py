"""What happens around each optimizer step, the same for every algorithm.

A loop takes its steps from here, computes gradients in its own lines, and hands them over:

    updates = Updates(run, model, optimizer, …)
    with run.guarded(proof) as stop:
        for step in updates.steps(stop):
            …                                # the algorithm: rows, forward, backward
            moved = updates.apply(step, loss)     # rate, clip, finite or an error, the step itself
            updates.end(step, {"loss": loss, **moved, …})  # speed, evaluation, log, progress, checkpoint
    return updates.finish()

Steps are counted from 0; `done` is the number of steps behind. Of several processes (`run.ranks`) all come here with
the gradients of their part of the step: they are added up here, and what is decided here is decided for all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from transformers import PreTrainedTokenizerFast

from lpt_train.adapters import parameter_report, trainable
from lpt_train.checkpoint import Restored, save_checkpoint
from lpt_train.config import to_mapping
from lpt_train.proof import Proof
from lpt_train.runs import Progress, Run, RunResult, Speed, peak_memory_bytes
from lpt_train.sharded import made_whole
from lpt_train.steps import clipped, whole_steps
from lpt_train.stop import StopRequest


@dataclass
class Updates:
    """The steps of one run; `config` has the blocks `optim` and `run`.

    `multiplier` says what the peak rate is multiplied by in a step, `cursor` what a checkpoint says about the data read
    before a step, `evaluate` measures (None: there is nothing to measure on), `more` adds the algorithm's own state
    (`extra`, `tensors`) to a checkpoint. Stops, evaluations and checkpoints lie between groups of `together` steps.
    """

    run: Run
    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    proof: Proof
    config: Any
    total: int
    multiplier: Callable[[int], float]
    cursor: Callable[[int], Mapping[str, Any]]
    tokenizer: PreTrainedTokenizerFast
    zero_grad: Callable[[], None]
    progress: Progress | None = None
    evaluate: Callable[[], Mapping[str, float]] | None = None
    more: Callable[[], dict[str, Any]] = dict
    together: int = 1
    start: int = field(default=0, init=False)
    done: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._trained = trainable(self.model)  # walking through the modules takes longer than a small step

    def take_up(self, *, rows_a_step: int | None = None) -> Restored | None:
        """Go on from the newest checkpoint, if there is one.

        With `rows_a_step`, a run that ended in a step of fewer rows cannot be made longer (`RefusedError`).
        """
        check = None if rows_a_step is None else partial(whole_steps, rows_a_step=rows_a_step, total=self.total)
        back = self.run.take_up(self.model, self.optimizer, check=check)
        if back is not None:
            self.start = self.done = back.step
            self.proof.restore(back.extra["proof"])
        return back

    def steps(self, stop: StopRequest) -> Iterator[int]:
        """The first step of each group, until the run is as long as asked or was asked to stop."""
        self._stop = stop
        self._speed = Speed(self.start, self.total)
        self.run.ranks.require_same("weights before the first step", self.proof.start)
        if self.evaluate is not None and self.start == 0:
            self.run.log(0, self.evaluate())
        while self.done < self.total:
            self.run.ranks.seed(self.config.run.seed, self.done)
            yield self.done
            if self._stop:
                return

    def rate(self, step: int) -> float:
        """Set and return the learning rate of a step."""
        rate = float(self.config.optim.learning_rate * self.multiplier(step))
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        return rate

    def apply(self, step: int, loss: float) -> dict[str, float]:
        """Clip the gradients and move the weights; the global norm before clipping and the rate, as metrics.

        Raises `LptError` instead when the loss or the norm is not finite.
        """
        rate = self.rate(step)
        self.run.ranks.sum_gradients(self._trained)
        grad_norm = clipped(self._trained, self.config.optim.max_grad_norm)
        self.run.require_finite(step + 1, loss=loss, grad_norm=grad_norm)
        self.optimizer.step()
        self.zero_grad()
        self.proof.observe(grad_norm)
        return {"grad_norm": grad_norm, "learning_rate": rate}

    def end(self, step: int, metrics: Mapping[str, float], *, tokens: float) -> None:
        """Close a step that went through `tokens` tokens: measure, log, tell, save, each when it is due."""
        options = self.config.run
        done = self.done = step + 1
        line = {**metrics, **self._speed.step(done, int(tokens))}
        between = done % self.together == 0
        self._stop.agree()
        last = between and (done == self.total or bool(self._stop))
        measured = self.evaluate() if self.evaluate and between and (last or self._due(options.eval_steps)) else {}
        line |= measured
        if last or measured or step == self.start or done % options.logging_steps == 0:
            self.run.log(done, line)
        if self.progress is not None:
            self.progress(done, self.total, line)
        # Asked again: the signal may have come since the line was drawn.
        if between and (done == self.total or bool(self._stop) or self._due(options.save_steps)):
            self._save()

    def finish(self, *, failures: list[str] | None = None, extra: Mapping[str, Any] | None = None) -> RunResult:
        """Close the run: done when it is as long as asked, else stopped."""
        whole, proof, ranks = self.done >= self.total, self.proof.finish(), self.run.ranks
        ranks.require_same("weights after the last step", proof["end"])
        stopped = [] if whole else [f"stopped by {self._stop.signal}"]
        return self.run.finish(
            "done" if whole else "stopped", steps=self.done, proof=proof,
            failures=stopped + (failures or []), tokens_per_second=self._speed.tokens_per_second,
            extra={
                **(extra or {}), **parameter_report(self.model),
                "peak_memory_bytes": max(ranks.gathered(peak_memory_bytes())),
            },
        )  # fmt: skip

    def _due(self, every: int) -> bool:
        """Whether the group that ends here holds a step that is a multiple of `every` (0: never)."""
        return every > 0 and self.done // every > (self.done - self.together) // every

    def _save(self) -> None:
        more, main = self.more(), self.run.ranks.main
        with made_whole(self.model, self.optimizer, keep=main) as optimizer:
            if main:
                save_checkpoint(
                    self.run.checkpoints, step=self.done, model=self.model, optimizer=optimizer,
                    provenance=self.run.provenance, cursor=self.cursor(self.done), config=to_mapping(self.config),
                    extra={"proof": self.proof.state(), **more.get("extra", {})}, tensors=more.get("tensors"),
                    tokenizer=self.tokenizer, keep_last=self.config.run.save_total_limit,
                )  # fmt: skip
