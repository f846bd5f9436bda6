#!/usr/bin/env python3
"""One process against several on the GPUs of one machine: rates, losses, and what the sum of the gradients costs.

    python benchmarks/train/ranks.py --processes 2 --out RESULT.json      on 2 GPUs, minutes: most of it compiling
    python benchmarks/train/ranks.py --shape tiny --large tiny --size 2 --steps 7      on CPU, to see that it works

Each job runs in one process and in several with the same rows a step (twice the accumulation in one), so that the rates
are those of the same update and the losses can be compared: to the bit they cannot be equal, sums are added in another
order. Weights are random, tokens are bytes: speed does not depend on them. Rate: the median over the steps after the
warm-up. The floor of the sum is what its bytes take over NVLink at 450 GB/s a direction.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

from cases import SHAPES, machine, random_model, turn

NVLINK = 450e9  # bytes/s a direction, H200
WARM_UP = 5
QUIET = ("losses", "seconds", "checkpoint", "notes")  # written, not printed
LORA = {"lora_r": 16, "lora_alpha": 32}
PACKED = {"packing": True}
# name -> (shape: --shape or the larger one, algorithm, options, in one process too)
JOBS = {
    "sft": ("small", "sft", {**LORA, **PACKED}, True),
    "dpo": ("small", "dpo", LORA, True),
    "sft-large": ("large", "sft", {**LORA, **PACKED}, True),
    "sft-fsdp2": ("small", "sft", {**LORA, **PACKED, "sharding": "fsdp2"}, False),
    "dpo-fsdp2": ("small", "dpo", {**LORA, "sharding": "fsdp2"}, False),
    "sft-fsdp2-compiled": ("small", "sft", {**LORA, **PACKED, "sharding": "fsdp2", "execution": "compiled"}, False),
    "sft-large-full-fsdp2": ("large", "sft", {"use_peft": False, **PACKED, "sharding": "fsdp2"}, False),
    "fp32": ("tiny", "sft", {**LORA, "dtype": "float32"}, True),
    "fp32-fsdp2": ("tiny", "sft", {"use_peft": False, "dtype": "float32", "sharding": "fsdp2"}, False),
    "fp32-full": ("tiny", "sft", {"use_peft": False, "dtype": "float32"}, True),
}
# What a job of several processes is compared with, where it is not the job of its own name.
SAME_AS = {"sft-fsdp2": "sft", "sft-fsdp2-compiled": "sft", "dpo-fsdp2": "dpo", "fp32-fsdp2": "fp32-full"}


def records(algorithm: str, count: int) -> list[dict]:
    """Conversations or pairs of a few hundred bytes."""
    rng = random.Random(0)
    if algorithm == "sft":
        return [{"messages": turn(rng, "user", 5, 15) + turn(rng, "assistant", 10, 120)} for _ in range(count)]
    sides = ("chosen", "rejected")
    return [
        {"prompt": turn(rng, "user", 5, 15), **{side: turn(rng, "assistant", 10, 60) for side in sides}}
        for _ in range(count)
    ]


def make_models(folder: Path, small: str, large: str) -> None:
    """Random models with the tokenizer of bytes."""
    random_model("tiny", folder / "tiny")
    random_model(small, folder / "small")
    random_model(large, folder / "large")


def run_job(name: str, args: argparse.Namespace, folder: Path, device: str, world: int) -> dict:
    """One training run in this process, or in its part of several."""
    from lpt_train import preference, sft
    from lpt_train.admitted import load_unadmitted
    from lpt_train.config import SFTConfig, from_mapping
    from lpt_train.config_preference import PreferenceConfig

    model, algorithm, options, _ = JOBS[name]
    rows = args.size if model != "tiny" else 4
    train, config, kind = (
        (sft.train, SFTConfig, "sft") if algorithm == "sft" else (preference.train, PreferenceConfig, "preference")
    )
    options = options if world > 1 else {**options, "sharding": "none"}
    made = from_mapping(config, {
        "model": str(folder / model), "max_length": 1024, "max_steps": args.steps, "learning_rate": 1e-4,
        "device": device, "per_device_train_batch_size": rows, "gradient_accumulation_steps": args.processes // world,
        "ddp_timeout": 60, **options,
    })  # fmt: skip
    began = time.time()
    result = train(made, split=load_unadmitted(folder / f"{algorithm}.jsonl", kind), out=folder / f"{name}-{world}")
    lines = [json.loads(line) for line in (result.path / "metrics.jsonl").read_text().splitlines()]
    units = [line["tokens"] if algorithm == "sft" else rows * args.processes for line in lines]
    rates = [count / line["step_seconds"] for count, line in zip(units, lines, strict=True)][WARM_UP:]
    return {
        "processes": world, "rate": statistics.median(rates), "unit": "tokens/s" if algorithm == "sft" else "pairs/s",
        "step_seconds": statistics.median([line["step_seconds"] for line in lines][WARM_UP:]),
        "seconds": [round(line["step_seconds"], 4) for line in lines], "losses": [line["loss"] for line in lines],
        "execution": result.body["execution"], "peak_gb": result.body["peak_memory_bytes"] / 1e9,
        "trainable_parameters": result.body["trainable_parameters"], "notes": result.notes,
        "checkpoint": result.body["checkpoint"]["path"], "whole_seconds": time.time() - began,
    }  # fmt: skip


def sum_of_gradients(checkpoint: str, device: str, rounds: int = 30) -> dict:
    """What adding up gradients shaped as those of a checkpoint takes, its floor, and what agreeing to stop takes."""
    import torch
    import torch.distributed as dist
    from safetensors.torch import load_file

    from lpt_train.ranks import Ranks

    ranks = Ranks(dist.get_rank(), dist.get_world_size())
    parameters = [
        torch.nn.Parameter(tensor.float().to(device))
        for tensor in load_file(next(Path(checkpoint).glob("*model.safetensors"))).values()
    ]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    found = {"bytes": sum(4 * parameter.numel() for parameter in parameters), "tensors": len(parameters)}
    for label, work in (("sum", lambda: ranks.sum_gradients(parameters)), ("agree", lambda: ranks.any(False))):
        times = []
        for _ in range(rounds):
            if device != "cpu":
                torch.cuda.synchronize()
            began = time.perf_counter()
            work()
            if device != "cpu":
                torch.cuda.synchronize()
            times.append(time.perf_counter() - began)
        found[f"{label}_microseconds"] = statistics.median(times[5:]) * 1e6
    share = 2 * (ranks.world - 1) / ranks.world
    return found | {"floor_microseconds": share * found["bytes"] / NVLINK * 1e6}


def worker(args: argparse.Namespace) -> None:
    """All jobs in this process; the main one prints a line a job."""
    import torch

    from lpt_train.ranks import leave

    device = "cuda" if torch.cuda.is_available() else "cpu"
    folder, world = Path(args.folder), int(os.environ["WORLD_SIZE"])
    os.environ["LPT_CATALOG"] = str(folder / f"catalog-{world}")
    main = os.environ["RANK"] == "0"
    for name in args.jobs.split(","):
        if world == 1 and not JOBS[name][3]:
            continue
        try:
            found = run_job(name, args, folder, device, world)
        except Exception as error:  # the other jobs are worth having
            found = {"processes": world, "error": f"{type(error).__name__}: {error}"[:600]}
            traceback.print_exc()
        if main:
            print("RESULT " + json.dumps({"job": name, **found}), flush=True)
    if world > 1 and (folder / "sft-2").is_dir():
        found = sum_of_gradients(str(max((folder / "sft-2" / "checkpoints").glob("step-*"))), device)
        if main:
            print("RESULT " + json.dumps({"job": "sum", **found}), flush=True)
    leave()


def launch(args: argparse.Namespace, folder: str, world: int) -> list[dict]:
    """The results of all jobs in `world` processes."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world)]
    command += [__file__, "--worker"]
    command += ["--folder", folder, "--steps", str(args.steps), "--processes", str(args.processes), "--jobs", args.jobs]
    command += ["--size", str(args.size)]
    found = []
    with tempfile.TemporaryFile("w+") as talk, subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=talk, text=True
    ) as running:  # fmt: skip
        for line in running.stdout:
            if line.startswith("RESULT "):
                found.append(json.loads(line[7:]))
                print(json.dumps({key: value for key, value in found[-1].items() if key not in QUIET}), flush=True)
        if running.wait() or not found:
            talk.seek(0)
            found.append({"job": "launch", "processes": world, "error": talk.read()[-3000:]})
            print(found[-1]["error"], file=sys.stderr)
    return found


