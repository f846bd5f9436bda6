#!/usr/bin/env python3
"""Measures `lpt data audit` without a tokenizer as a whole process on one core, beside plain ones.

usage: run.py [--rows 200000] [--peer-rows 50000] [--runs 3]
Writes benchmarks/results/audit.json. Rows are made of the public sets in ../shared/data, a number in each so that none
repeats: `text` 1.2 KB of an EIP, `sft` one exchange of code_alpaca with a GSM8K solution behind it, `preference` a
GSM8K question with two answers, `rlvr` GSM8K with its gold, `synthetic` GSM8K with all columns of provenance.

Rates are rows by the processor time of the process and its workers, start included, and by the wall clock.
`beyond_start` is the slope between two sizes, the smaller one a tenth, and `start_seconds` what that line has at no
rows. The peer, a plain script, has no start worth naming and is measured on fewer rows. `read` is what reading and
converting the same rows costs without one check, in a process of its own.

Expected of a row of 0.7 KB, from bytes and operations: scan and unescape 1 us, canonical JSON 0.5, SHA-256 of the
record, the key and both halves in lanes 1, fold of the key 1, literals 1.5, facts as Python tuples 2, repeats and roots
1: 8 us, and 0.9 s to start, 0.4 of which are the loading of kernels. An `rlvr` row sends its prompt to the verifier
besides (1.5 us there, as most prompts do not hold the answer, 2 for the way); what hangs on the answer alone is asked
once for each answer. A `synthetic` row is converted by itself (15 us), has its words numbered (10), its reply verified
(5) and its prompt compared with all others by ROUGE-L, which grows with the square of the rows: it is measured on a
twentieth of them.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared" / "data"
LPT = [sys.executable, "-c", "from cli.main import run; run()"]
READ = """
import sys
from lpt_data.dataset import Dataset
from manifests.canon import kind_of
for batch in Dataset.open([sys.argv[1]], kind=kind_of(sys.argv[2])).record_batches(plain=True):
    batch.plain is None or batch.plain.ids
"""
TARGET = 50_000  # rows a second
SMALLER = 10  # the smaller size is this part of the larger one
COMPARED = 20  # of rows that are compared with all others, this part is measured
TOLD = {
    "generator": "made", "generator_revision": "1", "verifier": "integer", "sampling": "greedy", "source": "made",
    "depth": 1, "licence": "cc0-1.0", "terms": "allowed", "attempts": 4, "passes": 1, "source_attempts": 4000,
    "source_passes": 1000,
}  # fmt: skip


def generators() -> dict[str, Callable[[int], dict[str, Any]]]:
    """Row number -> row, for each contract."""
    eips = [json.loads(line)["text"] for line in (SHARED / "eips" / "eips.jsonl").open(encoding="utf-8")]
    sums = [json.loads(line) for line in (SHARED / "gsm8k" / "train.jsonl").open(encoding="utf-8")]
    code = json.loads((SHARED / "code_alpaca" / "code_alpaca_2k.json").read_text(encoding="utf-8"))

    def text(i: int) -> dict[str, Any]:
        whole = eips[i % len(eips)]
        start = (i * 7919) % max(1, len(whole) - 1200)
        return {"text": f"{i} {whole[start : start + 1200]}"}

    def sft(i: int) -> dict[str, Any]:
        row, more = code[i % len(code)], sums[i % len(sums)]
        asked = {"role": "user", "content": f"({i}) {row['instruction']}\n{row['input']}"}
        return {"messages": [asked, {"role": "assistant", "content": f"{row['output']}\n{more['answer']}"}]}

    def preference(i: int) -> dict[str, Any]:
        row, other = sums[i % len(sums)], sums[(i * 31 + 7) % len(sums)]
        return {"prompt": f"{row['question']} [{i}]", "chosen": row["answer"], "rejected": other["answer"]}

    def rlvr(i: int) -> dict[str, Any]:
        row = sums[i % len(sums)]
        return {"question": f"{row['question']} [{i}]", "answer": row["answer"]}

    def synthetic(i: int) -> dict[str, Any]:
        row = sums[i % len(sums)]
        gold = row["answer"].rpartition("####")[2].strip()
        said = {"prompt": f"{row['question']} [{i}]", "completion": row["answer"], "answer": gold}
        return {**said, "prompt_id": str(i), **TOLD}

    return {"text": text, "sft": sft, "preference": preference, "rlvr": rlvr, "synthetic": synthetic}


def lines(make: Callable[[int], dict[str, Any]], rows: int) -> Iterator[bytes]:
    return (json.dumps(make(i), ensure_ascii=False).encode() + b"\n" for i in range(rows))


def timed(command: list[str], core: int) -> tuple[float, float, str]:
    """Seconds of the processor and by the wall of a process on one core, and what it printed."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as told:
        begun = time.perf_counter()
        process = subprocess.Popen(["taskset", "-c", str(core), *command], stdout=out, stderr=told, env=env)
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - begun
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        told.seek(0)
        if process.returncode not in (0, 3, 4):  # an audit's verdict is its exit code
            sys.exit(told.read().decode())
        return usage.ru_utime + usage.ru_stime, wall, out.read().decode()


