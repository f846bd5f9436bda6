#!/usr/bin/env python3
"""Measures `lpt data audit` without a tokenizer as a whole process on one core, beside plain ones.

usage: run.py [--megabytes 100] [--runs 3]
Writes benchmarks/results/audit.json. Rows are made of the public sets in ../shared/data, a number in each so that none
repeats: `text` 1.2 KB of an EIP, `sft` one exchange of code_alpaca with a GSM8K solution behind it, `preference` a
GSM8K question with two answers, `rlvr` GSM8K with its gold. The rate is rows by the processor time of the process,
start included. `read` is what reading and converting the same rows costs without one check, in a process of its own.

`start` is the time of the same command on the first megabyte and a half of the file, where kernels are loaded as well,
and `beyond_start` the rate of the rows behind it: what a larger file comes near to.

Expected of a row of 0.7 KB, from bytes and operations: scan and unescape 1 us, canonical JSON 0.5, SHA-256 of the
record, the key and both halves in lanes 1, fold of the key 1, literals 1.5, facts as Python tuples 2, repeats and roots
1: 8 us, and 1 s to start, half of which is the loading of kernels. An `rlvr` row sends its prompt to the verifier
besides (10 us there, 3 for the way); what hangs on the answer alone is asked once for each answer.
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
for batch in Dataset.open([sys.argv[1]], kind=sys.argv[2]).record_batches(plain=True):
    batch.plain is None or batch.plain.ids
"""
TARGET = 50_000  # rows a second
START = 1_500_000  # bytes of the file whose time is that of the start


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

    return {"text": text, "sft": sft, "preference": preference, "rlvr": rlvr}


def lines(make: Callable[[int], dict[str, Any]], size: float) -> Iterator[bytes]:
    written, i = 0, 0
    while written < size:
        line = json.dumps(make(i), ensure_ascii=False).encode() + b"\n"
        written, i = written + len(line), i + 1
        yield line


def timed(command: list[str], core: int) -> tuple[float, str]:
    """Processor seconds of a process on one core, and what it printed."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as told:
        process = subprocess.Popen(["taskset", "-c", str(core), *command], stdout=out, stderr=told, env=env)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        told.seek(0)
        if process.returncode not in (0, 3, 4):  # an audit's verdict is its exit code
            sys.exit(told.read().decode())
        return usage.ru_utime + usage.ru_stime, out.read().decode()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=float, default=100)
    parser.add_argument("--runs", type=int, default=3)
    asked = parser.parse_args()
    core = max(os.sched_getaffinity(0))
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, make in generators().items():
            path = Path(folder) / f"{name}.jsonl"
            with path.open("wb") as out:
                out.writelines(lines(make, asked.megabytes * 1e6))
            audit = [*LPT, "data", "audit", str(path), "--contract", name, "--json"]
            peer = [sys.executable, str(Path(__file__).parent / "plain_peer.py"), str(path), name]
            small = Path(folder) / f"{name}-start.jsonl"
            with path.open("rb") as source:
                small.write_bytes(b"".join(source.readlines(START)))
            ours, theirs, read, start = [], [], [], []
            timed([str(small) if word == str(path) else word for word in audit], core)  # compiles kernels
            for _ in range(asked.runs):  # in turns, so that what else the machine does falls on all of them
                ours.append(timed(audit, core))
                start.append(timed([str(small) if word == str(path) else word for word in audit], core))
                theirs.append(timed(peer, core))
                read.append(timed([sys.executable, "-c", READ, str(path), name], core))
            rows = json.loads(theirs[-1][1])["rows"]
            assert sum(part["rows"] for part in json.loads(ours[-1][1])["splits"].values()) == rows
            *seconds, begun = [statistics.median(run[0] for run in runs) for runs in (ours, theirs, read, start)]
            rates = {what: rows / s for what, s in zip(("rows_per_second", "peer", "read"), seconds, strict=True)}
            first = sum(part["rows"] for part in json.loads(start[-1][1])["splits"].values())
            rates["beyond_start"] = (rows - first) / (seconds[0] - begun)
            size = path.stat().st_size / 1e6
            found[name] = {"rows": rows, "megabytes": size, "cpu_seconds": seconds[0], "start": begun, **rates}
            path.unlink()
            print(f"{name:12}" + "".join(f"{what} {rate:10,.0f}  " for what, rate in rates.items()), flush=True)
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
