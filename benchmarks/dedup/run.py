#!/usr/bin/env python3
"""Measures `lpt data dedup` as a whole process on one core, against the datasketch loop of the teaching text.

usage: run.py [--documents 100000] [--seed-documents 3000] [--runs 3]
Writes benchmarks/results/dedup-<documents>.json: rates by an outside clock, peak memory, recall on planted
pairs, removals that a plain recomputation from the raw text refutes, and two floors: `plain` (read, decode, write,
with orjson and pyarrow) and `machine` (read, hash, copy, compress, nothing parsed).

The first version was predicted at 26 us a document and took 47. By parts, each measured alone and warm, the least of
nine times, for a document of 1,790 bytes and 255 words, on a core of 3.2 GHz with AVX-512:
  identity      SHA-256 of the file at 1.3 GB/s, its reading                                              1.7 us
  reading       0.35, JSON scanned in masks of 64 bytes 0.3, text copied 0.2, record ids by 16 lanes 1.0  1.9 us
  tokens        masks and word ends 0.6, hashes 12 cycles a word 1.1                                      1.7 us
  signature     108 permutations x 250 shingles / 8 lanes at 2.2 cycles (vpmullq)                         2.4 us
  sketch        shingles, band keys, a hash of the sequence                                               0.5 us
  shingle sets  of the two fifths of rows that share a band: tokens again and a bucket sort, 3.2 us each  1.3 us
  writing       reading and scanning again 0.9, zstd at 340 MB/s 4.3, Parquet 0.7                         5.9 us
  start         interpreter, pyarrow, numba, DuckDB, cached kernels: 1.2 s a run
and beside these the comparison of rows and the pages that hold the text until all is decided. The loop of the teaching
text takes 2,050 us.

What the kernels replaced, in the order of what that cost: JSON lines became Python objects, twice, 13 us; tokens were
hashed byte by byte, 6.8 us in the sketch and again for the shingle sets; the constants of a shingle were made anew for
each batch, 2 us; a record id was a call of hashlib, 2.0 us; bucket by bucket, the sort of a set cost 0.7 us more. What
is left as it is: LZ4 instead of zstd would save 1.3 us and write half as much again; the 64-bit products of the
signature, which are those of datasketch's `affine64`, take 1.2 us more than products of 32 bits would.

Compare the seconds of processor time, not those by the wall, where `load_before` says that others were at work;
neighbours on the same physical core lengthen both.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
SHARED = ROOT.parent / "shared" / "data"
PYTHON = ROOT / ".venv" / "bin" / "python"
THRESHOLD, RECALL_FROM = 0.8, 0.85
PACKAGES = ("numba", "numpy", "pyarrow", "orjson", "datasketch")


@dataclass(frozen=True)
class Timing:
    """One process: seconds by the wall and by its own processor time, peak resident bytes."""

    wall: float
    cpu: float
    memory: int
    output: str


def timed(command: list[str], core: int, env: dict[str, str] | None = None) -> Timing:
    """Run a command on one core; other load on that core lengthens the wall time and not the processor time."""
    limits = {"OMP_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1", "ARROW_DEFAULT_THREADS": "1"}
    # An installed command keeps its byte code, whatever the shell that measures says.
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryFile() as out:
        start = time.perf_counter()
        process = subprocess.Popen(
            ["taskset", "-c", str(core), *command], stdout=out, cwd=ROOT, env={**inherited, **limits, **(env or {})}
        )
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        text = out.read().decode()
    if process.returncode:
        sys.exit(f"{' '.join(command)} ended with {process.returncode}")
    return Timing(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024, text)


def make_corpus(path: Path, documents: int) -> str:
    shared = SHARED / "corpus.py"
    if shared.exists():
        subprocess.run([PYTHON, shared, SHARED / "eips" / "eips.jsonl", path, str(documents), "7"], check=True)
        return "shared corpus.py over EIPs, seed 7"
    subprocess.run([PYTHON, HERE / "corpus.py", path, str(documents), "7"], check=True)
    return "benchmarks/dedup/corpus.py, seed 7"


def dedup(corpus: Path, folder: Path, core: int, number: int) -> tuple[Timing, Path]:
    """One run of the command into a new folder with a new catalog, so that nothing is reused."""
    out, catalog = folder / f"out{number}.parquet", folder / f"lpt{number}"
    command = [str(ROOT / ".venv" / "bin" / "lpt"), "data", "dedup", str(corpus), "--out", str(out)]
    command += ["--method", "exact,minhash", "--threshold", str(THRESHOLD), "--workers", "1", "--json"]
    env = {"LPT_CATALOG": str(catalog)} | ({} if number else {"NUMBA_CACHE_DIR": str(folder / "no-kernels-yet")})
    timing = timed(command, core, env)
    return timing, next(catalog.glob("decisions/*.parquet"))


def shingles(text: str) -> set[tuple[str, ...]]:
    tokens = re.findall(r"\w+", text.lower())
    return {tuple(tokens[i : i + 5]) for i in range(len(tokens) - 4)}


def check(corpus: Path, decisions: Path) -> dict[str, float]:
    """Recompute every removal from the raw text, and count the planted pairs that are still both there."""
    import pyarrow.parquet as pq

    with corpus.open(encoding="utf-8") as lines:
        texts = [json.loads(line)["text"] for line in lines]
    rows = pq.read_table(decisions).to_pylist()
    gone = {row["row"] for row in rows}
    false = wrong_scores = 0
    for row in rows:
        text, witness = texts[row["row"]], texts[row["witness_row"]]
        a, b = shingles(text), shingles(witness)
        score = len(a & b) / len(a | b) if a and b else float(text.lower().split() == witness.lower().split())
        same = {
            "exact_duplicate": text == witness,
            "normalized_duplicate": text.lower().split() == witness.lower().split(),
        }
        false += row["witness_row"] in gone or not same.get(row["reason"], score >= THRESHOLD)
        wrong_scores += score != row["score"]
    planted = [json.loads(line) for line in Path(f"{corpus}.truth").read_text().splitlines()]
    near = [pair for pair in planted if pair["jaccard"] >= RECALL_FROM]
    found = sum(pair["id"] in gone or pair["of"] in gone for pair in near)
    return {
        "removed": len(rows),
        "false_removals": false,
        "scores_that_differ": wrong_scores,
        "planted_pairs": len(near),
        "planted_pairs_found": found,
        "recall": round(found / len(near), 6) if near else 1.0,
    }


def machine() -> dict[str, object]:
    info = Path("/proc/cpuinfo")
    model = re.search(r"model name\s*: (.*)", info.read_text()) if info.exists() else None
    return {
        "cpu": model[1] if model else platform.processor(),
        "cores": os.cpu_count(),
        "load_before": os.getloadavg()[0],
        "system": platform.platform(),
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in PACKAGES},
    }


def measure(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    corpus, few = folder / "corpus.jsonl", folder / "few.jsonl"
    result: dict[str, object] = {"machine": machine(), "corpus": make_corpus(corpus, options.documents)}
    size = corpus.stat().st_size
    with corpus.open("rb") as lines:
        few.write_bytes(b"".join(line for _, line in zip(range(500), lines, strict=False)))
    cold = dedup(few, folder, options.core, 0)[0].wall  # compiles every kernel that so small a file needs
    warm = dedup(few, folder, options.core, 1)[0].wall
    loop = [str(PYTHON), str(HERE / "seed_loop.py"), str(corpus), str(options.seed_documents)]
    runs, loops = [], []
    for i in range(options.runs):  # taken in turns, because other load on the machine comes and goes
        runs.append(dedup(corpus, folder, options.core, 2 + i))
        loops.append(json.loads(timed(loop, options.core).output))
    timings = [timing for timing, _ in runs]
    seconds, cpu = (statistics.median(getattr(t, name) for t in timings) for name in ("wall", "cpu"))
    report = json.loads(timings[0].output)
    floors = {}
    for name, script in (("plain", "floor.py"), ("machine", "machine_floor.py")):
        timing = timed([str(PYTHON), str(HERE / script), str(corpus), str(folder / f"{name}.out")], options.core)
        floors[name] = {
            "seconds": round(timing.wall, 3),
            "cpu_seconds": round(timing.cpu, 3),
            "share_of_lpt": round(timing.cpu / cpu, 3),
        }
    base, base_cpu = (statistics.median(one[name] for one in loops) for name in ("seconds", "cpu_seconds"))
    sample = loops[0]["documents"]
    rate, base_rate = options.documents / seconds, sample / base
    result |= {
        "documents": options.documents,
        "corpus_bytes": size,
        "lpt": {
            "seconds": [round(t.wall, 3) for t in timings],
            "cpu_seconds": [round(t.cpu, 3) for t in timings],
            "documents_per_second": round(rate),
            "megabytes_per_second": round(size / seconds / 1e6, 1),
            "peak_memory_bytes": max(t.memory for t in timings),
            "seconds_of_500_documents": {"kernels_compiled": round(cold, 2), "kernels_cached": round(warm, 2)},
            "report": {k: v for k, v in report.items() if k in ("rows_in", "rows_out", "removed", "quarantined")},
            **check(corpus, runs[0][1]),
        },
        "floor": floors,
        "datasketch_loop": {
            "documents": sample,
            "seconds": [round(one["seconds"], 2) for one in loops],
            "cpu_seconds": [round(one["cpu_seconds"], 2) for one in loops],
            "documents_per_second": round(base_rate, 1),
            "note": "a sample, start-up and reading left out; its index is small, a full run would be slower"
            if sample < options.documents
            else "the full corpus, start-up and reading left out",
        },
        "ratio": round(rate / base_rate, 1),
        "ratio_of_cpu_seconds": round(options.documents / cpu / (sample / base_cpu), 1),
    }
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--seed-documents", type=int, default=3_000, help="sample for the datasketch loop")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = measure(options, Path(folder))
    result["command"] = "python benchmarks/dedup/run.py " + " ".join(sys.argv[1:])
    target = ROOT / "benchmarks" / "results" / f"dedup-{options.documents}.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