def measured(name: str, make: Callable[[int], dict[str, Any]], rows: int, peer_rows: int, runs: int) -> dict[str, Any]:
    """Measure one contract: our command on two sizes, the peer and mere reading, in turns."""
    core = max(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        paths = {count: Path(folder) / f"{name}-{count}.jsonl" for count in (rows, rows // SMALLER, peer_rows)}
        for count, path in paths.items():
            with path.open("wb") as out:
                out.writelines(lines(make, count))
        large, small = paths[rows], paths[rows // SMALLER]
        audit = [*LPT, "data", "audit", "--contract", name, "--json"]
        peer = [sys.executable, str(Path(__file__).parent / "plain_peer.py"), str(paths[peer_rows]), name]
        commands = {
            "ours": [*audit, str(large)],
            "smaller": [*audit, str(small)],
            "read": [sys.executable, "-c", READ, str(large), name],
        }
        timed(commands["smaller"], core)  # compiles kernels
        told: dict[str, list[tuple[float, float, str]]] = {what: [] for what in (*commands, "peer")}
        for _ in range(runs):  # in turns, so that what else the machine does falls on all of them
            for what, command in commands.items():
                told[what].append(timed(command, core))
        told["peer"].append(timed(peer, core))
        size = large.stat().st_size / 1e6
    for what, count in (("ours", rows), ("smaller", rows // SMALLER)):
        assert sum(part["rows"] for part in json.loads(told[what][-1][2])["splits"].values()) == count
    cpu = {what: statistics.median(run[0] for run in each) for what, each in told.items()}
    wall = {what: statistics.median(run[1] for run in each) for what, each in told.items()}
    slope = (rows - rows // SMALLER) / (cpu["ours"] - cpu["smaller"])
    return {
        "rows": rows,
        "megabytes": size,
        "cpu_seconds": cpu["ours"],
        "wall_seconds": wall["ours"],
        "rows_per_second": rows / cpu["ours"],
        "rows_per_second_by_the_wall": rows / wall["ours"],
        "beyond_start": slope,
        "start_seconds": cpu["ours"] - rows / slope,
        "read": rows / cpu["read"],
        "peer": peer_rows / cpu["peer"],
        "peer_by_the_wall": peer_rows / wall["peer"],
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--peer-rows", type=int, default=50_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--contracts", default="text,sft,preference,rlvr,synthetic")
    asked = parser.parse_args()
    found: dict[str, dict[str, Any]] = {}
    for name, make in generators().items():
        if name not in asked.contracts.split(","):
            continue
        part = COMPARED if name == "synthetic" else 1
        found[name] = measured(name, make, asked.rows // part, asked.peer_rows // part, asked.runs)
        shown = ("rows_per_second", "beyond_start", "start_seconds", "read", "peer")
        print(f"{name:12}" + "".join(f"{what} {found[name][what]:10,.1f}  " for what in shown), flush=True)
    result = {
        "command": " ".join(["benchmarks/audit/run.py", *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": {
            "cpu": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "load": os.getloadavg()[0],
            "python": platform.python_version(),
        },
        "versions": {name: importlib.metadata.version(name) for name in ("numpy", "orjson", "pyarrow")},
        "target_rows_per_second": TARGET,
        "contracts": found,
    }
    (ROOT / "benchmarks" / "results" / "audit.json").write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
