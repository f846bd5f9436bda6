#!/usr/bin/env python3
"""A reward model on real solutions of GSM8K: labels as they are against half of them flipped, and best-of-n.

    python benchmarks/reward/run.py prepare FOLDER --solutions example_model_solutions.jsonl
    python benchmarks/reward/run.py run FOLDER --model DIR --out RESULT.json

`prepare` makes pairs of a right and a wrong solution to one question (`lpt data pairs`) and holds three tenths of the
questions out. `run` trains twice with the same rows, seed and steps, and measures both on the held-out pairs; then the
four solutions of every question that was not trained on are scored by the first model: gold is whether one is right.
`--model tiny` is made on the spot: two layers of 64, random weights, a byte a token. A run that was stopped goes on.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RESPONSES = ("6b_finetuning", "6b_verification", "175b_finetuning", "175b_verification")
PACKAGES = ("torch", "transformers", "peft")


def prepare(args):
    lpt(
        "data", "pairs", args.solutions, "--responses", ",".join(RESPONSES), "--prompt", "question", "--hidden-test",
        "0.3", "--seed", "1", "--out", args.folder,
    )  # fmt: skip
    lpt(
        "admit", "gsm", "--contract", "preference", "--train", args.folder / "train.jsonl", "--test",
        args.folder / "hidden_test.jsonl", "--out", args.folder / "gsm",
    )  # fmt: skip
    trained = {first_turn(row) for row in lines(args.folder / "train.jsonl")}
    with open(args.folder / "solutions.jsonl", "w", encoding="utf-8") as file:
        for row in lines(Path(args.solutions)):
            if row["question"] in trained:
                continue
            for name in RESPONSES:
                told = row[name]
                messages = [
                    {"role": "user", "content": row["question"]}, {"role": "assistant", "content": told["solution"]},
                ]  # fmt: skip
                one = {"prompt_id": row["question"], "messages": messages, "gold": float(told["is_correct"])}
                file.write(json.dumps(one) + "\n")


def lpt(*arguments):
    """A command of this tree; a verdict of tune is no failure."""
    start = "import sys; from cli.main import run; sys.argv[0] = 'lpt'; run()"
    code = subprocess.run([sys.executable, "-c", start, *map(str, arguments)], check=False, cwd=ROOT).returncode
    if code not in (0, 3):
        sys.exit(code)


def lines(path):
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def first_turn(row):
    return row["prompt"][0]["content"] if isinstance(row["prompt"], list) else row["prompt"]


def run(args):
    sys.path.insert(0, str(ROOT))
    import torch

    from lpt_train.admitted import load_split
    from lpt_train.best_of_n import Scored, curve
    from lpt_train.config import from_mapping
    from lpt_train.config_reward import RewardConfig
    from lpt_train.reward import train
    from lpt_train.reward_scores import RewardModel
    from lpt_train.tiny import make_tiny

    split, hidden = (load_split(f"{args.folder}/gsm/manifest.json:{name}") for name in ("train", "test"))
    model = str(make_tiny(args.folder / "tiny", hidden=64, layers=2, heads=2)) if args.model == "tiny" else args.model
    options = {
        "max_steps": args.steps, "learning_rate": args.learning_rate, "max_length": 512,
        "per_device_train_batch_size": args.batch, "lora_r": 16, "ranking": args.ranking, "logging_steps": 10,
        "per_device_eval_batch_size": 32, "seed": args.seed,
    }  # fmt: skip
    found = {}
    for share in (0.0, 0.5):
        asked = options | {"model": model, "flip_labels": share}
        config, out = from_mapping(RewardConfig, asked), args.folder / f"run-{share}-{digest(asked)}"
        body = json.loads((out / "run.json").read_text()) if (out / "run.json").exists() else {}
        if body.get("status") != "done":
            body = train(config, split=split, out=out, eval_split=hidden, resume=bool(body)).body
        if body["status"] != "done":  # a run that was stopped is not what is to be measured
            sys.exit(f"{out.name} is {body['status']} at step {body['steps']}; the same command goes on")
        kept = (
            "metrics", "verdict", "control", "data", "execution", "tokens_per_second", "peak_memory_bytes", "seconds",
            "parameters", "trainable_parameters",
        )  # fmt: skip
        found[f"flipped_{share}"] = {
            **body["reward_model"], **{name: body.get(name) for name in kept},
            "curve": [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()],
        }  # fmt: skip
    solutions = lines(args.folder / "solutions.jsonl")
    right = args.folder / f"run-0.0-{digest(options | {'model': model, 'flip_labels': 0.0})}"
    scorer = RewardModel(str(right), batch_size=64)
    rewards = [reward for reward, _ in scorer.score([row["messages"] for row in solutions])]
    scored = [Scored(row["prompt_id"], reward, row["gold"]) for row, reward in zip(solutions, rewards, strict=True)]
    words = [Path(word).name if "/" in word else word for word in sys.argv[1:]]
    result = {
        "command": " ".join(["python", "benchmarks/reward/run.py", *words]), "options": options,
        "model": Path(args.model).name,
        "pairs": {"train": len(split), "hidden": len(hidden)}, "runs": found, "best_of_n": curve(scored).to_json(),
        "machine": {
            "platform": platform.platform(), "device": body["env"]["device"], "threads": torch.get_num_threads(),
        },
        "versions": {name: metadata.version(name) for name in PACKAGES},
    }  # fmt: skip
    text = json.dumps(result, indent=1)
    Path(args.out).write_text(text + "\n", encoding="utf-8")
    for name, told in found.items():
        error = told["calibration"]["ece_equal_width"]
        sys.stdout.write(
            f"{name}: accuracy {told['accuracy']:.3f} ({told['accuracy_low']:.3f} to {told['accuracy_high']:.3f}), "
            f"ECE {error:.3f}, {told['execution']}, {told['seconds']} s, {told['verdict']}\n"
        )
    for point in result["best_of_n"]["points"]:
        sys.stdout.write(f"best of {point['n']}: right {point['gold']:.3f}, gain {point['gain']:+.3f}\n")


def digest(options):
    """Runs of other options lie in other folders."""
    return hashlib.sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()[:12]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("prepare")
    one.add_argument("folder", type=Path)
    one.add_argument("--solutions", required=True)
    one.set_defaults(call=prepare)
    two = commands.add_parser("run")
    two.add_argument("folder", type=Path)
    two.add_argument("--model", required=True)
    two.add_argument("--out", required=True)
    two.add_argument("--steps", type=int, default=150)
    two.add_argument("--batch", type=int, default=16)
    two.add_argument("--learning-rate", type=float, default=3e-4)
    two.add_argument("--ranking", default="pairs")
    two.add_argument("--seed", type=int, default=0)
    two.set_defaults(call=run)
    args = parser.parse_args()
    args.call(args)


if __name__ == "__main__":
    main()
