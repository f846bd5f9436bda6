"""``lpt reward``: a column beside rows, a curve out of a file, and the errors of both."""

from __future__ import annotations

import json

import pytest
import torch
from command_line import invoke, refused

from lpt_train.reward_model import load_reward_model
from lpt_train.tiny import byte_tokenizer, make_tiny


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A reward model of its own start, and rows of three kinds."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("reward")
    make_tiny(folder / "tiny", hidden=32, layers=1, heads=2)
    load_reward_model(str(folder / "tiny"), seed=1).save_pretrained(folder / "rm")
    byte_tokenizer().save_pretrained(folder / "rm")

    def turn(role, text):
        return [{"role": role, "content": text}]

    chats = [{"messages": turn("user", f"say {n}") + turn("assistant", "x" * n), "tag": n} for n in range(1, 6)]
    pairs = [
        {"prompt": turn("user", f"say {n}"), "chosen": turn("assistant", "a"), "rejected": turn("assistant", "b" * n)}
        for n in range(1, 6)
    ]
    for name, rows in {"chats": chats, "pairs": pairs, "texts": [{"text": "plain"}]}.items():
        write(folder / f"{name}.jsonl", rows)
    return folder


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_column_is_added_and_nothing_else_is_changed(folder):
    done = invoke("reward", "score", "chats.jsonl", "--model", "rm", "--out", "scored.jsonl", "--json", cwd=folder)
    assert done.code == 0, done.stderr
    before, after = lines(folder / "chats.jsonl"), lines(folder / "scored.jsonl")
    assert [{name: value for name, value in row.items() if name != "reward"} for row in after] == before
    assert all(isinstance(row["reward"], float) for row in after)
    assert done.json["rows_in"] == done.json["rows_out"] == done.json["scored"] == 5
    assert done.json["mean"] == pytest.approx(sum(row["reward"] for row in after) / 5)
    assert len(done.json["template_sha256"]) == 64
    again = invoke("reward", "score", "chats.jsonl", "--model", "rm", "--out", "scored.jsonl", "--json", cwd=folder)
    assert again.json["reused"]


def test_a_row_has_the_same_reward_in_any_order_and_batch(folder):
    write(folder / "backwards.jsonl", lines(folder / "chats.jsonl")[::-1])
    found = []
    for rows, more in (("chats", ()), ("chats", ("--batch-size", 1)), ("backwards", ())):
        out = f"{rows}{len(more)}-scored.jsonl"
        done = invoke("reward", "score", f"{rows}.jsonl", "--model", "rm", "--out", out, *more, cwd=folder)
        assert done.code == 0, done.stderr
        found.append({row["tag"]: row["reward"] for row in lines(folder / out)})
    forwards, one, backwards = found
    assert one == pytest.approx(forwards, abs=1e-6)
    assert backwards == pytest.approx(forwards, abs=1e-6)


def test_pairs_get_a_reward_for_each_side_and_a_column_that_is_there_is_kept(folder):
    command = ("reward", "score", "pairs.jsonl", "--model", "rm", "--column", "rm", "--out", "sides.parquet", "--json")
    done = invoke(*command, cwd=folder)
    assert done.code == 0, done.stderr
    assert done.json["columns"] == ["rm_chosen", "rm_rejected"]
    assert done.json["scored"] == 10
    write(folder / "once.jsonl", [{**row, "reward": 7} for row in lines(folder / "chats.jsonl")])
    assert invoke("reward", "score", "once.jsonl", "--model", "rm", "--out", "twice.jsonl", cwd=folder).code == 0
    assert {row["source_reward"] for row in lines(folder / "twice.jsonl")} == {7}


def test_what_has_no_reward_is_null_and_told_and_never_zero(folder):
    rows = lines(folder / "chats.jsonl")
    open_end = {"messages": [*rows[0]["messages"], {"role": "user", "content": "and?"}], "tag": 9}
    long = {"messages": [rows[0]["messages"][0], {"role": "assistant", "content": "x" * 300}], "tag": 10}
    write(folder / "odd.jsonl", [*rows, open_end, long])
    command = ("reward", "score", "odd.jsonl", "--model", "rm", "--out", "o.jsonl", "--max-length", 200, "--json")
    done = invoke(*command, cwd=folder)
    assert done.code == 0, done.stderr
    assert done.json["unscored"] == {"no_reply": 1, "too_long": 1}
    assert [row["reward"] for row in lines(folder / "o.jsonl")][5:] == [None, None]


