"""The base under an adapter is the same to the bit whatever is done with it: merged, sampled from, switched off."""

from __future__ import annotations

import pytest
import torch
from train_cases import chats, preferences, write_jsonl

from lpt_train import grpo, kto, preference, sft
from lpt_train.adapters import attach
from lpt_train.admitted import load_unadmitted
from lpt_train.checkpoint_folders import latest
from lpt_train.config import Lora, SFTConfig, from_mapping
from lpt_train.config_grpo import GRPOConfig
from lpt_train.config_kto import KTOConfig
from lpt_train.config_preference import PreferenceConfig
from lpt_train.export import export
from lpt_train.models import load_model, model_digest
from lpt_train.sampler.generate import Sampling, sample

LOOPS = {"sft": (sft, SFTConfig), "preference": (preference, PreferenceConfig), "kto": (kto, KTOConfig)}


def frozen(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters() if not p.requires_grad}


def same(model: torch.nn.Module, before: dict[str, torch.Tensor]) -> None:
    after = frozen(model)
    assert after.keys() == before.keys()
    assert len(before) > 10
    for name, tensor in before.items():
        assert torch.equal(after[name], tensor), name


def moved(model: torch.nn.Module) -> torch.nn.Module:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.2)
    return model


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", LOOPS)
def test_training_with_evaluations_and_a_reference_leaves_it(tiny, tmp_path, monkeypatch, kind, dtype):
    loop, config_type = LOOPS[kind]
    rows, contract = (chats(12), "sft") if kind == "sft" else (preferences(12), "preference")
    split = load_unadmitted(write_jsonl(tmp_path / "rows.jsonl", rows), contract)
    kept, load = [], loop.load_for_training

    def noted(*given, **named):
        model = load(*given, **named)
        kept.append((model, frozen(model)))
        return model

    monkeypatch.setattr(loop, "load_for_training", noted)
    digest = model_digest(tiny)
    options = {"model": str(tiny), "max_steps": 3, "learning_rate": 1e-2, "lora_r": 4, "eval_steps": 1, "dtype": dtype}
    result = loop.train(from_mapping(config_type, options), split=split, eval_split=split, out=tmp_path / "run")
    ((model, before),) = kept
    same(model, before)
    assert result.body["proof"]["frozen_unchanged"]
    assert result.body["proof"]["verdict"] == "effective"
    assert model_digest(tiny) == result.body["model"]["digest"] == digest


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_sampling_updates_and_a_reference_leave_it(tiny, dtype):
    """The bug: merged for sampling and unmerged after it, the base is rounded anew each time."""
    options = {"model": str(tiny), "lora_r": 4, "beta": 0.1, "learning_rate": 1e-2, "dtype": dtype}
    config = from_mapping(GRPOConfig, options)
    policy = grpo.make_policy(config, str(tiny), grpo.placement("cpu", dtype))
    moved(policy.model)
    before, generator = frozen(policy.model), torch.Generator().manual_seed(0)
    for _ in range(3):
        (group,) = sample(
            policy.model, [[5, 6, 7]], Sampling(4), num_generations=4, stop_ids=[258], generator=generator,
            autocast=policy.place.autocast(),
        )  # fmt: skip
        grpo.update(policy, [grpo.Row([5, 6, 7], one, (-1.0) ** n) for n, one in enumerate(group)], config)
        policy.optimizer.step()
        policy.optimizer.zero_grad()
    same(policy.model, before)


def test_merging_and_exporting_leave_its_files_and_what_is_loaded_after(tiny, sft_split, tmp_path):
    digest, before = model_digest(tiny), load_model(str(tiny)).state_dict()
    files = {path.name: path.read_bytes() for path in tiny.iterdir()}
    options = {"model": str(tiny), "max_steps": 3, "learning_rate": 2e-2, "lora_r": 4}
    sft.train(from_mapping(SFTConfig, options), split=sft_split, out=tmp_path / "run")
    export(str(tmp_path / "run"), tmp_path / "out", merge=True)
    merged = load_model(str(latest(tmp_path / "run" / "checkpoints")))
    assert {path.name: path.read_bytes() for path in tiny.iterdir()} == files
    assert model_digest(tiny) == digest
    again = load_model(str(tiny)).state_dict()
    assert all(torch.equal(again[name], tensor) for name, tensor in before.items())
    assert any(not torch.equal(merged.state_dict()[name], tensor) for name, tensor in before.items())


def test_reading_an_adapter_over_a_base_merges_a_copy(tiny, tmp_path):
    """The model that was trained goes on as it was while its folder is loaded merged beside it."""
    model = moved(attach(load_model(str(tiny)), Lora(lora_r=4)))
    before = frozen(model)
    model.save_pretrained(tmp_path / "adapter", save_embedding_layers=False)
    load_model(str(tmp_path / "adapter"))
    same(model, before)
