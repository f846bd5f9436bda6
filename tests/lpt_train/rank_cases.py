"""What the processes of the tests of several processes run: `torchrun … rank_cases.py JOBS.json`, no test itself.

A job is one training run: {"algorithm", "rows" (a JSONL file), "eval" (another, or null), "options", "out", "resume"}.
The main process writes what each gave, or the error that ended it, to the path in "results".
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from lpt_train import preference, sft
from lpt_train.admitted import load_unadmitted
from lpt_train.config import SFTConfig, from_mapping
from lpt_train.config_preference import PreferenceConfig
from lpt_train.ranks import leave
from manifests.catalog import Catalog
from manifests.errors import LptError

LOOPS = {"sft": (sft.train, SFTConfig), "dpo": (preference.train, PreferenceConfig)}


def run_job(job: dict) -> dict:
    """One run in this process, or in its part of the processes; the record of it."""
    train, config = LOOPS[job["algorithm"]]
    kinds = ("sft",) if job["algorithm"] == "sft" else ("preference",)
    split = load_unadmitted(Path(job["rows"]), *kinds)
    held_out = load_unadmitted(Path(job["eval"]), *kinds) if job.get("eval") else None
    try:
        result = train(
            from_mapping(config, job["options"]), split=split, out=Path(job["out"]), eval_split=held_out,
            resume=bool(job.get("resume")), catalog=Catalog.open(Path(job["out"]).parent / "catalog"),
        )  # fmt: skip
    except LptError as error:
        return {"error": [type(error).__name__, str(error)]}
    return {"body": result.body, "notes": result.notes}


def run_jobs(path: str) -> None:
    """All jobs of a file, one after the other."""
    torch.set_num_threads(1)
    asked = json.loads(Path(path).read_text())
    results = {name: run_job(job) for name, job in asked["jobs"].items()}
    if torch.distributed.is_initialized() and torch.distributed.get_rank() > 0:
        leave()
        return
    leave()
    Path(asked["results"]).write_text(json.dumps(results))


if __name__ == "__main__":
    run_jobs(sys.argv[1])
