#!/usr/bin/env python3
"""Measures `lpt data clean` as a whole process on one core, against the same rules written plainly with `re`.

usage: run.py [--copies 24] [--peer-copies 4] [--runs 3]
Writes benchmarks/results/clean-eips.json. The input is the text of the EIPs, each copy with its number in front, so
that no work is shared between copies: 24 of them are 154 MB. Three plans: `web` as it is; `all` with the limits of
the earlier rules so wide that a text is dropped by the last ones alone, so nearly every rule sees it; `sft`.
The rate is megabytes of UTF-8 text by the processor time of the process, start included; the wall time stands beside
it, for the machine may have other work. `beyond_start` is the slope between two sizes, the smaller one a sixth, and
`start_seconds` what that line has at no bytes. The peers have no start worth naming and are measured on fewer copies.

Expected of the whole, a megabyte of English Markdown: marks, words and secrets had been timed alone by then, the other
two lines are estimates:
  reading, ids, writing     JSON decode 3 ms, SHA-256 1 ms, column and strings 2 ms, second read 2 ms        8 ms
  marks                     1 byte in 3 cycles                                                              1 ms
  words, lines, n-grams     1 byte in 25 cycles, then 170,000 words times 2 live n-grams                   20 ms
  secrets                   16 substring searches at 1 GB/s                                                16 ms
  patterns                  only where marks say so; boilerplate lower-cases all of it                      5 ms
which is 50 ms, so 20 MB/s, and 1.5 s to start.

First measured: 147 ms a megabyte. Looked into since, in ms a megabyte of EIPs, before and now: secrets 10 and 0.5,
mojibake 16 and 1, boilerplate 6 and 0.9, white space 6.5 and 0.9, lorem ipsum 3.4 and 0, cards, phones and IBANs 7.5
and 1.1, all by marks that say where they may be; the marks themselves 6.6 and 1.1, by windows of 64 bytes; words and
lines 11.5, then 9, then 7.5, n-grams 8 and 5. The rest is reading twice, ids and writing.
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
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT.parent / "shared" / "data" / "eips" / "eips.jsonl"
LPT = [sys.executable, "-c", "from cli.main import run; run()"]
TARGET = 20.0  # MB/s a core
SMALLER = 6  # the smaller size is this part of the larger one
WIDE = """limits:
  gopher.words: {min: 0, max: 1000000000}
  gopher.word_length: {min: 0, max: 1000000000}
  gopher.symbols: {max: 1000000000}
  gopher.bullets: {max: 1}
  gopher.ellipsis_lines: {max: 1}
  gopher.alphabetic: {min: 0}
  repetition.lines: {lines: 1, chars: 1}
  repetition.paragraphs: {paragraphs: 1, chars: 1}
  repetition.top_ngrams: {top_2: 9, top_3: 9, top_4: 9}
  c4.curly_brackets: {max: 1000000000}
"""


def timed(command: list[str], core: int) -> tuple[float, float, str]:
    """Seconds by the wall and of the processor, and what was printed."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryFile() as out:
        start = time.perf_counter()
        process = subprocess.Popen(["taskset", "-c", str(core), *command], stdout=out, stderr=subprocess.PIPE, env=env)
        told = process.stderr.read() if process.stderr else b""
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        if process.returncode:
            sys.exit(told.decode())
        return wall, usage.ru_utime + usage.ru_stime, out.read().decode()


def write_copies(path: Path, rows: list[dict[str, str]], copies: int) -> float:
    """Write so many copies of the rows and return the megabytes of their text."""
    with path.open("w", encoding="utf-8") as out:
        for copy in range(copies):
            out.writelines(json.dumps({"text": f"Copy {copy}.\n{row['text']}"}) + "\n" for row in rows)
    return sum(len(row["text"].encode()) + 8 for row in rows) * copies / 1e6


