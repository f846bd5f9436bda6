"""LoRA, rsLoRA and DoRA with as many trained parameters: loss, time and memory. usage: adapters.py WORK [--model M]

DoRA trains a magnitude for each output besides, so that its rank is lowered until it trains no more parameters than
LoRA. One matrix of `lpt train matrix`: every cell in a process of its own, so that peaks of memory are each one's own;
the seeds share order and, where sizes agree, first values.
"""

import statistics
import sys
from pathlib import Path

import torch
from common import finding
from transformers import AutoModelForCausalLM

from lpt_train.adapters import attach, trainable
from lpt_train.config import Lora
from lpt_train.matrix import run_matrix
from lpt_train.matrix_spec import parse_spec


def parameters(source: str, **options: bool | int) -> int:
    """How many parameters an adapter trains on a model, counted on its shape alone."""
    from transformers import AutoConfig

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(source))
    return sum(p.numel() for p in trainable(attach(model, Lora(**options))))  # type: ignore[arg-type]


def main() -> None:
    """Find the rank of DoRA, run the matrix, compare with LoRA seed by seed."""
    found = finding("adapters", __doc__ or "", steps=40, rank=8, rate=0.0, seeds=2)
    args = found.args
    rate = args.rate or (3e-3 if found.tiny else 2e-4)
    source = found.start
    most = parameters(source, lora_r=args.rank)
    ranks = [rank for rank in range(1, args.rank + 1) if parameters(source, lora_r=rank, use_dora=True) <= most]
    if not ranks:
        sys.exit(f"no rank of DoRA trains as few parameters as LoRA of rank {args.rank}: give a larger --rank")
    variants = {
        "lora": {"lora_r": args.rank}, "rslora": {"lora_r": args.rank, "use_rslora": True},
        "dora": {"lora_r": max(ranks), "use_dora": True},
    }  # fmt: skip
    admitted = f"{args.work}/admitted/chats/manifest.json"
    spec = parse_spec({
        "algorithm": "sft", "model": source, "admitted": f"{admitted}:train", "eval": f"{admitted}:validation",
        "base": {
            "max_steps": args.steps, "learning_rate": rate, "per_device_train_batch_size": 8, "max_length": 768,
            "lora_alpha": 2 * args.rank, "execution": args.execution, "logging_steps": 1,
        },
        "variants": variants, "seeds": list(range(1, args.seeds + 1)), "band": {"relative": 0.02},
        "cheapest": ["step_seconds", "peak_memory_bytes"],
    }, "adapters")  # fmt: skip
    result = run_matrix(spec, out=found.out("matrix"), catalog=found.catalog)
    if failed := [f"{cell.variant}, seed {cell.seed}: {cell.failures}" for cell in result.cells if cell.failures]:
        sys.exit("\n".join(failed))
    for cell in result.cells:
        values = cell.values
        found.rows.append({
            "variant": cell.variant, "rank": variants[cell.variant]["lora_r"], "seed": cell.seed,
            "parameters": int(values["trainable_parameters"]), "eval_loss": values["eval_loss"],
            "step_seconds": step_seconds(found.out("matrix") / f"{cell.variant}-seed{cell.seed}"),
            "peak_memory_mb": values["peak_memory_bytes"] / 2**20,
        })  # fmt: skip

    def of(variant: str, name: str) -> float:
        return statistics.mean(row[name] for row in found.rows if row["variant"] == variant)

    assert result.choice is not None
    found.finish(
        {
            "within 15 % as many parameters": all(
                0.85 * most <= of(variant, "parameters") <= most for variant in variants
            ),
            "every variant learns": all(
                cell.values["eval_loss"] < first_loss(found.out("matrix") / f"{cell.variant}-seed{cell.seed}")
                for cell in result.cells
            ),
            "rsLoRA costs what LoRA costs": of("rslora", "parameters") == of("lora", "parameters"),
            "DoRA takes longer a step": of("dora", "step_seconds") > of("lora", "step_seconds"),
        },
        choice={"best": result.choice.best, "winner": result.choice.winner, "reason": result.choice.reason},
        notes=result.notes,
    )


def step_seconds(folder: Path) -> float:
    """The median time of the steps of a run after the first five."""
    import json

    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return statistics.median(line["step_seconds"] for line in lines[6:] if "step_seconds" in line)


def first_loss(folder: Path) -> float:
    """The evaluation before the first step."""
    import json

    return float(json.loads((folder / "run.json").read_text())["metrics"]["eval_loss"][0])


if __name__ == "__main__":
    main()
