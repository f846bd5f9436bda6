"""Pairs that a reward model can learn, and runs of it, for the tests of reward models."""

from __future__ import annotations

import json

import numpy as np

from lpt_train.config import from_mapping
from lpt_train.config_reward import RewardConfig
from lpt_train.reward import train

FRIENDLY, RUDE = ("glad", "sure", "with joy", "gladly"), ("no", "go away", "never", "not now")


def said(text: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": text}]


def asked(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def planted(count: int, seed: int = 0) -> list[dict]:
    """Pairs whose friendly side is chosen; prompts, words and lengths say nothing about which side that is."""
    rng = np.random.default_rng(seed)
    rows = []
    for n in range(count):
        words = [str(rng.integers(1000)) for _ in range(4)]
        kind, rude = FRIENDLY[rng.integers(len(FRIENDLY))], RUDE[rng.integers(len(RUDE))]
        rows.append({
            "prompt": asked(f"{seed} {n} {words[0]}"),
            "chosen": said(f"{kind} {' '.join(words[: rng.integers(1, 3)])}"),
            "rejected": said(f"{rude} {' '.join(words[2 : 2 + rng.integers(1, 3)])}"),
        })  # fmt: skip
    return rows


def ranked(prompts: int, answers: int = 3) -> list[dict]:
    """All pairs of `answers` ordered answers for each prompt, the longer run of stars the better one."""
    return [
        {"prompt": asked(f"say {n}"), "chosen": said("*" * better), "rejected": said("*" * worse)}
        for n in range(prompts)
        for better in range(answers, 0, -1)
        for worse in range(better - 1, 0, -1)
    ]


def run(tiny, split, out, **options):
    """A run and its lines of metrics; options of `train` are told apart by name."""
    defaults = {"max_steps": 8, "learning_rate": 1e-3, "per_device_train_batch_size": 4, "lora_r": 4}
    arguments = {name: options.pop(name) for name in ("resume", "progress", "eval_split", "catalog") if name in options}
    config = from_mapping(RewardConfig, {"model": str(tiny), **defaults, **options})
    result = train(config, split=split, out=out, **arguments)
    return result, [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
