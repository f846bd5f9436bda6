"""``lpt eval`` and ``lpt train matrix`` as commands: what they print, record and end with."""

from __future__ import annotations

import json

import pytest
import yaml
from command_line import invoke, jsonl, refused


def test_eval_of_conversations_prints_losses_and_records_them(place, model):
    ended = invoke("eval", "--admitted", "chats:train", "--model", model, "--json", cwd=place)
    assert ended.code == 0, ended.stderr
    (found,) = ended.json["models"].values()
    measures = {measure["name"]: measure for measure in found["measures"]}
    assert {"loss", "perplexity", "bits_per_byte", "tokens"} <= set(measures)
    assert measures["loss"]["low"] <= measures["loss"]["value"] <= measures["loss"]["high"]
    shown = invoke("manifest", "show", found["objects"][0][:16], cwd=place)
    assert shown.json["type"] == "lpt.eval/1"
    both = ("--admitted", "chats:train", "--admitted", "chats:train")
    ended = invoke("eval", *both, "--model", model, "--baseline", model, "--json", cwd=place)
    assert [split["paired"]["loss"]["difference"] for split in ended.json["splits"]] == [0.0, 0.0]
    told = invoke("eval", "--admitted", "chats:train", "--model", model, cwd=place)
    assert "bits_per_byte" in told.said


def test_the_page_of_a_run_shows_what_was_measured_of_it(place, model, tmp_path):
    run, small = tmp_path / "run", ("--set", "max_steps=1", "--set", "per_device_train_batch_size=2")
    trained = invoke("train", "sft", "--admitted", "chats:train", "--model", model, "--out", run, *small, cwd=place)
    assert trained.code == 0, trained.stderr
    asked = ("eval", "--admitted", "chats:train", "--baseline", model, "--json", "--model")
    ended = invoke(*asked, run, cwd=place)
    assert ended.code == 0, ended.stderr
    loss = next(one for one in ended.json["models"][str(run)]["measures"] if one["name"] == "loss")
    (mine, base) = (ended.json["models"][name]["notes"] for name in (str(run), str(model)))
    run_id = json.loads((run / "run.json").read_text())["run_id"]
    assert mine == [f"chats@1:train is what the run {run_id} trained on: this says what the model remembers"]
    assert base == []
    exported = invoke("export", run, "--out", tmp_path / "exported", cwd=place)
    assert exported.code == 0, exported.stderr
    assert invoke(*asked, tmp_path / "exported", cwd=place).code == 0
    for ref in (run, json.loads((run / "run.json").read_text())["run_id"]):
        reported = invoke("report", ref, "--format", "json", "--out", "-", cwd=place)
        told = reported.json
        assert [one["weights"] for one in told["evaluations"]] == ["export of step 1", "step 1, the last"]
        assert loss in told["evaluations"][1]["measures"]
        assert [one["after"] for one in told["comparisons"]] == ["export of step 1", "step 1, the last"]
    alone = invoke("report", run, "--format", "json", "--out", "-", cwd=tmp_path)
    assert not alone.json["evaluations"]
    assert "there is no catalog here" in alone.said
    assert not (tmp_path / ".lpt").exists()


def test_scores_of_a_model_are_the_pass_rates_of_an_audit(place, model, tmp_path):
    asked = ("eval", "--admitted", "sums:train", "--model", model, "--n", "4", "--temperature", "1", "--k", "2")
    asked += ("--max-tokens", "4")
    refused(invoke(*asked, "--scores", tmp_path / "rates.txt", cwd=place), 2, ".json")
    ended = invoke(*asked, "--scores", tmp_path / "rates.json", "--json", cwd=place)
    assert ended.code == 0, ended.stderr
    audit = ("data", "audit", place / "train.jsonl", "--contract", "rlvr", "--key", "countdown", "--json")
    checks = {}
    for scored in ((), ("--scored", tmp_path / "rates.json")):
        found = invoke(*audit, *scored, cwd=place)
        checks[len(scored)] = {check["id"]: check for check in found.json["checks"]}
    rated = [name for name, check in checks[2].items() if "pass_rate" in name and check["status"] != "skipped"]
    assert rated
    assert {checks[2][name]["n"] for name in rated} == {4}
    assert {checks[0][name]["status"] for name in rated} == {"skipped"}


def test_eval_refuses_sizes_that_are_none(place, model):
    asked = (
        "eval",
        "--admitted",
        "chats:train",
        "--model",
        model,
        "--match",
        "words",
        "--temperature",
        "1",
        "--k",
        "2",
    )
    refused(invoke(*asked, "--pass-at", "many", cwd=place), 2, "whole numbers")
    refused(invoke(*asked, "--pass-at", "4", cwd=place), 2, "at least k samples")
    refused(invoke(*asked[:5], "--match", "fuzzy", cwd=place), 2, "normaliser")
    refused(invoke(*asked[:5], "--drift", cwd=place), 2, "second model")


def test_n_items_are_measured_of_conversations_as_well(place, model):
    asked = ("eval", "--admitted", "chats:train", "--model", model, "--baseline", model)
    ended = invoke(*asked, "--n", 12, "--json", cwd=place)
    assert ended.code == 0, ended.stderr
    (body,) = ended.json["models"].values()
    assert {measure["n"] for measure in body["measures"]} == {12}
    assert body["notes"] == ["12 of 36 rows, drawn by seed 0"]
    assert ended.json["paired"]["loss"]["n"] == 12
    assert invoke("manifest", "show", body["objects"][0][:16], cwd=place).json["rows"] == 12
    refused(invoke(*asked, "--n", 37, cwd=place), 2, "not so many items", "36 items")


