#!/usr/bin/env python3
"""The scan alone: rows in memory as Arrow text, all criteria, one thread, kernels compiled.

usage: scan.py CORPUS.jsonl BENCHMARK.jsonl ; prints JSON: bytes of text, and processor seconds of each pass and part.
"""

from __future__ import annotations

import json
import sys
import time

import orjson
import pyarrow as pa

from lpt_data.contamination.index import build_index, tokenise
from lpt_data.contamination.items import load_benchmarks
from lpt_data.contamination.plain import plain
from lpt_data.contamination.scan import scan

BATCH = 2_000  # rows


def main() -> None:
    corpus, benchmark = sys.argv[1:3]
    start = time.process_time()
    index = build_index(load_benchmarks({"b": [benchmark]}), 0.01)
    built = time.process_time() - start
    with open(corpus, "rb") as lines:
        texts = [orjson.loads(line)["text"] for line in lines]
    batches = [pa.array(texts[i : i + BATCH], pa.large_string()) for i in range(0, len(texts), BATCH)]
    scan(batches[0], index)
    seconds: dict[str, list[float]] = {"scan": [], "tokens_alone": [], "unicode_alone": []}
    for _ in range(3):
        for name, part in (("scan", lambda b: scan(b, index)), ("tokens_alone", tokenise), ("unicode_alone", plain)):
            start = time.process_time()
            for batch in batches:
                part(batch)
            seconds[name].append(round(time.process_time() - start, 4))
    told = {"rows": len(texts), "bytes": sum(len(t.encode()) for t in texts), "index_seconds": round(built, 3)}
    print(json.dumps(told | {"ngrams": len(index.grams.lengths), "cpu_seconds": seconds}))


if __name__ == "__main__":
    main()
