#!/usr/bin/env python3
"""The plain way: a Python set of 8-gram strings of the benchmark, any shared one flags the row (open-r1 and others).

usage: peer.py CORPUS.jsonl BENCHMARK.jsonl ROWS ; prints JSON: rows, bytes of text, seconds, flagged rows.
"""

from __future__ import annotations

import json
import sys
import time
from itertools import islice


def ngrams(text: str, n: int = 8) -> set[str]:
    words = text.lower().split()
    return {" ".join(words[i : i + n]) for i in range(len(words) - n + 1)}


def main() -> None:
    corpus, benchmark, rows = sys.argv[1], sys.argv[2], int(sys.argv[3])
    with open(benchmark) as lines:
        known = set().union(*(ngrams(json.loads(line)["question"]) for line in lines))
    with open(corpus) as lines:
        texts = [json.loads(line)["text"] for line in islice(lines, rows)]
    start, cpu = time.perf_counter(), time.process_time()
    flagged = [row for row, text in enumerate(texts) if not known.isdisjoint(ngrams(text))]
    told = {"seconds": time.perf_counter() - start, "cpu_seconds": time.process_time() - cpu}
    print(json.dumps(told | {"rows": len(texts), "bytes": sum(len(t.encode()) for t in texts), "flagged": flagged}))


if __name__ == "__main__":
    main()
