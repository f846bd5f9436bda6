"""The table of benchmarks that have a name: where they are published, in which layout, how many items, which bytes.

A digest stands here where we had the file in hand. `content_root` is that of the items (question and answer), so it is
the same for another file format; the others are written down when a benchmark is first added, and compared from then
on. To add a benchmark: one line.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Known:
    """One benchmark as it is published."""

    name: str
    layout: str  # in lpt_data.benchmarks.layouts.LAYOUTS
    items: int  # of `split`
    hub: str  # data set on the Hugging Face hub
    config: str | None
    split: str
    columns: str  # question / answer, as published
    sha256: str = ""  # of the published file, where we had it
    content_root: str = ""


KNOWN: dict[str, Known] = {
    known.name: known
    for known in (
        Known(
            "gsm8k", "gsm8k", 1319, "openai/gsm8k", "main", "test", "question / answer",
            "3730d312f6e3440559ace48831e51066acaca737f6eabec99bccb9e4b3c39d14",
            "4e7dbcba2dbd0c5babf5f82ae10d66a94d2edc4d6ae71a39e848fcbbdf708c3d",
        ),
        Known(
            "humaneval", "humaneval", 164, "openai/openai_humaneval", None, "test", "prompt / canonical_solution",
            "b796127e635a67f93fb35c04f4cb03cf06f38c8072ee7cee8833d7bee06979ef",
            "2956f3d2525c986491bca1b4cef2021f86faecbe949edbfeed931994d23a1ad4",
        ),
        Known("mbpp", "mbpp", 500, "google-research-datasets/mbpp", "full", "test", "text / code"),
        Known("mmlu", "mmlu", 14042, "cais/mmlu", "all", "test", "question, choices / choices"),
        Known("math", "math", 5000, "EleutherAI/hendrycks_math", None, "test", "problem / solution"),
        Known("bbh", "bbh", 6511, "lukaemon/bbh", None, "test", "input / target"),
    )
}  # fmt: skip
