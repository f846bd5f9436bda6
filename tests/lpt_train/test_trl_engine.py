"""`--engine trl`: one split, one config and one seed through both engines give the same losses and the same record."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
from pathlib import Path

import pytest
from peft import PeftModel
from train_cases import chats, preferences, write_jsonl
from trl import DPOConfig
from trl import KTOConfig as TrlKTOConfig
from trl import SFTConfig as TrlSFTConfig

from lpt_train import kto, preference, sft
from lpt_train.admitted import load_unadmitted
from lpt_train.config import SFTConfig, from_mapping
from lpt_train.config_kto import KTOConfig
from lpt_train.config_preference import PreferenceConfig
from lpt_train.engines import trl
from lpt_train.engines.trl_options import AROUND, SAME, flat
from lpt_train.models import load_model
from manifests.errors import LptError, RefusedError, UsageError

COMMON = {"learning_rate": 3e-3, "per_device_train_batch_size": 4, "weight_decay": 0.01, "warmup_steps": 2, "seed": 3}


def lines(result) -> list[dict]:
    return [json.loads(line) for line in (result.path / "metrics.jsonl").read_text().splitlines()]


def both(lean, config_type, options, split, tmp_path, **more):
    """The records of one config through both engines."""
    config = from_mapping(config_type, COMMON | options | {"model": str(options["model"])})
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
    assert found[0].body["eval"] == found[1].body["eval"]
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
        {
            "max_steps": 8,
            "gradient_accumulation_steps": 3,
            "lora_r": 4,
            "max_grad_norm": 0.05,
            "lora_target_modules": "attention",
            "lora_exclude_modules": "o_proj",
            "init_lora_weights": "gaussian",
        },
        {
            "max_steps": 8,
            "lr_scheduler_type": "warmup_stable_decay",
            "warmup_steps": 0,
            "warmup_ratio": 0.25,
            "num_decay_steps": 3,
            "decay_type": "1-sqrt",
            "min_lr_rate": 0.1,
        },
        {
            "max_steps": 3,
            "lr_scheduler_type": "cosine_with_min_lr",
            "min_lr_rate": 0.2,
            "optim": "sgd",
            "gradient_checkpointing": True,
            "learning_rate": 0.5,
        },
        {"packing": True, "max_length": 96, "num_train_epochs": 2.5, "lr_scheduler_type": "cosine"},
    ],
    ids=["every weight", "adapter, accumulated", "stable, then decay", "sgd, layers computed again", "packed"],
)
def test_sft_is_the_same_step_by_step(tiny, tmp_path, options):
    split = load_unadmitted(write_jsonl(tmp_path / "chats.jsonl", chats(24)), "sft")
    held = load_unadmitted(write_jsonl(tmp_path / "held.jsonl", chats(30)[24:]), "sft")
    found = both(sft, SFTConfig, {"model": tiny, "eval_steps": 3} | options, split, tmp_path, eval_split=held)
    same(found, "loss", "grad_norm", "supervised_tokens", "eval_loss")


@pytest.mark.parametrize(
    "options",
    [
        {"use_peft": False, "max_steps": 6, "beta": 0.5},
        {"max_steps": 6, "gradient_accumulation_steps": 2, "loss_type": "robust", "label_smoothing": 0.1},
        {"num_train_epochs": 1.5, "loss_type": "ipo", "beta": 0.3},
    ],
    ids=["every weight", "robust, accumulated", "ipo, a short last step"],
)
def test_dpo_is_the_same_step_by_step(tiny, tmp_path, options):
    """Of the tiny template, which writes a line break behind the stop token: it counts on neither side."""
    rows = preferences(19)
    split = load_unadmitted(write_jsonl(tmp_path / "pairs.jsonl", rows[:13]), "preference")
    held = load_unadmitted(write_jsonl(tmp_path / "held.jsonl", rows[13:]), "preference")
    found = both(
        preference, PreferenceConfig, {"model": tiny, "eval_steps": 2} | options, split, tmp_path, eval_split=held
    )
    rewards = [f"rewards/{name}" for name in ("chosen", "rejected", "margins")]
    logps = ["logps/chosen", "logps/rejected", "kl_k1"]
    same(found, "loss", "eval_loss", *rewards, *(f"eval_{name}" for name in rewards))
    same(found, "grad_norm", *logps, *(f"eval_{name}" for name in logps), abs=2e-3)  # of sums of some hundred nats
    after = [[line for line in lines_ if line["step"] > 2] for lines_ in found]  # before, both rewards are 0: a tie
    same(after, "rewards/accuracies", "eval_rewards/accuracies")


def test_kto_is_the_same_where_a_step_is_one_micro_batch(tiny, tmp_path):
    """TRL estimates the distance to the reference in each micro-batch, so only then is it the same number; the rows
    that it is taken from are ours in both engines."""
    rows = [
        {"prompt": row["prompt"], "completion": row[side], "label": side == "chosen"}
        for row in preferences(9)
        for side in ("chosen", "rejected")
    ]
    split = load_unadmitted(write_jsonl(tmp_path / "marked.jsonl", rows[:15]), "kto")
    options = {"model": tiny, "max_steps": 7, "desirable_weight": 2.0, "undesirable_weight": 0.1, "use_peft": False}
    found = both(kto, KTOConfig, options, split, tmp_path)
    same(found, "loss", "kl", "rewards/chosen", "rewards/rejected", "rewards/margins")
    same(found, "grad_norm", abs=2e-3)
    assert any(line["kl"] > 0.01 for line in found[0]), [line["kl"] for line in found[0]]


def test_what_trl_trained_is_evaluated_and_trained_on_like_any_run(tiny, tmp_path):
    split = load_unadmitted(write_jsonl(tmp_path / "chats.jsonl", chats(16)), "sft")
    options = {"model": str(tiny), "max_steps": 3, "save_steps": 1, "save_total_limit": 2, "lora_r": 2}
    first = trl.train(from_mapping(SFTConfig, options), split=split, out=tmp_path / "first")
    folders = sorted(path.name for path in (first.path / "checkpoints").iterdir())
    assert folders == ["step-000002", "step-000003"]
    made_by = json.loads((first.path / "checkpoints/step-000003/lpt.json").read_text())
    assert (made_by["run_id"], made_by["tainted"], made_by["step"]) == (first.run_id, True, 3)
    again = trl.train(
        from_mapping(SFTConfig, options | {"model": str(first.path)}), split=split, out=tmp_path / "again"
    )
    assert again.body["model"]["made_from"]["run_id"] == first.run_id
    assert lines(again)[0]["loss"] < lines(first)[0]["loss"]
    merged = load_model(str(first.path / "checkpoints/step-000003"))
    assert not isinstance(merged, PeftModel)
    with pytest.raises(UsageError, match="holds a run already"):
        trl.train(from_mapping(SFTConfig, options), split=split, out=tmp_path / "first")
    with pytest.raises(RefusedError, match="another engine"):
        sft.train(from_mapping(SFTConfig, options), split=split, out=tmp_path / "first", resume=True)


def test_a_signal_stops_after_the_step_and_leaves_a_checkpoint(tiny, tmp_path):
    split = load_unadmitted(write_jsonl(tmp_path / "chats.jsonl", chats(16)), "sft")

    def asked(step, _total, _metrics):
        if step == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    config = from_mapping(SFTConfig, {"model": str(tiny), "max_steps": 50, "lr_scheduler_type": "constant"})
    result = trl.train(config, split=split, out=tmp_path / "run", progress=asked)
    assert (result.status, result.body["stopped_by"]) == ("stopped", "SIGTERM")
    assert result.body["steps"] <= 3
    assert Path(result.body["checkpoint"]["path"]).name == f"step-{result.body['steps']:06d}"


def test_gradients_that_are_not_finite_end_the_run_before_the_update(tiny, tmp_path):
    """A learning rate at which the weights of step 1 are beyond float32; what TRL logs by itself would hide a NaN."""
    split = load_unadmitted(write_jsonl(tmp_path / "chats.jsonl", chats(16)), "sft")
    options = {"model": str(tiny), "max_steps": 9, "learning_rate": 1e30, "use_peft": False, "save_steps": 1}
    with pytest.raises(LptError, match="not finite"):
        trl.train(from_mapping(SFTConfig, options), split=split, out=tmp_path / "run")
    body = json.loads((tmp_path / "run/run.json").read_text())
    assert body["status"] == "failed"
    assert body["steps"] < 9


def test_text_counts_every_token_but_the_first(tiny, tmp_path):
    rows = [{"text": f"the river {n} " + "runs " * (n % 5)} for n in range(12)]
    split = load_unadmitted(write_jsonl(tmp_path / "texts.jsonl", rows), "text")
    for packing in (False, True):
        options = {"model": tiny, "max_steps": 2, "packing": packing, "max_length": 128}
        same(both(sft, SFTConfig, options, split, tmp_path / str(packing)), "loss", "supervised_tokens")


@pytest.mark.parametrize(
    ("config_type", "options", "named"),
    [
        (SFTConfig, {"execution": "eager"}, "execution"),
        (SFTConfig, {"logits_chunk": 64}, "logits_chunk"),
        (SFTConfig, {"seed": 2**32}, "seed"),
        (SFTConfig, {"load_in_4bit": True}, "load_in_4bit"),
        (SFTConfig, {"optim": "adamw_torch_offload"}, "optim"),
        (SFTConfig, {"max_memory_gb": 3}, "max_memory_gb"),
        (SFTConfig, {"activation_offloading": True, "device": "cpu"}, "GPU"),
        (
            SFTConfig,
            {"gradient_checkpointing": True, "gradient_checkpointing_every": 2},
            "gradient_checkpointing_every",
        ),
        (SFTConfig, {"init_lora_weights": "pissa"}, "reference"),
        (PreferenceConfig, {"loss_type": "simpo"}, "simpo"),
        (PreferenceConfig, {"label_smoothing": 0.1}, "label_smoothing"),
        (KTOConfig, {"per_device_train_batch_size": 1}, "TRL"),
    ],
)
def test_what_trl_does_not_have_is_refused_by_name(tiny, tmp_path, config_type, options, named):
    kinds = {SFTConfig: ("sft", chats(8)), PreferenceConfig: ("preference", preferences(8))}
    kind, rows = kinds.get(config_type, ("preference", preferences(8)))
    split = load_unadmitted(write_jsonl(tmp_path / "rows.jsonl", rows), kind)
    config = from_mapping(config_type, {"model": str(tiny), "max_steps": 1} | options)
    with pytest.raises((UsageError, RefusedError), match=named) as refused:
        trl.train(config, split=split, out=tmp_path / "run")
    assert refused.value.next
    assert refused.value.seen
    assert not (tmp_path / "run/run.json").exists()


def test_several_processes_are_refused(tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    split = load_unadmitted(write_jsonl(tmp_path / "chats.jsonl", chats(8)), "sft")
    with pytest.raises(RefusedError, match="one process"):
        trl.train(from_mapping(SFTConfig, {"model": str(tiny)}), split=split, out=tmp_path / "run")


def test_each_option_is_the_same_in_trl_done_around_it_or_refused():
    """A new option is refused until somebody decides; none of the lists names an option that is gone."""
    ours = {name for kind in (SFTConfig, PreferenceConfig, KTOConfig) for name in flat(kind())}
    assert set(SAME) | set(AROUND) <= ours
    assert not set(SAME) & set(AROUND)
    for told in (TrlSFTConfig, DPOConfig, TrlKTOConfig):
        theirs = {item.name for item in dataclasses.fields(told)}
        only_some = {"beta", "label_smoothing", "desirable_weight", "undesirable_weight"}
        assert set(SAME) - only_some <= theirs


def test_a_split_that_was_not_admitted_for_it_or_measures_is_refused(tiny, tmp_path):
    split = load_unadmitted(write_jsonl(tmp_path / "chats.jsonl", chats(8)), "sft")
    config = from_mapping(KTOConfig, {"model": str(tiny), "max_steps": 1})
    with pytest.raises(RefusedError, match="not for"):
        trl.train(config, split=split, out=tmp_path / "run")
    with pytest.raises(UsageError, match="not resumed"):
        trl.train(from_mapping(SFTConfig, {"model": str(tiny)}), split=split, out=tmp_path / "run", resume=True)


def test_kto_is_not_measured_by_trl(tiny, tmp_path):
    split = load_unadmitted(write_jsonl(tmp_path / "pairs.jsonl", preferences(6)), "preference")
    config = from_mapping(KTOConfig, {"model": str(tiny)})
    with pytest.raises(RefusedError, match="does not measure KTO"):
        trl.train(config, split=split, eval_split=split, out=tmp_path / "run")
