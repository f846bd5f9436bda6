"""What happens around each optimizer step, the same for every algorithm.

A loop takes its steps from here, computes gradients in its own lines, and hands them over:

    updates = Updates(run, model, optimizer, …)
    with run.guarded(proof) as stop:
        for step in updates.steps(stop):
            …                                          # the algorithm: rows, forward, backward
            metrics = updates.apply(step, {"loss": …})  # rate, clip, finite or an error, the step itself
            updates.end(step, {**metrics, …})          # speed, evaluation, log, progress, checkpoint
    return updates.finish()

Steps are counted from 0; `done` is the number of steps behind. The observers of the run (`observers`, the spike guard
and early stopping among them) are shown each step from here, and what they ask for is done here.

Of several processes (`run.ranks`) all come here with the gradients of their part of the step. They are added up here,
and what is decided here is decided for all: by numbers that all have, or by the main process.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import PreTrainedTokenizerFast

from lpt_train.adapters import parameter_report, report_line, trainable
from lpt_train.checkpoint import Restored, load_checkpoint, save_checkpoint
from lpt_train.checkpoint_folders import checkpoints, forget_after, name_of, step_of
from lpt_train.config import to_mapping
from lpt_train.early_stop import EarlyStop
from lpt_train.observers import Ask, Moment, Observer, Point, ask_all, restore, states
from lpt_train.proof import Proof
from lpt_train.ranks import Number, fetched
from lpt_train.resume import check_rates
from lpt_train.runs import Progress, Run, RunResult
from lpt_train.schedule import decay_start, rates_sha256
from lpt_train.sharded import made_whole
from lpt_train.speed import Parts, Speed, evaluations_after, peak_memory_bytes, peak_rate
from lpt_train.spikes import SpikeGuard
from lpt_train.steps import clipped, whole_steps
from lpt_train.stop import StopRequest
from lpt_train.watch import FIRST, begins, waits
from manifests.errors import LptError

_ONCE = ("generation_seconds", "mfu_generation")  # told of the first step of a generation
_MOST_WAYS_BACK = 20  # in one run: an observer that always asks to go back would never let it end


@dataclass
class Updates:
    """The steps of one run; `config` has the blocks `optim` and `run`.

    `multiplier` says what the peak rate is multiplied by in a step, `cursor` what a checkpoint says about the data read
    before a step, `evaluate` measures (None: there is nothing to measure on). `more` adds the algorithm's own state
    (`extra`, `tensors`) to a checkpoint, and `back` takes it out of one again. `record_ids` names the records of a
    step, and `alone` adds the gradients of one of its units after the other, naming the records of each. Stops,
    evaluations, checkpoints and ways back lie between groups of `together` steps.
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
    back: Callable[[Restored], None] | None = None
    record_ids: Callable[[int], Sequence[str]] | None = None
    alone: Callable[[int], Iterator[Sequence[str]]] | None = None
    observers: Sequence[Observer] = ()
    dtype: torch.dtype = torch.float32  # of the forward pass: what the device's peak rate depends on
    together: int = 1
    start: int = field(default=0, init=False)
    done: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        options = self.config.run
        self._trained = trainable(self.model)  # walking through the modules takes longer than a small step
        self._guard = (
            SpikeGuard(options.guard, self.run.out / "quarantine.jsonl", writes=self.run.ranks.main)
            if options.guard.spike_guard
            else None
        )
        self._early = EarlyStop(options) if options.early_stopping_patience else None
        own = [observer for observer in (self._guard, self._early) if observer is not None]
        self._observers: list[Observer] = [*own, *self.observers]
        self._asked: dict[str, Ask] = {}  # what the observers want, until it is done
        self._ways_back = 0
        self._saved: int | None = None  # the step of the newest checkpoint
        device = self._trained[0].device
        self._cuda = device.type == "cuda"
        peak = peak_rate(torch.cuda.get_device_name(device), self.dtype) if self._cuda else None
        every, evaluated = options.eval_steps, self.evaluate is not None
        self._speed = Speed(
            0, self.total, peak * self.run.ranks.world if peak else None,
            lambda done: evaluations_after(done, self.total, every, self.together) if evaluated else 0,
        )  # fmt: skip

    def take_up(self, *, rows_a_step: int | None = None) -> Restored | None:
        """Go on from the newest checkpoint, if there is one.

        Raises `RefusedError` where the steps done would have been others in a run of this length: their rates, or with
        `rows_a_step` the last one, of fewer rows.
        """

        def check(back: Restored) -> None:
            if rows_a_step is not None:
                whole_steps(back, rows_a_step=rows_a_step, total=self.total)
            check_rates(back, self.multiplier, self.run.checkpoints)

        back = self.run.take_up(self.model, self.optimizer, check=check)
        if back is not None:
            self._restore(back)
            if self._guard is not None and self._guard.path.exists():
                self._guard.write()
            self.start = self.done
            if self._early is not None and (wish := self._early.wish()) is not None:
                self._asked["stop"] = wish
        return back

    def steps(self, stop: StopRequest) -> Iterator[int]:
        """The first step of each group, until the run is as long as asked or is to stop."""
        self._stop = stop
        self._tell_what_trains()
        self._speed = self._speed.begin(self.start)
        self.run.ranks.require_same("weights before the first step", self.proof.start)
        if self._guard is not None and self.start == 0:
            self._save()  # something to go back to
        if self.start == 0:
            self._measure_first()
        self._speed.resume()
        while self.done < self.total and "stop" not in self._asked:
            if (asked := self._show("step_start", self.done)) is not None and asked.what == "skip":
                self._leave_out()
            elif not self._asked:
                self.run.ranks.seed(self.config.run.seed, self.done)
                yield self.done
            if "roll_back" in self._asked:
                self._go_back()
            elif self._stop:
                return
        if self.done < self.total and self._saved != self.done:  # stopped where no step had ended
            self._save()

    def parts(self) -> Parts:
        """A clock for the parts of a step."""
        return self._speed.parts()

    def rate(self, step: int) -> float:
        """Set and return the learning rate of a step."""
        lowered = self._guard.rate_factor(step) if self._guard is not None else 1.0
        rate = float(self.config.optim.learning_rate * self.multiplier(step) * lowered)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        return rate

    def rolled_out(self, step: int, metrics: Mapping[str, float], record_ids: Sequence[str]) -> bool:
        """Show the observers what was sampled for the group of a step; whether it trains."""
        asked = self._show("rollout", step, metrics, record_ids)
        if asked is None or asked.what == "stop":
            return True
        if asked.what == "skip":
            self._leave_out(metrics)
        return False

    def apply(
        self, step: int, metrics: Mapping[str, Number], record_ids: Sequence[str] | None = None
    ) -> dict[str, float]:
        """Clip the gradients and move the weights; `metrics` (`loss` among them), the global norm before clipping and
        the rate.

        The host waits for the device here, once in a step and for all metrics together: a loss or a norm that is not
        finite must be known before the weights move, and so must what the guard judges (docs/log.md has the cost).

        Raises `LptError` instead when the loss or the norm is not finite, unless the spike guard is on; a step that the
        guard or an observer leaves out has `skipped` 1 and moves nothing.
        """
        rate = self.rate(step)
        self.run.ranks.sum_gradients(self._trained)
        norm = clipped(self._trained, self.config.optim.max_grad_norm)
        found = fetched({**metrics, "grad_norm": norm, "learning_rate": rate})
        moved = {name: found[name] for name in ("loss", "grad_norm", "learning_rate")}
        if self._observers:
            ids = self._ids(step) if record_ids is None else record_ids
            asked = self._show("update", step, moved, ids)
            if asked is not None and asked.what != "stop":
                self.zero_grad()
                self._accuse(step)
                return {**found, "skipped": 1.0}
        self.run.require_finite(step + 1, loss=found["loss"], grad_norm=found["grad_norm"])
        self.optimizer.step()
        self.zero_grad()
        self.proof.observe(found["grad_norm"])
        return found

    def end(self, step: int, metrics: Mapping[str, float], *, tokens: float, operations: float | None = None) -> None:
        """Close a step that went through `tokens` tokens with `operations` floating-point operations of the model:
        measure, log, tell, save, each when it is due."""
        options = self.config.run
        done = self.done = step + 1
        line = {**metrics, **self._speed.step(done, int(tokens), operations)}
        if self._cuda:
            line["memory_gib"] = peak_memory_bytes() / 2**30
        between = done % self.together == 0
        self._stop.agree()
        measured: Mapping[str, float] = {}
        # Not at a signal alone: whoever sends it waits for the checkpoint, and a resumed run measures when it is due.
        at_the_end = done == self.total or "stop" in self._asked
        if self.evaluate and between and (at_the_end or self._due(options.eval_steps)):
            with self._speed.evaluation():
                measured = self.evaluate()
            self._show("evaluation", done, measured)
        line |= measured
        self._show("step_end", done, line, self._ids(step))
        due = step == self.start or done % options.logging_steps == 0 or bool(line.get("skipped"))
        if (between and self._last()) or measured or due:
            self.run.log(done, line)
        if self.progress is not None:
            self.progress(done, self.total, {**line, "memory_gib": peak_memory_bytes() / 2**30})
        # Asked again: the signal may have come since the line was drawn.
        if between and "roll_back" not in self._asked and (self._last() or self._worth_keeping()):
            self._save()
        self._speed.resume()

    def finish(self, *, failures: list[str] | None = None, extra: Mapping[str, Any] | None = None) -> RunResult:
        """Close the run: done when it is as long as asked or an observer ended it, else stopped."""
        early = self._asked.get("stop") if self.done < self.total else None
        whole = self.done >= self.total or early is not None
        stopped = [] if whole else [f"stopped by {self._stop.signal}"]
        told: dict[str, Any] = dict(extra or {})
        if early is not None:
            told["stopped_early"] = early.reason
            self.run.notes.append(f"stopped early after step {self.done} of {self.total}: {early.reason}")
        if self._early is not None and (best := self._early.best) is not None:
            told["best"] = {**best, "path": str(self.run.checkpoints / name_of(best["step"]))}
            self.run.notes.append(
                f"the best {best['metric']} is that of {name_of(best['step'])}, which is kept; what is made from this "
                f"run takes its last checkpoint ({name_of(self.done)}) unless that folder is named"
            )
        if self._guard is not None:
            told["quarantined"] = self._guard.quarantined
            if self._guard.quarantined:
                self.run.notes.append(f"{len(self._guard.quarantined)} batches were set aside: {self._guard.path}")
        told["peak_memory_bytes"] = max(self.run.ranks.gathered(peak_memory_bytes()))
        return self.run.finish(
            "done" if whole else "stopped", steps=self.done, proof=self._proved(),
            failures=stopped + (failures or []), tokens_per_second=self._speed.tokens_per_second, extra=told,
        )  # fmt: skip

    def _tell_what_trains(self) -> None:
        """Into the record, and to a progress that has a place for it (`begin`), before the first step."""
        report = parameter_report(self.model, self.config.optim.optim)
        self.run.body |= report
        begins(self.progress, report_line(report), self.run.notes)

    def _proved(self) -> dict[str, Any]:
        """The proof of a run whose processes have the same weights; of another, which is failed, `LptError`."""
        proof = self.proof.finish()
        try:
            self.run.ranks.require_same("weights after the last step", proof["end"])
        except LptError as error:
            self.run.finish("failed", steps=self.done, proof=proof, failures=[str(error)])
            raise
        return proof

    def _show(
        self, point: Point, done: int, metrics: Mapping[str, float] | None = None, record_ids: Sequence[str] = ()
    ) -> Ask | None:
        if not self._observers:
            return None
        if point == "step_start":
            record_ids = self._ids(done)
        moment = Moment(point, done, self.total, self.model, metrics or {}, record_ids)
        asked = self.run.ranks.from_main(ask_all(self._observers, moment))
        if asked is not None and asked.what != "skip":
            self._asked.setdefault(asked.what, asked)
        return asked

    def _ids(self, step: int) -> Sequence[str]:
        return self.record_ids(step) if self.record_ids is not None and self._observers else ()

    def _last(self) -> bool:
        return self.done == self.total or bool(self._stop) or "stop" in self._asked

    def _due(self, every: int) -> bool:
        """Whether the group that ends here holds a step that is a multiple of `every` (0: never)."""
        return every > 0 and self.done // every > (self.done - self.together) // every

    def _worth_keeping(self) -> bool:
        """Whether a checkpoint is due: by the clock, as the best one, or as the last before the rate decays."""
        return self._due(self.config.run.save_steps) or name_of(self.done) in self._kept()

    def _kept(self) -> set[str]:
        best = self._early.best["step"] if self._early is not None and self._early.best else None
        steps = (best, decay_start(self.config.optim, self.total))
        return {name_of(step) for step in steps if step}

    def _measure_first(self) -> None:
        if self.evaluate is not None:
            with self._speed.evaluation(), waits(self.progress, FIRST):
                measured = self.evaluate()
            self.run.log(0, measured)
            self._show("evaluation", 0, measured)

    def _leave_out(self, metrics: Mapping[str, float] | None = None) -> None:
        for step in range(self.done, self.done + self.together):
            self.end(step, {**(metrics or {}), "learning_rate": self.rate(step), "skipped": 1.0}, tokens=0)
            metrics = {name: value for name, value in (metrics or {}).items() if name not in _ONCE}

    def _accuse(self, step: int) -> None:
        """Tell the guard the gradient norm of each unit of a step that it has just set aside."""
        if self._guard is None or not self._guard.unnamed:
            return
        norms: dict[str, float] = {}
        if self.alone is not None:
            with torch.random.fork_rng():
                for ids in self.alone(step):
                    self.run.ranks.sum_gradients(self._trained)
                    norms[" ".join(ids)] = float(clipped(self._trained, math.inf))
                    self.zero_grad()
        self._guard.accuse(norms)

    def _go_back(self) -> None:
        """Take the newest checkpoint again whose weights are not under suspicion."""
        reason = self._asked.pop("roll_back").reason
        found = checkpoints(self.run.checkpoints)
        self._ways_back += 1
        if not found or self._ways_back > _MOST_WAYS_BACK:
            raise LptError(
                "the run goes back again and again" if found else "the run cannot go back", seen=reason,
                next="look at what asks for it" if found else "set save_steps, so that there is a checkpoint",
            )  # fmt: skip
        suspected = self._guard.suspected if self._guard is not None else None
        good = found if suspected is None else [path for path in found if step_of(path) < suspected] or found[:1]
        kept = self._guard.quarantined if self._guard is not None else []
        with made_whole(self.model, self.optimizer, back=True) as whole:
            back = load_checkpoint(good[-1], model=self.model, optimizer=whole, provenance=self.run.provenance)
        self._restore(back)
        if self.run.ranks.main:
            forget_after(good[-1])
        if self._guard is not None:
            self._guard.quarantined, self._guard.in_a_row = kept, 0
        self.zero_grad()
        self.run.resumed_at(self.done)
        self.run.sinks.went_back(self.done)
        self.run.notes.append(f"went back to {good[-1].name}: {reason}")
        if self.done == 0:
            self._measure_first()
        self._speed.resume()

    def _restore(self, back: Restored) -> None:
        self.done = self._saved = back.step
        self.proof.restore(back.extra["proof"])
        restore(self._observers, back.extra.get("observers", {}))
        if self.back is not None:
            self.back(back)

    def _save(self) -> None:
        more, main = self.more(), self.run.ranks.main
        extra = {
            "proof": self.proof.state(), "rates": rates_sha256(self.multiplier, self.done),
            "observers": states(self._observers), **more.get("extra", {}),
        }  # fmt: skip
        with made_whole(self.model, self.optimizer, keep=main) as optimizer:
            if main:
                save_checkpoint(
                    self.run.checkpoints, step=self.done, model=self.model, optimizer=optimizer,
                    provenance=self.run.provenance, cursor=self.cursor(self.done), config=to_mapping(self.config),
                    extra=extra, tensors=more.get("tensors"), tokenizer=self.tokenizer,
                    keep_last=self.config.run.save_total_limit, keep=self._kept(),
                )  # fmt: skip
        self._saved = self.done
