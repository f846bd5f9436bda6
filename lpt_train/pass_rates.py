"""How many of a model's attempts at some problems are right: what an audit asks of the rows that it samples.

The sampling and the scoring are those of `lpt eval` (`answers`); here they are done a batch of rows at a time, so that
a limit on the time can stop them between two batches.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lpt_train.admitted import AdmittedSplit, unadmitted
from lpt_train.answers import answers, check_sampling
from lpt_train.estimates import mean
from lpt_train.measured import Subject, load_subject
from manifests.errors import BadInputError


@dataclass(frozen=True)
class Attempts:
    """How a model attempts each row, and how many rows in which time."""

    model: str  # a folder of weights or of a run, a hub name, or `tiny`
    attempts: int = 8  # at each row
    temperature: float = 1.0
    rows: int = 128  # of the sample, at most
    max_tokens: int = 256  # of an attempt
    seconds: float = 600.0  # no further batch of rows is begun after them
    seed: int = 0  # of the choice of rows and of sampling
    batch_size: int = 256  # attempts sampled at the same time


@dataclass(frozen=True)
class ModelSampler:
    """A loaded model that attempts records of the kind `rlvr`; each is judged by its own verifier."""

    subject: Subject
    asked: Attempts
    clock: Callable[[], float] = time.monotonic

    @property
    def rows(self) -> int:
        """How many rows are asked about at most."""
        return self.asked.rows

    @property
    def seed(self) -> int:
        """Of the choice of rows."""
        return self.asked.seed

    def __call__(self, records: Sequence[Mapping[str, Any]]) -> tuple[list[float | None], dict[str, Any]]:
        """The share of right attempts at each record, and how it was found.

        None where no attempt could be scored, where the prompt was left out, or where the time was over before it.
        Raises BadInputError when that holds of all.
        """
        asked, began = self.asked, self.clock()
        step = max(1, asked.batch_size // asked.attempts)
        rates: dict[str, float] = {}
        notes: list[str] = []
        stopped, names = 0.0, []
        for at in range(0, len(records), step):
            if at and self.clock() - began > asked.seconds:
                stopped = asked.seconds
                break
            split = unadmitted("rlvr", records[at : at + step], self.subject.name)
            names += split.record_ids
            notes += self._attempt(split, asked.seed + at, rates)
        names += [""] * (len(records) - len(names))
        if not rates:
            raise BadInputError(
                "no attempt of the model could be scored",
                seen="; ".join(dict.fromkeys(notes)) or "no row was reached in time",
                next="lpt data audit without --model shows what is wrong with the rows; or a larger --sample-seconds",
            )
        found = mean(list(rates.values()))
        told = {
            "model": self.subject.name, "model_digest": self.subject.digest, "attempts": asked.attempts,
            "temperature": asked.temperature, "max_tokens": asked.max_tokens, "seed": asked.seed,
            "mean": found.value, "low": found.low, "high": found.high, "notes": list(dict.fromkeys(notes)),
            **({"stopped_after": stopped} if stopped else {}),
        }  # fmt: skip
        return [rates.get(name) for name in names], told

    def _attempt(self, split: AdmittedSplit, seed: int, rates: dict[str, float]) -> tuple[str, ...]:
        """Note the rates of some rows; what is said of those without one."""
        asked = self.asked
        try:
            found = answers(
                self.subject, split, k=asked.attempts, temperature=asked.temperature, seed=seed,
                max_completion_length=asked.max_tokens, batch_size=asked.batch_size,
            )  # fmt: skip
        except BadInputError as error:  # nothing of this batch could be sampled or scored
            return (f"{error.what}: {error.seen}",)
        rates.update({item.record_id: item.score for item in found.items if item.score is not None})
        return found.notes


def open_sampler(asked: Attempts) -> ModelSampler:
    """Load the model; raises UsageError for attempts that make no sense, BadInputError without such a model."""
    check_sampling(asked.temperature, asked.attempts)
    return ModelSampler(load_subject(asked.model, merge=True, seed=asked.seed), asked)
