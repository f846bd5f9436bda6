"""KTO: the loss by hand, mismatched rows, what was planted is learned, steps and resumes are exact."""

from __future__ import annotations

import json
import math
import os
import signal

import numpy as np
import pytest
import torch
from train_cases import chat, preferences, write_jsonl

from lpt_train.admitted import load_unadmitted
from lpt_train.checkpoint_folders import latest
from lpt_train.config import from_mapping
from lpt_train.config_kto import KTOConfig
from lpt_train.kto import train
from lpt_train.losses.kto import kl_estimate, kto
from lpt_train.render_pairs import mismatched, render_completions
from manifests.errors import RefusedError


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def test_by_hand():
    ratio, good = torch.tensor([2.0, 2.0, -1.0]), torch.tensor([True, False, False])
    found = kto(ratio, good, torch.tensor(0.5), beta=0.4, desirable_weight=2.0, undesirable_weight=3.0)
    by_hand = [2 * (1 - sigmoid(0.4 * 1.5)), 3 * (1 - sigmoid(-0.4 * 1.5)), 3 * (1 - sigmoid(0.4 * 1.5))]
    assert found.tolist() == pytest.approx(by_hand)
    assert float(kl_estimate(torch.tensor([1.0, 2.0]))) == 1.5
    assert float(kl_estimate(torch.tensor([1.0, -2.0]))) == 0  # a distance is not negative
    assert not kl_estimate(torch.ones(2, requires_grad=True)).requires_grad


def test_a_prompt_gets_the_completion_of_another_prompt(renderer):
    rendered = render_completions(preferences(3), renderer, max_length=200)
    assert [completion.desirable for completion in rendered.completions] == [True, False] * 3
    rows = mismatched(rendered.completions, np.arange(6), 200)
    decode = renderer.tokenizer.decode
    for completion, row in zip(rendered.completions, rows, strict=True):
        prompt = completion.row.ids[: completion.prompt_tokens]
        assert row.ids[: len(prompt)].tolist() == prompt.tolist()
        assert not row.loss_mask[: len(prompt)].any()
    # Row 0 and 1 ask the same, so both take the answer of the next prompt.
    answers = [decode(row.ids[row.loss_mask.astype(bool)]) for row in rows]
    assert answers[0] == answers[1] == "it is 1<|im_end|>"
    with pytest.raises(RefusedError, match="all prompts are the same"):
        mismatched(rendered.completions[:2], np.arange(2), 200)


def test_one_class_alone_is_refused(renderer):
    rows = [{"prompt": chat(f"q{n}"), "completion": chat("", "yes")[1:], "label": True} for n in range(3)]
    with pytest.raises(RefusedError, match="good and bad"):
        render_completions(rows, renderer, max_length=200)
    both = render_completions([*rows, {**rows[0], "label": False}], renderer, max_length=200)
    assert both.to_json()["desirable"] == 3


def run(tiny, tmp_path, name, **options):
    split = load_unadmitted(write_jsonl(tmp_path / "pairs.jsonl", preferences(12)), "preference")
    defaults = {"max_steps": 8, "learning_rate": 1e-2, "per_device_train_batch_size": 8, "lora_r": 4, "beta": 0.5}
    arguments = {key: options.pop(key) for key in ("resume", "progress", "eval_split") if key in options}
    config = from_mapping(KTOConfig, {"model": str(tiny), **defaults, **options})
    result = train(config, split=split, out=tmp_path / name, **arguments)
    return result, [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("use_peft", [True, False])
def test_it_starts_at_one_half_and_learns_the_labels(tiny, tmp_path, use_peft):
    result, lines = run(tiny, tmp_path, "run", use_peft=use_peft, max_steps=20, learning_rate=5e-3)
    assert lines[0]["loss"] == pytest.approx(0.5, abs=1e-4)  # no log-ratio yet, so every sigmoid is at its middle
    assert lines[0]["kl"] == pytest.approx(0, abs=1e-4)
    assert lines[-1]["loss"] < 0.3
    assert lines[-1]["rewards/margins"] > 1
    assert result.body["data"]["desirable"] == 12


def test_a_step_is_the_same_however_it_is_cut(tiny, tmp_path):
    whole = run(tiny, tmp_path, "whole")[1]
    cut = run(tiny, tmp_path, "cut", per_device_train_batch_size=2, gradient_accumulation_steps=4)[1]
    for name in ("loss", "kl", "rewards/margins", "grad_norm"):
        assert [line[name] for line in cut] == pytest.approx([line[name] for line in whole], rel=1e-3, abs=1e-4), name


def test_resume_is_bit_exact(tiny, tmp_path):
    run(tiny, tmp_path, "whole")

    def terminate(done, _total, _metrics):
        if done == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    run(tiny, tmp_path, "halves", progress=terminate)
    run(tiny, tmp_path, "halves", resume=True)
    one, two = (latest(tmp_path / name / "checkpoints") for name in ("whole", "halves"))
    for path in one.glob("*.safetensors"):
        assert path.read_bytes() == (two / path.name).read_bytes(), path.name


def test_classes_out_of_balance_are_told(tiny, tmp_path):
    assert not any("weigh" in note for note in run(tiny, tmp_path, "even", max_steps=1)[0].notes)
    assert any(
        "weigh 2.00 to 1" in note for note in run(tiny, tmp_path, "off", max_steps=1, desirable_weight=2)[0].notes
    )


def test_it_measures_on_an_evaluation_split(tiny, tmp_path):
    held_out = load_unadmitted(write_jsonl(tmp_path / "held.jsonl", preferences(20)[12:]), "preference")
    found = {}
    for size in (3, 16):
        result, lines = run(
            tiny, tmp_path, f"run{size}", eval_split=held_out, eval_steps=4, per_device_eval_batch_size=size,
            lora_dropout=0.1, per_device_train_batch_size=4,
        )  # fmt: skip
        assert result.body["eval"] == held_out.identity
        found[size] = [line for line in lines if "eval_loss" in line]
    assert [line["step"] for line in found[3]] == [0, 4, 8]
    first, *_, last = found[3]
    assert first["eval_loss"] == pytest.approx(0.5, abs=1e-4)  # before the first step it is the reference itself
    assert first["eval_kl"] == pytest.approx(0, abs=1e-4)
    assert last["eval_loss"] < 0.49
    assert last["eval_rewards/margins"] > 0
    for one, other in zip(found[3], found[16], strict=True):  # however it is cut
        measured = {name: value for name, value in one.items() if name.startswith("eval_")}
        assert measured == pytest.approx({name: other[name] for name in measured}, abs=1e-5)
    rows = [{"prompt": chat("q"), "completion": chat("", "yes")[1:], "label": True}]
    one_class = load_unadmitted(write_jsonl(tmp_path / "one.jsonl", rows), "kto")
    with pytest.raises(RefusedError, match="good and bad"):
        run(tiny, tmp_path, "refused", eval_split=one_class)
