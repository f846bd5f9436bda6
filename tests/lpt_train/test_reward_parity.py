"""The same pairs through TRL's RewardTrainer: losses of every step, metrics, gradients; and TRL reads what we write."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from reward_cases import planted, run
from torch.utils.data import SequentialSampler
from train_cases import write_jsonl
from transformers import AutoModelForSequenceClassification
from trl import RewardConfig as TrlRewardConfig
from trl import RewardTrainer

from lpt_train.admitted import load_unadmitted
from lpt_train.config import from_mapping
from lpt_train.config_reward import RewardConfig
from lpt_train.models import load_tokenizer, placement
from lpt_train.rankings import render_rankings
from lpt_train.render import Renderer
from lpt_train.reward_batch import Bounds, inputs, reward_micro_batch, rows_of
from lpt_train.reward_model import load_reward_model

COMMON = {"learning_rate": 5e-4, "lr_scheduler_type": "linear", "max_grad_norm": 1.0, "weight_decay": 0.0, "seed": 3}


class Ordered(RewardTrainer):
    """Rows as they stand."""

    def _get_train_sampler(self, dataset=None):
        return SequentialSampler(dataset or self.train_dataset)


@pytest.fixture
def as_they_stand(monkeypatch):
    """Our loop takes the rows in the order of the file, as the sampler above does."""
    import lpt_train.data_order

    def at(start, count, *, units, seed):
        return [place % units for place in range(start, start + count)]

    monkeypatch.setattr(lpt_train.data_order, "units_at", at)


@pytest.fixture(scope="module")
def start(tiny, tmp_path_factory) -> Path:
    """A reward model that both start from."""
    folder = tmp_path_factory.mktemp("start") / "rm"
    model, tokenizer = load_reward_model(str(tiny), seed=11), load_tokenizer(str(tiny))
    model.config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def trainer_of(start, tmp_path, rows, **options):
    arguments = TrlRewardConfig(
        output_dir=str(tmp_path / "trl"), per_device_train_batch_size=4, logging_steps=1, report_to=[],
        save_strategy="no", use_cpu=True, bf16=False, gradient_checkpointing=False, disable_tqdm=True, max_length=512,
        optim="adamw_torch", **COMMON, **options,
    )  # fmt: skip
    model = AutoModelForSequenceClassification.from_pretrained(start, num_labels=1, dtype=torch.float32)
    return Ordered(
        model=model, args=arguments, processing_class=load_tokenizer(str(start)), train_dataset=Dataset.from_list(rows)
    )


@pytest.mark.parametrize(
    ("margin", "options", "steps"),
    [(None, {}, 100), ((0.5, 2.0, -1.0), {}, 30), (None, {"center_rewards_coefficient": 0.05}, 30)],
    ids=["plain", "margin", "centred"],
)
def test_losses_and_metrics_are_those_of_trl(start, tmp_path, as_they_stand, margin, options, steps):
    rows = [{**row, **({"margin": margin[n % 3]} if margin else {})} for n, row in enumerate(planted(16))]
    split = load_unadmitted(write_jsonl(tmp_path / "pairs.jsonl", rows), "preference")
    _, ours = run(start, split, tmp_path / "ours", max_steps=steps, use_peft=False, **COMMON, **options)
    trainer = trainer_of(start, tmp_path, rows, max_steps=steps, **options)
    trainer.train()
    theirs = [row for row in trainer.state.log_history if "loss" in row]
    assert len(ours) == len(theirs) == steps
    assert ours[-1]["loss"] < ours[0]["loss"]
    assert [line["loss"] for line in ours] == pytest.approx([line["loss"] for line in theirs], abs=1e-4)
    for name in ("margin", "mean_reward", "min_reward", "max_reward", "grad_norm"):
        assert [line[name] for line in ours] == pytest.approx([line[name] for line in theirs], rel=1e-2, abs=1e-3), name
    assert [line["accuracy"] for line in ours] == pytest.approx([line["accuracy"] for line in theirs])


def test_gradients_are_those_of_trl_for_the_same_batch(start, tmp_path):
    rows = [{**row, "margin": 0.5} for row in planted(4)]
    options = {"center_rewards_coefficient": 0.05}
    trainer = trainer_of(start, tmp_path, rows, **options)
    batch = next(iter(trainer.get_train_dataloader()))
    loss = trainer.compute_loss(trainer.model, batch)
    loss.backward()
    theirs = {name: parameter.grad for name, parameter in trainer.model.named_parameters()}

    split = load_unadmitted(write_jsonl(tmp_path / "pairs.jsonl", rows), "preference")
    config = from_mapping(RewardConfig, {"max_length": 512, **options})
    rankings = render_rankings(split, Renderer(load_tokenizer(str(start))), config).rankings
    model = load_reward_model(str(start)).requires_grad_(True)
    bounds = Bounds.of(rankings, 4)
    run_micro_batch = reward_micro_batch(model, placement("cpu"), config, bounds, 0)
    found = run_micro_batch(rows_of(rankings), inputs(rankings, bounds, 1 / 4))
    assert float(found["loss"]) == pytest.approx(loss.item(), abs=1e-6)
    ours = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert ours.keys() == theirs.keys()
    for name, gradient in ours.items():
        torch.testing.assert_close(gradient, theirs[name], rtol=1e-3, atol=1e-6)
    assert float(ours["score.weight"].abs().max()) > 0


def test_trl_reads_the_padding_of_a_saved_run_and_gets_its_rewards(tiny, tmp_path):
    """A tokenizer whose padding ends the rows: read with it, TRL would take the reward of the token before."""
    folder = shutil.copytree(tiny, tmp_path / "same")
    tokenizer = load_tokenizer(str(folder))
    tokenizer.chat_template = tokenizer.chat_template.replace("{%- endgeneration %}{{- '\n' }}", "{%- endgeneration %}")
    tokenizer.pad_token = tokenizer.eos_token
    tokenizer.save_pretrained(folder)
    rows = planted(8)
    split = load_unadmitted(write_jsonl(tmp_path / "pairs.jsonl", rows), "preference")
    result, lines = run(folder, split, tmp_path / "ours", max_steps=2, use_peft=False, eval_split=split)
    saved = Path(result.body["checkpoint"]["path"])
    trainer = trainer_of(saved, tmp_path, rows)
    trainer.args.per_device_eval_batch_size = 8
    theirs = trainer.evaluate(Dataset.from_list(rows))
    assert trainer.model.config.pad_token_id != tokenizer.eos_token_id
    for name in ("eval_loss", "eval_mean_reward", "eval_margin"):
        assert theirs[name] == pytest.approx(lines[-1][name], abs=1e-5), name
