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
from trl.experimental.cpo import CPOConfig, CPOTrainer
from trl.experimental.orpo import ORPOConfig, ORPOTrainer

from lpt_train import packing
from lpt_train.admitted import load_unadmitted
from lpt_train.config import SFTConfig, from_mapping
from lpt_train.config_preference import PreferenceConfig
from lpt_train.losses.preference import LOSSES
from lpt_train.models import load_tokenizer
from lpt_train.preference import train as train_preference
from lpt_train.render import Renderer
from lpt_train.render_pairs import render_pairs
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


class _ReplyOnly(ORPOTrainer):
    """TRL's ORPO with its supervised part over the reply alone, as ours is; its own takes the prompt in as well."""

    def concatenated_forward(self, model, batch):
        *found, logits_P_T_V, rejected, _whole = super().concatenated_forward(model, batch)
        labels_P_T = torch.nn.functional.pad(batch["chosen_labels"], (0, logits_P_T_V.shape[1]), value=-100)
        labels_P_T = labels_P_T[:, 1 : logits_P_T_V.shape[1] + 1]
        reply = torch.nn.functional.cross_entropy(logits_P_T_V.flatten(0, 1), labels_P_T.flatten())
        return *found, logits_P_T_V, rejected, reply


# Loss -> TRL's trainer, its config, options of TRL alone, options of both. A loss of the table that is not here fails
# `test_preference_losses_are_those_of_trl`.
PEERS = {
    "sigmoid": (DPOTrainer, DPOConfig, {"loss_type": ["sigmoid"]}, {}),  # TRL smooths no labels of it
    "robust": (DPOTrainer, DPOConfig, {"loss_type": ["robust"]}, {"label_smoothing": 0.1}),
    "hinge": (DPOTrainer, DPOConfig, {"loss_type": ["hinge"]}, {}),
    "ipo": (DPOTrainer, DPOConfig, {"loss_type": ["ipo"]}, {}),
    "simpo": (CPOTrainer, CPOConfig, {"loss_type": "simpo", "cpo_alpha": 0.0}, {"simpo_gamma": 0.7}),
    "cpo": (CPOTrainer, CPOConfig, {"loss_type": "sigmoid"}, {"cpo_alpha": 0.3, "label_smoothing": 0.1}),
    "orpo": (_ReplyOnly, ORPOConfig, {}, {}),
}  # fmt: skip


def through_trl(folder, tmp_path, rows, trainer, config, **options):
    """The log of TRL's run over pairs in the order of the file, a line a step."""
    made = in_order(trainer)(
        model=AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32),
        processing_class=load_tokenizer(str(folder)), train_dataset=Dataset.from_list(rows),
        args=config(**trl_arguments(tmp_path, **options)),
    )  # fmt: skip
    made.train()
    return [line for line in made.state.log_history if "loss" in line]


@pytest.mark.parametrize("loss", LOSSES)
def test_preference_losses_are_those_of_trl(bare_tiny, tmp_path, as_they_stand, loss):
    trainer, config, told, options = PEERS[loss]
    rows = preferences(16)
    split = load_unadmitted(write_jsonl(tmp_path / "pairs.jsonl", rows), "preference")
    given = {
        "model": str(bare_tiny), "loss_type": loss, "beta": 0.5, "max_steps": 12, "per_device_train_batch_size": 4,
        "use_peft": False, **options, **COMMON,
    }  # fmt: skip
    result = train_preference(from_mapping(PreferenceConfig, given), split=split, out=tmp_path / "ours")
    ours = [json.loads(line) for line in (result.path / "metrics.jsonl").read_text().splitlines()]
    theirs = through_trl(bare_tiny, tmp_path, rows, trainer, config, max_steps=12, beta=0.5, **told, **options)
    assert len(ours) == len(theirs) == 12
    assert abs(ours[-1]["loss"] - ours[0]["loss"]) > 0.05
    assert [line["loss"] for line in ours] == pytest.approx([line["loss"] for line in theirs], abs=2e-4)
    gradients = [line["grad_norm"] for line in theirs]
    assert [line["grad_norm"] for line in ours] == pytest.approx(gradients, rel=1e-3, abs=1e-3)


def test_orpo_of_trl_has_the_prompt_in_its_supervised_part_and_ours_has_not(bare_tiny, tmp_path, as_they_stand):
    rows = preferences(4)
    first = [
        through_trl(bare_tiny, tmp_path, rows, trainer, ORPOConfig, max_steps=1, beta=0.5)[0]["loss"]
        for trainer in (ORPOTrainer, _ReplyOnly)
    ]
    renderer = Renderer(load_tokenizer(str(bare_tiny)))
    model, nats, counts = AutoModelForCausalLM.from_pretrained(bare_tiny, dtype=torch.float32), [0.0, 0.0], [0, 0]
    for pair in render_pairs(rows, renderer, max_length=512).pairs:
        ids = torch.from_numpy(pair.chosen.ids).long()
        lost = -torch.log_softmax(model(ids[None]).logits[0, :-1], -1).gather(-1, ids[1:, None])[:, 0]
        reply = torch.from_numpy(pair.chosen.loss_mask[1:]).bool()
        for which, counted in enumerate((torch.ones_like(reply), reply)):
            nats[which] += float(lost[counted].sum())
            counts[which] += int(counted.sum())
    whole, reply = (n / count for n, count in zip(nats, counts, strict=True))
    assert abs(whole - reply) > 0.01
    assert first[0] - first[1] == pytest.approx(whole - reply, abs=1e-4)
