#!/usr/bin/env python3
"""The losses of our loops and of TRL's trainers, step by step, on the same batches, adapter and seed.

    python benchmarks/train/losses.py --shape tiny --out RESULT.json
    python benchmarks/train/losses.py --model DIR --device cuda --dtypes bfloat16 --jobs 4 --out RESULT.json
    python benchmarks/train/losses.py --model DIR --device cuda --sft chats.jsonl --dpo pairs.jsonl --out RESULT.json

TRL's trainers (their forward, loss, gradients, optimizer and schedule) are given the rows as we render them, in our
order, so that what is compared is the training and not the tokenising; `tests/lpt_train/test_trl_parity.py` lets TRL
tokenise for itself. `sft` is a padded batch of rows on TRL's side and the same rows end to end on ours; `sft-packed` is
packed with isolation on both. No dropout. Each engine and case is a process of its own, `--jobs` of them at a time.

Adam's first update moves every weight by the whole rate, in the direction of a gradient's sign, which rounding decides
where the gradient is small: without `--warmup` two runs in bfloat16 part there and meet again later.

`--engines` names who is compared with TRL. Two programs that round at other places part in bfloat16, whoever wrote
them, so the record can hold TRL with Liger's kernels (`trl-liger`) and our own steps without compilation (`lpt-eager`)
or compiled without the roundings of an eager model (`lpt-fused`); in float32 these would be `trl` and `lpt` again.
Where a case runs in both precisions, the record also says how far the bfloat16 losses of each engine are from TRL's in
float32: of two that round differently, which is nearer to what both compute.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cases import SHAPES, machine, random_model, rows, write_rows

CASES = ("sft", "sft-packed", "dpo")
ENGINES = ("trl", "trl-liger", "lpt", "lpt-eager", "lpt-fused")
TARGETS = {"float32": ("largest", 1e-4), "bfloat16": ("mean", 0.02)}


def losses(args, case, dtype, engine):
    """The loss of every step of one engine."""
    import torch

    from lpt_train import micro_batch, preference, sft
    from lpt_train.admitted import load_unadmitted
    from lpt_train.config import SFTConfig, from_mapping
    from lpt_train.config_preference import PreferenceConfig

    if args.threads:
        torch.set_num_threads(args.threads)
    options = {
        "model": args.model, "max_length": args.length, "max_steps": args.steps, "learning_rate": args.rate,
        "lora_r": 8, "lora_alpha": 16, "per_device_train_batch_size": args.batch, "device": args.device,
        "dtype": dtype, "use_peft": not args.whole, "seed": args.seed, "warmup_steps": args.warmup,
        "execution": "eager" if engine == "lpt-eager" else "auto",
    }  # fmt: skip
    algorithm = case.removesuffix("-packed")
    if algorithm == "sft":
        config, kind, train = from_mapping(SFTConfig, options | {"packing": case != "sft"}), "sft", sft.train
    else:
        config, kind, train = from_mapping(PreferenceConfig, options), "preference", preference.train
    if engine.startswith("trl"):
        from lpt_train.engines import trl

        train, arguments = trl.train, trl.arguments
        trl.arguments = lambda *given, **named: arguments(*given, **named) | {"use_liger_kernel": engine == "trl-liger"}
    elif engine == "lpt-fused":
        micro_batch.COMPILED.clear()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LPT_CATALOG"] = f"{folder}/.lpt"
        path = getattr(args, algorithm) or write_rows(
            rows(algorithm, args.rows, args.words), Path(folder) / "rows.jsonl"
        )
        began = time.time()
        result = train(config, split=load_unadmitted(path, kind), out=Path(folder) / "run")
        lines = [json.loads(line) for line in (result.path / "metrics.jsonl").read_text().splitlines()]
    return {
        "losses": [line["loss"] for line in lines], "tokens": sum(line["tokens"] for line in lines),
        "tokenized_id": result.body["tokenized_id"], "execution": result.body["execution"],
        "seconds": time.time() - began,
    }  # fmt: skip


def compared(case, dtype, found):
    """How far the losses of each engine are from TRL's, and whether that is within what was asked for."""
    theirs, (which, bound) = found["trl"]["losses"], TARGETS[dtype]
    assert len({one["tokenized_id"] for one in found.values()}) == 1
    differences = {}
    for engine, one in found.items():
        if engine != "trl":
            apart = [abs(a - b) for a, b in zip(one["losses"], theirs, strict=True)]
            signed = statistics.mean(a - b for a, b in zip(one["losses"], theirs, strict=True))
            measured = {"largest": max(apart), "mean": statistics.mean(apart)}
            differences[engine] = measured | {"signed_mean": signed, "met": measured[which] <= bound}
    return {
        "case": case, "dtype": dtype, "steps": len(theirs), "target": f"{which} <= {bound}",
        "differences": differences, "tokens": found["trl"]["tokens"],
        "execution": {engine: one["execution"] for engine, one in found.items()},
        "seconds": {engine: round(one["seconds"], 1) for engine, one in found.items()},
        "losses": {engine: [round(loss, 7) for loss in one["losses"]] for engine, one in found.items()},
    }  # fmt: skip


