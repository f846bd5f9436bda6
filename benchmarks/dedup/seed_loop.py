#!/usr/bin/env python3
"""The loop that the teaching text shows, as a baseline: datasketch, one document after the other, a hit is believed.

usage: seed_loop.py CORPUS.jsonl DOCUMENTS
Word 5-shingles joined to strings, MinHash(num_perm=128) updated shingle by shingle, MinHashLSH(threshold=0.8): query,
then insert. Prints {documents, seconds, cpu_seconds, removed: [ids]}, the seconds being the loop's own, without reading
and imports.
"""

from __future__ import annotations

import json
import re
import sys
import time
from itertools import islice

from datasketch import MinHash, MinHashLSH


def sketch(text: str) -> MinHash:
    tokens = re.findall(r"\w+", text.lower())
    signature = MinHash(num_perm=128)
    for shingle in {" ".join(tokens[i : i + 5]) for i in range(max(1, len(tokens) - 4))}:
        signature.update(shingle.encode("utf8"))
    return signature


def main() -> None:
    with open(sys.argv[1], encoding="utf-8") as lines:
        texts = [json.loads(line)["text"] for line in islice(lines, int(sys.argv[2]))]
    index = MinHashLSH(threshold=0.8, num_perm=128)
    removed = []
    start, start_cpu = time.perf_counter(), time.process_time()
    for i, text in enumerate(texts):
        signature = sketch(text)
        if index.query(signature):
            removed.append(i)
            continue
        index.insert(str(i), signature)
    seconds, cpu = time.perf_counter() - start, time.process_time() - start_cpu
    print(json.dumps({"documents": len(texts), "seconds": seconds, "cpu_seconds": cpu, "removed": removed}))


if __name__ == "__main__":
    main()
