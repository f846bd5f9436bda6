"""Verifiers for who must not be stopped by them: each call runs in a worker process with a limit of time and memory.

`guarded()` lends the verifiers of the table to an audit. They have the functions of a `Verifier`, and `ask_many`, which
answers many calls in a few messages. The worker starts at the first call, each verifier runs its canaries before it is
asked anything, and a call that hangs, dies or raises has no value but a reason.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from lpt_train.rewards import FROM_RECORD, REWARDS, RewardTerm
from lpt_train.rewards.pool import Item, RewardPool

SECONDS, MEMORY_MB = 10.0, 2048  # of one call; a trial of a program ends itself after 4 s, on a busy machine after 8
MOST_WORKERS = 8
NO_SCORE = "no_score_given"  # the verifier's own answer, no failure of it


class _Guard:
    """One pool for all verifiers, started when it is needed."""

    def __init__(self, seconds: float, memory_mb: int, workers: int) -> None:
        self.settings = {"seconds": seconds, "memory_mb": memory_mb, "workers": workers}
        self.pool: RewardPool | None = None
        self.checked: set[str] = set()

    def ask(self, name: str, function: str, items: Sequence[Item]) -> list[tuple[Any, str]]:
        """Answers in order, each a value or None with a reason. Raises `BadInputError` where a canary fails."""
        if self.pool is None:
            self.pool = RewardPool((RewardTerm(FROM_RECORD),), **self.settings)  # type: ignore[arg-type]
        if name not in self.checked:
            self.pool.check([Item("", "", name)])
            self.checked.add(name)
        answered = self.pool.ask(function, items)
        return [(value, self._told(reason) if reason else "") for value, reason in answered]

    def _told(self, reason: str) -> str:
        assert self.pool is not None
        if reason == NO_SCORE:
            return ""
        example = self.pool.examples.get(reason, "") if reason == "error_raised" else ""
        return f"{reason} ({example})" if example else reason

    def close(self) -> None:
        if self.pool is not None:
            self.pool.close()


@dataclass(frozen=True)
class Guarded:
    """A verifier behind the guard, with the functions of one."""

    name: str
    guard: _Guard

    @property
    def may_pay(self) -> Callable[[str, str], bool] | None:
        """The verifier's own short look, which needs no worker: it is bounded by the length of the text."""
        return REWARDS[self.name].may_pay

    def ask_many(self, function: str, calls: Sequence[tuple[str, ...]]) -> list[tuple[Any, str]]:
        """Answer calls of ``score(completion, answer)`` or of a function of the answer; (value, reason) each."""
        pairs = calls if calls and len(calls[0]) == 2 else [("", *call) for call in calls]
        return self.guard.ask(self.name, function, [Item(pair[0], pair[1], self.name) for pair in pairs])

    def score(self, completion: str, answer: str) -> float | None:
        """The reward of a completion, None when it could not be scored."""
        return self.ask_many("score", [(completion, answer)])[0][0]

    def parse_gold(self, answer: str) -> bool:
        """Whether the verifier can read this gold answer."""
        return bool(self.ask_many("parse_gold", [(answer,)])[0][0])

    def gold_completion(self, answer: str) -> str | None:
        """A completion that must score 1, None where there is none."""
        return self.ask_many("gold_completion", [(answer,)])[0][0]

    def wrong_completion(self, answer: str) -> str | None:
        """A completion that must score 0, None where there is none."""
        return self.ask_many("wrong_completion", [(answer,)])[0][0]


@contextlib.contextmanager
def guarded(
    *, seconds: float = SECONDS, memory_mb: int = MEMORY_MB, workers: int | None = None
) -> Iterator[dict[str, Guarded]]:
    """Lend every verifier of the table, by name, for the length of a ``with`` block; None: a worker a core, 2 to 8."""
    guard = _Guard(seconds, memory_mb, workers or max(2, min(MOST_WORKERS, os.cpu_count() or 2)))
    try:
        yield {name: Guarded(name, guard) for name in REWARDS}
    finally:
        guard.close()
