"""Training on pairs: where it starts, that it learns what was planted, resume, and what is dropped."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal

import numpy as np
import pytest
import torch
from test_render import LLAMA3, bpe
from train_cases import chat, chats, preferences, write_jsonl

from lpt_train.adapters import load_for_training
from lpt_train.admitted import load_unadmitted
from lpt_train.checkpoint_folders import latest
from lpt_train.config import from_mapping
from lpt_train.config_lora import Lora
from lpt_train.config_preference import PreferenceConfig
from lpt_train.losses.preference import LOSSES
from lpt_train.micro_batch import MicroBatch
from lpt_train.models import load_tokenizer, placement
from lpt_train.packing import Row
from lpt_train.preference import train
from lpt_train.render import Renderer
from lpt_train.render_pairs import render_completions, render_pairs
from lpt_train.steps import completions_id
from manifests.errors import RefusedError, UsageError


@pytest.fixture
def pairs(tmp_path):
    return load_unadmitted(write_jsonl(tmp_path / "pairs.jsonl", preferences(16)), "preference")


def run(tiny, split, out, **options):
    defaults = {"max_steps": 8, "learning_rate": 1e-2, "per_device_train_batch_size": 4, "lora_r": 4}
    arguments = {name: options.pop(name) for name in ("resume", "progress", "eval_split") if name in options}
    config = from_mapping(PreferenceConfig, {"model": str(tiny), **defaults, **options})
    result = train(config, split=split, out=out, **arguments)
    return result, [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("use_peft", [True, False])
def test_the_reference_is_the_start_and_the_planted_side_wins(tiny, pairs, tmp_path, use_peft):
    rate = {} if use_peft else {"learning_rate": 3e-3}
    result, lines = run(tiny, pairs, tmp_path / "run", use_peft=use_peft, max_steps=20, **rate)
    assert lines[0]["loss"] == pytest.approx(math.log(2), abs=1e-5)
    assert lines[0]["rewards/margins"] == pytest.approx(0, abs=1e-4)
    assert lines[-1]["rewards/accuracies"] == 1
    assert lines[-1]["loss"] < 0.4
    assert result.body["proof"]["verdict"] == "effective"
    assert result.body["algorithm"] == "dpo"


@pytest.mark.parametrize(
    ("loss", "seen"),
    [("sigmoid", [(0, 4), (1, 4), (2, 4), (3, 4), (4, 4), (0, 2), (1, 2), (2, 2)]), ("orpo", [])],
)
def test_how_far_the_reference_is_is_told_where_there_is_one(tiny, pairs, tmp_path, loss, seen):
    told = []

    def progress(*step):
        pass

    progress.watch = lambda done, total, label: told.append((done, total, label))
    run(tiny, pairs, tmp_path / "run", loss_type=loss, max_steps=4, progress=progress, eval_split=pairs)
    assert told == [(*at, "batches of the reference") for at in seen]


def test_a_batch_of_the_reference_is_told_as_it_is_done(monkeypatch, tiny, pairs, tmp_path):
    events = []
    score = MicroBatch.row_logprobs
    monkeypatch.setattr(MicroBatch, "row_logprobs", lambda *asked: (events.append("computed"), score(*asked))[1])

    def progress(*step):
        pass

    progress.watch = lambda done, total, label: events.append(done)
    run(tiny, pairs, tmp_path / "run", max_steps=2, progress=progress)
    assert events[:5] == [0, "computed", 1, "computed", 2]


@pytest.mark.parametrize(("loss", "algorithm"), [("simpo", "simpo"), ("cpo", "cpo"), ("orpo", "orpo")])
def test_losses_without_a_reference_learn_too(tiny, pairs, tmp_path, loss, algorithm):
    result, lines = run(tiny, pairs, tmp_path / "run", loss_type=loss, max_steps=20)
    assert result.body["algorithm"] == algorithm
    assert lines[-1]["loss"] < lines[0]["loss"]
    assert lines[-1]["rewards/margins"] > lines[0]["rewards/margins"]
    assert "reference" not in result.body
    assert not (tmp_path / ".lpt" / "references").exists()


@pytest.mark.parametrize("loss", ["sigmoid", "cpo", "ipo"])
def test_a_step_is_the_same_however_it_is_cut(tiny, pairs, tmp_path, loss):
    whole = run(tiny, pairs, tmp_path / "whole", loss_type=loss)[1]
    cut = run(
        tiny, pairs, tmp_path / "cut", loss_type=loss, per_device_train_batch_size=1, gradient_accumulation_steps=4
    )[1]
    names = ("loss", "rewards/margins", "logps/chosen", "grad_norm", *(["kl_k1"] if loss != "cpo" else []))
    for name in names:
        assert [line[name] for line in cut] == pytest.approx([line[name] for line in whole], rel=1e-3, abs=1e-4), name
    assert ("kl_k1" in whole[-1]) is (loss != "cpo")


@pytest.mark.parametrize("name", LOSSES)
def test_kl_is_the_mean_log_ratio_of_both_replies_and_logged_where_there_is_a_reference(tiny, pairs, tmp_path, name):
    smoothing = {"label_smoothing": 0.1} if name == "robust" else {}
    options = {"loss_type": name, "max_steps": 8, "eval_split": pairs, "per_device_eval_batch_size": 3}
    lines = run(tiny, pairs, tmp_path / "run", **options, **smoothing, lr_scheduler_type="constant")[1]
    if not LOSSES[name].reference:
        assert not any("kl" in key for line in lines for key in line)
        return
    assert lines[0]["eval_kl_k1"] == pytest.approx(0, abs=1e-4)
    assert lines[1]["kl_k1"] == pytest.approx(0, abs=1e-4)
    # The start is measured over all pairs, so what has become of their log-probs is what the mean log-ratio is.
    change = [(lines[-1][f"eval_logps/{side}"] - lines[0][f"eval_logps/{side}"]) for side in ("chosen", "rejected")]
    assert lines[-1]["eval_kl_k1"] == pytest.approx(sum(change) / 2, abs=1e-3)
    assert abs(sum(change)) > 0.05
    for line in lines[1:]:
        rewards = line["rewards/chosen"] + line["rewards/rejected"]
        assert line["kl_k1"] == pytest.approx(rewards / 2 / LOSSES[name].beta, abs=1e-4)


@pytest.mark.parametrize("use_peft", [True, False])
def test_resume_is_bit_exact(tiny, pairs, tmp_path, use_peft):
    run(tiny, pairs, tmp_path / "whole", use_peft=use_peft, eval_split=pairs)

    def terminate(done, _total, _metrics):
        if done == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    run(tiny, pairs, tmp_path / "halves", use_peft=use_peft, progress=terminate, eval_split=pairs)
    shutil.rmtree(tmp_path / ".lpt" / "references")  # computed again from the start model, not from the checkpoint
    run(tiny, pairs, tmp_path / "halves", use_peft=use_peft, resume=True, eval_split=pairs)
    one, two = (latest(tmp_path / name / "checkpoints") for name in ("whole", "halves"))
    for path in one.glob("*.safetensors"):
        assert path.read_bytes() == (two / path.name).read_bytes(), path.name


def test_evaluation_is_the_mean_over_the_pairs(tiny, pairs, tmp_path):
    result, lines = run(tiny, pairs, tmp_path / "run", eval_split=pairs, per_device_eval_batch_size=3, max_steps=12)
    assert result.body["eval"] == pairs.identity
    assert lines[0]["step"] == 0
    assert lines[0]["eval_loss"] == pytest.approx(math.log(2), abs=1e-5)
    assert lines[-1]["eval_rewards/accuracies"] == 1
    assert lines[-1]["eval_loss"] < 0.5


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("training", [True, False])
def test_the_start_is_read_without_dropout_and_leaves_the_model_as_it_was(tiny, dropout, training):
    model = load_for_training(str(tiny), Lora(lora_r=4, lora_dropout=dropout), placement("cpu"))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.3)
    run_micro_batch = MicroBatch(
        model, placement("cpu"), lambda logp_N, batch, extras: (logp_N.sum(), {}), execution="eager", longest=64,
        most_tokens=128, most_rows=4, pad_id=0,
    )  # fmt: skip
    rows = [Row(n, np.arange(5, 15 + n, dtype=np.int32), np.ones(10 + n, np.uint8)) for n in range(3)]
    model.train(training)
    found = [run_micro_batch.start_logprobs([rows], score)[0] for score in (
        run_micro_batch.row_logprobs, run_micro_batch.row_logprobs, run_micro_batch.plain_logprobs
    )]  # fmt: skip
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    assert found[0].shape == (3,)
    assert not found[0].requires_grad
    assert model.training is training


def test_both_sides_share_the_prompt_and_only_completions_count(renderer):
    record = {
        "prompt": chat("hi", "hello", "and now?"),
        "chosen": chat("", "this")[1:],
        "rejected": chat("", "that one")[1:],
    }
    (pair,) = render_pairs([record], renderer, max_length=200).pairs
    prompt = renderer.encode_prompt(record["prompt"])
    for row, text in ((pair.chosen, "this"), (pair.rejected, "that one")):
        assert row.ids[: len(prompt)].tolist() == prompt
        counted = row.ids[row.loss_mask.astype(bool)]
        assert renderer.tokenizer.decode(counted) == text + "<|im_end|>"  # not the earlier answer
    assert not np.array_equal(pair.chosen.ids, pair.rejected.ids)


def test_sides_and_completions_that_are_cut_are_counted(renderer):
    record = {"prompt": chat("q"), "chosen": chat("", "a" * 90)[1:], "rejected": chat("", "no")[1:]}
    lost = 90 + 1 - (60 - len(renderer.encode_prompt(chat("q"))))
    cut = {"rows": 1, "without_stop": 1, "supervised_tokens": lost}
    for rendered in (
        render_pairs([record], renderer, max_length=60, truncation="keep_start"),
        render_completions([record], renderer, max_length=60, truncation="keep_start"),
    ):
        told = rendered.to_json()
        assert told["cut"] == cut
        assert told["supervised_share"] == round(told["supervised_tokens"] / told["tokens"], 4)
        assert told["supervised_tokens"] == 90 + 1 - lost + 3


def test_both_sides_of_a_pair_are_the_tokens_of_the_whole_conversation():
    """By a tokenizer whose tokens may cross the boundary: a side that does is no pair."""
    special = ["<|begin|>", "<|start|>", "<|end|>", "<|eot|>"]
    untrimmed, trimmed = (
        Renderer(bpe(template, special, bos="<|begin|>", lines=True))
        for template in (LLAMA3.replace(" | trim", ""), LLAMA3)
    )
    prompt = chat("what is the answer")
    record = {"prompt": prompt, "chosen": chat("", "the answer is yes")[1:], "rejected": chat("", "yes")[1:]}
    merging = {**record, "rejected": chat("", "\nyes")[1:]}
    for renderer in (trimmed, untrimmed):
        (pair,) = render_pairs([record], renderer, max_length=200).pairs
        for row, name in ((pair.chosen, "chosen"), (pair.rejected, "rejected")):
            assert row.ids.tolist() == renderer.encode([*prompt, *record[name]]).ids
    assert render_pairs([record, merging], untrimmed, max_length=200).dropped == {"prompt_not_a_prefix": 1}


def test_another_template_is_another_id_of_what_is_trained_on(tiny, pairs):
    """The kept log-probs of the reference go by it, and a run is not taken up under another."""
    tokenizer = load_tokenizer(str(tiny))
    limits = {"max_length": 64, "truncation": "drop"}
    found = {completions_id(pairs, Renderer(tokenizer), **limits)}
    tokenizer.chat_template = tokenizer.chat_template.replace("user", "asker") + " "
    found.add(completions_id(pairs, Renderer(tokenizer), **limits))
    assert len(found) == 2


def test_a_kept_reference_is_not_taken_once_the_template_has_changed(tiny, pairs, tmp_path):
    folder = shutil.copytree(tiny, tmp_path / "model")
    tokenizer = load_tokenizer(str(folder))
    before = run(folder, pairs, tmp_path / "run", max_steps=1, lr_scheduler_type="constant")[0].body
    tokenizer.chat_template = tokenizer.chat_template.replace("{%- endgeneration %}{{- '\n' }}", "{%- endgeneration %}")
    tokenizer.save_pretrained(folder)
    with pytest.raises(RefusedError):
        run(folder, pairs, tmp_path / "run", max_steps=2, lr_scheduler_type="constant", resume=True)
    after = run(folder, pairs, tmp_path / "fresh", max_steps=1, lr_scheduler_type="constant")[0].body
    assert before["reference"]["train"]["key"] != after["reference"]["train"]["key"]
    assert after["reference"]["train"]["reused"] is False


def test_what_cannot_be_compared_is_dropped_under_its_reason(renderer):
    def record(prompt, chosen, rejected):
        return {"prompt": chat(prompt), "chosen": chat("", chosen)[1:], "rejected": chat("", rejected)[1:]}

    good, same_start = record("q", "yes", "no"), record("q", "a" * 90 + "b", "a" * 90 + "c")
    long_prompt = record("q" * 90, "yes", "no")
    rendered = render_pairs([good, same_start, long_prompt], renderer, max_length=80, truncation="keep_start")
    assert [pair.chosen.index for pair in rendered.pairs] == [0]
    assert rendered.dropped == {"identical_after_truncation": 1, "no_supervised_token": 1}
    assert render_pairs([good, same_start], renderer, max_length=80).dropped == {"too_long": 1}
    with pytest.raises(RefusedError, match="no pair"):
        render_pairs([same_start], renderer, max_length=80)


def test_splits_of_other_contracts_are_refused(tiny, tmp_path):
    split = load_unadmitted(write_jsonl(tmp_path / "chats.jsonl", chats(4)), "sft")
    with pytest.raises(RefusedError, match="not for preference"):
        run(tiny, split, tmp_path / "run")


@pytest.mark.parametrize(
    "options",
    [{"beta": 0}, {"label_smoothing": 0.5}, {"loss_type": "robust"}, {"loss_type": "dpo"}, {"execution": "fast"}],
)
def test_options_that_make_no_sense_are_refused(options):
    with pytest.raises(UsageError):
        from_mapping(PreferenceConfig, options)
