#!/usr/bin/env python3
"""Measures `lpt data dedup` as a whole process on one core, against what people use, on the same documents.

usage: run.py [--documents 100000] [--peer-documents 10000] [--loop-documents 3000] [--runs 3] [--text-dedup PYTHON]
       run.py --growth 10000,100000,1000000 [--memory 4GB] [--runs 3] [--loop-documents 3000]
Writes benchmarks/results/dedup-<documents>.json: rates by an outside clock, peak memory, recall on planted pairs,
removals that a plain recomputation from the raw text refutes, two floors, `plain` (read, decode, write, with orjson and
pyarrow) and `machine` (read, hash, copy, compress, nothing parsed), and what `--dry-run` had foretold; the same of each
peer (`peers.py`), on the first documents of the corpus, its start-up left out, which ours is not. With --growth,
dedup-growth-<largest>.json: ours from the smallest to the largest number of documents, and two of the peers on the
first documents of the largest.

The first version was predicted at 26 us a document and took 47. By parts, each measured alone and warm, the least of
nine times, for a document of 1,790 bytes and 255 words, on a core of 3.2 GHz with AVX-512:
  identity      SHA-256 of the file at 1.3 GB/s, its reading                                              1.7 us
  reading       0.35, JSON scanned in masks of 64 bytes 0.3, text copied 0.2, record ids by 16 lanes 1.0  1.9 us
  tokens        masks and word ends 0.6, hashes 12 cycles a word 1.1                                      1.7 us
  signature     70 permutations x 250 shingles / 8 lanes at 2.2 cycles (vpmullq)                          1.6 us
  sketch        shingles, band keys, a hash of the sequence                                               0.5 us
  shingle sets  of the two fifths of rows that share a band: tokens again and a bucket sort, 3.2 us each  1.3 us
  writing       reading and scanning again 0.9, zstd at 340 MB/s 4.3, Parquet 0.7                         5.9 us
  start         interpreter, pyarrow, numba, DuckDB, cached kernels: 1.2 s a run
and beside these the comparison of rows and the pages that hold what is kept of each. Since then the hashes of words are
vectors, which takes 0.5 us off the tokens, texts are read again instead of held, the start takes 0.4 s less, and blocks
of 2 MiB instead of half of one save the interpreter 1 us. The loop of the teaching text takes 2,050 us.

What the kernels replaced, in the order of what that cost: JSON lines became Python objects, twice, 13 us; tokens were
hashed byte by byte, 6.8 us in the sketch and again for the shingle sets; the constants of a shingle were made anew for
each batch, 2 us; a record id was a call of hashlib, 2.0 us; bucket by bucket, the sort of a set cost 0.7 us more. What
is left as it is: LZ4 instead of zstd would save 1.3 us and write half as much again; the 64-bit products of the
signature, which are those of datasketch's `affine64`, take 0.8 us more than products of 32 bits would.

Compare the seconds of processor time, not those by the wall, where `load_before` says that others were at work;
neighbours on the same physical core lengthen both.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import itertools
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

import quality

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
SHARED = ROOT.parent / "shared" / "data"
PYTHON = Path(sys.executable)
THRESHOLD = 0.8
CHECKED = 100_000
FEW = 1000  # documents that show what a start costs; large enough to be scanned by kernels
PEERS = ("datasketch_loop", "datasketch_batch", "rensa", "datatrove")
IN_GROWTH = ("datasketch_loop", "rensa")
PACKAGES = ("numba", "numpy", "pyarrow", "orjson", "datasketch", "rensa", "datatrove")


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
    if shared.exists() and documents <= 10**6:  # it holds all documents in memory
        subprocess.run([PYTHON, shared, SHARED / "eips" / "eips.jsonl", path, str(documents), "7"], check=True)
        return "shared corpus.py over EIPs, seed 7"
    subprocess.run([PYTHON, HERE / "corpus.py", path, str(documents), "7"], check=True)
    return "benchmarks/dedup/corpus.py, seed 7"


def dedup(corpus: Path, folder: Path, options: argparse.Namespace, number: int) -> tuple[Timing, Path]:
    """One run of the command into a new folder with a new catalog, so that nothing is reused."""
    catalog = folder / f"lpt{number}"
    env = {"LPT_CATALOG": str(catalog), **kernels(folder)}
    timing = timed([*command(corpus, folder / f"out{number}.parquet", options), "--json"], options.core, env)
    return timing, next(catalog.glob("decisions/*.parquet"))


def kernels(folder: Path) -> dict[str, str]:
    """Kernels of this run's own: numba keeps one although a function of another module inside it has changed."""
    return {"NUMBA_CACHE_DIR": str(folder / "kernels")}


