"""`lpt data mix` and `lpt data tokens` as they are typed."""

import json

import pytest
from command_line import contents, invoke, jsonl, refused


@pytest.fixture
def folder(tmp_path):
    jsonl(tmp_path / "a.jsonl", [{"text": f"a {i}"} for i in range(30)])
    jsonl(tmp_path / "b.jsonl", [{"text": f"b {i}"} for i in range(30)])
    (tmp_path / "mix.yaml").write_text(
        "domains:\n  a: {inputs: a.jsonl, weight: 3}\n  b: {inputs: b.jsonl, weight: 1}\ntotal: {rows: 20}\n"
    )
    return tmp_path


def test_the_plan_alone_writes_nothing(folder):
    before = set(contents(folder))
    done = invoke("data", "mix", "mix.yaml", "--plan", cwd=folder)
    assert done.code == 0, done.stderr
    assert "0.7500" in done.stderr
    assert "nothing was written" in done.said
    assert not {path for path in set(contents(folder)) - before if "/.lpt/" not in path}


def test_table_then_file_then_the_same_again(folder):
    done = invoke("data", "mix", "mix.yaml", "--out", "m.jsonl", cwd=folder)
    assert done.code == 0, done.stderr
    assert "asked" in done.stderr
    assert "observed" in done.stderr
    assert len((folder / "m.jsonl").read_text().splitlines()) == 20
    again = invoke("data", "mix", "mix.yaml", "--out", "m.jsonl", "--json", cwd=folder).json
    assert again["reused"]
    assert {d["domain"]: d["observed"] for d in again["domains"]} == {"a": 0.75, "b": 0.25}


def test_a_total_in_tokens_by_the_tiny_tokenizer(folder):
    (folder / "t.yaml").write_text((folder / "mix.yaml").read_text().replace("rows: 20", "tokens: 100"))
    done = invoke("data", "mix", "t.yaml", "--out", "m.jsonl", "--tokenizer", "tiny", "--json", cwd=folder)
    assert done.json["unit"] == "tokens"
    assert abs(done.json["total"] - 100) <= 4
    refused(invoke("data", "mix", "t.yaml", "--out", "n.jsonl", cwd=folder), 5, "needs a tokenizer", "--tokenizer")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["mix.yaml"], 2, "--out FILE"),
        (["absent.yaml", "--plan"], 5, "lpt:maths"),
        (["lpt:math", "--plan"], 2, "lpt:maths"),
        (["mix.yaml", "--out", "a.jsonl"], 5, "one of the inputs"),
        (["mix.yaml", "--plan", "--input", "c=a.jsonl"], 2, "known: a, b"),
        (["mix.yaml", "--plan", "--input", "a=b.jsonl"], 5, "two domains"),
        (["lpt:maths", "--plan", "--input", "maths=a.jsonl"], 5, "--input general=FILE"),
    ],
)
def test_refusals(folder, arguments, code, words):
    refused(invoke("data", "mix", *arguments, cwd=folder), code, words)
    assert not (folder / "m.jsonl").exists()


def test_sql_tells_the_repeats(folder):
    (folder / "r.yaml").write_text("domains: {a: {inputs: a.jsonl, weight: 1}}\ntotal: {epochs: 1.5}\n")
    assert invoke("data", "mix", "r.yaml", "--out", "m.jsonl", cwd=folder).code == 0
    asked = "select rows_in, repeated, rows_out, removed, quarantined from v_stage"
    told = invoke("sql", asked, "--json", cwd=folder).json["rows"]
    assert [list(row.values()) for row in told] == [[30, 15, 45, 0, 0]]


def test_tokens_measures_without_being_told_to(folder):
    short = invoke("data", "tokens", "a.jsonl", "--tokenizer", "tiny", "--json", cwd=folder)
    long = invoke("data", "tokens", "measure", "a.jsonl", "--tokenizer", "tiny", "--json", cwd=folder)
    assert short.json == long.json
    assert short.json["tokenizers"][0]["bytes_per_token"] == 1
    first = invoke("data", "tokens", "--tokenizer", "tiny", "a.jsonl", "--json", cwd=folder)
    assert first.json == short.json


def test_train_then_compare(folder):
    made = invoke("data", "tokens", "train", "a.jsonl", "--vocab-size", 270, "--out", "t.json", cwd=folder)
    assert made.code == 0, made.stderr
    done = invoke("data", "tokens", "a.jsonl", "--tokenizer", "tiny", "--tokenizer", "t.json", cwd=folder)
    assert done.code == 0, done.stderr
    assert "t.json" in done.stderr
    json.loads((folder / "t.json").read_text())
    refused(invoke("data", "tokens", "a.jsonl", "--tokenizer", "none.json", cwd=folder), 5, "there is no tokenizer")
    too_small = invoke("data", "tokens", "train", "a.jsonl", "--vocab-size", 9, "--out", "u.json", cwd=folder)
    refused(too_small, 2, "--vocab-size 256")
