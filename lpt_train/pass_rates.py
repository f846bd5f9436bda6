"""How many of a model's attempts at some problems are right: what an audit asks of the rows that it samples.

The sampling and the scoring are those of `lpt eval` (`answers`); here they are done a batch of rows at a time, so that
a limit on the time can stop them between two batches.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lpt_train.admitted import unadmitted
from lpt_train.answers import answers, check_sampling
from lpt_train.estimates import mean
from lpt_train.machine import memory_answered
from lpt_train.measured import Subject, load_subject
from lpt_train.rewards import REWARDS
from manifests.canon import record_ids
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
        size = max(1, asked.batch_size // asked.attempts)
        rates: dict[str, float] = {}
        notes: list[str] = []
        failed: dict[str, list[BadInputError]] = {}
        stopped = 0.0
        known = [record for record in records if (record.get("verifier") or "") in REWARDS]
        if unknown := len(records) - len(known):
            notes.append(f"{unknown} rows without a rate: they name no verifier that exists")
        for at in range(0, len(known), size):
            if at and self.clock() - began > asked.seconds:
                stopped = asked.seconds
                break
            notes += self._attempt(known[at : at + size], asked.seed + at, rates, failed, began)
        notes += [f"{len(of)} rows without a rate: {what}: {of[0].seen}" for what, of in failed.items()]
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
            "seconds": asked.seconds,
            "mean": found.value, "low": found.low, "high": found.high, "notes": list(dict.fromkeys(notes)),
            **({"stopped_after": stopped} if stopped else {}),
        }  # fmt: skip
        return [rates.get(name.tobytes().hex()) for name in record_ids("rlvr", records)], told

    def _attempt(
        self,
        records: Sequence[Mapping[str, Any]],
        seed: int,
        rates: dict[str, float],
        failed: dict[str, list[BadInputError]],
        began: float,
    ) -> list[str]:
        """Note the rates of some rows; what is said of those without one.

        Of a batch that fails each row is tried alone while there is time, so that only those at fault have no rate.
        """
        asked = self.asked
        try:
            with memory_answered("a smaller --max-tokens or --attempts"):
                found = answers(
                    self.subject, unadmitted("rlvr", records, self.subject.name), k=asked.attempts,
                    temperature=asked.temperature, seed=seed, max_completion_length=asked.max_tokens,
                    batch_size=asked.batch_size,
                )  # fmt: skip
        except BadInputError as error:
            if len(records) == 1:
                failed.setdefault(error.what, []).append(error)
                return []
            notes: list[str] = []
            for turn, record in enumerate(records):
                if self.clock() - began <= asked.seconds:
                    notes += self._attempt([record], seed + turn, rates, failed, began)
            return notes
        rates.update({item.record_id: item.score for item in found.items if item.score is not None})
        return list(found.notes)


def open_sampler(asked: Attempts) -> ModelSampler:
    """Load the model; raises UsageError for attempts that make no sense, BadInputError without such a model."""
    check_sampling(asked.temperature, asked.attempts)
    return ModelSampler(load_subject(asked.model, merge=True, seed=asked.seed), asked)