def from_float32(results):
    """Of each case in bfloat16: how far each engine's losses are on average from those of TRL in float32."""
    told = {(one["case"], one["dtype"]): one["losses"] for one in results if "losses" in one}
    return {
        case: {
            engine: statistics.mean(abs(a - b) for a, b in zip(own, told[case, "float32"]["trl"], strict=True))
            for engine, own in losses.items()
        }
        for (case, dtype), losses in told.items()
        if dtype == "bfloat16" and (case, "float32") in told
    }


def in_process(args, model, job):
    case, dtype, engine = job
    command = [sys.executable, __file__, "--worker", ",".join(job), "--model", model]
    for name in ("device", "steps", "batch", "rows", "words", "length", "rate", "warmup", "seed", "threads"):
        command += [f"--{name}", str(getattr(args, name))]
    for name in ("sft", "dpo"):
        command += [f"--{name}", getattr(args, name)] if getattr(args, name) else []
    done = subprocess.run(command + ["--whole"] * args.whole, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not lines:
        return {"error": done.stderr[-1500:]}
    return json.loads(lines[0].removeprefix("RESULT "))


def parsed():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--shape", choices=SHAPES, default="tiny")
    parser.add_argument("--tokenizer")
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--engines", default="lpt", help=f"of {', '.join(ENGINES)}; compared with trl")
    parser.add_argument("--dtypes", default="float32,bfloat16")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=4, help="rows, packed lines or pairs a step")
    parser.add_argument("--sft", help="JSON lines of conversations; made of random words by default")
    parser.add_argument("--dpo", help="JSON lines of preference pairs; made of random words by default")
    parser.add_argument("--rows", type=int, default=400, help="rows of random words")
    parser.add_argument("--words", type=int, default=40, help="words of the longest reply of random words")
    parser.add_argument("--length", type=int, default=512, help="most tokens of a row, and of a packed line")
    parser.add_argument("--rate", type=float, default=1e-3, help="peak learning rate")
    parser.add_argument("--warmup", type=int, default=0, help="steps in which the rate rises to its peak")
    parser.add_argument("--whole", action="store_true", help="train every weight, not an adapter")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="processes at the same time")
    parser.add_argument("--threads", type=int, default=0, help="of torch in a process; 0: its own choice")
    parser.add_argument("--out")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    return parser.parse_args()


def main():
    args = parsed()
    if args.worker:
        print("RESULT " + json.dumps(losses(args, *args.worker.split(","))), flush=True)
        return
    began = time.time()
    pairs = [(case, dtype) for case in args.cases.split(",") for dtype in args.dtypes.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        model = args.model or random_model(args.shape, Path(folder) / "model", args.tokenizer)
        engines = list(dict.fromkeys(["trl", *args.engines.split(",")]))
        if unknown := set(engines) - set(ENGINES):
            sys.exit(f"no such engine: {', '.join(sorted(unknown))}; there are {', '.join(ENGINES)}")
        asked = {pair: ["trl", "lpt"] if pair[1] == "float32" else engines for pair in pairs}
        jobs = [(*pair, engine) for pair in pairs for engine in asked[pair]]
        with ThreadPoolExecutor(args.jobs) as pool:
            running = {job: pool.submit(in_process, args, model, job) for job in jobs}
            results = []
            for case, dtype in pairs:
                found = {engine: running[case, dtype, engine].result() for engine in asked[case, dtype]}
                failed = {engine: one["error"] for engine, one in found.items() if "error" in one}
                told = {"case": case, "dtype": dtype, "errors": failed} if failed else compared(case, dtype, found)
                results.append(told)
                print(json.dumps({name: value for name, value in told.items() if name != "losses"}), flush=True)
    report = {
        "model": args.model or args.shape, "adapter": "none" if args.whole else "LoRA r=8",
        "data": {name: getattr(args, name) or "random words" for name in ("sft", "dpo")}, "results": results,
        "bfloat16_from_float32": from_float32(results),
        "machine": machine(args.device), "seconds": time.time() - began,
        "command": "python benchmarks/train/losses.py " + " ".join(sys.argv[1:]),
    }  # fmt: skip
    print(json.dumps({"bfloat16_from_float32": report["bfloat16_from_float32"]}))
    if args.out:
        Path(args.out).write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
