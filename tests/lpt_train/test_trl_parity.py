"""The same batches through TRL's trainers: the losses of every step agree."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from datasets import Dataset
from torch.utils.data import SequentialSampler
from train_cases import chats, preferences, write_jsonl
from transformers import AutoModelForCausalLM
from trl import DPOConfig, DPOTrainer, SFTTrainer
from trl import SFTConfig as TrlSFTConfig

from lpt_train import packing
from lpt_train.admitted import load_unadmitted
from lpt_train.config import SFTConfig, from_mapping
from lpt_train.config_preference import PreferenceConfig
from lpt_train.models import load_tokenizer
from lpt_train.preference import train as train_preference
from lpt_train.sft import train as train_sft

COMMON = {"learning_rate": 3e-3, "lr_scheduler_type": "linear", "max_grad_norm": 1.0, "weight_decay": 0.0, "seed": 3}


def in_order(trainer):
    class Ordered(trainer):
        def _get_train_sampler(self, dataset=None):
            return SequentialSampler(dataset or self.train_dataset)

    return Ordered


@pytest.fixture
def as_they_stand(monkeypatch):
    """Our loops take the rows in the order of the file, as the sampler above does."""
    import lpt_train.data_order

    def at(start, count, *, units, seed):
        return [place % units for place in range(start, start + count)]

    monkeypatch.setattr(lpt_train.data_order, "units_at", at)
    assert packing.units_at(0, 1, units=1, seed=0) == [0]


def trl_arguments(tmp_path, **options):
    return {
        "output_dir": str(tmp_path / "trl"), "per_device_train_batch_size": 4, "logging_steps": 1, "report_to": [],
        "save_strategy": "no", "use_cpu": True, "bf16": False, "gradient_checkpointing": False, "disable_tqdm": True,
        "optim": "adamw_torch", "max_length": 512, "adam_beta2": 0.999, **COMMON, **options,
    }  # fmt: skip


def losses_of(trainer) -> list[float]:
    trainer.train()
    return [row["loss"] for row in trainer.state.log_history if "loss" in row]


def our_losses(result) -> list[float]:
    return [json.loads(line)["loss"] for line in (result.path / "metrics.jsonl").read_text().splitlines()]


def test_sft_losses_are_those_of_trl_for_a_hundred_steps(tiny, tmp_path, as_they_stand):
    rows = chats(40)
    split = load_unadmitted(write_jsonl(tmp_path / "chats.jsonl", rows), "sft")
    options = {"model": str(tiny), "max_steps": 100, "per_device_train_batch_size": 4, "use_peft": False} | COMMON
    ours = our_losses(train_sft(from_mapping(SFTConfig, options), split=split, out=tmp_path / "ours"))
    arguments = TrlSFTConfig(max_steps=100, assistant_only_loss=True, packing=False, **trl_arguments(tmp_path))
    model = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32)
    dataset = Dataset.from_list([{"messages": row["messages"]} for row in rows])
    theirs = losses_of(
        in_order(SFTTrainer)(
            model=model, processing_class=load_tokenizer(str(tiny)), args=arguments, train_dataset=dataset
        )
    )
    assert len(ours) == len(theirs) == 100
    assert ours[0] > ours[-1] + 0.5
    assert ours == pytest.approx(theirs, abs=1e-4)


@pytest.fixture(scope="module")
def bare_tiny(tiny, tmp_path_factory):
    """The tiny model with nothing behind the stop token: TRL's DPO counts what its template writes there as answer."""
    folder = tmp_path_factory.mktemp("bare") / "tiny"
    shutil.copytree(tiny, folder)
    tokenizer = load_tokenizer(str(folder))
    tokenizer.chat_template = tokenizer.chat_template.replace("{%- endgeneration %}{{- '\n' }}", "{%- endgeneration %}")
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("loss", ["sigmoid", "robust", "hinge", "ipo"])
def test_dpo_losses_are_those_of_trl(bare_tiny, tmp_path, as_they_stand, loss):
    tiny = bare_tiny
    rows = preferences(16)
    split = load_unadmitted(write_jsonl(tmp_path / "pairs.jsonl", rows), "preference")
    smoothing = {"label_smoothing": 0.1} if loss == "robust" else {}
    options = {
        "model": str(tiny), "loss_type": loss, "beta": 0.5, "max_steps": 12, "per_device_train_batch_size": 4,
        "use_peft": False, **smoothing, **COMMON,
    }  # fmt: skip
    ours = our_losses(train_preference(from_mapping(PreferenceConfig, options), split=split, out=tmp_path / "ours"))
    arguments = DPOConfig(max_steps=12, loss_type=[loss], beta=0.5, **smoothing, **trl_arguments(tmp_path))
    model = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32)
    theirs = losses_of(
        in_order(DPOTrainer)(
            model=model, processing_class=load_tokenizer(str(tiny)), args=arguments,
            train_dataset=Dataset.from_list(rows),
        )
    )  # fmt: skip
    assert len(ours) == len(theirs) == 12
    assert ours == pytest.approx(theirs, abs=2e-4)
