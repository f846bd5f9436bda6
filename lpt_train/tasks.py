"""Rows of an `rlvr` split as tasks: a prompt in token ids, and the answer and verifier that travel with it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from lpt_train.admitted import AdmittedSplit
from lpt_train.render import Renderer
from lpt_train.rewards.pool import Item
from manifests.errors import BadInputError, RecordError


@dataclass(frozen=True)
class Task:
    """One row: its record id, the prompt as ids and as text, and what its completions are scored against."""

    record_id: str
    prompt_ids: list[int]
    prompt: str
    answer: str
    verifier: str

    def item(self, completion: str) -> Item:
        """A completion of this task as the reward pool takes it."""
        return Item(completion, self.answer, self.verifier, self.prompt)


def read_tasks(split: AdmittedSplit, renderer: Renderer, max_prompt_length: int) -> tuple[list[Task], dict[str, int]]:
    """The tasks of a split in its order, and how many rows were dropped for which reason.

    A prompt that is longer than `max_prompt_length` tokens, or that the template refuses, is dropped whole: a prompt
    that is cut asks something else. Raises `BadInputError` when nothing is left.
    """
    tasks: list[Task] = []
    dropped: dict[str, int] = {}
    for record_id, row in zip(split.record_ids, split.rows(), strict=True):
        try:
            ids = renderer.encode_prompt(row["prompt"])
        except RecordError as error:
            dropped[error.reason] = dropped.get(error.reason, 0) + 1
            continue
        if len(ids) > max_prompt_length:
            dropped["prompt_too_long"] = dropped.get("prompt_too_long", 0) + 1
            continue
        prompt = "\n".join(str(message.get("content") or "") for message in row["prompt"])
        tasks.append(Task(record_id, ids, prompt, row["answer"], row.get("verifier") or ""))
    if not tasks:
        raise BadInputError(
            "no row of the split is left to sample from", seen=f"{len(split)} rows; dropped {dropped}",
            next="raise max_prompt_length, or look at the prompts",
        )  # fmt: skip
    return tasks, dropped


def probes(tasks: Collection[Task]) -> list[Item]:
    """A few items that show whether a reward works on this split: for each verifier, answers given as completions."""
    found: list[Item] = []
    for name in sorted({task.verifier for task in tasks}):
        found += [task.item(task.answer) for task in tasks if task.verifier == name][:4]
    return found
