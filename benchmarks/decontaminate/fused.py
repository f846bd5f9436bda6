#!/usr/bin/env python3
"""Measures `lpt data dedup --benchmark` against `lpt data dedup` alone and against two commands, one after the other.

usage: fused.py [--documents 100000] [--runs 3]
Writes benchmarks/results/fused-<documents>.json: processor seconds (user and system) of whole processes on one core,
the median of the runs, which alternate. The benchmark is made here, 1,000 questions of 12 to 60 words. Target: one read
costs at most a quarter more than deduplication alone. A third of the extra is a start (kernels from their cache, five
canaries of each item) that does not grow with the corpus, so a small corpus shows a larger share.
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
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TARGET = 0.25  # of the time of deduplication alone


def seconds(command: list[str], core: int) -> float:
    """Processor seconds of one command on one core."""
    limits = {"OMP_NUM_THREADS": "1", "ARROW_DEFAULT_THREADS": "1", "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        ["taskset", "-c", str(core), sys.executable, "-c", "from cli.main import run; run()", *command],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd=ROOT, env={**os.environ, **limits},
    )  # fmt: skip
    said = process.stderr.read() if process.stderr else b""
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{' '.join(command)}: {said.decode()}")
    return usage.ru_utime + usage.ru_stime


def questions(path: Path, corpus: Path) -> None:
    """Questions out of words of the corpus, in an order that it does not have."""
    rng = random.Random(7)
    with open(corpus, encoding="utf-8") as lines:
        words = sorted(
            {word for _, line in zip(range(500), lines, strict=False) for word in json.loads(line)["text"].split()}
        )
    items = ({"question": " ".join(rng.choices(words, k=rng.randint(12, 60))), "answer": "#### 1"} for _ in range(1000))
    path.write_text("".join(json.dumps(item) + "\n" for item in items), "utf-8")


def main() -> None:
    """Measure and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=3)
    asked = parser.parse_args()
    core = sorted(os.sched_getaffinity(0))[0]
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        corpus, bench = place / "corpus.jsonl", place / "bench.jsonl"
        make = ROOT / "benchmarks" / "dedup" / "corpus.py"
        subprocess.run([sys.executable, make, corpus, str(asked.documents), "3"], check=True)
        questions(bench, corpus)
        taken: dict[str, list[float]] = {"dedup": [], "fused": [], "decontaminate": []}
        for run in range(asked.runs + 1):  # the first fills the caches
            catalog = ["--catalog", str(place / f"catalog-{run}"), "--workers", "1", "--json"]
            more = ["--benchmark", f"b={bench}"]
            alone, both, then = (place / f"{name}-{run}.jsonl" for name in ("alone", "both", "then"))
            found = {
                "dedup": seconds(["data", "dedup", str(corpus), "--out", str(alone), *catalog], core),
                "fused": seconds(["data", "dedup", str(corpus), "--out", str(both), *more, *catalog], core),
                "decontaminate": seconds(
                    ["data", "decontaminate", str(alone), "--out", str(then), *more, *catalog], core
                ),
            }
            assert both.read_bytes() == then.read_bytes()
            for name, value in found.items():
                taken[name] += [value] if run else []
            for path in (alone, both, then):
                path.unlink()
        size = corpus.stat().st_size
    medians = {name: round(statistics.median(values), 3) for name, values in taken.items()}
    body = {
        "command": f"benchmarks/decontaminate/fused.py --documents {asked.documents} --runs {asked.runs}",
        "machine": {"cpu": platform.machine(), "cores": os.cpu_count(), "python": sys.version.split()[0]},
        "corpus_bytes": size,
        "processor_seconds": medians,
        "runs": taken,
        "extra_over_dedup": round(medians["fused"] / medians["dedup"] - 1, 4),
        "two_commands_over_dedup": round(medians["decontaminate"] / medians["dedup"], 4),
        "target": TARGET,
    }  # fmt: skip
    out = ROOT / "benchmarks" / "results" / f"fused-{asked.documents}.json"
    out.write_text(json.dumps(body, indent=2) + "\n", "utf-8")
    sys.stdout.write(json.dumps(body, indent=2) + "\n")


if __name__ == "__main__":
    main()
