#!/usr/bin/env python3
"""Our loops against TRL's trainers on one device: the same model, rows, adapter, precision and batches, in one run.

    python benchmarks/train/run.py --model DIR --algorithm sft --engines lpt,trl,trl_liger --out RESULT.json
    python benchmarks/train/run.py --shape qwen2.5-0.5b --tokenizer DIR --algorithm sft …     random weights
    python benchmarks/train/run.py --device cpu --shape tiny --engines lpt,trl --batch 4 --words 40 --length 256

Each engine is a process of its own. Rate: the median over the steps after the warm-up of tokens (no padding counted) or
pairs over seconds; on a CPU, where others may be at work, over seconds of processor time. Memory: torch's peak of
reserved bytes, which recordings of CUDA graphs are part of; on a CPU the resident peak. TRL runs plain and with Liger's
kernels; packed rows are isolated on both sides, which is tried on TRL's (`isolated`). MFU: `arithmetic.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from arithmetic import per_unit, with_mfu
from cases import SHAPES, machine, random_model, rows, write_rows

PASSED = ("algorithm", "device", "steps", "warm_up", "rows", "batch", "words", "length", "chunk", "execution")


class Clock:
    """Wall and processor time at the end of each step."""

    def __init__(self, cuda):
        self.cuda, self.wall, self.processor = cuda, [], []

    def tick(self):
        import torch

        if self.cuda:
            torch.cuda.synchronize()
        self.wall.append(time.perf_counter())
        self.processor.append(time.process_time())

    @staticmethod
    def between(times):
        return [b - a for a, b in zip(times, times[1:], strict=False)]


def lpt(args, folder):
    from lpt_train.admitted import load_unadmitted
    from lpt_train.config import SFTConfig, from_mapping
    from lpt_train.config_preference import PreferenceConfig

    path = write_rows(rows(args.algorithm, args.rows, args.words), Path(folder) / "rows.jsonl")
    options = {
        "model": args.model, "max_length": args.length, "max_steps": args.steps, "learning_rate": 1e-4, "lora_r": 8,
        "lora_alpha": 16, "per_device_train_batch_size": args.batch, "logits_chunk": args.chunk,
        "execution": args.execution, "device": args.device, "use_peft": not args.whole,
    }  # fmt: skip
    if args.algorithm == "sft":
        from lpt_train.sft import train

        config = from_mapping(SFTConfig, options | {"packing": args.packing})
        split = load_unadmitted(path, "sft")
    else:
        from lpt_train.preference import train

        config = from_mapping(PreferenceConfig, options)
        split = load_unadmitted(path, "preference")
    clock = Clock(args.device == "cuda")
    began = time.time()
    result = train(
        config, split=split, out=Path(folder) / "run",
        observers=[lambda moment: clock.tick() if moment.point == "step_end" else None],
    )  # fmt: skip
    lines = [json.loads(line) for line in (result.path / "metrics.jsonl").read_text().splitlines()]
    units = [line["tokens"] if args.algorithm == "sft" else args.batch for line in lines]
    return {
        "units": units[1:], "clock": clock, "losses": [line["loss"] for line in lines],
        "execution": result.body["execution"], "notes": result.notes, "whole_seconds": time.time() - began,
        "first_step_seconds": lines[0]["step_seconds"],
    }  # fmt: skip


def trl(args, folder, liger):
    import torch
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

    cuda = args.device == "cuda"
    clock = Clock(cuda)

    class Ticks(TrainerCallback):
        seen = []

        def on_step_end(self, arguments, state, control, **more):
            clock.tick()
            self.seen.append(int(state.num_input_tokens_seen))

    tokenizer = AutoTokenizer.from_pretrained(args.model)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    model = AutoModelForCausalLM.from_pretrained(
        args.model, dtype=torch.bfloat16 if cuda and not args.whole else torch.float32
    )
    common = {
        "output_dir": folder, "per_device_train_batch_size": args.batch, "max_length": args.length,
        "max_steps": args.steps, "learning_rate": 1e-4, "logging_steps": 1, "bf16": cuda, "use_cpu": not cuda,
        "report_to": [], "save_strategy": "no", "use_liger_kernel": liger, "gradient_checkpointing": False,
        "disable_tqdm": True, "include_num_input_tokens_seen": "non_padding", "dataloader_pin_memory": cuda,
    }  # fmt: skip
    trainer, config = (SFTTrainer, SFTConfig) if args.algorithm == "sft" else (DPOTrainer, DPOConfig)
    if args.algorithm == "sft":
        common["packing"] = args.packing
    began = time.time()
    made = trainer(
        model=model, processing_class=tokenizer, args=config(**common), callbacks=[Ticks()],
        train_dataset=Dataset.from_list(rows(args.algorithm, args.rows, args.words)),
        peft_config=None if args.whole else LoraConfig(r=8, lora_alpha=16, target_modules="all-linear"),
    )  # fmt: skip
    made.train()
    whole = time.time() - began
    losses = [row["loss"] for row in made.state.log_history if "loss" in row]
    tokens = Clock.between(Ticks.seen)
    units = tokens if args.algorithm == "sft" else [args.batch] * len(tokens)
    found = {"units": units, "clock": clock, "losses": losses, "whole_seconds": whole, "first_step_seconds": None}
    if args.algorithm == "sft" and args.packing:
        found["check"] = lambda: isolated(made.model, next(iter(made.get_train_dataloader())))
    return found


def isolated(model, batch):
    """Whether the second row of a packed batch has the same logits after another first row."""
    import torch

    starts = (batch["position_ids"][0] == 0).nonzero().flatten().tolist()
    first, second = starts[1], starts[2]
    device = next(model.parameters()).device
    ids, positions = (batch[name][:, :second].to(device) for name in ("input_ids", "position_ids"))
    other = ids.clone()
    other[0, :first] = ids[0, :first].flip(0)
    with torch.no_grad():
        rows_ = [model(input_ids=line, position_ids=positions).logits[0, first:] for line in (ids, other)]
    return bool((rows_[0] - rows_[1]).abs().max() == 0)


def worker(args):
    import torch

    with tempfile.TemporaryDirectory() as folder:
        os.environ["LPT_CATALOG"] = f"{folder}/.lpt"
        found = lpt(args, folder) if args.worker == "lpt" else trl(args, folder, args.worker == "trl_liger")
    clock, units, check = found.pop("clock"), found.pop("units"), found.pop("check", None)
    rates = {
        name: [amount / took for amount, took in zip(units, Clock.between(times), strict=True)][args.warm_up - 1 :]
        for name, times in (("wall", clock.wall), ("processor", clock.processor))
    }
    of = rates["wall" if args.device == "cuda" else "processor"]
    found |= {
        "engine": args.worker, "rate": statistics.median(of), "slowest": min(of), "fastest": max(of),
        "rates": {name: statistics.median(every) for name, every in rates.items()},
        "losses": [found["losses"][0], found["losses"][-1]], "units_a_step": statistics.mean(units),
    }  # fmt: skip
    if args.device == "cuda":
        found["peak_gb"] = torch.cuda.max_memory_reserved() / 1e9
        found["peak_allocated_gb"] = torch.cuda.max_memory_allocated() / 1e9
    else:
        found["peak_gb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    if check is not None:
        found["isolated"] = check()
    print("RESULT " + json.dumps(found), flush=True)


def parsed(words=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--shape", choices=SHAPES)
    parser.add_argument("--tokenizer", help="of a shape; bytes by default")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--algorithm", choices=("sft", "dpo"), default="sft")
    parser.add_argument("--engines", default="lpt,trl,trl_liger")
    parser.add_argument("--packing", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--whole", action="store_true", help="train every weight, not an adapter")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--warm-up", type=int, default=9, help="steps before the clock counts")
    parser.add_argument("--rows", type=int, default=3000)
    parser.add_argument("--batch", type=int, default=16, help="rows, packed lines or pairs a step")
    parser.add_argument("--words", type=int, default=600, help="words of the longest reply")
    parser.add_argument("--length", type=int, default=1024, help="most tokens of a row, and of a packed line")
    parser.add_argument("--chunk", type=int, default=1024)
    parser.add_argument("--execution", default="auto")
    parser.add_argument("--out")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    return parser.parse_args(words)


def main():
    args = parsed()
    if args.worker:
        worker(args)
        return
    from transformers import AutoConfig, AutoTokenizer

    with tempfile.TemporaryDirectory() as folder:
        model = args.model or random_model(args.shape, folder, args.tokenizer)
        needed = per_unit(args, AutoConfig.from_pretrained(model), AutoTokenizer.from_pretrained(model))
        results = []
        for engine in args.engines.split(","):
            flags = [f"--{name.replace('_', '-')}={getattr(args, name)}" for name in PASSED]
            flags += ["--packing" if args.packing else "--no-packing", f"--model={model}", f"--worker={engine}"]
            flags += ["--whole"] * args.whole
            done = subprocess.run([sys.executable, __file__, *flags], capture_output=True, text=True, check=False)
            lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
            if not lines:
                results.append({"engine": engine, "error": done.stderr[-1500:]})
                print(engine, "failed:", done.stderr[-1500:], flush=True)
                continue
            results.append(json.loads(lines[0].removeprefix("RESULT ")))
            print(json.dumps(results[-1]), flush=True)
    ours = next((found for found in results if found["engine"] == "lpt" and "rate" in found), None)
    theirs = [found for found in results if found["engine"] != "lpt" and "rate" in found]
    best = max(theirs, key=lambda found: found["rate"], default=None)
    report = {
        "algorithm": args.algorithm, "packing": args.packing, "model": args.shape or args.model,
        "adapter": "none" if args.whole else "LoRA r=8",
        "unit": ("tokens/" if args.algorithm == "sft" else "pairs/") + ("s" if args.device == "cuda" else "CPU second"),
        "results": results, "ratio_to_best_peer": ours["rate"] / best["rate"] if ours and best else None,
        "memory_to_best_peer": ours["peak_gb"] / best["peak_gb"] if ours and best else None,
        "machine": machine(args.device), "command": "python benchmarks/train/run.py " + " ".join(sys.argv[1:]),
    }  # fmt: skip
    print(json.dumps({key: report[key] for key in ("ratio_to_best_peer", "memory_to_best_peer")}))
    report = with_mfu(report, needed)
    if args.out:
        Path(args.out).write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
