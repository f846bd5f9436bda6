#!/usr/bin/env python3
"""Tokens a second foretold by `lpt plan compute` beside those of recorded steps on one H200; needs no GPU.

    python benchmarks/plan/compute.py --out RESULT.json

From `train-*-h200.json` whole steps, from `plan-h200.json` micro-batches alone, all with steps recorded as CUDA graphs.
`at_30_percent` is what was foretold while 0.3 was the default for every size. The two runs of SFT are what the default
is made of now (`seen`); the others it has not seen.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from run import LENGTH, SHAPES, bare

RESULTS = Path(__file__).resolve().parents[1] / "results"
RUNS = ("train-sft-135m-h200", "train-sft-05b-h200", "train-dpo-135m-h200")


def measured() -> list[dict]:
    """Cases: shape, scope, context, head_share, checkpoint_every, tokens a second."""
    found = []
    for name in RUNS:
        report = json.loads((RESULTS / f"{name}.json").read_text())
        told, ours = report["arithmetic"], next(r for r in report["results"] if r["engine"] == "lpt")
        found.append({
            "case": name, "seen": "sft" in name, "shape": report["model"], "scope": "lora",
            "context": round(told["context"]), "head_share": told["head_share"], "checkpoint_every": 0,
            "measured_tokens_per_second": ours["rate"] * told["tokens_a_unit"],
        })  # fmt: skip
    for case in json.loads((RESULTS / "plan-h200.json").read_text())["results"]:
        if case.get("way") == "graph":
            tokens, every = case["rows"] * LENGTH, case["every"]
            found.append({
                "case": f"micro-batch of {tokens} tokens" + ", every layer computed again" * (every == 1),
                "seen": False, "shape": case["shape"], "scope": case["scope"], "context": LENGTH, "head_share": 1.0,
                "checkpoint_every": every, "measured_tokens_per_second": tokens / case["micro_batch_seconds"],
            })  # fmt: skip
    return found


def main() -> None:
    from lpt_train.plan.compute import plan_compute
    from lpt_train.plan.gpus import gpu
    from lpt_train.plan.shape import shape_of

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    args, cases = parser.parse_args(), []
    for case in measured():
        shape = shape_of({"model_type": "", **SHAPES[case["shape"]]})
        options = {name: case[name] for name in ("scope", "context", "head_share", "checkpoint_every")}
        adapter = sum(shape.adapter_tensors(8)) if case["scope"] == "lora" else 0
        now, before = (
            plan_compute(shape, 1.0, gpu=gpu("h200"), adapter=adapter, mfu=mfu, **options) for mfu in (None, 0.3)
        )
        rate = case["measured_tokens_per_second"]
        cases.append({
            **case, "parameters": shape.parameters,
            "measured_mfu": rate * now["flops_per_token"] / now["peak_flops_per_second"], "mfu": now["mfu"],
            "foretold_tokens_per_second": now["tokens_per_second"], "ratio": now["tokens_per_second"] / rate,
            "at_30_percent": before["tokens_per_second"], "ratio_at_30_percent": before["tokens_per_second"] / rate,
        })  # fmt: skip
        sys.stdout.write(json.dumps(cases[-1]) + "\n")
    if args.out:
        command = bare(" ".join(["python benchmarks/plan/compute.py", *sys.argv[1:]]))
        args.out.write_text(json.dumps({"cases": cases, "command": command}, indent=2) + "\n")


if __name__ == "__main__":
    main()
