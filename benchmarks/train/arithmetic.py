#!/usr/bin/env python3
"""Operations of a token or a pair, and the MFU of recorded rates: the convention of `lpt_train/flops.py`.

    python benchmarks/train/arithmetic.py RESULT.json … --tokenizer DIR      writes it into records of known shapes

Counted is what the update needs of the model that trains: 4 N D under LoRA, attention over whole rows, the head for the
tokens that count. A reference is not, whether an engine computes it in the step or before. The rows are made again from
the record's command and rendered with the tokenizer of the run.
"""

from __future__ import annotations

import argparse
import json
import shlex
import tempfile
from pathlib import Path

from cases import SHAPES, rows, write_rows


def per_unit(args, config, tokenizer) -> dict:
    """Operations of a token (sft) or a pair (dpo) in the mean of the rows, its tokens, and the tokens a row has."""
    import torch
    from transformers import AutoModelForCausalLM

    from lpt_train.adapters import attach
    from lpt_train.admitted import load_unadmitted
    from lpt_train.config import Lora, SFTConfig
    from lpt_train.config_preference import PreferenceConfig
    from lpt_train.packing import render_rows
    from lpt_train.render import Renderer
    from lpt_train.render_pairs import render_pairs
    from lpt_train.speed import Work

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
        work = Work(model if args.whole else attach(model, Lora(lora_r=8)))
    renderer, sft = Renderer(tokenizer, max_length=args.length), args.algorithm == "sft"
    truncation = (SFTConfig if sft else PreferenceConfig)().truncation
    with tempfile.TemporaryDirectory() as folder:
        path = write_rows(rows(args.algorithm, args.rows, args.words), Path(folder) / "rows.jsonl")
        records = list(load_unadmitted(path, "sft" if sft else "preference").rows())
    if sft:
        lines = render_rows(records, renderer, max_length=args.length, truncation=truncation).rows
    else:
        pairs = render_pairs(records, renderer, max_length=args.length, truncation=truncation).pairs
        lines = [row for pair in pairs for row in (pair.chosen, pair.rejected)]
    tokens = sum(len(row.ids) for row in lines)
    units = tokens if sft else len(pairs)
    return {
        "operations_a_unit": work.training(lines) / units, "tokens_a_unit": tokens / units,
        "context": sum(len(row.ids) ** 2 for row in lines) / tokens,
        "head_share": sum(int(row.loss_mask[1:].sum()) for row in lines) / tokens,
    }  # fmt: skip


def with_mfu(report: dict, found: dict) -> dict:
    """The report with the operations a second of each engine and, on a GPU that is known, their share of its peak."""
    from lpt_train.plan.gpus import by_device

    gpu = by_device(report["machine"]["device"])
    for result in report["results"]:
        if "rate" in result:
            result["tflops"] = result["rate"] * found["operations_a_unit"] / 1e12
            result["mfu"] = result["tflops"] / gpu.teraflops if gpu else None
    return {**report, "arithmetic": {**found, "peak_tflops": gpu.teraflops if gpu else None}}


def main() -> None:
    from run import parsed
    from transformers import AutoConfig, AutoTokenizer

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="+", type=Path)
    parser.add_argument("--tokenizer", required=True)
    asked = parser.parse_args()
    for path in asked.results:
        report = json.loads(path.read_text())
        args = parsed(shlex.split(report["command"])[2:])
        options = dict(SHAPES[args.shape])
        config = AutoConfig.for_model(options.pop("model_type"), **options)
        report = with_mfu(report, per_unit(args, config, AutoTokenizer.from_pretrained(asked.tokenizer)))
        path.write_text(json.dumps(report, indent=2) + "\n")
        print(path.name, json.dumps(report["arithmetic"]), {r["engine"]: r.get("mfu") for r in report["results"]})


if __name__ == "__main__":
    main()
