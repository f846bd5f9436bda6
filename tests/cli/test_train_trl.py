"""``lpt train … --engine trl``: the same command, record and exit codes; standard output is the record alone."""

from __future__ import annotations

import json
import signal
import time

import pytest
from command_line import invoke, jsonl, refused, unchanged

SMALL = ("--set", "lora_r=2", "--set", "per_device_train_batch_size=2", "--set", "max_steps=1", "--engine", "trl")


@pytest.fixture(scope="module")
def pairs(place):
    """`pairs@1:train` in the catalog of the place."""
    rows = [
        {
            "prompt": [{"role": "user", "content": f"which number follows {n}?"}],
            "chosen": [{"role": "assistant", "content": f"after {n} comes {n + 1}"}],
            "rejected": [{"role": "assistant", "content": f"{n} has no end" + " at all" * (n % 2 * 2)}],
        }
        for n in range(12)
    ]
    jsonl(place / "pairs.jsonl", rows)
    admitted = invoke("admit", "pairs", "--contract", "preference", "--train", "pairs.jsonl", cwd=place)
    assert admitted.code in (0, 3), admitted.stderr
    return place


@pytest.mark.parametrize(("command", "split"), [("sft", "chats"), ("dpo", "pairs"), ("kto", "pairs")])
def test_a_run_through_trl_is_recorded_and_evaluated_like_ours(pairs, model, tmp_path, command, split):
    run = (command, "--admitted", f"{split}:train", "--model", model, "--out", tmp_path / "run", *SMALL)
    ran = invoke("train", *run, "--json", cwd=pairs)
    assert ran.code == 0, ran.stderr
    body = ran.json
    assert (body["algorithm"], body["verified"], body["engine"]["name"]) == (command, "admitted", "trl")
    assert body["engine"]["version"] == body["env"]["packages"]["trl"]
    found = invoke("sql", f"select status, steps from v_run where run_id = '{body['run_id']}'", cwd=pairs)
    assert found.code == 0, found.stderr
    assert "done" in found.stdout
    if command == "sft":
        measured = invoke(
            "eval", "--admitted", "sums:test", "--model", tmp_path / "run", "--max-tokens", 2, "--n", 2, "--json",
            cwd=pairs,
        )  # fmt: skip
        assert measured.code == 0, measured.stderr


def test_a_run_through_trl_that_is_stopped_says_that_it_is_not_resumed(place, model, warm, tmp_path):
    run = ["train", "sft", "--admitted", "chats:train", "--model", model, "--out", tmp_path / "run", *SMALL]
    command = [*run, "--set", "lr_scheduler_type=constant", "--set", "max_steps=100000", "--json"]
    with warm.start(*command, cwd=place) as process:
        until, metrics = time.monotonic() + 90, tmp_path / "run/metrics.jsonl"
        while not (metrics.exists() and metrics.read_text().count("\n") > 1) and time.monotonic() < until:
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        ran = process.wait()
    assert ran.returncode == 143, ran.stderr
    body = json.loads(ran.stdout)
    assert (body["status"], body["stopped_by"]) == ("stopped", "SIGTERM")
    assert (
        f"stopped after step {body['steps']:,}\nnext: lpt train sft --engine trl --model {tmp_path}/run" in ran.stderr
    )
    with unchanged(tmp_path):
        again = invoke("train", "sft", "--resume", tmp_path / "run", cwd=place)
        refused(again, 2, "a run of --engine trl is not resumed", "--engine lean")


def test_what_trl_does_not_train_is_refused(pairs, model, tmp_path):
    run = ("--admitted", "pairs:train", "--model", model, "--out", tmp_path / "run", *SMALL)
    with unchanged(tmp_path):
        refused(invoke("train", "simpo", *run, cwd=pairs), 2, "--engine trl has no simpo", "--engine lean")
        assert invoke("train", "grpo", *run, cwd=pairs).code == 2
        refused(invoke("train", "dpo", *run, "--set", "execution=eager", cwd=pairs), 2, "have no execution")


WITHOUT_TRL = """
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name == "trl":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hidden())
assert "trl" not in sys.modules
import lpt_train.kto, lpt_train.preference, lpt_train.sft
from cli.main import run
run()
"""


def test_without_trl_our_loops_load_and_the_extra_is_named(place, model, warm, tmp_path):
    run = ["train", "sft", "--admitted", "chats:train", "--model", model, "--out", tmp_path / "run", *SMALL]
    ran = warm.run(*run, cwd=place, code=WITHOUT_TRL)
    assert ran.returncode == 2, ran.stderr
    assert "pip install 'lpt[trl]'" in ran.stderr
    assert "Traceback" not in ran.stderr