def test_models_and_rows_that_do_not_fit_are_refused(folder):
    def score(rows, model):
        return invoke("reward", "score", rows, "--model", model, "--out", "no.jsonl", cwd=folder)

    refused(score("chats.jsonl", "tiny"), 5, "no reward model")
    refused(score("chats.jsonl", "./tiny"), 5, "no reward model", "lpt train reward")
    refused(score("texts.jsonl", "rm"), 5, "hold no reply")
    sft = ("train", "sft", "--unadmitted", "chats.jsonl", "--model", "rm", "--out", "run", "--set", "max_steps=1")
    refused(invoke(*sft, cwd=folder), 5, "a reward model")
    assert not (folder / "no.jsonl").exists()


def test_who_has_no_file_for_a_curve_is_told_what_makes_one(folder):
    assert invoke("reward", "score", "chats.jsonl", "--model", "rm", "--out", "sc.jsonl", cwd=folder).code == 0
    told = invoke("reward", "curve", "sc.jsonl", cwd=folder)
    refused(told, 5, "a row has no column prompt_id", "lpt reward sample --admitted NAME:SPLIT (rlvr)")
    admitted = invoke("admit", "held", "--contract", "sft", "--train", "chats.jsonl", cwd=folder)
    assert admitted.code in (0, 3), admitted.stderr
    sample = ("reward", "sample", "--admitted", "held:train", "--policy", "tiny", "--model", "rm", "--out", "s.jsonl")
    refused(invoke(*sample, cwd=folder), 4, "held@1:train is sft", "lpt reward score FILE")


def completions(prompts=12, n=8):
    """Gold that follows the proxy up to 5 and falls from there."""
    return [
        {"prompt_id": p, "reward": (7 * i + p) % n, "gold": -abs((7 * i + p) % n - 5) + p / 100}
        for p in range(prompts)
        for i in range(n)
    ]


def test_a_curve_finds_where_the_proxy_breaks(folder):
    write(folder / "completions.jsonl", completions())
    done = invoke("reward", "curve", "completions.jsonl", "--out", "curve.html", "--json", cwd=folder)
    assert done.code == 0, done.stderr
    body = done.json
    assert [point["n"] for point in body["points"]] == [1, 2, 4, 8]
    assert body["points"][-1]["proxy"] == 7
    assert body["over_optimised"]
    assert body["peak"] < 8
    page = (folder / "curve.html").read_text()
    assert page.count("<polyline") == 2
    assert "Over-optimised" in page
    told = invoke("reward", "curve", "completions.jsonl", "--n", "4,8", cwd=folder)
    assert "Over-optimised: gold is largest at n = 4" in told.said
    assert told.stdout == ""


def test_names_of_columns_and_values_that_are_no_numbers(folder):
    rows = [{"id": {"k": row["prompt_id"]}, "small": str(row["reward"]), "large": row["gold"]} for row in completions()]
    write(folder / "named.jsonl", rows)
    named = ("reward", "curve", "named.jsonl", "--proxy", "small", "--gold", "large", "--prompt-id", "id", "--json")
    done = invoke(*named, cwd=folder)
    assert done.json["prompts"] == 12
    refused(invoke("reward", "curve", "named.jsonl", cwd=folder), 5, "no column prompt_id", "named.jsonl:1")
    write(folder / "bad.jsonl", [*rows[:3], {**rows[3], "small": "good"}])
    refused(invoke(*(part if part != "named.jsonl" else "bad.jsonl" for part in named), cwd=folder), 5, "bad.jsonl:4")
    refused(invoke(*named, "--n", "1,two", cwd=folder), 2, "--n 1,2,4,8")
    (folder / "broken.jsonl").write_text('{"prompt_id": 1\n')
    refused(invoke("reward", "curve", "broken.jsonl", cwd=folder), 5, "cannot be read")


def test_unscored_completions_are_told(folder):
    rows = completions()
    rows[0]["gold"] = None
    write(folder / "some.jsonl", rows)
    told = invoke("reward", "curve", "some.jsonl", "--n", "4", cwd=folder)
    assert "1 completions without a score left out" in told.said


def test_a_reward_model_is_exported_by_the_command_of_all_models(folder):
    done = invoke("export", "rm", "--out", "whole", cwd=folder)
    assert done.code == 0, done.stderr
    assert "read back by transformers" in done.said
    scored = [
        invoke("reward", "score", "chats.jsonl", "--model", model, "--out", f"by-{model}.jsonl", cwd=folder)
        for model in ("rm", "whole")
    ]
    assert [outcome.code for outcome in scored] == [0, 0]
    ours, theirs = ([row["reward"] for row in lines(folder / f"by-{model}.jsonl")] for model in ("rm", "whole"))
    assert theirs == pytest.approx(ours, abs=1e-5)
    refused(invoke("export", "rm", "--out", "half", "--dtype", "bfloat16", cwd=folder), 2, "float32", "--dtype")
    assert invoke("reward", "export", "--model", "rm", "--out", "x", cwd=folder).code == 2
