"""Meanings on the command line: thresholds chosen by reading, an embedder that is not there, a second opinion."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from command_line import invoke

sys.path.insert(0, str(Path(__file__).parents[1] / "lpt_data"))
from tiny_embedder import static_model

ROWS = ["the cat sat on the mat", "the feline sat on the mat", "pay him 5 dollars", "pay him 50 dollars", "red car"]


@pytest.fixture
def folder(tmp_path):
    static_model(tmp_path / "m", feline="cat")
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in ROWS))
    return tmp_path


def dedup(folder, *more):
    methods = "exact,minhash,semantic"
    return invoke("data", "dedup", "rows.jsonl", "--out", "o.jsonl", "--method", methods, *more, cwd=folder)


def test_thresholds_are_chosen_by_reading_and_cost_nothing(folder):
    body = dedup(folder, "--embedder", "m", "--json").json
    assert body["removed"] == {"semantic_duplicate": 1}
    assert body["semantic"]["kept_apart_by_numbers"] >= 1
    assert {"histogram", "bands", "borderline", "weakest", "search", "cache"} <= set(body["semantic"])
    assert (folder / body["semantic"]["pairs_file"]).is_file()
    ran = dedup(folder, "--embedder", "m", "--rethreshold", "0.8", "--any-numbers")
    assert ran.code == 0, ran.stderr
    assert "pairs of an earlier run" in ran.stderr
    assert "pairs by score" in ran.stderr
    again = dedup(folder, "--embedder", "m", "--rethreshold", "0.3")
    assert again.code == 4
    assert "--semantic-threshold 0.3" in again.stderr


def test_an_embedder_that_is_not_there(folder):
    ran = dedup(folder, "--embedder", "absent-model")
    assert ran.code == 5
    assert "neither a folder nor a model" in ran.stderr
    assert "pip install 'lpt[semantic]'" in ran.stderr
    assert not (folder / "o.jsonl").exists()


def test_a_new_threshold_without_the_method(folder):
    ran = invoke("data", "dedup", "rows.jsonl", "--out", "o.jsonl", "--rethreshold", "0.9", cwd=folder)
    assert ran.code == 2
    assert "--method exact,minhash,semantic" in ran.stderr


def test_a_second_opinion(folder):
    bench = [{"question": "the cat sat on the mat", "answer": "yes"}, {"question": "red house 30", "answer": "no"}]
    (folder / "b.jsonl").write_text("".join(json.dumps(item) + "\n" for item in bench))
    (folder / "p.jsonl").write_text('{"item": 0, "paraphrase": "on the mat the feline sat"}\n')
    base = ("data", "decontaminate", "rows.jsonl", "--benchmark", "b=b.jsonl", "--out", "d.jsonl")
    more = ("--semantic", "--embedder", "m", "--paraphrases", "p.jsonl")
    ran = invoke(*base, *more, cwd=folder)
    assert ran.code == 0, ran.stderr
    assert "second opinion at other thresholds" in ran.stderr
    body = invoke(*base, *more, "--json", cwd=folder).json
    assert body["removed"] == {"benchmark_overlap": 1, "benchmark_semantic": 1}
    assert body["benchmarks"][0]["canaries"]["paraphrase"]["found"] == 1
    missing = invoke(*base, "--semantic", "--embedder", "absent-model", cwd=folder)
    assert missing.code == 5
    assert "lpt[semantic]" in missing.stderr
    assert invoke(*base, "--perplexity", "absent", cwd=folder).code == 5