def command(corpus: Path, out: Path, options: argparse.Namespace) -> list[str]:
    told = [str(PYTHON), "-c", "from cli.main import run; run()", "data", "dedup", str(corpus), "--out", str(out)]
    told += ["--method", "exact,minhash", "--threshold", str(THRESHOLD), "--workers", "1"]
    return told + (["--memory", options.memory] if options.memory else [])


def check(corpus: Path, decisions: Path) -> dict[str, float]:
    """Recompute removals from the raw text (CHECKED of them at most, spread evenly), and count the planted pairs that
    are still both there.
    """
    import pyarrow.parquet as pq

    table = pq.read_table(decisions)
    gone = set(table["row"].to_pylist())
    table = table.take(list(range(0, table.num_rows, 1 + table.num_rows // CHECKED)))
    needed = set(table["row"].to_pylist()) | set(table["witness_row"].to_pylist())
    with corpus.open(encoding="utf-8") as lines:
        texts = {i: json.loads(line)["text"] for i, line in enumerate(lines) if i in needed}
    rows = table.to_pylist()
    false = wrong_scores = 0
    for row in rows:
        text, witness = texts[row["row"]], texts[row["witness_row"]]
        a, b = quality.shingles(text), quality.shingles(witness)
        score = len(a & b) / len(a | b) if a and b else float(text.lower().split() == witness.lower().split())
        same = {
            "exact_duplicate": text == witness,
            "normalized_duplicate": text.lower().split() == witness.lower().split(),
        }
        false += row["witness_row"] in gone or not same.get(row["reason"], score >= THRESHOLD)
        wrong_scores += score != row["score"]
    found = quality.recall(Path(f"{corpus}.truth"), gone, sys.maxsize)
    return {
        "removed": len(gone),
        "checked": len(rows),
        "false_removals": false,
        "scores_that_differ": wrong_scores,
        **found,
    }


def peer(name: str, corpus: Path, folder: Path, options: argparse.Namespace) -> dict[str, object]:
    """One peer on the first documents."""
    documents = min(options.loop_documents if name == "datasketch_loop" else options.peer_documents, options.documents)
    out = folder / f"{name}.jsonl"
    told = [str(PYTHON), str(HERE / "peers.py"), name, str(corpus), str(documents), str(out)]
    timing = timed(told + ([options.text_dedup] if name == "text_dedup" else []), options.core)
    body = json.loads(timing.output.splitlines()[-1])
    size = sum(len(line) for _, line in zip(range(documents), corpus.open("rb"), strict=False))
    return {
        "documents": documents,
        "seconds": round(body["seconds"], 3),
        "cpu_seconds": round(body["cpu_seconds"], 3),
        "documents_per_cpu_second": round(documents / body["cpu_seconds"], 1),
        "megabytes_per_cpu_second": round(size / body["cpu_seconds"] / 1e6, 2),
        "peak_memory_bytes": timing.memory,
        "removed": body["removed"],
    }


def judged(found: dict[str, object], corpus: Path) -> dict[str, object]:
    """The same with the worth of its removals instead of their numbers."""
    gone, documents = set(found["removed"]), int(found["documents"])
    with corpus.open(encoding="utf-8") as lines:
        texts = [json.loads(line)["text"] for _, line in zip(range(documents), lines, strict=False)]
    worth = {"removed": len(gone), "false_removals": quality.false_removals(texts, gone, THRESHOLD)}
    return {**found, **worth, **quality.recall(Path(f"{corpus}.truth"), gone, documents)}


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
        few.write_bytes(b"".join(line for _, line in zip(range(FEW), lines, strict=False)))
    cold = dedup(few, folder, options, 0)[0].wall  # compiles every kernel
    warm = dedup(few, folder, options, 1)[0].wall
    foreseen = [*command(corpus, folder / "dry.parquet", options), "--json", "--dry-run"]
    timed(foreseen, options.core, kernels(folder))  # compiles what it alone needs
    dry = timed(foreseen, options.core, kernels(folder))
    names = [*PEERS, *(["text_dedup"] if options.text_dedup else [])]
    runs, peers = [], {}
    for i in range(options.runs):  # taken in turns, because other load on the machine comes and goes
        runs.append(dedup(corpus, folder, options, 2 + i))
        for name in names[i :: options.runs]:
            peers[name] = peer(name, corpus, folder, options)
    ours = summary(options.documents, size, [timing for timing, _ in runs], floors(corpus, folder, options))
    ours |= {
        f"seconds_of_{FEW}_documents": {"kernels_compiled": round(cold, 2), "kernels_cached": round(warm, 2)},
        "foretold": foretold(dry, json.loads(runs[0][0].output)),
        **check(corpus, runs[0][1]),
    }
    rate = ours["documents_per_cpu_second"]
    result |= {
        "documents": options.documents,
        "corpus_bytes": size,
        "lpt": ours,
        "peers": {name: judged(peers[name], corpus) for name in names},
        "ratio_of_cpu_seconds": {name: round(rate / peers[name]["documents_per_cpu_second"], 1) for name in names},
        "note": "peers on the first documents, start-up left out; lpt on all, as a whole process",
    }
    return result


def floors(corpus: Path, folder: Path, options: argparse.Namespace) -> dict[str, Timing]:
    """What reading and writing the corpus takes: as plain Python would, and as the machine must."""
    scripts = {"plain": "floor.py", "machine": "machine_floor.py"}
    return {
        name: timed([str(PYTHON), str(HERE / script), str(corpus), str(folder / f"{name}.parquet")], options.core)
        for name, script in scripts.items()
    }


def summary(documents: int, size: int, timings: list[Timing], floors: dict[str, Timing]) -> dict[str, object]:
    seconds, cpu = (statistics.median(getattr(t, name) for t in timings) for name in ("wall", "cpu"))
    report = json.loads(timings[0].output)
    return {
        "seconds": [round(t.wall, 3) for t in timings],
        "cpu_seconds": [round(t.cpu, 3) for t in timings],
        "documents_per_second": round(documents / seconds),
        "megabytes_per_second": round(size / seconds / 1e6, 1),
        "documents_per_cpu_second": round(documents / cpu),
        "megabytes_per_cpu_second": round(size / cpu / 1e6, 1),
        "peak_memory_bytes": max(t.memory for t in timings),
        "floor": {
            name: {"seconds": round(t.wall, 3), "cpu_seconds": round(t.cpu, 3), "percent": round(100 * t.cpu / cpu, 1)}
            for name, t in floors.items()
        },
        "memory": report["memory"],
        "report": {k: v for k, v in report.items() if k in ("rows_in", "rows_out", "removed", "quarantined")},
    }


def foretold(dry: Timing, report: dict[str, object]) -> dict[str, object]:
    """What --dry-run said, and what then happened."""
    told = json.loads(dry.output)
    near, memory = report["minhash"], report["memory"]
    happened = {
        "rows": report["rows_in"],
        "seconds": report["seconds"],
        "peak_memory_bytes": report["peak_memory_bytes"],
        "spilled_bytes": memory["spilled_bytes"],  # type: ignore[index]
        "candidates": near["candidates"],  # type: ignore[index]
    }
    shown = {name: [told[name], value] for name, value in happened.items()}
    return {
        "seconds_it_took": round(dry.wall, 2),
        "foretold_and_happened": shown,
        "between": told["candidates_between"],
    }


def growth(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Ours on more and more documents: cost of a document, memory, and the largest over the smallest; of the largest
    also the rates of the loop and of rensa on its first documents, between the runs.
    """
    steps, peers, number = {}, {}, itertools.count()
    sizes = [int(documents) for documents in options.growth.split(",")]
    for documents in sizes:
        corpus = folder / "corpus.jsonl"
        told = make_corpus(corpus, documents)
        foreseen = [*command(corpus, folder / "dry.parquet", options), "--json", "--dry-run"]
        if documents == sizes[0]:  # compiles the kernels
            timed(foreseen, options.core, kernels(folder))
            dedup(corpus, folder, options, next(number))
        dry = timed(foreseen, options.core, kernels(folder))
        runs = []
        for i in range(options.runs):
            runs.append(dedup(corpus, folder, options, next(number)))
            for name in IN_GROWTH[i :: options.runs] if documents == sizes[-1] else ():
                peers[name] = peer(name, corpus, folder, options)
        step = summary(
            documents, corpus.stat().st_size, [timing for timing, _ in runs], floors(corpus, folder, options)
        )
        cost = round(1e6 * statistics.median(step["cpu_seconds"]) / documents, 2)
        gone = {"foretold": foretold(dry, json.loads(runs[0][0].output)), **check(corpus, runs[0][1])}
        steps[documents] = {**step, "microseconds_a_document": cost, **gone}
        for path in folder.glob("*.parquet"):
            path.unlink()
    marginal = {}
    for (a, one), (b, other) in itertools.pairwise(steps.items()):
        more = statistics.median(other["cpu_seconds"]) - statistics.median(one["cpu_seconds"])
        marginal[f"{a} to {b}"] = round(1e6 * more / (b - a), 2)
    rate = steps[sizes[-1]]["documents_per_cpu_second"]
    costs = [step["microseconds_a_document"] for step in steps.values()]
    return {
        "machine": machine(),
        "corpus": told,
        "steps": steps,
        "microseconds_a_document_largest_over_smallest": round(costs[-1] / costs[0], 3),
        "microseconds_a_further_document": marginal,
        "peers": {name: judged(found, corpus) for name, found in peers.items()},
        "ratio_of_cpu_seconds": {name: round(rate / one["documents_per_cpu_second"], 1) for name, one in peers.items()},
    }


def as_table(result: dict[str, object]) -> str:
    """The comparison as Markdown."""
    lines = ["| tool | documents | docs/s | MB/s | peak MB | recall | false removals |", "| --- |" + " ---: |" * 6]
    for name, one in {"lpt": {"documents": result["documents"], **result["lpt"]}, **result["peers"]}.items():
        rates = f"{one['documents_per_cpu_second']:,.0f} | {one['megabytes_per_cpu_second']:,.1f}"
        memory = f"{one['peak_memory_bytes'] / 1e6:,.0f}"
        false = f"{one['false_removals']:,} of {one['removed']:,}"
        lines.append(f"| {name} | {one['documents']:,} | {rates} | {memory} | {one['recall']:.4f} | {false} |")
    return "\n".join([*lines, "", "docs/s and MB/s by processor time, one core"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--peer-documents", type=int, default=10_000, help="sample for the peers")
    parser.add_argument("--loop-documents", type=int, default=3_000, help="sample for the datasketch loop")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)))
    parser.add_argument("--growth", help="numbers of documents with commas, instead of the comparison")
    parser.add_argument("--memory", help="cap of lpt, such as 4GB")
    parser.add_argument("--text-dedup", help="interpreter of a virtual environment with text-dedup")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as folder:
        result = (growth if options.growth else measure)(options, Path(folder))
    told = [f"{name.replace('_', '-')} {value}" for name, value in vars(options).items() if value and name != "core"]
    result["command"] = "python benchmarks/dedup/run.py " + " ".join(f"--{one}" for one in told)
    name = f"growth-{options.growth.split(',')[-1]}" if options.growth else options.documents
    target = ROOT / "benchmarks" / "results" / f"dedup-{name}.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2) if options.growth else as_table(result))


if __name__ == "__main__":
    main()
