#!/usr/bin/env python3
"""Measures the audit of generated rows, ROUGE-L over all their prompts, and the sandbox of programs.

usage: run.py [--rows 50000] [--peer-rows 300] [--trials 100]
Writes benchmarks/results/synthetic-<rows>.json. The rows are made here: prompts of 8 to 40 words out of 5,000 with the
frequencies of a language, one in fifty a copy of an earlier prompt with a tenth of its words changed, and replies that
the verifier `integer` passes. ROUGE-L is measured alone and inside the whole command; the peer is the rouge_score
package on every pair of a sample, which is how Self-Instruct's filter is usually written. Times are of the processor.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
PACKAGES = ("numba", "numpy", "pyarrow", "rouge_score")
TOLD = {
    "generator": "made", "generator_revision": "1", "prompt_id": "plain", "verifier": "integer", "sampling": "greedy",
    "source": "made", "depth": 1, "licence": "cc0-1.0", "terms": "allowed", "attempts": 4, "passes": 1,
    "source_attempts": 4000, "source_passes": 1000,
}  # fmt: skip


def prompts(count: int) -> tuple[list[str], list[tuple[int, int]]]:
    """Return the prompts and the planted pairs (copy, original)."""
    draw = random.Random(1)
    words = [f"{a}{b}{n}" for n in range(10) for a in "bdfgklmnprst" for b in ("ane", "ilo", "oru", "eti")][:5000]
    odds = [1 / (n + 3) for n in range(len(words))]
    made: list[str] = []
    planted = []
    for n in range(count):
        if n % 50 == 49:
            original = draw.randrange(n)
            copy = made[original].split()
            for _ in range(len(copy) // 10):
                copy[draw.randrange(len(copy))] = draw.choice(words)
            planted.append((n, original))
            made.append(" ".join(copy))
        else:
            made.append(" ".join(draw.choices(words, odds, k=draw.randint(8, 40))))
    return made, planted


def cpu(what: int = resource.RUSAGE_SELF) -> float:
    usage = resource.getrusage(what)
    return usage.ru_utime + usage.ru_stime


def rouge(texts: list[str], planted: list[tuple[int, int]]) -> dict[str, object]:
    from lpt_data.contracts.diversity import numbers_of
    from lpt_data.rouge import nearest_within, number

    words = [numbers_of(text) for text in texts]
    nearest_within(number(words[:10]), np.arange(10), 0.7)  # compiles
    start = cpu()
    found = nearest_within(number(words), np.arange(len(words)), 0.7)
    seconds = cpu() - start
    return {
        "cpu_seconds": round(seconds, 2),
        "prompts_with_a_near_one": int((found.other >= 0).sum()),
        "planted": len(planted),
        "planted_found": sum(int(found.other[copy] >= 0) for copy, _ in planted),
    }


def peer(texts: list[str]) -> float:
    """Return pairs a second of processor time."""
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(["rougeL"])
    start = cpu()
    for a, text in enumerate(texts):
        for other in texts[:a]:
            scorer.score(text, other)
    return len(texts) * (len(texts) - 1) / 2 / (cpu() - start)


def audited(texts: list[str], folder: Path) -> dict[str, object]:
    path = folder / "rows.jsonl"
    with open(path, "w", encoding="utf-8") as file:
        for n, text in enumerate(texts):
            file.write(json.dumps({"prompt": text, "completion": f"{text[::-1]}\n#### {n}", "answer": str(n), **TOLD}))
            file.write("\n")
    start, wall = cpu(resource.RUSAGE_CHILDREN), time.perf_counter()
    call = "from cli.main import run; run()"
    command = [sys.executable, "-c", call, "data", "audit", str(path), "--contract", "synthetic", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    spent, wall = cpu(resource.RUSAGE_CHILDREN) - start, time.perf_counter() - wall
    body = json.loads(done.stdout)
    (share,) = [c["value"] for c in body["checks"] if c["id"] == "synthetic.rouge_l.pool_share"]
    return {
        "cpu_seconds": round(spent, 1),
        "seconds": round(wall, 1),
        "rows_per_cpu_second": round(len(texts) / spent),
        "verdict": body["verdict"],
        "rouge_l_pool_share": share,
    }


def trials(count: int) -> dict[str, object]:
    from lpt_train.rewards.code import Problem, run

    given = Problem("assert add(1, 2) == 3", "add")
    start = cpu(resource.RUSAGE_CHILDREN) + cpu()
    passed = sum(run(f"def add(a, b):\n    return a + b  # {n}\n", given)[0] == "passed" for n in range(count))
    spent = cpu(resource.RUSAGE_CHILDREN) + cpu() - start
    return {"trials": count, "passed": passed, "cpu_milliseconds_each": round(1000 * spent / count, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--peer-rows", type=int, default=300)
    parser.add_argument("--trials", type=int, default=100)
    options = parser.parse_args()
    texts, planted = prompts(options.rows)
    pairs = peer(texts[: options.peer_rows])
    with tempfile.TemporaryDirectory() as folder:
        result = {
            "rows": options.rows,
            "rouge": rouge(texts, planted),
            "peer": {
                "rows": options.peer_rows,
                "pairs_per_cpu_second": round(pairs),
                "cpu_seconds_for_all_pairs": round(options.rows * (options.rows - 1) / 2 / pairs),
            },
            "audit": audited(texts, Path(folder)),
            "sandbox": trials(options.trials),
        }
    versions = {name: importlib.metadata.version(name) for name in PACKAGES} | {"python": platform.python_version()}
    result |= {
        "machine": {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count(),
                    "load": os.getloadavg()},
        "versions": versions,
        "command": " ".join(["python benchmarks/synthetic/run.py", *sys.argv[1:]]),
    }  # fmt: skip
    target = ROOT / "benchmarks" / "results" / f"synthetic-{options.rows}.json"
    target.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
