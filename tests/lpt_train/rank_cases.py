"""What the processes of the tests of several processes run: `torchrun … rank_cases.py JOBS.json`, no test itself.

A job is one training run: {"algorithm", "rows" (a JSONL file), "eval" (another), "options", "out", "resume", "stop"
(after that step the last process sends itself SIGTERM)}. The main process writes the records to the path in "results".
Then the command line runs with the arguments in "command", in the same processes.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

import torch
import torch.distributed as dist

from cli.main import run
from lpt_train import preference, sft
from lpt_train.admitted import load_unadmitted
from lpt_train.config import SFTConfig, from_mapping
from lpt_train.config_preference import PreferenceConfig
from lpt_train.ranks import leave
from manifests.catalog import Catalog
from manifests.files import write_atomic

LOOPS = {"sft": (sft.train, SFTConfig), "dpo": (preference.train, PreferenceConfig)}


def run_job(job: dict) -> dict:
    """One run in this process, or in its part of the processes; the record of it."""
    train, config = LOOPS[job["algorithm"]]
    kinds = ("sft",) if job["algorithm"] == "sft" else ("preference",)
    split = load_unadmitted(Path(job["rows"]), *kinds)
    held_out = load_unadmitted(Path(job["eval"]), *kinds) if job.get("eval") else None

    def progress(done: int, total: int, metrics: Mapping[str, float]) -> None:
        if done == job.get("stop") and dist.get_rank() == dist.get_world_size() - 1:
            os.kill(os.getpid(), signal.SIGTERM)

    result = train(
        from_mapping(config, job["options"]), split=split, out=Path(job["out"]), eval_split=held_out,
        progress=progress, resume=bool(job.get("resume")), catalog=Catalog.open(Path(job["out"]).parent / "catalog"),
    )  # fmt: skip
    body = {**result.body, "notes": result.notes}
    if "quarantined" in body and dist.is_initialized():
        body["quarantined by rank"] = [None] * dist.get_world_size()
        dist.all_gather_object(body["quarantined by rank"], body["quarantined"])
    return body


def run_jobs(path: str) -> None:
    """All jobs of a file, one after the other."""
    torch.set_num_threads(1)
    asked = json.loads(Path(path).read_text())
    results = {name: run_job(job) for name, job in asked["jobs"].items()}
    if dist.get_rank() == 0:
        write_atomic(Path(asked["results"]), json.dumps(results).encode())
    if asked["command"]:
        sys.argv = ["lpt", *asked["command"]]
        run()
    leave()


if __name__ == "__main__":
    run_jobs(sys.argv[1])
