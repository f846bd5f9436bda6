"""Completions sampled from a policy, with the reward of a model and of a verifier, and the curve of both."""

from __future__ import annotations

import json
import shutil

import pytest
from rl_cases import problem, split_of

from lpt_train.best_of_n import Scored, curve
from lpt_train.models import load_tokenizer
from lpt_train.reward_model import load_reward_model
from lpt_train.reward_scores import RewardModel, sample_and_score
from lpt_train.samples import record, write
from manifests.catalog import Catalog
from manifests.errors import UsageError

SMALL = {"samples": 4, "prompts": 3, "max_completion_length": 5, "seed": 2}


@pytest.fixture(scope="module")
def reward_folder(tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("rm") / "rm"
    load_reward_model(str(tiny), seed=1).save_pretrained(folder)
    load_tokenizer(str(tiny)).save_pretrained(folder)
    return folder


@pytest.fixture
def rows(tiny, split, reward_folder):
    proxy = RewardModel(str(reward_folder))
    return sample_and_score(str(tiny), split, proxy, reward="reward_functions:likes_small_bytes", **SMALL)


def test_each_completion_has_both_rewards_and_the_name_of_its_prompt(rows, split, reward_folder):
    assert len(rows) == 12
    assert {row["prompt_id"] for row in rows} <= set(split.record_ids)
    assert [row["sample"] for row in rows] == [0, 1, 2, 3] * 3
    again = RewardModel(str(reward_folder)).score([[*row["prompt"], *row["completion"]] for row in rows])
    for row, (reward, why) in zip(rows, again, strict=True):
        assert row["reward"] == (reward if reward is None else pytest.approx(reward, abs=1e-6))
        assert (row["reward"] is None) == bool(why)
        assert (row["not_scored"] is None) == (row["reward"] is not None and row["gold"] is not None)


def test_the_same_seed_draws_the_same_completions(rows, tiny, split, reward_folder):
    proxy = RewardModel(str(reward_folder))
    command = {"reward": "reward_functions:likes_small_bytes", **SMALL}
    assert sample_and_score(str(tiny), split, proxy, **command) == rows
    other = sample_and_score(str(tiny), split, proxy, **{**command, "seed": 3})
    assert [row["completion"] for row in other] != [row["completion"] for row in rows]


def test_from_sampling_to_the_curve(rows, tiny, split, reward_folder, tmp_path):
    write(tmp_path / "out" / "completions.jsonl", rows)
    read = [json.loads(line) for line in (tmp_path / "out" / "completions.jsonl").read_text().splitlines()]
    assert read == rows
    found = curve([Scored(row["prompt_id"], row["reward"], row["gold"]) for row in read], [1, 2])
    assert found.points[1].proxy >= found.points[0].proxy
    catalog = Catalog.open(tmp_path / ".lpt")
    named = {"policy": str(tiny), "model": str(reward_folder), **SMALL}
    told = record(catalog, tmp_path / "out" / "completions.jsonl", rows, split, named)
    body = catalog.get(told["object"])
    assert body["type"] == "lpt.samples/1"
    assert body["completions"] == 12
    assert body["tainted"]  # these rows were not admitted
    assert body["parents"] == []


def test_a_reward_model_that_was_trained_under_another_template_says_so(tiny, reward_folder, tmp_path):
    shutil.copytree(reward_folder, tmp_path / "rm")
    told = RewardModel(str(reward_folder)).renderer.told()
    for recorded, count in ((told, 0), (told | {"template_sha256": "0" * 64}, 1), ({}, 0)):
        (tmp_path / "rm" / "lpt.json").write_text(json.dumps({"tokenizer": recorded}))
        notes = RewardModel(str(tmp_path / "rm")).notes
        assert len(notes) == count
    (tmp_path / "rm" / "lpt.json").write_text(json.dumps({"tokenizer": told | {"training_template": "trl/x"}}))
    assert RewardModel(str(tmp_path / "rm")).notes == []  # the name is not what counts
    other = told | {"training_template": "trl/x", "template_sha256": "0" * 64}
    (tmp_path / "rm" / "lpt.json").write_text(json.dumps({"tokenizer": other}))
    (note,) = RewardModel(str(tmp_path / "rm")).notes
    assert "was trained under trl/x (0000000000000000…)" in note
    assert f"scores under its chat template ({told['template_sha256'][:16]}…)" in note


def test_one_sample_or_no_temperature_is_no_choice(tiny, split, reward_folder):
    proxy = RewardModel(str(reward_folder))
    for wrong in ({"samples": 1}, {"temperature": 0.0}):
        with pytest.raises(UsageError, match="several different"):
            sample_and_score(str(tiny), split, proxy, **{**SMALL, **wrong})


def test_a_gold_that_cannot_be_had_is_none(tiny, reward_folder, tmp_path):
    split = split_of(tmp_path / "odd.jsonl", [problem(1, 2), problem(3, 4), {**problem(5, 6), "answer": "no answer"}])
    proxy = RewardModel(str(reward_folder))
    rows = sample_and_score(str(tiny), split, proxy, **{**SMALL, "prompts": None})
    assert {row["gold"] for row in rows if row["prompt_id"] == split.record_ids[2]} == {None}
    assert {row["gold"] for row in rows if row["prompt_id"] == split.record_ids[0]} <= {0.0, 1.0}
