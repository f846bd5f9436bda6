"""`--engine trl`: one split, one config and one seed through both engines give the same losses and the same record."""

from __future__ import annotations

import json

import pytest
from train_cases import chats, preferences, write_jsonl

from lpt_train import kto, preference, sft
from lpt_train.admitted import load_unadmitted
from lpt_train.config import SFTConfig, from_mapping
from lpt_train.config_kto import KTOConfig
from lpt_train.config_preference import PreferenceConfig
from lpt_train.engines import trl

COMMON = {"learning_rate": 3e-3, "per_device_train_batch_size": 4, "weight_decay": 0.01, "warmup_steps": 2, "seed": 3}


def lines(result) -> list[dict]:
    return [json.loads(line) for line in (result.path / "metrics.jsonl").read_text().splitlines()]


def both(lean, config_type, options, split, tmp_path, **more):
    """The records of one config through both engines."""
    config = from_mapping(config_type, options | COMMON | {"model": str(options["model"])})
    found = [
        train(config, split=split, out=tmp_path / name, **more)
        for name, train in (("lean", lean.train), ("trl", trl.train))
    ]
    for name in ("algorithm", "config", "manifest", "split", "content_root", "verified", "tainted", "tokenizer"):
        assert found[0].body[name] == found[1].body[name], name
    for name in ("tokenized_id", "steps", "status", "seed", "trainable_parameters", "parameters", "data", "model"):
        assert found[0].body[name] == found[1].body[name], name
    proofs = [result.body["proof"] for result in found]
    assert proofs[0]["start"] == proofs[1]["start"]
    assert [proof["verdict"] for proof in proofs] == ["effective", "effective"]
    assert proofs[0].keys() == proofs[1].keys()
    assert [result.body["engine"]["name"] for result in found] == ["lean", "trl"]
    return [lines(result) for result in found]


def same(pairs, *names, abs=1e-4):
    ours, theirs = pairs
    assert [line["step"] for line in ours] == [line["step"] for line in theirs]
    for name in (*names, "learning_rate", "tokens", "epoch"):
        assert [line[name] for line in ours if name in line] == pytest.approx(
            [line[name] for line in theirs if name in line], abs=abs
        ), name
    assert [line.keys() for line in ours] == [line.keys() for line in theirs]


@pytest.mark.parametrize(
    "options",
    [
        {"use_peft": False, "max_steps": 8},
        {"max_steps": 8, "gradient_accumulation_steps": 3, "lora_r": 4, "max_grad_norm": 0.05},
        {"packing": True, "max_length": 96, "num_train_epochs": 2.5, "lr_scheduler_type": "cosine"},
    ],
    ids=["every weight", "adapter, accumulated", "packed"],
)
def test_sft_is_the_same_step_by_step(tiny, tmp_path, options):
    split = load_unadmitted(write_jsonl(tmp_path / "chats.jsonl", chats(24)), "sft")
    held = load_unadmitted(write_jsonl(tmp_path / "held.jsonl", chats(30)[24:]), "sft")
    found = both(sft, SFTConfig, {"model": tiny, "eval_steps": 3} | options, split, tmp_path, eval_split=held)
    same(found, "loss", "grad_norm", "supervised_tokens", "eval_loss")
