"""Exact match: is the reply the recorded one, once both are normalised? For `sft` records with short answers.

What is asked is a record's conversation up to its last assistant turn; that turn is the answer.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence

from lpt_train.admitted import AdmittedSplit, check_contract
from lpt_train.render import Renderer
from lpt_train.rewards.integer import read_number
from lpt_train.rewards.pool import Item, Score
from lpt_train.tasks import Task
from manifests.errors import BadInputError, RecordError, UsageError

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


def exact(text: str) -> str:
    """The text without the blanks around it."""
    return text.strip()


def words(text: str) -> str:
    """Letters and digits alone, case folded, without English articles, one space between words."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    plain = "".join(c if unicodedata.category(c)[0] in "LMN" else " " for c in folded)
    return " ".join(_ARTICLES.sub(" ", plain).split())


def number(text: str) -> str:
    """The number that the text answers with, as `lpt_train.rewards.integer` reads it; empty where there is none."""
    value = read_number(text)
    return "" if value is None else str(value)


def first_line(text: str) -> str:
    """The first line that is not blank."""
    return text.strip().split("\n", 1)[0].strip()


NORMALISERS: dict[str, Callable[[str], str]] = {
    "exact": exact,
    "words": words,
    "number": number,
    "first_line": first_line,
}


class Matcher:
    """Scores 1 where completion and answer are the same after normalisation, 0 where not; None for an answer of which
    nothing is left. Nothing of either text is run, so that it needs no process of its own."""

    def __init__(self, name: str) -> None:
        if name not in NORMALISERS:
            raise UsageError("there is no such normaliser", seen=name, next=f"one of {', '.join(NORMALISERS)}")
        self.normalise = NORMALISERS[name]
        self.failures: dict[str, int] = {}
        self.examples: dict[str, str] = {}

    def score(self, items: Sequence[Item]) -> list[Score]:
        """One score a completion."""
        return [self._score(item) for item in items]

    def _score(self, item: Item) -> Score:
        wanted = self.normalise(item.answer)
        if not wanted:
            self.failures["empty_answer"] = self.failures.get("empty_answer", 0) + 1
            return Score(None, (None,), "empty_answer")
        value = float(self.normalise(item.completion) == wanted)
        return Score(value, (value,))


def match_tasks(
    split: AdmittedSplit, renderer: Renderer, max_prompt_length: int, max_completion_length: int
) -> tuple[list[Task], dict[str, int]]:
    """The tasks of an `sft` split in its order, and how many rows were left out for which reason.

    Left out are rows that the template refuses or that end with another turn than the assistant's, whose prompt is
    longer than `max_prompt_length` tokens, or whose answer is longer than `max_completion_length`: it could never be
    given. Raises `RefusedError` for another contract and `BadInputError` when nothing is left.
    """
    check_contract(split, "sft")
    tasks: list[Task] = []
    dropped: dict[str, int] = {}
    for record_id, row in zip(split.record_ids, split.rows(), strict=True):
        task = _task(record_id, row, renderer, max_prompt_length, max_completion_length)
        if isinstance(task, str):
            dropped[task] = dropped.get(task, 0) + 1
        else:
            tasks.append(task)
    if not tasks:
        raise BadInputError(
            "no row of the split is left to answer", seen=f"{len(split)} rows; left out {dropped}",
            next="give a split of conversations with short answers, or raise --max-tokens",
        )  # fmt: skip
    return tasks, dropped


def _task(record_id: str, row: dict, renderer: Renderer, longest_prompt: int, longest_answer: int) -> Task | str:
    """A task, or the reason why the row is none."""
    messages = row.get("messages") or []
    if len(messages) < 2 or messages[-1].get("role") != "assistant" or not messages[-1].get("content"):
        return "no_answer_at_the_end"
    try:
        prompt_ids = renderer.encode_prompt(messages[:-1], row.get("tools"))
        whole = renderer.encode(messages, row.get("tools"))
        asked = len(renderer.encode_prompt(messages[:-1], row.get("tools"), encoded=True))
    except RecordError as error:
        return error.reason
    if len(prompt_ids) > longest_prompt:
        return "prompt_too_long"
    if sum(whole.loss_mask[asked:]) > longest_answer:
        return "answer_too_long"
    prompt = "\n".join(str(message.get("content") or "") for message in messages[:-1])
    return Task(record_id, prompt_ids, prompt, str(messages[-1]["content"]), "")
