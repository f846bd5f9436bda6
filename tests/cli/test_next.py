"""What a command says may be typed next: it names what is there, and can be pasted."""

from __future__ import annotations

import shlex

from command_line import invoke

from cli.run_shown import after
from cli.train import held_out
from manifests.catalog import Catalog


def next_of(outcome):
    return [line.partition(": ")[2] for line in outcome.stderr.splitlines() if line.startswith(("next: ", "  or: "))]


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
    assert held_out("chats@1:train", None, catalog) == "chats@1:train"  # which has nothing else
    assert held_out("chats@1:train", "sums:test", catalog) == "sums:test"
    assert held_out(None, None, catalog) == "NAME:test"


def test_what_follows_a_run():
    body = {"algorithm": "sft", "metrics_path": "my runs/a/metrics.jsonl", "model": {"name": "tiny"},
            "config": {"lora": {"use_peft": True}}}  # fmt: skip
    assert after(body, "chats:test") == [
        "lpt eval --admitted chats:test --model 'my runs/a' --baseline 'my runs/a/tiny'",
        "lpt export 'my runs/a' --out 'my runs/a-export' --merge",
        "lpt report 'my runs/a'",
    ]
    whole = body | {"model": {"name": "./model"}, "config": {"lora": {"use_peft": False}}}
    assert after(whole, "chats:test")[0].endswith("--baseline ./model")
    assert "--merge" not in after(whole, "chats:test")[1]
    assert after(body | {"algorithm": "reward"}, "pairs:test")[0].startswith(
        "lpt reward score FILE --model 'my runs/a'"
    )
