"""What the findings share: arguments, a run with settings, a reference that knows the data, the JSON that is left."""

import argparse
import json
import os
import platform
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from lpt_train.admitted import AdmittedSplit, load_split
from lpt_train.algorithms import ALGORITHMS, config_of
from lpt_train.evaluate import EvalOptions, SplitReport, evaluate_splits
from lpt_train.runs import RunResult, env, seed_everything
from lpt_train.tiny import make_tiny
from manifests.catalog import Catalog

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"


@dataclass
class Finding:
    """One finding: where its data lies, the model it starts from, and the numbers that it collects."""

    name: str
    args: argparse.Namespace
    catalog: Catalog
    began: float = field(default_factory=time.monotonic)
    rows: list[dict[str, Any]] = field(default_factory=list)

    @property
    def tiny(self) -> bool:
        """Whether it runs on the model that is made on the spot."""
        return bool(self.args.model == "tiny")

    def split(self, ref: str) -> AdmittedSplit:
        """An admitted split of the prepared folder, NAME:SPLIT."""
        name, _, part = ref.partition(":")
        return load_split(f"{self.args.work}/admitted/{name}/manifest.json:{part}")

    def out(self, name: str) -> Path:
        """A fresh folder of a run."""
        return Path(self.args.work) / "runs" / f"{self.name}-{os.getpid()}" / name

    def train(self, algorithm: str, split: str, name: str, **options: Any) -> RunResult:
        """One run with the settings of the finding; a run that proves no update ends everything."""
        model = options.pop("model", self.args.model)
        made = {"execution": self.args.execution, "logging_steps": 1, **options, "model": str(model)}
        result: RunResult = ALGORITHMS[algorithm].train(
            config_of(algorithm, made), split=self.split(split), out=self.out(name), catalog=self.catalog
        )
        if result.status != "done" or result.body["proof"]["verdict"] != "effective":
            raise SystemExit(f"{name}: {result.status}, {result.body['proof']}")
        return result

    @property
    def start(self) -> str:
        """The folder that runs start from: as given, or a model of two layers that is made on the spot."""
        if not self.tiny:
            return str(self.args.model)
        return str(make_tiny(self.out("tiny"), hidden=64, layers=2, heads=2))

    def reference(self) -> str:
        """The model that preferences are trained from: as given, `tiny` after it has read both kinds of reply."""
        if not self.tiny:
            return self.start
        result = self.train(
            "sft", "chats:train", "reference", model=self.start, use_peft=False, max_steps=self.args.warm_steps,
            learning_rate=5e-3, max_length=768, per_device_train_batch_size=8, seed=0,
        )  # fmt: skip
        return str(result.path)

    def compared(self, model: Path | str, baseline: Path | str, split: str, **options: Any) -> SplitReport:
        """`lpt eval --baseline` of two models on one split."""
        (report,) = evaluate_splits(
            [str(baseline), str(model)], [self.split(split)], EvalOptions(**options), catalog=self.catalog
        )
        return report

    def finish(self, expected: dict[str, bool], **more: Any) -> None:
        """Print the table, write the JSON, and end with 1 when what was expected was not found."""
        body = {
            "finding": self.name, "command": " ".join(Path(word).name for word in sys.argv),
            "model": Path(self.args.model).name, "rows": self.rows, "expected": expected, **more,
            "seconds": round(time.monotonic() - self.began, 1), "machine": platform.machine(), "cores": os.cpu_count(),
            "env": env(),
        }  # fmt: skip
        place = "h200" if "H200" in body["env"]["device"] else "cpu"
        path = Path(self.args.out or RESULTS / f"finding-{self.name}-{'tiny' if self.tiny else '135m'}-{place}.json")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(body, indent=1) + "\n")
        columns = list(self.rows[0])
        lines = [columns, *[[shown(row.get(name)) for name in columns] for row in self.rows]]
        widths = [max(len(line[at]) for line in lines) for at in range(len(columns))]
        for line in lines:
            sys.stdout.write("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + "\n")
        for what, held in expected.items():
            sys.stdout.write(f"{'found    ' if held else 'NOT FOUND'}  {what}\n")
        sys.stdout.write(f"{body['seconds']} s  {path}\n")
        sys.exit(0 if all(expected.values()) else 1)


def finding(name: str, text: str, **defaults: Any) -> Finding:
    """Read the arguments of a finding: WORK --model M, and one option a default."""
    parser = argparse.ArgumentParser(description=text)
    parser.add_argument("work", help="the folder that prepare.sh filled")
    parser.add_argument("--model", default="tiny", help="tiny, or a folder of weights")
    parser.add_argument("--out", help="the JSON; default: benchmarks/results/")
    parser.add_argument("--execution", default="eager", help="auto compiles and records graphs, which takes longer")
    parser.add_argument("--warm-steps", type=int, default=80, help="steps in which tiny reads both kinds of reply")
    for option, value in defaults.items():
        parser.add_argument(f"--{option.replace('_', '-')}", type=type(value), default=value)
    args = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1)))
    seed_everything(0)
    return Finding(name, args, Catalog.open(Path(args.work) / ".lpt-findings"))


def measured(report: SplitReport, name: str) -> float:
    """A measure of both models together, by its name."""
    return next(measure.value for measure in report.together if measure.name == name)


def rising(values: list[float]) -> bool:
    """Whether each value is larger than the one before."""
    return all(a < b for a, b in zip(values[:-1], values[1:], strict=True))


def shown(value: Any) -> str:
    """A cell."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
