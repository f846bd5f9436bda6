#!/usr/bin/env python3
"""Predicted memory beside measured on one GPU: shapes, ways to train, batches, checkpointing, optimizers.

    python benchmarks/plan/run.py --out RESULT.json [--seconds 85]
    python benchmarks/plan/run.py --again RESULT.json [MORE.json] --out RESULT.json     no GPU: predict again

Each case is one model with random weights, two micro-batches and an update of it; measured are torch's peaks of
allocated and reserved bytes. What does not fit into --seconds is left out and listed; recordings come last, because
compiling them takes most of the time. With --again the measurements of earlier files are kept, and predicted beside
them is what the formulas say now; `after_the_fact` names what of it is not what was said before the measurement.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import platform
import sys
import time
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

SHAPES = {
    "smollm2-135m": {
        "model_type": "llama", "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
        "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152, "tie_word_embeddings": True,
    },
    "qwen2.5-0.5b": {
        "model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
        "num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 151936, "tie_word_embeddings": True,
    },
}  # fmt: skip
LENGTH = 1024


def cases() -> list[dict]:
    found = []
    for shape in SHAPES:
        for scope in ("lora", "full"):
            for rows in (4, 16):
                for every in (0, 2, 1) if rows == 16 else (0,):
                    found.append({"shape": shape, "scope": scope, "rows": rows, "every": every})
    for optim in ("adamw_8bit", "adamw_torch_offload", "sgd"):
        found.append({"shape": "qwen2.5-0.5b", "scope": "full", "rows": 4, "optim": optim})
    found.append({"shape": "qwen2.5-0.5b", "scope": "lora", "rows": 16, "every": 1, "offload_activations": True})
    found.append({"shape": "qwen2.5-0.5b", "scope": "lora", "rows": 16, "chunk": 256})
    for every in (0, 1):
        found.append({"shape": "qwen2.5-0.5b", "scope": "lora", "rows": 16, "every": every, "execution": "graph"})
    found.append({"shape": "qwen2.5-0.5b", "scope": "full", "rows": 8, "execution": "graph"})
    for shape in SHAPES:
        for rows, every in ((4, 0), (4, 1), (16, 1)):
            found.append({"shape": shape, "scope": "lora", "rows": rows, "every": every, "dtype": "float32"})
    usual = {"every": 0, "optim": "adamw_torch", "execution": "eager", "chunk": 1024, "dtype": "bfloat16"}
    return [usual | case for case in found]


def measure(case: dict) -> dict:
    import numpy as np
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from lpt_train.adapters import attach
    from lpt_train.config import Lora, Optim
    from lpt_train.losses.sft import sft_loss
    from lpt_train.micro_batch import MicroBatch
    from lpt_train.models import placement
    from lpt_train.optimizers import make_optimizer
    from lpt_train.packing import Row
    from lpt_train.recompute import checkpoint_layers

    torch.manual_seed(0)
    torch._dynamo.reset()
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    place, options = placement("cuda", case["dtype"]), dict(SHAPES[case["shape"]])
    config = AutoConfig.for_model(options.pop("model_type"), **options)
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    if case["scope"] == "lora":
        model = attach(model.to(place.dtype), Lora(lora_r=8))
    tokens = case["rows"] * LENGTH
    run = MicroBatch(
        model.train(), place, lambda logp, batch, _: (sft_loss(logp, batch.weights_N, float(tokens)), {}),
        execution=case["execution"], longest=LENGTH, most_tokens=tokens, most_rows=case["rows"], pad_id=0,
        chunk=case["chunk"],
    )  # fmt: skip
    checkpoint_layers(model, case["every"])
    if case.get("offload_activations"):
        run.offload_activations = True  # of a run in eager mode
    optimizer = make_optimizer(model, Optim(optim=case["optim"]))
    rng = np.random.default_rng(0)
    rows = [
        Row(n, rng.integers(0, 40000, LENGTH).astype(np.int32), np.ones(LENGTH, np.uint8)) for n in range(case["rows"])
    ]
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    seconds = []
    for _ in range(2):
        for _ in range(2):
            torch.cuda.synchronize()
            began = time.perf_counter()
            run(rows, {})
            torch.cuda.synchronize()
            seconds.append(time.perf_counter() - began)
        optimizer.step()
        run.zero_grad()
    allocated, reserved = torch.cuda.max_memory_allocated() - before, torch.cuda.max_memory_reserved()
    return {
        "way": run.way, "notes": run.notes, **beside(case, run.way, allocated / 1e9, reserved / 1e9),
        "micro_batch_seconds": min(seconds),
    }  # fmt: skip


def beside(case: dict, way: str, allocated_gb: float, reserved_gb: float) -> dict:
    """What is predicted for a case that was trained in this way, beside what was measured."""
    from lpt_train.plan.memory import Workload, predict
    from lpt_train.plan.shape import shape_of

    half = case.get("dtype", "bfloat16") == "bfloat16"
    work = Workload(
        tokens=case["rows"] * LENGTH, scope=case["scope"], rank=8, optim=case["optim"], chunk=case["chunk"],
        compiled=way in ("graph", "compiled"), kept_gradients=True, checkpoint_every=case["every"],
        offload_activations=bool(case.get("offload_activations")), width=2 if half else 4, scored=0 if half else LENGTH,
    )  # fmt: skip
    memory = predict(shape_of({"model_type": "", **SHAPES[case["shape"]]}), work)
    return {
        "predicted_gb": memory.peak / 1e9, "measured_gb": allocated_gb, "ratio": memory.peak / 1e9 / allocated_gb,
        "predicted_reserved_gb": memory.reserved / 1e9, "measured_reserved_gb": reserved_gb,
        "reserved_ratio": memory.reserved / 1e9 / reserved_gb, "parts": memory.to_json(),
    }  # fmt: skip


def again(paths: list[str]) -> dict:
    """The results of these files with the predictions made again, and what measured them."""
    results, measured_by = [], []
    for path in paths:
        report = json.loads(Path(path).read_text())
        measured_by += report.get("measured_by") or [{"machine": report["machine"], "command": bare(report["command"])}]
        for case in report["results"]:
            if "measured_gb" not in case:
                results.append(case)
                continue
            case = {"dtype": "bfloat16", "after_the_fact": [], **case}
            told = beside(case, case["way"], case["measured_gb"], case["measured_reserved_gb"])
            seen = [
                name for name, key in (("allocated", "predicted_gb"), ("reserved", "predicted_reserved_gb"))
                if name in case["after_the_fact"] or told[key] != case[key]
            ]  # fmt: skip
            results.append({**case, **told, "after_the_fact": seen})
    return {"results": results, "measured_by": measured_by}


def summary(results: list[dict]) -> dict:
    """How near the predictions are: of what tensors take, and of what the allocator holds, which has to fit."""
    found = {}
    for name, key in (("allocated", "ratio"), ("reserved", "reserved_ratio")):
        ratios = sorted(result[key] for result in results if key in result)
        found[name] = {
            "cases": len(ratios), "within_5_percent": sum(abs(ratio - 1) <= 0.05 for ratio in ratios),
            "worst_below": min(ratios, default=None), "worst_above": max(ratios, default=None),
            "below_measured": sum(ratio < 1 for ratio in ratios),
        }  # fmt: skip
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out")
    parser.add_argument("--seconds", type=float, default=85)
    parser.add_argument("--dtypes", default="bfloat16,float32")
    parser.add_argument("--again", nargs="+", metavar="RESULT.json")
    args = parser.parse_args()
    if args.again:
        written(again(args.again), args.out)
        return
    import torch

    if not torch.cuda.is_available():
        sys.exit("this benchmark measures a CUDA device, and there is none")
    began, results = time.time(), []
    for case in (case for case in cases() if case["dtype"] in args.dtypes.split(",")):
        if time.time() - began > args.seconds:
            results.append({**case, "left_out": "no time left"})
        elif "8bit" in case["optim"] and importlib.util.find_spec("bitsandbytes") is None:
            results.append({**case, "left_out": "bitsandbytes is not installed"})
        else:
            try:
                results.append({**case, **measure(case)})
            except Exception as error:
                results.append({**case, "error": f"{type(error).__name__}: {error}"[:600]})
        shown = {key: value for key, value in results[-1].items() if key != "parts"}
        print(json.dumps({"at": round(time.time() - began, 1), **shown}), flush=True)
    written(
        {
            "results": results,
            "machine": {
                "device": torch.cuda.get_device_name(), "system": platform.platform(),
                "python": platform.python_version(),
                **{name: version(name) for name in ("torch", "transformers", "peft", "bitsandbytes")},
            },
        },
        args.out,
    )  # fmt: skip


def written(report: dict, out: str | None) -> None:
    """Show the summary, and write all of it with the command."""
    told = summary(report["results"])
    report = {**told, **report, "command": bare(" ".join(["python benchmarks/plan/run.py", *sys.argv[1:]]))}
    print(json.dumps(told))
    if out:
        Path(out).write_text(json.dumps(report, indent=2) + "\n")


def bare(command: str) -> str:
    """A command without the folders of its files."""
    return " ".join(Path(word).name if word.endswith(".json") else word for word in command.split())


def version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "absent"


if __name__ == "__main__":
    main()
