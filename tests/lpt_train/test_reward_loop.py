"""Training a reward model: what it learns, what it must not depend on, controls, reports, resume and bad input."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
from html.parser import HTMLParser

import pytest
import torch
from reward_cases import planted, ranked, run
from train_cases import admit_by_hand, chats, write_jsonl

import lpt_train.checkpoint
from lpt_train.admitted import load_split, load_unadmitted
from lpt_train.checkpoint import read_provenance
from lpt_train.checkpoint_folders import latest
from lpt_train.export import export
from lpt_train.models import load_tokenizer
from lpt_train.packing import epoch_order, units_at
from lpt_train.reward_head import has_reward_head
from lpt_train.reward_model import load_reward_model
from lpt_train.reward_scores import RewardModel
from lpt_train.tiny import STOP, make_tiny
from manifests.catalog import Catalog
from manifests.errors import BadInputError, LptError, RefusedError
from manifests.sql import query


def split_of(tmp_path, rows, name="pairs"):
    return load_unadmitted(write_jsonl(tmp_path / f"{name}.jsonl", rows), "preference")


@pytest.fixture
def pairs(tmp_path):
    return split_of(tmp_path, planted(24))


@pytest.fixture(scope="module")
def learned(tiny, tmp_path_factory):
    """Two runs that differ in their labels alone: as planted, and half of them flipped; measured on hidden pairs."""
    folder = tmp_path_factory.mktemp("learned")
    train_on, hidden = split_of(folder, planted(160)), split_of(folder, planted(120, seed=1), "hidden")
    settings = {"max_steps": 60, "learning_rate": 3e-3, "per_device_train_batch_size": 16, "lora_r": 8,
                "eval_split": hidden, "logging_steps": 20}  # fmt: skip
    return {
        share: run(
            tiny, train_on, folder / f"run{share}", flip_labels=share, catalog=Catalog.open(folder / ".lpt"), **settings
        )
        for share in (0.0, 0.5)
    }


def test_an_export_is_recorded_and_none_is_made_of_a_damaged_checkpoint(tiny, pairs, tmp_path):
    catalog = Catalog.open(tmp_path / ".lpt")
    result, _ = run(tiny, pairs, tmp_path / "run", max_steps=1, lora_r=2, catalog=catalog)
    made = export(str(tmp_path / "run"), tmp_path / "whole", catalog=catalog)
    assert made.notes == ["this export is marked: it was trained on data that was not admitted"]
    ((name, body),) = catalog.find("lpt.export/1")
    assert (made.object_id, body["digest"]) == (name, made.body["digest"])
    assert (body["run_id"], body["checkpoint_sha256"]) == (result.run_id, result.body["checkpoint"]["sha256"])
    assert body["parents"] == [result.object_id]
    weights = latest(tmp_path / "run" / "checkpoints") / "adapter_model.safetensors"
    spoiled = bytearray(weights.read_bytes())
    spoiled[-3] ^= 1  # still a number
    weights.write_bytes(spoiled)
    with pytest.raises(BadInputError, match="a checkpoint is damaged"):
        export(str(tmp_path / "run"), tmp_path / "again", catalog=catalog)
    assert not (tmp_path / "again").exists()
    assert not list(tmp_path.glob(".tmp*"))


def test_a_planted_preference_is_learned_and_holds_on_hidden_pairs(learned):
    result, lines = learned[0.0]
    assert lines[0]["eval_accuracy"] < 0.8
    assert lines[-1]["eval_accuracy"] >= 0.9
    assert lines[-1]["eval_margin"] > 1
    assert result.body["reward_model"]["accuracy"] == pytest.approx(lines[-1]["eval_accuracy"])
    assert result.body["proof"]["verdict"] == "effective"
    assert result.body["verdict"] == "unadmitted"
    assert "control" not in result.body


def test_half_of_the_labels_flipped_leaves_chance_on_hidden_pairs(learned):
    result, _ = learned[0.5]
    measured = result.body["reward_model"]
    assert measured["pairs"] == 120
    assert 0.3 <= measured["accuracy"] <= 0.7
    assert learned[0.0][0].body["reward_model"]["accuracy"] - measured["accuracy"] > 0.2


def test_a_control_is_marked_and_so_is_everything_made_from_it(learned):
    result, _ = learned[0.5]
    body = result.body
    assert body["verdict"] == "control"
    assert body["control"]["flip_labels"] == 0.5
    assert 50 <= body["control"]["flipped"] <= 110
    assert body["tainted"]
    checkpoint = latest(result.path / "checkpoints")
    assert read_provenance(checkpoint)["tainted"]
    assert body["config"]["flip_labels"] == 0.5


def test_a_control_on_admitted_rows_is_marked_too(tiny, tmp_path):
    catalog = Catalog.open(tmp_path / ".lpt")
    name = admit_by_hand(catalog, "preference", {"train": planted(8), "test": planted(8, seed=1)}, name="pairs")
    split = load_split(f"{name}:train", catalog=catalog)
    marked, _ = run(tiny, split, tmp_path / "control", max_steps=1, flip_labels=0.5, catalog=catalog)
    plain, _ = run(tiny, split, tmp_path / "plain", max_steps=1, catalog=catalog)
    assert (marked.body["tainted"], marked.body["verdict"]) == (True, "control")
    assert (plain.body["tainted"], plain.body["verdict"]) == (False, "accept")
    rows = query(catalog, "SELECT run_id, tainted FROM v_run").rows
    assert {row[0]: row[1] for row in rows} == {marked.run_id: True, plain.run_id: False}
    with pytest.raises(RefusedError, match="test split"):
        run(tiny, load_split(f"{name}:test", catalog=catalog), tmp_path / "measured", max_steps=1)


def test_calibration_is_recorded_and_drawn(learned):
    result, _ = learned[0.0]
    body = json.loads((result.path / "reward.json").read_text())
    assert body["status"] == "measured"
    assert sum(one["n"] for one in body["calibration"]["bins"]) == 120
    assert 0 <= body["calibration"]["ece_equal_mass"] <= 0.5
    assert body["calibration"]["brier"] < 0.25
    assert body["accuracy_low"] < body["accuracy"] <= body["accuracy_high"]
    assert abs(body["length"]["longer_is_chosen"] - 0.5) < 0.25
    assert body["position"]["largest_difference"] < 1e-4
    assert body["position"]["decisions_changed"] == 0
    assert result.body["reward_model"]["calibration"]["brier"] == body["calibration"]["brier"]
    assert "bins" not in result.body["reward_model"]["calibration"]  # numbers that grow stay in the file
    page = (result.path / "reward.html").read_text()
    assert "default-src &#39;none&#39;" in page
    assert page.count("<rect") >= len(body["calibration"]["bins"])


class Tags(HTMLParser):
    def __init__(self, page):
        super().__init__()
        self.found = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.found.append(tag)
        assert not any(name.startswith("on") or name in ("src", "href") for name, _ in attrs)


def test_names_in_the_page_are_text(tiny, tmp_path):
    hostile = split_of(tmp_path, planted(8), "<script>alert(1)<h1 onload=x>")
    result, _ = run(tiny, hostile, tmp_path / "run", max_steps=1, eval_split=hostile)
    page = (result.path / "reward.html").read_text()
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert Tags(page).found.count("h1") == 1


def test_without_evaluation_pairs_nothing_is_green(tiny, pairs, tmp_path):
    result, _ = run(tiny, pairs, tmp_path / "run", max_steps=1)
    assert result.body["reward_model"]["status"] == "skipped"
    assert any("not calibrated" in note for note in result.notes)
    assert not (tmp_path / "run" / "reward.html").exists()


@pytest.mark.parametrize("ranking", ["pairs", "prompts", "plackett_luce"])
def test_a_step_is_the_same_however_it_is_cut(tiny, tmp_path, ranking):
    split = split_of(tmp_path, ranked(8))
    whole = run(tiny, split, tmp_path / "whole", ranking=ranking)[1]
    cut = run(
        tiny, split, tmp_path / "cut", ranking=ranking, per_device_train_batch_size=1, gradient_accumulation_steps=4
    )[1]
    for name in ("loss", "accuracy", "margin", "mean_reward", "min_reward", "max_reward", "grad_norm"):
        assert [line[name] for line in cut] == pytest.approx([line[name] for line in whole], rel=1e-3, abs=1e-4), name


def test_a_prompt_weighs_one_however_many_pairs_it_has(tiny, tmp_path):
    """Rankings of prompts: the loss of a step is the mean over prompts of the mean over their pairs."""
    rows = ranked(2, answers=4)  # six pairs each …
    few = [row for row in rows if row["prompt"] != rows[0]["prompt"]] + rows[:1]  # … and one with a single pair
    split = split_of(tmp_path, few)
    _, (line,) = run(tiny, split, tmp_path / "run", max_steps=1, ranking="prompts", per_device_train_batch_size=2)
    _, lines = run(
        tiny, split, tmp_path / "each", max_steps=7, per_device_train_batch_size=1, learning_rate=0, logging_steps=1
    )
    order = units_at(0, 7, units=7, seed=42)
    losses = [next(one["loss"] for one, unit in zip(lines, order, strict=True) if unit == pair) for pair in range(7)]
    assert line["loss"] == pytest.approx((sum(losses[:6]) / 6 + losses[6]) / 2, abs=1e-5)


def test_whole_rankings_are_learned(tiny, tmp_path):
    split = split_of(tmp_path, ranked(12))
    for ranking in ("prompts", "plackett_luce"):
        _, lines = run(tiny, split, tmp_path / ranking, ranking=ranking, max_steps=30, learning_rate=3e-3)
        assert lines[-1]["accuracy"] == pytest.approx(1)
        assert lines[-1]["loss"] < lines[0]["loss"] / 2


def test_margins_ask_for_more_than_an_order(tiny, tmp_path):
    rows = planted(8)
    plain = run(tiny, split_of(tmp_path, rows), tmp_path / "plain", max_steps=1, per_device_train_batch_size=8)[1]
    wide = split_of(tmp_path, [{**row, "margin": 2} for row in rows], "wide")
    result, lines = run(tiny, wide, tmp_path / "wide", max_steps=1, per_device_train_batch_size=8)
    assert result.body["data"]["margins"]
    assert lines[0]["margin"] == pytest.approx(plain[0]["margin"], abs=1e-5)
    assert plain[0]["loss"] == pytest.approx(math.log(2), abs=0.05)
    assert lines[0]["loss"] == pytest.approx(math.log1p(math.exp(2)), abs=0.1)


def test_centred_rewards_stay_near_zero(tiny, pairs, tmp_path):
    options = {"max_steps": 20, "learning_rate": 3e-3}
    free = run(tiny, pairs, tmp_path / "free", **options)[1]
    held = run(tiny, pairs, tmp_path / "held", center_rewards_coefficient=1.0, **options)[1]
    assert abs(held[-1]["mean_reward"]) < 0.1
    assert held[0]["loss"] > free[0]["loss"]


@pytest.mark.parametrize("use_peft", [True, False])
def test_resume_is_bit_exact(tiny, pairs, tmp_path, use_peft):
    whole, _ = run(tiny, pairs, tmp_path / "whole", use_peft=use_peft, eval_split=pairs)

    def terminate(done, _total, _metrics):
        if done == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    half, _ = run(tiny, pairs, tmp_path / "halves", use_peft=use_peft, progress=terminate, eval_split=pairs)
    assert half.status == "stopped"
    assert half.body["reward_model"]["status"] == "skipped"
    again, _ = run(tiny, pairs, tmp_path / "halves", use_peft=use_peft, resume=True, eval_split=pairs)
    one, two = (latest(tmp_path / name / "checkpoints") for name in ("whole", "halves"))
    for path in one.glob("*.safetensors"):
        assert path.read_bytes() == (two / path.name).read_bytes(), path.name
    assert again.body["reward_model"] == whole.body["reward_model"]


def test_resume_with_other_rows_or_labels_is_refused(tiny, pairs, tmp_path):
    run(tiny, pairs, tmp_path / "run", max_steps=2)
    with pytest.raises(RefusedError):
        run(tiny, split_of(tmp_path, planted(24, seed=5), "other"), tmp_path / "run", max_steps=2, resume=True)
    with pytest.raises(RefusedError, match="flip_labels"):
        run(tiny, pairs, tmp_path / "run", max_steps=2, flip_labels=0.5, resume=True)


def test_a_kill_while_a_checkpoint_is_written_leaves_one_to_go_on_from(tiny, pairs, tmp_path, monkeypatch):
    written = lpt_train.checkpoint.put_in_place

    def killed(temporary, final, *more):
        if final.name == "step-000004":
            os.kill(os.getpid(), signal.SIGKILL)
        return written(temporary, final, *more)

    monkeypatch.setattr(lpt_train.checkpoint, "put_in_place", killed)
    out = tmp_path / "run"
    child = os.fork()
    if child == 0:
        run(tiny, pairs, out, save_steps=2)
        os._exit(1)  # not reached
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    monkeypatch.setattr(lpt_train.checkpoint, "put_in_place", written)
    assert latest(out / "checkpoints").name == "step-000002"
    run(tiny, pairs, out, save_steps=2, resume=True)
    run(tiny, pairs, tmp_path / "whole", save_steps=2)
    one, two = (latest(folder / "checkpoints") / "adapter_model.safetensors" for folder in (out, tmp_path / "whole"))
    assert one.read_bytes() == two.read_bytes()


def test_a_run_goes_on_from_a_reward_model(tiny, pairs, tmp_path):
    first, lines = run(tiny, pairs, tmp_path / "first", eval_split=pairs)
    assert first.body["eval"] == pairs.identity
    _, more = run(tmp_path / "first", pairs, tmp_path / "second", max_steps=1, eval_split=pairs)
    assert more[0]["eval_loss"] == pytest.approx(lines[-1]["eval_loss"], abs=1e-4)
    assert has_reward_head(str(latest(first.path / "checkpoints")))


def test_a_head_trains_over_a_base_in_four_bits_and_the_saved_model_is_the_trained_one(pairs, tmp_path):
    pytest.importorskip("bitsandbytes")
    wide = make_tiny(tmp_path / "wide", hidden=64, layers=1, heads=2)
    first, lines = run(wide, pairs, tmp_path / "first", load_in_4bit=True, max_steps=3, eval_split=pairs)
    assert first.body["proof"]["verdict"] == "effective"
    _, more = run(tmp_path / "first", pairs, tmp_path / "second", max_steps=1, eval_split=pairs)
    assert more[0]["eval_loss"] == pytest.approx(lines[-1]["eval_loss"], abs=1e-4)


def test_padding_that_equals_the_end_changes_no_reward(tiny, pairs, tmp_path):
    """Rows of this template end with the stop token, which is made the padding, too."""
    folder = shutil.copytree(tiny, tmp_path / "same")
    tokenizer = load_tokenizer(str(folder))
    tokenizer.chat_template = tokenizer.chat_template.replace("{%- endgeneration %}{{- '\n' }}", "{%- endgeneration %}")
    tokenizer.save_pretrained(folder)
    apart, lines = run(folder, pairs, tmp_path / "apart", max_steps=3)
    tokenizer.pad_token = STOP
    tokenizer.save_pretrained(folder)
    same, again = run(folder, pairs, tmp_path / "equal", max_steps=3)
    assert [line["loss"] for line in again] == [line["loss"] for line in lines]
    assert any("padding of the saved tokenizer" in note for note in same.notes)
    assert not any("padding" in note for note in apart.notes)
    saved = load_tokenizer(str(latest(same.path / "checkpoints")))
    assert saved.pad_token != STOP
    assert saved.eos_token == STOP


def test_weights_that_go_astray_are_not_saved(tiny, pairs, tmp_path):
    with pytest.raises(LptError, match="not finite"):
        run(tiny, pairs, tmp_path / "run", max_steps=40, learning_rate=1e30, max_grad_norm=0)
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "failed"


def test_a_batch_that_would_spoil_the_weights_is_set_aside_by_name(tiny, tmp_path):
    """A margin that someone typed with six zeros too many, in step 12 of 16."""
    rows = [{**row, "margin": 0.0} for row in planted(32)]
    spoiled = int(epoch_order(32, 42, 0)[22])
    rows[spoiled]["margin"] = 1e6
    split = split_of(tmp_path, rows)
    result, _ = run(tiny, split, tmp_path / "run", max_steps=16, per_device_train_batch_size=2, spike_guard=True)
    (entry,) = [json.loads(line) for line in (tmp_path / "run" / "quarantine.jsonl").read_text().splitlines()]
    assert entry["reason"] == "loss_spike"
    assert split.record_ids[spoiled] in json.dumps(entry)
    assert result.status == "done"


def test_splits_of_other_contracts_are_refused(tiny, pairs, tmp_path):
    split = load_unadmitted(write_jsonl(tmp_path / "chats.jsonl", chats(4)), "sft")
    with pytest.raises(RefusedError, match="not for preference"):
        run(tiny, split, tmp_path / "run")
    with pytest.raises(RefusedError, match="not for preference"):
        run(tiny, pairs, tmp_path / "run", eval_split=split)


def test_sides_that_cannot_be_told_apart_or_do_not_fit_are_dropped_and_told(tiny, tmp_path):
    rows = planted(6)
    rows[0]["rejected"] = rows[0]["chosen"]
    rows[1]["chosen"] = [{"role": "assistant", "content": "long " * 60}]
    result, _ = run(tiny, split_of(tmp_path, rows), tmp_path / "run", max_steps=1, max_length=120)
    assert result.body["data"]["dropped"] == {"identical_after_truncation": 1, "too_long": 1}
    assert any("2 of 6 pairs were dropped" in note for note in result.notes)
    with pytest.raises(RefusedError, match="no pair"):
        run(tiny, split_of(tmp_path, rows[:2], "two"), tmp_path / "none", max_steps=1, max_length=120)


def test_the_saved_model_gives_the_rewards_of_the_run(learned, tiny):
    result, _ = learned[0.0]
    rows = planted(120, seed=1)
    scorer = RewardModel(str(result.path))
    chosen, rejected = (
        [reward for reward, _ in scorer.score([[*row["prompt"], *row[side]] for row in rows])]
        for side in ("chosen", "rejected")
    )
    right = sum(a > b for a, b in zip(chosen, rejected, strict=True)) / 120
    body = result.body["reward_model"]
    assert right == pytest.approx(body["accuracy"], abs=0.01)
    assert sum(chosen + rejected) / 240 == pytest.approx(body["rewards"]["mean"], abs=1e-3)
    assert load_reward_model(str(latest(result.path / "checkpoints"))).score.weight.dtype == torch.float32
