"""What a verifier is: a named set of plain functions from text to a score, with its own self test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Canary:
    """A completion whose score is known beforehand; ``None`` means that it must be unscorable."""

    completion: str
    answer: str
    score: float | None


@dataclass(frozen=True)
class Verifier:
    """Scores a completion against the answer that travels with its record.

    ``score`` gives 0.0 to 1.0, or None where the gold answer itself cannot be read ("could not score" is never 0).
    ``parse_gold`` says whether an answer can be read at all. ``gold_completion`` gives a completion that must score 1
    (None where none was found) and ``wrong_completion`` one that must score 0: an audit tests every answer both ways.
    ``committed`` is the answer that a completion gives, written so that equal answers are equal texts (None where it
    gives none): votes are counted by it. A verifier whose answers cannot be told apart so has none. ``may_pay`` tells
    by a short look that ``score``, which asks it first, does not pay a completion: who has very many of them need not
    send them to a worker for that.
    """

    name: str
    score: Callable[[str, str], float | None]
    parse_gold: Callable[[str], bool]
    gold_completion: Callable[[str], str | None]
    wrong_completion: Callable[[str], str | None]
    canaries: tuple[Canary, ...]
    committed: Callable[[str], str | None] | None = None
    may_pay: Callable[[str, str], bool] | None = None


def last_tagged(completion: str, tag: str = "answer") -> str | None:
    """The text of the LAST complete ``<tag>…</tag>``, or None.

    The last one, because prompts show the format by example and models repeat it, draft, and correct themselves:
    what is committed to at the end counts. It also means that listing many guesses earns nothing over giving one.
    """
    end = completion.rfind(f"</{tag}>")
    if end < 0:
        return None
    start = completion.rfind(f"<{tag}>", 0, end)
    return None if start < 0 else completion[start + len(tag) + 2 : end]