def ours(folder: Path, sizes: dict[str, float], name: str, options: list[str], runs: int, core: int) -> dict[str, Any]:
    """Measure one plan on both sizes, in turns."""
    times: dict[str, list[tuple[float, float, str]]] = {which: [] for which in sizes}
    for run in range(runs + 1):
        for which in sizes if run else ("small",):  # the first compiles kernels, where their cache is cold
            output = f"{folder}/{name}-{which}-{run}"
            command = [*LPT, "data", "clean", f"{folder}/{which}.jsonl", "--json", "--out", f"{output}.jsonl"]
            told = timed([*command, "--catalog", output, *options], core)
            Path(f"{output}.jsonl").unlink()
            times[which] += [told] if run else []
    body = json.loads(times["large"][-1][2])
    wall, cpu = (statistics.median(t[i] for t in times["large"]) for i in (0, 1))
    slope = (sizes["large"] - sizes["small"]) / (cpu - statistics.median(t[1] for t in times["small"]))
    return {
        "cpu_seconds": cpu,
        "wall_seconds": wall,
        "mb_per_second": sizes["large"] / cpu,
        "mb_per_second_by_the_wall": sizes["large"] / wall,
        "beyond_start": slope,
        "start_seconds": cpu - sizes["large"] / slope,
        **{key: body[key] for key in ("rows_in", "rows_out", "rows_rewritten", "peak_memory_bytes")},
    }


def peer(script: str, folder: Path, size: float, core: int) -> dict[str, Any]:
    """Measure a script beside this file."""
    paths = [str(Path(__file__).parent / script), f"{folder}/peer.jsonl", f"{folder}/{script}.jsonl"]
    wall, cpu, kept = timed([sys.executable, *paths], core)
    return {"cpu_seconds": cpu, "wall_seconds": wall, "mb_per_second": size / cpu, "rows_out": int(kept)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--copies", type=int, default=24)
    parser.add_argument("--peer-copies", type=int, default=4)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--source", type=Path, default=SOURCE)
    asked = parser.parse_args()
    core = max(os.sched_getaffinity(0))
    rows = [json.loads(line) for line in asked.source.open(encoding="utf-8")]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        copies = {"large": asked.copies, "small": max(1, asked.copies // SMALLER), "peer": asked.peer_copies}
        sizes = {which: write_copies(folder / f"{which}.jsonl", rows, count) for which, count in copies.items()}
        (folder / "wide.yaml").write_text(WIDE)
        plans = {"web": [], "all": ["--config", f"{folder}/wide.yaml"], "sft": ["--preset", "sft"]}
        two = {which: sizes[which] for which in ("small", "large")}
        found = {name: ours(folder, two, name, options, asked.runs, core) for name, options in plans.items()}
        peers = {name: peer(f"{name}.py", folder, sizes["peer"], core) for name in ("plain_peer", "datatrove_peer")}
    result = {
        "command": " ".join(["benchmarks/clean/run.py", *(Path(word).name for word in sys.argv[1:])]),
        "machine": {
            "cpu": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
        },
        "versions": {
            name: importlib.metadata.version(name)
            for name in ("datatrove", "ftfy", "numba", "numpy", "orjson", "pyarrow")
        },
        "text_megabytes": sizes["large"],
        "target_mb_per_second": TARGET,
        "ours": found,
        "peer_megabytes": sizes["peer"],
        "plain_peer": peers["plain_peer"],
        "datatrove": peers["datatrove_peer"],
    }
    path = ROOT / "benchmarks" / "results" / "clean-eips.json"
    path.write_text(json.dumps(result, indent=2) + "\n")
    for name, told in {**found, **peers}.items():
        spent = f"{told['cpu_seconds']:.1f} s, wall {told['wall_seconds']:.1f} s"
        beyond = f", beyond the start {told['beyond_start']:.1f}" if "beyond_start" in told else ""
        print(f"{name:14} {told['mb_per_second']:7.1f} MB/s a core  ({spent}){beyond}")


if __name__ == "__main__":
    main()
