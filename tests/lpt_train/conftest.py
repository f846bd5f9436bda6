"""A tiny model, made once, and small splits to train it on."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from train_cases import chats, write_jsonl

from lpt_train.admitted import AdmittedSplit, load_unadmitted
from lpt_train.models import load_tokenizer
from lpt_train.render import Renderer
from lpt_train.tiny import make_tiny

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory) -> Path:
    """The folder of a model with two layers of width 32."""
    return make_tiny(tmp_path_factory.mktemp("model") / "tiny", hidden=32, layers=2, heads=2, seed=0)


@pytest.fixture(scope="session")
def tokenizer(tiny):
    return load_tokenizer(str(tiny))


@pytest.fixture(scope="session")
def renderer(tokenizer) -> Renderer:
    return Renderer(tokenizer)


@pytest.fixture(autouse=True)
def _own_catalog(tmp_path, monkeypatch):
    """What a test records by default stays in its own folder."""
    monkeypatch.setenv("LPT_CATALOG", str(tmp_path / ".lpt"))


@pytest.fixture
def sft_split(tmp_path) -> AdmittedSplit:
    """Sixteen conversations through the unadmitted door."""
    return load_unadmitted(write_jsonl(tmp_path / "chats.jsonl", chats(16)), "sft")
