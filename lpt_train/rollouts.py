"""What was sampled, as text, as numbers, and as lines that stay readable after the run (`rollouts.jsonl`)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

from lpt_train.advantages import GroupAdvantages
from lpt_train.render import Renderer
from lpt_train.rewards.pool import Score
from lpt_train.sampler.generate import Completion
from lpt_train.tasks import Task
from manifests.files import write_atomic
from manifests.rollouts import TEXT


class RolloutLog:
    """One JSON line a completion, with the columns of `manifests.rollouts.SCHEMA`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def begin(self, step: int) -> None:
        """Keep what was sampled before optimizer step `step` alone: the rest comes again."""
        lines = self.path.read_bytes().splitlines(keepends=True) if step and self.path.exists() else []
        kept = []
        for line in lines:
            try:
                if json.loads(line)["step"] < step:
                    kept.append(line)
            except (ValueError, KeyError, TypeError):
                continue  # the half line of a kill
        write_atomic(self.path, b"".join(kept))

    def write(
        self,
        step: int,
        tasks_P: Sequence[Task],
        groups_P_G: Sequence[Sequence[Completion]],
        texts_P_G: Sequence[Sequence[str]],
        scores_P_G: Sequence[Sequence[Score]],
        advantages: GroupAdvantages,
    ) -> None:
        """Append the completions that were sampled before optimizer step `step`."""
        lines = []
        values, counted = advantages.advantages_P_G.tolist(), advantages.counted_P_G.tolist()
        generation = zip(tasks_P, groups_P_G, texts_P_G, scores_P_G, strict=True)
        for place, (task, group, texts, scores) in enumerate(generation):
            for sample, (completion, text, score) in enumerate(zip(group, texts, scores, strict=True)):
                row = {
                    "step": step, "record_id": task.record_id, "sample": sample, "reward": score.total,
                    "failure": score.reason or None, "finish": completion.finish, "tokens": len(completion.ids),
                    "group_index": place, "advantage": values[place][sample] if counted[place][sample] else None,
                    "completion": text[:TEXT],
                }  # fmt: skip
                lines.append(json.dumps(row) + "\n")
        with open(self.path, "a", encoding="ascii") as file:
            file.writelines(lines)


def completion_texts(renderer: Renderer, groups_P_G: Sequence[Sequence[Completion]]) -> list[list[str]]:
    """The texts of sampled completions, without special tokens, as a reward reads them."""
    return [
        [str(renderer.tokenizer.decode(completion.ids, skip_special_tokens=True)) for completion in group]
        for group in groups_P_G
    ]


def rollout_metrics(
    groups_P_G: Sequence[Sequence[Completion]], rewards_P_G: torch.Tensor, advantages: GroupAdvantages
) -> dict[str, float]:
    """Means over one generation: `reward` and `reward_std` over what could be scored, the rest over all of it."""
    flat = [completion for group in groups_P_G for completion in group]
    scorable = rewards_P_G[~rewards_P_G.isnan()]
    groups = len(rewards_P_G)
    metrics = {
        "frac_zero_variance": advantages.zero_variance_groups / groups,
        "frac_short_groups": advantages.short_groups / groups,
        "unscorable": 1.0 - len(scorable) / len(flat),
        "completion_length": sum(len(completion.ids) for completion in flat) / len(flat),
        "truncated_share": sum(completion.finish == "length" for completion in flat) / len(flat),
    }
    if len(scorable):
        spread = float(scorable.std()) if len(scorable) > 1 else 0.0
        metrics = {"reward": float(scorable.mean()), "reward_std": spread, **metrics}
    return metrics


def group_sizes(prompts_P: Sequence[Sequence[int]], groups_P_G: Sequence[Sequence[Completion]]) -> tuple[int, int, int]:
    """`row_sizes` of every completion of a generation."""
    return row_sizes(
        (prompt, completion)
        for prompt, group in zip(prompts_P, groups_P_G, strict=True)
        for completion in group
    )  # fmt: skip


def row_sizes(rows: Iterable[tuple[Sequence[int], Completion]]) -> tuple[int, int, int]:
    """What `speed.Work` counts by, of prompts with their completions: tokens, the squared lengths, sampled tokens."""
    lengths = [(len(prompt), len(completion.ids)) for prompt, completion in rows]
    tokens, square = sum(a + b for a, b in lengths), sum((a + b) ** 2 for a, b in lengths)
    return tokens, square, sum(b for _, b in lengths)
