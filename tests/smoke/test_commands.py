"""Every command of the command line, run for real, in a process of its own, on tens of rows.

The commands are found by walking the application: a command without an entry here fails the first test.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main

LPT = Path(sys.executable).parent / "lpt"

DATA = {
    "stage_id", "rows_in", "rows_out", "removed", "quarantined", "output", "content_root", "decisions", "seconds",
    "rows_per_second", "peak_memory_bytes",
}  # fmt: skip
CHECK = {"id", "status", "value", "op", "threshold", "n", "severity", "next"}
AUDIT = {"verdict", "checks"}
ADMISSION = AUDIT | {"splits", "disjoint", "manifest_id", "name", "version"}
RUN = {
    "run_id", "manifest", "split", "steps", "metrics", "tokens_per_second", "peak_memory_bytes", "checkpoint",
    "seconds",
}  # fmt: skip
SMALL = "--set max_steps=1 --set lora_r=2"
GRPO = (
    f"{SMALL} --set num_generations=2 --set per_device_train_batch_size=2 --set gradient_accumulation_steps=1 "
    "--set max_completion_length=2 --set reward_workers=1"
)

# Command -> (arguments, keys of its JSON; None where it has no --json). In an order in which each finds what it needs.
RUNS: dict[str, tuple[str, set[str] | None]] = {
    "data generate countdown": ("--n 60 --numbers 2 --high 40 --out problems.jsonl", None),
    "data generate package-docs": ("--out docs.jsonl --max-bytes 60000", None),
    "data clean": ("docs.jsonl --out tidy.jsonl --rules unicode,space,gopher.words,pii", DATA | {"rules", "examples"}),
    "data boilerplate": (
        "docs.jsonl --out lean.jsonl --min-documents 2",
        DATA | {"method", "characters_cut", "most_repeated", "rows_emptied"},
    ),
    "data dedup": ("docs.jsonl --out clean.parquet --threshold 0.8", DATA),
    "data benchmarks add": ("problems=questions.jsonl", {"benchmarks"}),
    "data benchmarks list": ("", {"benchmarks"}),
    "data benchmarks show": ("problems", {"name", "layout", "items", "content_root", "sources"}),
    "data benchmarks verify": ("", {"ok", "benchmarks"}),
    "data decontaminate": (
        "docs.jsonl --benchmark problems=problems.jsonl --out decontaminated.jsonl --report contamination.html",
        DATA | {"benchmarks", "stops", "notes"},
    ),
    "data split": ("problems.jsonl --key countdown --test 12 --seed 1 --out splits", DATA | {"splits", "disjoint"}),
    "data mix": ("mix.yaml --out mixed.jsonl", DATA | {"plan_hash", "domains", "phases", "warnings", "repeated"}),
    "data pack": ("docs.jsonl --tokenizer tiny --max-length 4096 --out packed.jsonl", DATA | {"bins", "fill"}),
    "data run": ("recipe.yaml", DATA | {"stages", "recipe", "warnings", "reused"}),
    "data tokens measure": ("docs.jsonl --tokenizer tiny", {"rows", "characters", "bytes", "tokenizers"}),
    "data tokens train": (
        "docs.jsonl --vocab-size 300 --out tokenizer.json",
        {"output", "sha256", "vocabulary", "asked"},
    ),
    "data audit": (
        "train=splits/train.jsonl test=splits/test.jsonl --contract rlvr --key countdown --languages en",
        AUDIT,
    ),
    "data drop": (
        "splits/train.jsonl --contract rlvr --key countdown --against splits/test.jsonl --check against.keys "
        "--out dropped.jsonl",
        DATA | {"rows_behind"},
    ),
    "data pairs": ("prefs.jsonl --validation 4 --hidden-test 4 --out pairs", DATA | {"splits", "disjoint"}),
    "data synth": (
        "samples.jsonl --verifier math --generator tiny --generator-revision 1 --prompt-id plain --out made.jsonl",
        DATA | {"answers", "prompts", "sources"},
    ),
    "admit": (
        "sums --contract rlvr --train splits/train.jsonl --test splits/test.jsonl --key countdown --out sums",
        ADMISSION,
    ),
    "manifest list": ("", {"manifests"}),
    "manifest show": ("sums", {"manifest_id", "type", "name", "version", "splits", "checks", "verdict"}),
    "manifest verify": ("sums", {"ok", "files", "problems"}),
    "manifest export": (
        "sums --format croissant --out sums.croissant.json",
        {"report", "format", "bytes", "of", "notes"},
    ),
    "report": ("sums --out sums.html", {"report", "format", "bytes", "of", "notes"}),
    "manifest diff": ("sums@1 sums", {"splits", "checks", "bump"}),
    "plan memory": (
        "--model tiny --algorithm grpo --memory-gb 24",
        {"model", "algorithm", "parameters", "budget_bytes", "tokens", "ways"},
    ),
    "plan compute": (
        "--model tiny --tokens 1e6 --gpu h100 --price 2.5",
        {"flops", "gpu_hours", "cost", "tokens_per_second", "chinchilla_tokens", "over_training"},
    ),
    "plan rollouts": ("--model tiny --max-tokens 64 --tokens 16 --price 2", {"parts", "seconds", "gpu_waits"}),
    "plan gpus": ("", {"gpus"}),
    "train settings": ("sft", None),
    "train sft": (f"--unadmitted chats.jsonl --model tiny --out runs/sft {SMALL}", RUN),
    "train dpo": (f"--unadmitted pairs/train.jsonl --model runs/sft --out runs/dpo {SMALL}", RUN),
    "train simpo": (f"--unadmitted pairs/train.jsonl --model tiny --out runs/simpo {SMALL}", RUN),
    "train cpo": (f"--unadmitted pairs/train.jsonl --model tiny --out runs/cpo {SMALL}", RUN),
    "train orpo": (f"--unadmitted pairs/train.jsonl --model tiny --out runs/orpo {SMALL}", RUN),
    "train kto": (f"--unadmitted pairs/train.jsonl --model tiny --out runs/kto {SMALL}", RUN),
    "train reward": (f"--unadmitted pairs/train.jsonl --model tiny --out runs/rm {SMALL}", RUN | {"reward_model"}),
    "train grpo": (f"--admitted sums:train --model runs/sft --out runs/grpo {GRPO}", RUN),
    "train matrix": (
        "matrix.yaml --out runs/matrix",
        {"type", "variants", "cells", "winner", "reason", "metric", "seeds", "object", "page"},
    ),
    "export": (
        "runs/sft --out exported --merge --tolerance 1",
        {"path", "merged", "dtype", "outputs", "digest", "base", "measured", "tainted", "notes"},
    ),
    "eval": ("--admitted sums:test --model runs/grpo --n 2 --max-tokens 2", {"models", "split"}),
    "reward score": (
        "prefs.jsonl --model runs/rm --out rewarded.jsonl",
        DATA | {"columns", "scored", "unscored", "mean", "sd"},
    ),
    "reward sample": (
        "--admitted sums:test --policy runs/sft --model runs/rm --n 2 --prompts 2 --max-tokens 2 --out drawn.jsonl",
        {"completions", "prompts_sampled", "not_scored", "split", "sha256", "object"},
    ),
    "reward curve": ("drawn.jsonl --out curve.html", {"points", "peak", "loss", "over_optimised", "left_out"}),
    "why": ("problems.jsonl:1", set()),
    "catalog rebuild": ("", {"catalog", "objects", "head"}),
    "sql": ("@runs", {"columns", "rows"}),
}
EXEMPT = {"demo"}  # takes minutes; `make demo` runs it


def commands(group: object = None, path: str = "") -> Iterator[tuple[str, object]]:
    """Every command as `data dedup` with its object, walked from the application."""
    from cli.main import app

    group = group or typer.main.get_command(app)
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{path}{name} ")
        else:
            yield f"{path}{name}", command


COMMANDS = dict(commands())


@pytest.fixture
def run(warm, monkeypatch):
    monkeypatch.delenv("LPT_CATALOG", raising=False)
    return lambda folder, *arguments: warm.run(*arguments, cwd=folder)


def turn(role: str, text: str) -> list[dict[str, str]]:
    return [{"role": role, "content": text}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One folder in which the commands follow each other; one conversation of it is not made by them,
    nor are the pairs."""
    folder = tmp_path_factory.mktemp("smoke")
    turns = [{"role": "user", "content": "say one"}, {"role": "assistant", "content": "one"}]
    (folder / "chats.jsonl").write_text((json.dumps({"messages": turns}) + "\n") * 2)
    samples = [{"question": f"{n} + 1?", "completions": [f"#### {n + 1}", "#### 0"], "answer": n + 1} for n in range(9)]
    (folder / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in samples))
    pairs = [
        {"prompt": turn("user", f"say {n}"), "chosen": turn("assistant", str(n)), "rejected": turn("assistant", "no")}
        for n in range(20)
    ]
    (folder / "prefs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    asked = [{"question": f"How many of {n} lamps burn at noon?", "answer": f"#### {n}"} for n in range(9)]
    (folder / "questions.jsonl").write_text("".join(json.dumps(item) + "\n" for item in asked))
    (folder / "mix.yaml").write_text(
        "domains:\n  sums: {inputs: problems.jsonl, weight: 0.75}\n"
        "  held: {inputs: splits/test.jsonl, weight: 0.25, layout: countdown}\ntotal: {rows: 64}\nkind: rlvr\n"
    )
    (folder / "matrix.yaml").write_text(
        "algorithm: sft\nmodel: tiny\nunadmitted: chats.jsonl\nbase: {max_steps: 1, max_length: 256}\n"
        "variants: {small: {lora_r: 2}, large: {lora_r: 4}}\nseeds: [1]\n"
        "metric: loss\nbetter: lower\nband: {relative: 0.5}\n"
    )
    (folder / "recipe.yaml").write_text(
        "inputs: docs.jsonl\nstages:\n  - clean: {rules: 'unicode,space'}\n  - dedup: {method: exact}\n"
        "  - split: {key: text, test: 2}\n"
    )
    return folder


def test_every_command_is_here():
    assert set(COMMANDS) == set(RUNS) | EXEMPT


def test_only_commands_without_an_object_to_print_lack_json():
    for name, command in COMMANDS.items():
        options = {option for parameter in command.params for option in parameter.opts}
        assert ("--json" in options) == (name in RUNS and RUNS[name][1] is not None), name


@pytest.mark.parametrize("name", RUNS)
def test_each_command_runs(folder, run, name):
    arguments, keys = RUNS[name]
    ran = run(folder, *name.split(), *arguments.split(), *(["--json"] if keys is not None else []))
    assert ran.returncode == 0, ran.stderr
    assert "Traceback" not in ran.stderr
    if keys is None:
        return
    body = json.loads(ran.stdout)  # one object and nothing else
    assert isinstance(body, dict)
    assert keys <= set(body), keys - set(body)
    if keys & {"checks"} and name != "manifest diff":
        assert all(set(check) >= CHECK for check in body["checks"])
    if keys >= DATA:
        repeated = body.get("repeated", 0)
        assert body["rows_in"] + repeated == body["rows_out"] + sum(body["removed"].values()) + body["quarantined"]
        assert (folder / body["decisions"]).is_file()
        assert (folder / body["output"]).exists()
    if keys >= RUN:
        assert all(len(ends) == 2 for ends in body["metrics"].values())
        assert body["steps"] == 1
        assert (folder / body["checkpoint"]["path"]).is_dir()


def test_the_same_commands_for_people(folder, run):
    """Without --json: talk is on stderr; what was asked for, where it is data, on stdout."""
    talk = [
        "manifest show sums",
        "manifest verify sums",
        "manifest diff sums@1 sums",
        "data audit docs.jsonl --contract text",
        "data dedup docs.jsonl --out c.jsonl --method exact",
        "catalog rebuild",
    ]
    for line in talk:
        ran = run(folder, *line.split())
        assert ran.returncode in (0, 3, 4), ran.stderr
        assert ran.stdout == ""
        assert ran.stderr.strip()
    for line in ("manifest list", "sql @runs", "why problems.jsonl:1"):
        ran = run(folder, *line.split())
        assert ran.returncode == 0, ran.stderr
        assert ran.stdout.strip()
        assert ran.stderr == ""


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_examples(tmp_path, name, capsys):
    """`--help` in this process: the start of the interpreter is measured elsewhere."""
    from cli.main import app

    with pytest.raises(SystemExit) as end:
        app([*name.split(), "--help"])
    assert not end.value.code
    text = capsys.readouterr().out
    assert f"lpt {name}" in text.split("Examples:", 1)[1]
    for option in COMMANDS[name].params:
        assert option.opts[0].startswith("--") is False or option.help, f"{name} {option.opts} says nothing"
    assert COMMANDS[name].help


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("audit x.jsonl", "lpt data audit x.jsonl"),
        ("data admit", "lpt admit"),
        ("diff a b", "lpt manifest diff a b"),
        ("data sft --model tiny", "lpt train sft --model tiny"),
        ("help tokens", "lpt data tokens --help"),
    ],
)
def test_a_command_of_another_group_is_named(line, answer):
    from cli.main import app
    from manifests.errors import UsageError

    with pytest.raises(UsageError, match="has no command") as error:
        app(line.split())
    assert error.value.next == answer


