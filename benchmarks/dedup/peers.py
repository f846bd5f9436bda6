#!/usr/bin/env python3
"""The tools that people use for near-duplicates, each as its documentation shows it, on the same documents.

usage: peers.py NAME CORPUS.jsonl DOCUMENTS OUT.jsonl [PYTHON]
Reads the first documents, removes near-duplicates at 0.8 over word 5-shingles, writes what stays. Prints {documents,
seconds, cpu_seconds, removed: [numbers]}, the seconds being those after the imports.

datasketch_loop   MinHash(num_perm=128), one update a shingle, MinHashLSH(threshold=0.8): query, then insert
datasketch_batch  the same with update_batch
rensa             RMinHashDeduplicator(threshold=0.8, num_perm=128, use_lsh=True) over sketches of whole sets
datatrove         its four MinHash steps, 11 bands of 11 hashes, whose curve crosses one half near 0.80
text_dedup        its command minhash, in a virtual environment of its own (PYTHON), since its pins are not ours
"""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

BATCH = 2000


def shingles(text: str) -> list[str]:
    tokens = re.findall(r"\w+", text.lower())
    return list({" ".join(tokens[i : i + 5]) for i in range(max(1, len(tokens) - 4))})


def datasketch_loop(texts: list[str]) -> list[int]:
    return _datasketch(texts, batch=False)


def datasketch_batch(texts: list[str]) -> list[int]:
    return _datasketch(texts, batch=True)


def _datasketch(texts: list[str], *, batch: bool) -> list[int]:
    from datasketch import MinHash, MinHashLSH

    index = MinHashLSH(threshold=0.8, num_perm=128)
    removed = []
    for i, text in enumerate(texts):
        signature = MinHash(num_perm=128)
        parts = [shingle.encode() for shingle in shingles(text)]
        if batch:
            signature.update_batch(parts)
        else:
            for part in parts:
                signature.update(part)
        if index.query(signature):
            removed.append(i)
        else:
            index.insert(str(i), signature)
    return removed


def rensa(texts: list[str]) -> list[int]:
    from rensa import RMinHash, RMinHashDeduplicator

    kept = RMinHashDeduplicator(threshold=0.8, num_perm=128, use_lsh=True)
    removed = []
    for start, part in _batches(texts):
        signatures = RMinHash.from_token_sets([shingles(text) for text in part], num_perm=128, seed=42)
        flags = kept.add_pairs((str(start + i), signature) for i, signature in enumerate(signatures))
        removed += [start + i for i, fresh in enumerate(flags) if not fresh]
    return removed


def _batches(texts: list[str]) -> Iterator[tuple[int, list[str]]]:
    for start in range(0, len(texts), BATCH):
        yield start, texts[start : start + BATCH]


def datatrove_steps(corpus: Path, documents: int, out: Path) -> list[int]:
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.dedup import (
        MinhashDedupBuckets,
        MinhashDedupCluster,
        MinhashDedupFilter,
        MinhashDedupSignature,
    )
    from datatrove.pipeline.dedup.minhash import MinhashConfig
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.writers import JsonlWriter
    from datatrove.utils.hashing import HashConfig
    from datatrove.utils.word_tokenizers import WordTokenizer

    class Words(WordTokenizer):
        """Its English one needs spaCy; the text has lost its punctuation by then, and its words are plain."""

        def word_tokenize(self, text: str) -> list[str]:
            return text.split()

        def sent_tokenize(self, text: str) -> list[str]:
            return [text]

        def span_tokenize(self, text: str) -> list[tuple[int, int]]:
            return [match.span() for match in re.finditer(r"\S+", text)]

    # SHA-1, because its xxhash takes strings, which xxhash 4 does not.
    config = MinhashConfig(n_grams=5, num_buckets=11, hashes_per_bucket=11, hash_config=HashConfig(hash_fc="sha1"))
    with tempfile.TemporaryDirectory(dir=out.parent) as name:
        folder = Path(name)
        (folder / "in").mkdir()
        with corpus.open("rb") as lines, (folder / "in" / "few.jsonl").open("wb") as few:
            few.writelines(islice(lines, documents))
        reader = JsonlReader(str(folder / "in"), id_key="id")
        signature = MinhashDedupSignature(f"{folder}/signatures", config, language=Words())
        steps = [
            [reader, signature],
            [MinhashDedupBuckets(f"{folder}/signatures", f"{folder}/buckets", config=config)],
            [MinhashDedupCluster(f"{folder}/buckets", f"{folder}/remove", config=config)],
            [reader, MinhashDedupFilter(f"{folder}/remove", JsonlWriter(f"{folder}/gone")), JsonlWriter(str(folder))],
        ]
        for number, step in enumerate(steps):
            tasks = config.num_buckets if number == 1 else 1
            LocalPipelineExecutor(step, tasks=tasks, workers=1, logging_dir=f"{folder}/logs{number}").run()
        import gzip

        found = list((folder / "gone").glob("*.jsonl.gz"))
        return sorted(int(json.loads(line)["id"]) for path in found for line in gzip.open(path))


def text_dedup(corpus: Path, documents: int, out: Path, python: str) -> list[int]:
    import pyarrow as pa

    with tempfile.TemporaryDirectory(dir=out.parent) as name:
        few = Path(name) / "few.jsonl"
        with corpus.open("rb") as lines, few.open("wb") as file:
            file.writelines(islice(lines, documents))
        command = [python, "-m", "text_dedup.minhash", "--path", "json", "--data_files", str(few), "--split", "train"]
        command += ["--cache_dir", f"{name}/cache", "--output", f"{name}/out", "--column", "text", "--num_proc", "1"]
        command += ["--ngram", "5", "--min_length", "0", "--threshold", "0.8", "--num_perm", "128"]
        offline = {"HF_HOME": f"{name}/home", "HF_HUB_OFFLINE": "1"}
        subprocess.run(command, check=True, env={**os.environ, **offline}, stdout=subprocess.DEVNULL)
        kept = set()
        for path in Path(name, "out").glob("*.arrow"):
            with pa.ipc.open_stream(path) as stream:
                kept |= set(stream.read_all()["id"].to_pylist())
    return [i for i in range(documents) if i not in kept]


PEERS: dict[str, Callable[[list[str]], list[int]]] = {
    "datasketch_loop": datasketch_loop,
    "datasketch_batch": datasketch_batch,
    "rensa": rensa,
}


def processor_seconds() -> float:
    """Of this process and of those it waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def main() -> None:
    name, corpus, documents, out = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    if name == "text_dedup":
        import pyarrow  # noqa: F401
    elif name == "datatrove":
        import datatrove.executor
        import datatrove.pipeline.dedup  # noqa: F401
    elif name == "rensa":
        import rensa as _  # noqa: F401
    else:
        import datasketch  # noqa: F401
    start, start_cpu = time.perf_counter(), processor_seconds()
    if name == "text_dedup":
        removed = text_dedup(corpus, documents, out, sys.argv[5])
    elif name == "datatrove":
        removed = datatrove_steps(corpus, documents, out)
    else:
        with corpus.open("rb") as file:
            lines = list(islice(file, documents))
        removed = PEERS[name]([json.loads(line)["text"] for line in lines])
        gone = set(removed)
        out.write_bytes(b"".join(line for i, line in enumerate(lines) if i not in gone))
    seconds, cpu = time.perf_counter() - start, processor_seconds() - start_cpu
    print(json.dumps({"documents": documents, "seconds": seconds, "cpu_seconds": cpu, "removed": removed}))


if __name__ == "__main__":
    main()
