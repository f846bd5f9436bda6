"""``lpt data audit --model``: pass rates of a sample of the rows, by the sampler and verifiers of ``lpt eval``."""

from __future__ import annotations

import json
import shlex

import pytest
from command_line import invoke, jsonl, refused, sums

BAND = ("rlvr.pass_rate.no_signal_share", "rlvr.pass_rate.in_band_share")


@pytest.fixture
def rows(tmp_path):
    return jsonl(tmp_path / "rows.jsonl", [*sums(12), *sums(3)])  # three rows twice


def asked(rows, model, *more):
    base = ("data", "audit", rows, "--contract", "rlvr", "--key", "countdown")
    return (*base, "--model", model, "--attempts", 2, "--sample-rows", 5, "--max-tokens", 4, *more)


def checks(ended):
    return {check["id"]: check for check in ended.json["checks"]}


def test_a_model_attempts_a_sample_and_the_checks_say_so(rows, model, tmp_path):
    ended = invoke(*asked(rows, model, "--scores", tmp_path / "rates.json", "--json"), cwd=tmp_path)
    assert ended.code in (3, 4), ended.stderr
    told = ended.json["sampled"]
    assert (told["rows"], told["rated"], told["of"], told["attempts"], told["temperature"]) == (5, 5, 12, 2, 1.0)
    assert told["low"] <= told["mean"] <= told["high"]
    found = checks(ended)
    for name in BAND:
        assert 5 <= found[name]["n"] <= 8  # rows that are there twice are rated twice and asked about once
        assert "sampled: 5 of 12 rows (5 asked), 2 attempts each at temperature 1" in found[name]["detail"]
        assert told["model_digest"][:12] in found[name]["detail"]
        assert "95 % interval" in found[name]["detail"]
    # A model that knows nothing is never right: no row has a signal, and five of five say at least 57 % (Wilson).
    assert found[BAND[0]]["value"] == 1.0
    assert "of this share 0.57 to 1.00, of the mean 0.00 to 0.43" in found[BAND[0]]["detail"]
    assert "--model" in found[BAND[0]]["next"]
    assert "--sample-rows 5" in found[BAND[0]]["next"]
    assert "--sample-seconds 600" in found[BAND[0]]["next"]
    # A drop takes rates from a file, so the command that writes it comes first.
    wrote, dropped = found[BAND[0]]["next"].partition("to take them out: ")[2].split("; ")
    assert wrote.startswith("lpt data audit ")
    assert wrote.endswith("--scores rates.json")
    assert "--scored rates.json" in dropped
    # What was written is what --scored reads, and the same rows are asked again, whatever their order.
    again = invoke("data", "audit", rows, "--contract", "rlvr", "--key", "countdown", "--scored", "rates.json",
                   "--json", cwd=tmp_path)  # fmt: skip
    assert checks(again)[BAND[0]]["value"] == 1.0
    assert checks(again)[BAND[0]]["n"] >= 5  # rows that are there twice
    moved = jsonl(tmp_path / "moved.jsonl", [json.loads(line) for line in rows.read_text().splitlines()][::-1])
    ended = invoke(*asked(moved, model, "--scores", tmp_path / "moved.json", "--json"), cwd=tmp_path)
    assert (tmp_path / "moved.json").read_bytes() == (tmp_path / "rates.json").read_bytes()


def test_the_admission_that_follows_takes_the_rates_that_were_sampled(rows, model, tmp_path):
    lenient = tmp_path / "lenient.yaml"
    lenient.write_text(
        "name: mild\ncontract: rlvr\nchecks: [{id: rlvr.pass_rate.no_signal_share, tune: <= 0.5, required: true}]\n"
    )
    ended = invoke(*asked(rows, model, "--scores", "my rates.json", "--policy", lenient), cwd=tmp_path)
    assert ended.code == 3, ended.stderr
    [line] = [line for line in ended.stderr.splitlines() if line.startswith("next: lpt admit")]
    assert "--scored 'my rates.json'" in line
    admitted = invoke(*shlex.split(line)[2:], cwd=tmp_path)
    assert admitted.code == 3, admitted.stderr


