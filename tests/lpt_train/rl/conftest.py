"""Small rlvr splits, a model that already stops, and reward functions that can be imported by name."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from rl_cases import problem, split_of

from lpt_train.admitted import AdmittedSplit
from lpt_train.config import Lora, Optim, RunOptions
from lpt_train.config_grpo import GRPOConfig

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


@pytest.fixture
def split(tmp_path) -> AdmittedSplit:
    """Twelve prompts."""
    return split_of(tmp_path / "problems.jsonl", [problem(a, b) for a in range(1, 5) for b in range(5, 8)])


@pytest.fixture
def config(tiny) -> GRPOConfig:
    """Two prompts, four completions each, one optimizer step a generation; full training."""
    return GRPOConfig(
        model=str(tiny), reward="reward_functions:likes_small_bytes", num_generations=4, per_device_train_batch_size=4,
        gradient_accumulation_steps=2, max_completion_length=6, reward_workers=1, reward_timeout=20.0,
        optim=Optim(learning_rate=3e-3, lr_scheduler_type="constant"), lora=Lora(use_peft=False),
        run=RunOptions(max_steps=2, seed=1),
    )  # fmt: skip