@pytest.mark.parametrize(
    ("split", "typed"),
    [
        ("chats:train", ("--k", 4, "--temperature", 0.7)), ("chats:train", ("--temperature", 1)),
        ("chats:train", ("--max-tokens", 8)), ("chats:train", ("--reward", "integer")),
        ("sums:test", ("--max-length", 100)), ("sums:test", ("--domain-column", "source")),
        ("sums:test", ("--match", "words")),
    ],
)  # fmt: skip
def test_what_no_split_reads_is_refused(place, model, split, typed):
    asked = ("eval", "--admitted", split, "--model", model, *typed)
    refused(invoke(*asked, cwd=place), 2, "does nothing here", "leave out", *typed[::2])


def test_what_one_of_two_splits_reads_is_taken(place, model):
    both = ("--admitted", "sums:test", "--admitted", "chats:train", "--max-tokens", 8, "--max-length", 64)
    assert invoke("eval", *both, "--model", model, cwd=place).code == 0


def test_drift_says_which_rows_it_left_out(place, model):
    words = ("one", "two", "three", "four", "long " * 1000)
    rows = [[{"role": "user", "content": word}, {"role": "assistant", "content": "yes"}] for word in words]
    jsonl(place / "long.jsonl", [{"messages": row} for row in rows])
    admitted = invoke("admit", "long", "--contract", "sft", "--train", "long.jsonl", cwd=place)
    assert admitted.code in (0, 3), admitted.stderr
    asked = ("eval", "--admitted", "long:train", "--model", model, "--baseline", model, "--drift", "--max-tokens", 2)
    ended = invoke(*asked, "--n", 3, "--json", cwd=place)
    assert ended.code == 0, ended.stderr
    assert ended.json["notes"] == ["drift: 1 of 5 rows were dropped: prompt_too_long 1"]
    assert {measure["name"]: measure["n"] for measure in ended.json["together"]} == {"kl": 3, "kl_per_token": 3}
    told = invoke(*asked, "--n", 3, cwd=place)
    assert "1 of 5 rows were dropped: prompt_too_long 1" in told.said
    refused(invoke(*asked, "--n", 5, cwd=place), 2, "not so many items", "4 items")


def test_a_matrix_without_a_winner_ends_with_4(place, model, tmp_path):
    body = {
        "algorithm": "sft", "model": str(model), "admitted": "chats:train", "metric": "loss", "better": "lower",
        "base": {"max_steps": 1, "lora_r": 2}, "seeds": [1], "band": {"absolute": 1},
        "variants": {"slow": {"learning_rate": 1e-5}, "fast": {"learning_rate": 1e-3}},
        "gates": {"loss": "<= 0.001"},
    }  # fmt: skip
    spec = tmp_path / "demo.yaml"
    spec.write_text(yaml.safe_dump(body))
    ended = invoke("train", "matrix", spec, "--out", tmp_path / "m", "--json", cwd=place)
    assert ended.code == 4, ended.stderr
    assert ended.json["winner"] is None
    shown = invoke("manifest", "show", ended.json["object"], cwd=place)
    assert shown.json["type"] == "lpt.matrix/1"
    spec.write_text(yaml.safe_dump({**body, "gates": {}}))
    told = invoke("train", "matrix", spec, "--out", tmp_path / "m", cwd=place)  # the cells stand, the choice is anew
    assert told.code == 0, told.stderr
    assert "winner: " in told.said
    refused(invoke("train", "matrix", tmp_path / "no.yaml", "--out", tmp_path / "n", cwd=place), 5, "cannot be read")


def test_eval_answers_values_at_which_nothing_can_be_sampled(place, model):
    asked = ("eval", "--admitted", "sums:test", "--model", model, "--max-tokens", 4)
    refused(invoke(*asked, "--temperature", "inf", cwd=place), 2, "finite")
    assert invoke(*asked, "--seed", "-1", cwd=place).code == 2
    assert invoke(*asked, "--seed", 2**64, cwd=place).code == 2
    refused(invoke(*asked[:-1], 10**11, cwd=place), 1, "not enough memory", "--max-tokens")
    refused(invoke(*asked, "--temperature", 1, "--k", 10**9, cwd=place), 1, "not enough memory", "--k")


def test_a_column_of_conversations_names_no_domains(place, model):
    asked = ("eval", "--admitted", "chats:train", "--model", model, "--domain-column", "messages")
    refused(invoke(*asked, cwd=place), 2, "a domain is a word")


def test_a_value_that_is_empty_is_shown(place, model):
    refused(invoke("eval", "--admitted", "", "--model", model, cwd=place), 2, "seen: ''")


def test_a_checkpoint_that_was_changed_is_not_measured_as_its_run(place, model, tmp_path):
    trained = ("train", "sft", "--admitted", "chats:train", "--model", model, "--out", tmp_path / "run")
    assert invoke(*trained, "--set", "max_steps=1", "--json", cwd=place).code == 0
    (weights,) = (tmp_path / "run").rglob("adapter_model.safetensors")
    asked = ("eval", "--admitted", "chats:train", "--model")
    assert invoke(*asked, tmp_path / "run", cwd=place).code == 0
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    for folder in (tmp_path / "run", weights.parent):
        refused(invoke(*asked, folder, cwd=place), 5, "a checkpoint is damaged", weights.name)
