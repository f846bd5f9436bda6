#!/usr/bin/env python3
"""Our loops against TRL's trainers on one GPU: the same model, rows, adapter, precision and batches, in one run.

    python benchmarks/train/run.py --model DIR --algorithm sft --engines lpt,trl,trl_liger --out RESULT.json
    python benchmarks/train/run.py --shape qwen2.5-0.5b --tokenizer DIR --algorithm sft …     random weights

Each engine is a process of its own. Rate: the median over the steps after the warm-up of tokens (no padding counted) or
pairs over seconds; memory: torch's peak of reserved bytes, which recordings of CUDA graphs are part of. TRL runs plain
and with Liger's kernels; packed rows are isolated on both sides.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WORDS = ["alpha", "beta", "number", "solve", "because", "therefore", "value", "answer", "table", "river"]
SHAPES = {
    "smollm2-135m": {
        "model_type": "llama", "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
        "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152, "tie_word_embeddings": True,
        "max_position_embeddings": 8192,
    },
    "qwen2.5-0.5b": {
        "model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
        "num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 151936, "tie_word_embeddings": True,
        "max_position_embeddings": 32768,
    },
}  # fmt: skip
BATCH = {"sft": 16, "dpo": 16}  # rows, pairs
WARM_UP = 8


def turn(rng, role, low, high):
    return [{"role": role, "content": " ".join(rng.choices(WORDS, k=rng.randint(low, high)))}]


def rows(algorithm, count):
    rng = random.Random(0)
    if algorithm == "sft":
        return [
            {"prompt": turn(rng, "user", 10, 80), "completion": turn(rng, "assistant", 20, 600)} for _ in range(count)
        ]
    return [
        {
            "prompt": turn(rng, "user", 10, 80), "chosen": turn(rng, "assistant", 20, 300),
            "rejected": turn(rng, "assistant", 20, 300),
        }
        for _ in range(count)
    ]  # fmt: skip


def lpt(args, folder):
    sys.path.insert(0, str(ROOT))
    from lpt_train.admitted import load_unadmitted
    from lpt_train.config import SFTConfig, from_mapping
    from lpt_train.config_preference import PreferenceConfig

    data = rows(args.algorithm, args.rows)
    if args.algorithm == "sft":
        data = [{"messages": row["prompt"] + row["completion"]} for row in data]
    path = Path(folder) / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in data))
    options = {
        "model": args.model, "max_length": 1024, "max_steps": args.steps, "learning_rate": 1e-4, "lora_r": 8,
        "lora_alpha": 16, "per_device_train_batch_size": BATCH[args.algorithm], "logits_chunk": args.chunk,
        "execution": args.execution,
    }  # fmt: skip
    if args.algorithm == "sft":
        from lpt_train.sft import train

        config = from_mapping(SFTConfig, options | {"packing": args.packing})
        split = load_unadmitted(path, "sft")
    else:
        from lpt_train.preference import train

        config = from_mapping(PreferenceConfig, options)
        split = load_unadmitted(path, "preference")
    began = time.time()
    result = train(config, split=split, out=Path(folder) / "run")
    lines = [json.loads(line) for line in (result.path / "metrics.jsonl").read_text().splitlines()]
    units = [line["tokens"] if args.algorithm == "sft" else BATCH["dpo"] for line in lines]
    return {
        "units": units, "seconds": [line["step_seconds"] for line in lines], "losses": [line["loss"] for line in lines],
        "execution": result.body["execution"], "notes": result.notes, "whole_seconds": time.time() - began,
    }  # fmt: skip


def trl(args, folder, liger):
    import torch
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

    class Clock(TrainerCallback):
        def __init__(self):
            self.at, self.seen = [], []

        def on_step_end(self, arguments, state, control, **more):
            torch.cuda.synchronize()
            self.at.append(time.time())
            self.seen.append(int(state.num_input_tokens_seen))

    tokenizer = AutoTokenizer.from_pretrained(args.model)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.bfloat16)
    common = {
        "output_dir": folder, "per_device_train_batch_size": BATCH[args.algorithm], "max_length": 1024,
        "max_steps": args.steps, "learning_rate": 1e-4, "logging_steps": 1, "bf16": True, "report_to": [],
        "save_strategy": "no", "use_liger_kernel": liger, "gradient_checkpointing": False, "disable_tqdm": True,
        "include_num_input_tokens_seen": "non_padding",
    }  # fmt: skip
    trainer, config = (SFTTrainer, SFTConfig) if args.algorithm == "sft" else (DPOTrainer, DPOConfig)
    if args.algorithm == "sft":
        common["packing"] = args.packing
    clock, began = Clock(), time.time()
    made = trainer(
        model=model, processing_class=tokenizer, args=config(**common), callbacks=[clock],
        train_dataset=Dataset.from_list(rows(args.algorithm, args.rows)),
        peft_config=LoraConfig(r=8, lora_alpha=16, target_modules="all-linear"),
    )  # fmt: skip
    made.train()
    seconds = [b - a for a, b in zip(clock.at, clock.at[1:], strict=False)]
    tokens = [b - a for a, b in zip(clock.seen, clock.seen[1:], strict=False)]
    losses = [row["loss"] for row in made.state.log_history if "loss" in row]
    units = tokens if args.algorithm == "sft" else [BATCH["dpo"]] * len(seconds)
    return {"units": units, "seconds": seconds, "losses": losses, "whole_seconds": time.time() - began}


def worker(args):
    import torch

    with tempfile.TemporaryDirectory() as folder:
        os.environ["LPT_CATALOG"] = f"{folder}/.lpt"
        found = lpt(args, folder) if args.worker == "lpt" else trl(args, folder, args.worker == "trl_liger")
    rates = [units / seconds for units, seconds in zip(found["units"], found["seconds"], strict=True)][WARM_UP:]
    found |= {
        "engine": args.worker, "rate": statistics.median(rates), "slowest": min(rates), "fastest": max(rates),
        "peak_gb": torch.cuda.max_memory_reserved() / 1e9, "peak_allocated_gb": torch.cuda.max_memory_allocated() / 1e9,
        "first_step_seconds": found["seconds"][0], "losses": [found["losses"][0], found["losses"][-1]],
    }  # fmt: skip
    for name in ("units", "seconds"):
        del found[name]
    print("RESULT " + json.dumps(found), flush=True)


def random_model(shape, tokenizer, folder):
    """A model of a known shape with random weights: speed does not depend on them."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    options = dict(SHAPES[shape])
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(options.pop("model_type"), **options))
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(tokenizer).save_pretrained(folder)
    return folder


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--shape", choices=SHAPES)
    parser.add_argument("--tokenizer")
    parser.add_argument("--algorithm", choices=("sft", "dpo"), default="sft")
    parser.add_argument("--engines", default="lpt,trl,trl_liger")
    parser.add_argument("--packing", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--rows", type=int, default=3000)
    parser.add_argument("--chunk", type=int, default=1024)
    parser.add_argument("--execution", default="auto")
    parser.add_argument("--out")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        worker(args)
        return
    with tempfile.TemporaryDirectory() as folder:
        model = args.model or random_model(args.shape, args.tokenizer, folder)
        results = []
        for engine in args.engines.split(","):
            flags = [f"--{name}={getattr(args, name)}" for name in ("algorithm", "steps", "rows", "chunk", "execution")]
            flags += ["--packing" if args.packing else "--no-packing", f"--model={model}", f"--worker={engine}"]
            done = subprocess.run([sys.executable, __file__, *flags], capture_output=True, text=True, check=False)
            lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
            if not lines:
                results.append({"engine": engine, "error": done.stderr[-1500:]})
                print(engine, "failed:", done.stderr[-1500:], flush=True)
                continue
            results.append(json.loads(lines[0].removeprefix("RESULT ")))
            print(json.dumps(results[-1]), flush=True)
    import torch

    ours = next((found for found in results if found["engine"] == "lpt" and "rate" in found), None)
    theirs = [found for found in results if found["engine"] != "lpt" and "rate" in found]
    best = max(theirs, key=lambda found: found["rate"], default=None)
    report = {
        "algorithm": args.algorithm, "packing": args.packing, "model": args.shape or args.model,
        "unit": "tokens/s" if args.algorithm == "sft" else "pairs/s", "results": results,
        "ratio_to_best_peer": ours["rate"] / best["rate"] if ours and best else None,
        "memory_to_best_peer": ours["peak_gb"] / best["peak_gb"] if ours and best else None,
        "machine": {
            "device": torch.cuda.get_device_name(), "system": platform.platform(), "python": platform.python_version(),
            **{name: version(name) for name in ("torch", "transformers", "trl", "peft", "liger-kernel")},
        },
        "command": "python benchmarks/train/run.py " + " ".join(sys.argv[1:]),
    }  # fmt: skip
    print(json.dumps({key: report[key] for key in ("ratio_to_best_peer", "memory_to_best_peer")}))
    if args.out:
        Path(args.out).write_text(json.dumps(report, indent=2) + "\n")


def version(name):
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "absent"


if __name__ == "__main__":
    main()
