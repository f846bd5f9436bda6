"""What a command says may be typed next: it names what is there, and can be pasted."""

from __future__ import annotations

import shlex
from pathlib import Path

from command_line import invoke, jsonl

from cli.next_commands import admission, command, held_out
from cli.run_shown import after
from lpt_data.admit import admit
from manifests.catalog import Catalog


def next_of(outcome):
    return [line.partition(": ")[2] for line in outcome.stderr.splitlines() if line.startswith(("next: ", "  or: "))]


def chats(*words):
    return [
        {"messages": [{"role": "user", "content": f"say {a} and {b}"}, {"role": "assistant", "content": f"{a} {b}"}]}
        for a in words
        for b in words
    ]


def test_an_audit_that_accepts_says_the_admission_with_its_options(place, tmp_path):
    spaced = tmp_path / "the chats.jsonl"
    spaced.write_bytes((place / "chats.jsonl").read_bytes())
    options = ("--tokenizer", "tiny", "--max-length", 128)
    audited = invoke("data", "audit", spaced, "--contract", "sft", *options, cwd=tmp_path)
    assert audited.code in (0, 3), audited.stderr
    [line] = next_of(audited)
    admit = f"lpt admit NAME --train '{spaced}' --contract sft --tokenizer tiny --max-length 128"
    assert line == admit
    admitted = invoke(*shlex.split(line)[1:], cwd=tmp_path)
    assert admitted.code == audited.code, admitted.stderr
    assert next_of(admitted) == ["lpt train sft --admitted NAME@1:train --model MODEL --out runs/NAME"]
    named = invoke("data", "audit", f"train={spaced}", f"test={place / 'train.jsonl'}", "--contract", "sft",
                   cwd=tmp_path)  # fmt: skip
    assert named.code not in (0, 3)
    assert next_of(named) == []


def test_a_run_is_measured_on_what_did_not_train_it(place):
    catalog = Catalog.open(place / ".lpt")
    assert held_out("sums:train", None, catalog) == "sums:test"
    assert held_out("sums:test", None, catalog) == "NAME:test"  # trained on what was to measure
    assert held_out("chats@1:train", None, catalog) == "NAME:test"  # which has nothing else
    assert held_out("chats@1:train", "sums:test", catalog) == "sums:test"
    assert held_out("sums:train", "chats:train", catalog) == "chats:train"  # the same name in another manifest
    assert held_out("sums:train", "sums@1:train", catalog) == "sums:test"  # what it trained on measures nothing
    assert held_out(None, None, catalog) == "NAME:test"


def test_a_run_is_measured_on_validation_before_test_and_the_hidden_test_last(tmp_path):
    names = ("train", "hidden_test", "test", "validation")
    rows = {name: str(jsonl(tmp_path / f"{name}.jsonl", [{"text": f"the row of {name}"}])) for name in names}
    catalog = Catalog.open(tmp_path / ".lpt")
    for kept, expected in (4, "validation"), (3, "test"), (2, "hidden_test"):
        ref, there = f"docs{kept}", names[:kept]
        admit(ref, "text", {name: [rows[name]] for name in there}, catalog=catalog)
        assert held_out(f"{ref}:train", None, catalog) == f"{ref}:{expected}"
        assert held_out(f"{ref}:train", f"{ref}:{there[-1]}", catalog) == f"{ref}:{there[-1]}"


def test_held_out_rows_are_never_admitted_for_training():
    splits = {"data": ["a b.jsonl"], "hidden_test": ["h.jsonl"], "dev": ["d.jsonl"], "calibration": ["c.jsonl"]}
    options = {"contract": "sft", "against": None, "benchmark": ["g=g.jsonl"], "text_column": "text"}
    line, why_none = admission(splits, options)
    assert line == (
        "lpt admit NAME --train 'a b.jsonl' --test h.jsonl --validation d.jsonl --validation c.jsonl --contract sft "
        "--benchmark g=g.jsonl"
    )
    assert why_none == ""
    line, why_none = admission(splits | {"holdout": ["x.jsonl"]}, options)
    assert (line, "holdout" in why_none) == ("", True)
    line, why_none = admission({"hidden_test": ["h.jsonl"]}, options)
    assert (line, "--train" in why_none) == ("", True)


def test_an_audit_says_what_it_cannot_place(place, tmp_path):
    near = f"train={place / 'chats.jsonl'}"
    jsonl(tmp_path / "other.jsonl", chats("seven", "eight"))
    audited = invoke("data", "audit", near, "holdout=other.jsonl", "--contract", "sft", cwd=tmp_path)
    assert audited.code in (0, 3), audited.stderr
    assert (next_of(audited), "no split for holdout" in audited.said) == ([], True)
    audited = invoke("data", "audit", near, "dev=other.jsonl", "--contract", "sft", cwd=tmp_path)
    assert f"--train {place / 'chats.jsonl'} --validation other.jsonl" in next_of(audited)[0]


def test_the_catalog_that_was_typed_is_named_again(place, tmp_path):
    assert (
        command("lpt report", "my run", catalog=tmp_path / "a b") == f"lpt report 'my run' --catalog '{tmp_path}/a b'"
    )
    typed = ("admit", "chats", "--contract", "sft", "--train", place / "chats.jsonl", "--tokenizer", "tiny")
    admitted = invoke(*typed, "--catalog", "my cat", cwd=tmp_path)
    assert next_of(admitted) == [
        "lpt train sft --admitted chats@1:train --model MODEL --out runs/chats --catalog 'my cat'"
    ]
    assert "lpt report chats@1 --catalog 'my cat'" in admitted.stderr


def test_what_follows_a_run():
    body = {"algorithm": "sft", "metrics_path": "my runs/a/metrics.jsonl", "model": {"name": "tiny"},
            "config": {"lora": {"use_peft": True}}}  # fmt: skip
    assert after(body, "chats:test") == [
        "lpt eval --admitted chats:test --model 'my runs/a' --baseline 'my runs/a/tiny'",
        "lpt export 'my runs/a' --out 'my runs/a-export' --merge",
        "lpt report 'my runs/a'",
    ]
    quoted = after(body, "a dir/manifest.json:test", Path("cat"))
    assert quoted[0].startswith("lpt eval --admitted 'a dir/manifest.json:test' --model ")
    assert all(line.endswith(" --catalog cat") for line in quoted)
    whole = body | {"model": {"name": "./model"}, "config": {"lora": {"use_peft": False}}}
    assert after(whole, "chats:test")[0].endswith("--baseline ./model")
    assert "--merge" not in after(whole, "chats:test")[1]
    assert after(body | {"algorithm": "reward"}, "pairs:test")[0].startswith(
        "lpt reward score FILE --model 'my runs/a'"
    )