def test_help_is_an_option_and_a_command(capsys):
    from cli.main import app

    def said(line):
        with pytest.raises(SystemExit) as end:
            app(line.split())
        assert not end.value.code
        return capsys.readouterr().out.strip()

    for name in ("", "train", "train sft", "data tokens"):
        whole = said(f"{name} --help")
        assert whole.startswith("Usage: ")
        assert f" {name} ".replace("  ", " ") in whole.splitlines()[0]
        assert said(f"{name} -h") == whole
        assert said(f"help {name}") == whole
    assert said("train help") == said("train --help")
    assert said("train help sft") == said("train sft --help")


@pytest.mark.parametrize(("typed", "offered"), [("lpt help ", "train"), ("lpt audit ", "train"), ("lpt tr", "train")])
def test_a_shell_can_complete_what_is_not_typed_to_the_end(tmp_path, typed, offered):
    asked = {"_LPT_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}
    ran = subprocess.run(
        [LPT], cwd=tmp_path, env=os.environ | asked, capture_output=True, text=True, timeout=120, check=False
    )
    assert (ran.returncode, ran.stderr, offered in ran.stdout.split()) == (0, "", True)


def test_help_and_version(tmp_path):
    def run(*arguments):
        return subprocess.run([LPT, *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)

    for arguments in (["--help"], ["data", "--help"], []):
        ran = run(*arguments)
        assert ran.returncode == (0 if arguments else 2)
        assert "Usage: lpt" in ran.stdout + ran.stderr
    assert run("--version").stdout.strip()[0].isdigit()
    assert not list(tmp_path.iterdir())
