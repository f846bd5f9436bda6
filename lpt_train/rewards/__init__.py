"""Verifiable rewards: a visible table of verifiers, and how ``--reward`` names what is paid for.

Nothing here is heavy: worker processes import this package and no tensor library.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from lpt_train.rewards import code, countdown, integer, maths, schema
from lpt_train.rewards.verifier import Canary, Verifier
from manifests.errors import BadInputError, UsageError

__all__ = ["FROM_RECORD", "REWARDS", "Canary", "RewardTerm", "Verifier", "parse_rewards", "verifiers_for"]

REWARDS: dict[str, Verifier] = {
    "countdown": countdown.VERIFIER,
    "integer": integer.VERIFIER,
    "math": maths.VERIFIER,
    "code": code.VERIFIER,
    "schema": schema.VERIFIER,
}

FROM_RECORD = "record"  # scored by the verifier that the record itself names


@dataclass(frozen=True)
class RewardTerm:
    """One paid term: a name in `REWARDS`, ``record``, or a function ``module:function``; and its weight."""

    name: str
    weight: float = 1.0

    @property
    def is_function(self) -> bool:
        """Whether the term is a user's function and not a verifier of the table."""
        return ":" in self.name


def parse_rewards(text: str) -> tuple[RewardTerm, ...]:
    """Terms of ``NAME[=weight],…``; a NAME is in `REWARDS`, or ``record`` (the default), or ``module:function``."""
    terms: list[RewardTerm] = []
    for part in (text or FROM_RECORD).split(","):
        name, _, weight_text = part.strip().partition("=")
        try:
            weight = float(weight_text) if weight_text else 1.0
        except ValueError:
            weight = math.nan
        if not math.isfinite(weight):
            raise UsageError("The weight of a reward is not a number.", seen=part, next=f"Write --reward {name}=0.5")
        if name not in REWARDS and name != FROM_RECORD and not _names_a_function(name):
            known = ", ".join([*REWARDS, FROM_RECORD])
            raise UsageError(
                "There is no such reward.", seen=name, next=f"Use one of: {known}; or a function as module:function"
            )
        if any(term.name == name for term in terms):
            raise UsageError("A reward is named twice.", seen=text, next="Give each reward once, with its weight.")
        terms.append(RewardTerm(name, weight))
    return tuple(terms)


def _names_a_function(name: str) -> bool:
    module, _, function = name.partition(":")
    return function.isidentifier() and all(part.isidentifier() for part in module.split("."))


def verifiers_for(names: Collection[str]) -> dict[str, Verifier]:
    """The verifiers that a split's records name; raises for a name that the table does not hold."""
    unknown = sorted(set(names) - set(REWARDS))
    if unknown:
        raise BadInputError(
            "Records of the split name a verifier that does not exist.",
            seen=", ".join(unknown[:5]),
            next=f"Use one of {', '.join(REWARDS)} in the split, or pass --reward module:function",
        )
    return {name: REWARDS[name] for name in sorted(set(names))}
