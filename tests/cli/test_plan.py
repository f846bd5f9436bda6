"""``lpt plan``: numbers on stdout, one object under --json, three-part errors, no torch."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import invoke, jsonl, refused

from cli.main import app

ROOT = Path(__file__).parents[2]


def lpt(capsys, line: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as end:
        app(["plan", *line.split()])
    out = capsys.readouterr()
    return int(end.value.code or 0), out.out, out.err


@pytest.fixture
def seven(tmp_path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps({
        "model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
        "num_attention_heads": 32, "vocab_size": 32000, "tie_word_embeddings": False,
    }))  # fmt: skip
    return tmp_path


def test_seven_billion_parameters_whole_lora_and_4_bits(capsys, seven):
    """Whole: 16 bytes a parameter (12 is a recipe without float32 weights); LoRA 2; 4 bits .5625, its vocabulary 2."""
    code, out, _ = lpt(capsys, f"memory --model {seven} --gpu a100 --set per_device_train_batch_size=1 --json")
    report = json.loads(out)
    ways, n = report["ways"], report["parameters"]
    assert code == 0
    assert n == 6_738_415_616
    assert sum(ways["full"]["static"].values()) == 16 * n - 8 * n * (ways["full"]["host"].get("optimizer", 0) > 0)
    assert ways["lora"]["static"]["weights"] == 2 * n
    assert ways["qlora"]["static"]["weights"] == pytest.approx(
        0.5625 * (n - 2 * 32000 * 4096) + 2 * 2 * 32000 * 4096, rel=1e-3
    )
    assert not ways["full"]["fits"] or ways["full"]["host"]["optimizer"] == 8 * n
    assert ways["lora"]["largest_batch"] < ways["qlora"]["largest_batch"]
    assert ways["full"]["largest_batch"] == 0


def test_ppo_has_four_models_and_the_cache_of_its_rollouts(capsys, seven):
    def ways(algorithm: str) -> dict:
        line = f"memory --model {seven} --algorithm {algorithm} --gpu b200 --set memory=off --json"
        return json.loads(lpt(capsys, line)[1])["ways"]

    ppo, grpo = ways("ppo"), ways("grpo")
    n = 6_738_415_616
    assert ppo["full"]["static"]["weights"] == 2 * 4 * n  # policy and critic train …
    assert ppo["full"]["static"]["frozen models"] == 2 * 2 * n  # … the reference and the reward model do not
    assert ppo["lora"]["static"]["frozen models"] == 2 * n  # the reference is the base of the adapter
    assert "frozen models" not in grpo["full"]["static"]
    line = f"memory --model {seven} --algorithm grpo --set rollout_batch_size=256 --set gradient_accumulation_steps=64 "
    line += (
        "--set per_device_train_batch_size=4 --set gradient_checkpointing=true --set max_completion_length=4096 --json"
    )
    report = json.loads(lpt(capsys, line)[1])
    assert report["kv_bytes_per_token"] == 2 * 32 * 4096 * 2
    assert report["ways"]["lora"]["moving"]["key-value cache"] == 256 * 5120 * report["kv_bytes_per_token"]


@pytest.mark.parametrize("algorithm", ["sft", "dpo", "simpo", "cpo", "orpo", "kto", "reward", "grpo", "ppo"])
def test_every_algorithm_has_a_plan_with_its_own_settings(capsys, algorithm):
    code, out, _ = lpt(
        capsys, f"memory --model tiny --algorithm {algorithm} --set per_device_train_batch_size=8 --json"
    )
    report = json.loads(out)
    rows = 2 if algorithm in ("dpo", "simpo", "cpo", "orpo", "reward") else 1
    assert code == 0
    assert report["tokens"] == 8 * rows * report["row"]


def test_what_gives_way_is_said_and_longer_rows_take_more(capsys, seven):
    code, out, err = lpt(capsys, f"memory --model {seven} --memory-gb 40 --set max_length=2048")
    assert code == 0
    assert "computed again" in out.replace("\n", " ") or "computed" in out
    assert "16,384 tokens" in err
    short = json.loads(lpt(capsys, f"memory --model {seven} --length 512 --json")[1])
    assert short["tokens"] == 8 * 512


def test_compute_is_a_table_and_an_object(capsys, seven):
    _, out, err = lpt(capsys, f"compute --model {seven} --tokens 2e9 --gpu h200 --gpus 8 --price 3.5")
    assert "GPU hours" in out
    assert "at 27% of 989 TFLOP/s, an assumption: packed SFT on an H200 reached at 0.1B 15% and 0.5B 27%" in err
    _, _, given = lpt(capsys, f"compute --model {seven} --tokens 2e9 --mfu 0.4")
    assert "at 40% of 989 TFLOP/s" in given
    assert "assumption" not in given
    full, lora = (
        json.loads(lpt(capsys, f"compute --model {seven} --tokens 2e9 {more} --json")[1])
        for more in ("", "--lora 16 --forward-passes 1")
    )
    assert full["flops_per_token_and_parameter"] == pytest.approx(6.1, abs=0.15)
    assert lora["flops_per_token_and_parameter"] == pytest.approx(6.1, abs=0.15)  # 4, and a reference's 2
    assert lora["scope"] == "lora"
    assert "computed again" not in err
    _, _, err = lpt(capsys, f"compute --model {seven} --tokens 2e9 --checkpoint-every 1")
    assert "33% on top is computed again" in err


def test_tokens_have_units_and_an_adapter_is_not_held_to_a_rule_of_pre_training(capsys, seven):
    plain, short = (
        json.loads(lpt(capsys, f"compute --model {seven} --tokens {tokens} --json")[1]) for tokens in ("10e6", "10M")
    )
    assert short == plain
    assert "20 a parameter" in lpt(capsys, f"compute --model {seven} --tokens 2B")[1].replace("\n", " ")
    assert "a parameter" not in lpt(capsys, f"compute --model {seven} --tokens 2B --lora 16")[1].replace("\n", " ")


def test_memory_takes_the_rank_as_compute_does(capsys, seven):
    named, set_ = (
        json.loads(lpt(capsys, f"memory --model {seven} {more} --json")[1]) for more in ("--lora 64", "--set lora_r=64")
    )
    assert named == set_
    _, out, err = lpt(capsys, f"memory --model {seven}")
    assert "rung" not in out
    assert "casts: copies" in err


def test_compute_takes_the_tokens_of_an_admitted_split(place, seven, model):
    """As often as it is passed over, in rows of their own length; `chats` was admitted with a tokenizer, `sums` not."""
    told = json.loads((place / ".lpt" / "splits" / "chats@1" / "manifest.json").read_text())
    counted = told["splits"]["train"]["tokenized"]
    line = ("plan", "compute", "--admitted", "chats:train", "--epochs", 3, "--gpu", "a100")
    found = invoke(*line, "--model", seven, "--json", cwd=place)
    assert found.code == 0, found.stderr
    report = found.json
    context = math.ceil(counted["tokens"] / 36)
    assert (report["tokens"], report["context"]) == (3 * counted["tokens"], context)
    assert (report["admitted"]["ref"], report["admitted"]["rows"]) == ("chats@1:train", 36)
    same = (
        "plan",
        "compute",
        "--model",
        seven,
        "--tokens",
        3 * counted["tokens"],
        "--context",
        context,
        "--gpu",
        "a100",
    )
    alone = invoke(*same, "--json", cwd=place).json
    assert alone["admitted"] is None
    assert alone["gpu_hours"] == report["gpu_hours"]
    assert invoke(*line, "--model", seven, "--context", 8, "--json", cwd=place).json["context"] == 8
    assert "8 tokens, as typed" in invoke(*line, "--model", "tiny", "--context", 8, cwd=place).said
    said = invoke(*line, "--model", "tiny", cwd=place).said
    assert f"rows of {context} tokens, the mean over rows" in said
    assert f"chats@1:train: {counted['tokens']:,} tokens in 36 rows, counted with tiny; 3 epochs" in said
    asked = ("plan", "compute", "--model", "tiny")
    refused(invoke(*asked, "--admitted", "sums:train", cwd=place), 2, "lpt plan rollouts")
    refused(invoke(*asked, cwd=place), 2, "neither --tokens nor --admitted")
    refused(invoke(*asked, "--tokens", 5, "--admitted", "chats:train", cwd=place), 2, "both --tokens and --admitted")
    refused(invoke(*asked, "--admitted", "chats:train", "--epochs", 0, cwd=place), 2, "positive")


def test_a_split_without_a_count_is_counted_with_the_models_tokenizer(place, model, tmp_path):
    jsonl(tmp_path / "docs.jsonl", [{"text": "x" * n} for n in range(40, 60)])
    (tmp_path / "own").mkdir()
    admitted = invoke("admit", "docs", "--contract", "text", "--train", tmp_path / "docs.jsonl", cwd=place)
    assert admitted.code in (0, 3), admitted.stderr
    line = ("plan", "compute", "--admitted", "docs:train", "--json")
    report = invoke(*line, "--model", model, cwd=place).json
    assert report["tokens"] == sum(range(41, 61))  # and one to stop, each
    assert report["context"] == math.ceil(sum(n * n for n in range(41, 61)) / sum(range(41, 61)))
    assert "the mean over tokens" in invoke(*line[:-1], "--model", model, cwd=place).said
    (tmp_path / "own" / "config.json").write_text((model / "config.json").read_text())
    refused(invoke(*line, "--model", tmp_path / "own", cwd=place), 5, "tokenizer")


def test_rollouts_say_what_waits(capsys, seven):
    line = f"rollouts --model {seven} --tokens 64 --max-tokens 128 --tool-calls 4 --tool-seconds 1 --tool-workers 4"
    _, out, err = lpt(capsys, line)
    assert "tools" in out
    assert "waits for workers" in err
    assert "outside of decoding at 27% of the peak, an assumption" in err
    report = json.loads(lpt(capsys, f"{line} --lora 8 --forward-passes 1 --json")[1])
    assert report["parts"]["tools"]["seconds"] == 256
    assert report["parts"]["references"]["seconds"] > 0


@pytest.mark.parametrize(
    ("line", "code", "text"),
    [("memory --model tiny --gpu k80", 2, "no GPU of that name"), ("memory --model ./nowhere", 5, "config.json"),
     ("memory --model tiny --set max_lenght=3", 2, "max_length"), ("memory --model tiny --memory-gb 0", 2, "no memory"),
     ("memory --model tiny --set lora_target_modules=q_porj", 2, "q_porj"),
     ("compute --model tiny --tokens -1", 2, "positive"), ("compute --model tiny --tokens 1e9 --mfu 30", 2, "share"),
     ("rollouts --model tiny --tokens 90 --max-tokens 64", 2, "above the limit"),
     ("compute --model tiny --tokens nan", 2, "positive"), ("compute --model tiny --tokens 5X", 2, "no number"),
     ("memory --model tiny --set sharding=fsdp2", 4, "not predicted where weights are spread over processes")],
)  # fmt: skip
def test_errors_have_three_parts(line, code, text):
    ran = subprocess.run(
        [sys.executable, "-c", "from cli.main import run; run()", "plan", *line.split()],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == code, ran.stderr
    assert text in ran.stderr
    assert "next:" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_planning_loads_no_torch():
    code = (
        "import sys\nfrom cli.main import app\n"
        "try: app(['plan', 'memory', '--model', 'tiny'])\nexcept SystemExit: pass\n"
        "sys.exit(any(name in sys.modules for name in ('torch', 'transformers', 'numba', 'polars')))"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
