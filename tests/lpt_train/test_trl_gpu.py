"""`--engine trl` on one GPU in bfloat16: the losses of both engines are within .02 of each other on average."""

from __future__ import annotations

import json

import pytest
import torch
from train_cases import chats, preferences, write_jsonl

from lpt_train import preference, sft
from lpt_train.admitted import load_unadmitted
from lpt_train.config import SFTConfig, from_mapping
from lpt_train.config_preference import PreferenceConfig

trl = pytest.importorskip("lpt_train.engines.trl", exc_type=ImportError)
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() != 1, reason="needs one CUDA device, and no second one in sight"),
]


@pytest.mark.parametrize(
    ("lean", "kind", "config_type", "options"),
    [
        (sft, "sft", SFTConfig, {"packing": True, "max_length": 128}),
        (sft, "sft", SFTConfig, {"use_peft": False, "gradient_checkpointing": True}),
        (preference, "preference", PreferenceConfig, {"gradient_accumulation_steps": 2}),
    ],
    ids=["packed sft", "every weight, layers computed again", "dpo"],
)
def test_bfloat16_losses_of_both_engines(tiny, tmp_path, lean, kind, config_type, options):
    rows = chats(32) if kind == "sft" else preferences(16)
    split = load_unadmitted(write_jsonl(tmp_path / "rows.jsonl", rows), kind)
    common = {"model": str(tiny), "max_steps": 8, "learning_rate": 1e-3, "per_device_train_batch_size": 4}
    config = from_mapping(config_type, common | options)
    losses = []
    for name, train in (("lean", lean.train), ("trl", trl.train)):
        result = train(config, split=split, out=tmp_path / name)
        assert (result.status, result.body["proof"]["verdict"]) == ("done", "effective")
        assert 0 < result.body["peak_memory_bytes"] < 2**33
        losses.append([json.loads(line)["loss"] for line in (result.path / "metrics.jsonl").read_text().splitlines()])
    apart = [abs(ours - theirs) for ours, theirs in zip(*losses, strict=True)]
    assert sum(apart) / len(apart) < 0.02, losses