def test_it_is_the_sampler_of_eval(place, model, tmp_path):
    """All rows, one batch, one seed: the scores of `lpt eval --scores` item by item."""
    common = ("--temperature", 1, "--max-tokens", 4)
    audit = ("data", "audit", place / "train.jsonl", "--contract", "rlvr", "--key", "countdown", "--model", model)
    ended = invoke(*audit, "--attempts", 2, *common, "--scores", tmp_path / "audit.json", "--json", cwd=place)
    assert ended.json["sampled"]["rated"] == 24
    ended = invoke("eval", "--admitted", "sums:train", "--model", model, "--k", 2, *common, "--scores",
                   tmp_path / "eval.json", cwd=place)  # fmt: skip
    assert ended.code == 0, ended.stderr
    ours, theirs = (
        {item["record_id"]: item["score"] for item in json.loads((tmp_path / name).read_bytes())["items"]}
        for name in ("audit.json", "eval.json")
    )
    assert ours == theirs


def test_attempts_without_a_model_or_beside_files_are_refused(rows, model, tmp_path):
    base = ("data", "audit", rows, "--contract", "rlvr", "--key", "countdown")
    refused(invoke(*base, "--attempts", 4, "--sample-rows", 9, cwd=tmp_path), 2, "--attempts, --sample-rows")
    refused(invoke(*base, "--scores", "rates.json", cwd=tmp_path), 2, "--model DIR")
    refused(invoke(*asked(rows, model), "--scored", rows, cwd=tmp_path), 2, "one of them")
    refused(invoke(*asked(rows, model, "--temperature", 0), cwd=tmp_path), 2, "greedy")
    refused(invoke(*asked(rows, model, "--scores", "rates.txt"), cwd=tmp_path), 2, ".json")
    refused(invoke(*asked(rows, tmp_path / "absent"), cwd=tmp_path), 5, "absent")
    for seed in (-1, 2**63, 2**80):
        assert invoke(*asked(rows, model, "--sample-seed", seed), cwd=tmp_path).code == 2
    chats = jsonl(tmp_path / "t.jsonl", [{"text": "one two three"}])
    ended = invoke("data", "audit", chats, "--contract", "text", "--model", model, cwd=tmp_path)
    refused(ended, 2, "answer to verify")


def test_scores_take_the_place_of_earlier_scores_alone(rows, place, model, tmp_path):
    data = tmp_path / "data.json"
    data.write_text(json.dumps(sums(4)))
    before = data.read_bytes()
    audit = ("data", "audit", data, "--contract", "rlvr", "--key", "countdown", "--model", tmp_path / "absent")
    refused(invoke(*audit, "--scores", data, cwd=tmp_path), 2, "a file that is read")  # before the model is looked for
    other = tmp_path / "notes.json"
    other.write_text('{"mine": 1}')
    for reads in ((), ("--against", other), ("--benchmark", f"b={other}")):
        refused(invoke(*audit, *reads, "--scores", other, cwd=tmp_path), 2, "--scores")
    eval_ = ("eval", "--admitted", "sums:train", "--model", model, "--n", 2, "--max-tokens", 2, "--scores")
    refused(invoke(*eval_, other, cwd=place), 2, "no earlier scores")
    assert (data.read_bytes(), other.read_text()) == (before, '{"mine": 1}')
    for _ in range(2):  # its own may be written again
        assert invoke(*eval_, tmp_path / "own.json", cwd=place).code == 0
    assert json.loads((tmp_path / "own.json").read_bytes())["type"] == "lpt.scores/1"


def test_a_gate_of_a_recipe_lets_a_model_attempt_rows(rows, model, tmp_path):
    recipe = """
inputs: {sums: rows.jsonl}
stages:
  - dedup: {method: exact, key: row, workers: 1}
  - audit: {contract: rlvr, key: countdown, sample: {model: MODEL, attempts: 2, rows: 4, max_tokens: 4}}
"""
    (tmp_path / "r.yaml").write_text(recipe.replace("MODEL", str(model)))
    ended = invoke("data", "run", "r.yaml", "--json", cwd=tmp_path)
    assert ended.code in (3, 4), ended.stderr
    assert "sampled: 4 of 12 rows" in ended.stdout
    for wrong in ("sample: {attempts: 2}", "sample: {model: m, attempt: 2}", "sample: {model: m, rows: 0}",
                  "sample: {model: m, seed: -1}", f"sample: {{model: m, seed: {2**63}}}"):  # fmt: skip
        (tmp_path / "r.yaml").write_text(recipe.split("sample:")[0] + wrong + "}\n")
        refused(invoke("data", "run", "r.yaml", cwd=tmp_path), 2, "sample")
