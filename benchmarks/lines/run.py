#!/usr/bin/env python3
"""Measures `lpt data boilerplate` on one core: the kernels on rows in memory, and the command as a whole process.

usage: run.py [--documents 40000] [--runs 3]
Writes benchmarks/results/lines-DOCUMENTS.json. The corpus: pages of 2 to 3 kB, each of fresh random words, a header and
a footer of one of 40 sites, and in every tenth a passage of 300 to 900 characters of an earlier page. Rates are
megabytes of UTF-8 text by processor time.

Peers, in the same run, on the same texts:
  lines      plain Python: `split`, `strip` and a Counter of sets, then the lines filtered
  substring  plain Python: a dict of the hashes of all windows of 200 characters, on a sample
             pydivsufsort, where it is installed: the suffix array and its LCP array, which is what Lee et al. (2022)
             find passages with; cutting not included
Both must find what was planted; what they miss is counted.

Expected: lines read every character once through a table, 4 ns, and sort a hash a line: 150 MB/s. substring: a rolling
hash, its mixing and the minimum of 51, 6 ns a byte, and a cache miss for each of the 1 in 26 that are anchors, 4 ns:
100 MB/s. A suffix array costs a sort of all suffixes: 5 to 10 MB/s.

Measured (40,000 pages, two cores that others used too): lines 104, plain Python 73; substring 43, for nearly every page
is cut twice and looked at again after that; the pages of a command reference, which repeat little, ran at 100 to 135.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
LPT = [sys.executable, "-c", "from cli.main import run; run()"]
LENGTH, LEAST = 200, 7


def corpus(documents: int, seed: int = 0) -> tuple[list[str], dict[str, int]]:
    """Texts, and what was planted: lines of headers and footers, passages."""
    chosen = random.Random(seed)
    words = ["".join(chosen.choices("etaoinshrdlu", k=chosen.randint(2, 9))) for _ in range(20_000)]

    def sentence(count: int) -> str:
        return " ".join(chosen.choices(words, k=count)).capitalize() + "."

    sites = [([sentence(9) for _ in range(4)], [sentence(12) for _ in range(5)]) for _ in range(40)]
    texts: list[str] = []
    bodies: list[str] = []
    planted = {"lines": 0, "passages": 0}
    for number in range(documents):
        header, footer = chosen.choice(sites)
        body = [sentence(chosen.randint(8, 30)) for _ in range(chosen.randint(10, 20))]
        if number and number % 10 == 0:
            other = chosen.choice(bodies)
            at = chosen.randrange(max(1, len(other) - 900))
            body.insert(chosen.randrange(len(body)), other[at : at + chosen.randint(300, 900)])
            planted["passages"] += 1
        bodies.append("\n".join(body))
        texts.append("\n".join([*header, "", bodies[-1], "", *footer]))
        planted["lines"] += 9
    planted["lines"] -= 9 * len(sites)  # one document of each keeps them
    return texts, planted


def cpu(work, runs: int = 1):
    """The least processor time of some runs, and the result."""
    best, result = float("inf"), None
    for _ in range(runs):
        start = time.process_time()
        result = work()
        best = min(best, time.process_time() - start)
    return best, result


def plain_lines(texts: list[str]) -> int:
    held: Counter[str] = Counter()
    for text in texts:
        held.update({line.strip() for line in text.split("\n")})
    frequent = {line for line, count in held.items() if count >= LEAST and len(line.split()) >= 5}
    seen: set[str] = set()
    cut = 0
    for text in sorted(texts, key=len, reverse=True):
        here = {line.strip() for line in text.split("\n")} & frequent
        kept = [line for line in text.split("\n") if line.strip() not in seen]
        cut += text.count("\n") + 1 - len(kept)
        "\n".join(kept)
        seen |= here
    return cut


def plain_windows(texts: list[str]) -> int:
    seen: set[int] = set()
    cut = 0
    for text in sorted(texts, key=len, reverse=True):
        hashes = [hash(text[at : at + LENGTH]) for at in range(len(text) - LENGTH + 1)]
        cut += any(value in seen for value in hashes)
        seen.update(hashes)
    return cut


def suffix_array(texts: list[str]) -> int:
    import numpy as np
    import pydivsufsort

    data = b"\xff".join(text.encode() for text in texts)
    array = pydivsufsort.divsufsort(data)
    lcp = pydivsufsort.kasai(data, array)
    return int(np.count_nonzero(lcp >= LENGTH))


def kernels(path: Path, size: float, runs: int) -> dict[str, dict[str, float]]:
    from lpt_data.boilerplate import documents as held
    from lpt_data.boilerplate import passages, units
    from lpt_data.dataset import Dataset

    documents = held.read(Dataset.open([str(path)]), progress=lambda done: None)
    fields = {name: getattr(documents, name) for name in documents.__dataclass_fields__}

    def lines():
        return units.find(
            documents, paragraphs=False, least_documents=LEAST, least_words=5, fold_text=False, drop_all=False
        )

    def substring():
        return passages.find(held.Documents(**{**fields, "data": documents.data.copy()}), LENGTH, lambda done: None)

    found = {}
    for name, work in (("lines", lines), ("substring", substring)):
        work()  # compiles
        seconds, cuts = cpu(work, runs)
        found[name] = {"cpu_seconds": seconds, "mb_per_second": size / seconds, "cuts": len(cuts.document)}
    return found


def whole(path: Path, method: str, size: float, core: int) -> dict[str, float]:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    out = path.with_name(f"{method}.jsonl")
    command = [
        "data",
        "boilerplate",
        str(path),
        "--out",
        str(out),
        "--method",
        method,
        "--json",
        "--catalog",
        f"{out}.lpt",
    ]
    process = subprocess.Popen(["taskset", "-c", str(core), *LPT, *command], stdout=subprocess.PIPE, env=env)
    body = json.loads(process.stdout.read())
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit("the command failed")
    seconds = usage.ru_utime + usage.ru_stime
    told = {name: body[name] for name in ("rows_rewritten", "rows_emptied", "cuts", "peak_memory_bytes")}
    return {"cpu_seconds": seconds, "mb_per_second": size / seconds, **told}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--documents", type=int, default=40_000)
    parser.add_argument("--runs", type=int, default=3)
    asked = parser.parse_args()
    core = max(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {core})
    texts, planted = corpus(asked.documents)
    size = sum(len(text.encode()) for text in texts) / 1e6
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "in.jsonl"
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        ours = kernels(path, size, asked.runs)
        commands = {method: whole(path, method, size, core) for method in ("lines", "substring")}
    seconds, cut = cpu(lambda: plain_lines(texts))
    peers = {"lines: plain Python": {"cpu_seconds": seconds, "mb_per_second": size / seconds, "cuts": cut}}
    sample = texts[: len(texts) // 20]
    part = sum(len(text.encode()) for text in sample) / 1e6
    seconds, _ = cpu(lambda: plain_windows(sample))
    peers["substring: plain Python, a sample"] = {"cpu_seconds": seconds, "mb_per_second": part / seconds}
    try:
        seconds, repeated = cpu(lambda: suffix_array(texts))
        peers["substring: suffix array (pydivsufsort)"] = {
            "cpu_seconds": seconds,
            "mb_per_second": size / seconds,
            "repeated_windows": repeated,
        }
    except ModuleNotFoundError:
        peers["substring: suffix array (pydivsufsort)"] = {"not_installed": 1}
    result = {
        "command": " ".join(["benchmarks/lines/run.py", *sys.argv[1:]]),
        "machine": {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count()},
        "versions": {
            "python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in ("numba", "numpy", "orjson", "pyarrow")},
        },
        "documents": asked.documents,
        "text_megabytes": size,
        "planted": planted,
        "kernels": ours,
        "command_on_one_core": commands,
        "peers": peers,
    }
    (ROOT / "benchmarks" / "results" / f"lines-{asked.documents}.json").write_text(json.dumps(result, indent=2) + "\n")
    every = {f"{name} (kernel)": told for name, told in ours.items()}
    every |= {f"{name} (whole command)": told for name, told in commands.items()} | peers
    for name, told in every.items():
        print(f"{name:44}", "  ".join(f"{key} {value:,.1f}" for key, value in told.items()))
    print("planted", planted)


if __name__ == "__main__":
    main()