def compare(found: list[dict]) -> dict[str, dict]:
    """Of each job in several processes: how many times the rate of one, and how far the losses are from its."""
    alone = {line["job"]: line for line in found if line.get("processes") == 1 and "rate" in line}
    table = {}
    for line in found:
        one = alone.get(SAME_AS.get(line["job"], line["job"]))
        if line.get("processes", 1) == 1 or "rate" not in line or one is None:
            continue
        gaps = [abs(a - b) for a, b in zip(line["losses"], one["losses"], strict=True)]
        table[line["job"]] = {
            "times_the_rate": round(line["rate"] / one["rate"], 3), "largest_loss_difference": max(gaps),
            "mean_loss_difference": statistics.mean(gaps),
        }  # fmt: skip
    return table


def main() -> None:
    """Parse, run, compare, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--shape", choices=SHAPES, default="smollm2-135m")
    parser.add_argument("--large", choices=SHAPES, default="qwen2.5-0.5b")
    parser.add_argument("--jobs", default=",".join(JOBS))
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--size", type=int, default=16, help="rows or pairs of a process in a step")
    parser.add_argument("--out")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        worker(args)
        return
    import torch

    began = time.time()
    with tempfile.TemporaryDirectory() as folder:
        make_models(Path(folder), args.shape, args.large)
        for algorithm in ("sft", "dpo"):
            lines = (json.dumps(record) + "\n" for record in records(algorithm, 1000))
            (Path(folder) / f"{algorithm}.jsonl").write_text("".join(lines))
        found = [line for world in (1, args.processes) for line in launch(args, folder, world)]
    for line in found:
        line.pop("checkpoint", None)
    report = {
        "compared": compare(found), "results": found, "shapes": {"small": args.shape, "large": args.large},
        "machine": machine("cuda" if torch.cuda.is_available() else "cpu") | {"devices": torch.cuda.device_count()},
        "command": "python benchmarks/train/ranks.py " + " ".join(sys.argv[1:]), "seconds": time.time() - began,
    }  # fmt: skip
    print(json.dumps(report["compared"], indent=1))
    if args.out:
        Path(args.out).write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
