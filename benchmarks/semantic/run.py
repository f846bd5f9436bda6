"""Semantic deduplication on a CPU against semhash, with the same vectors at the same thresholds.

    python benchmarks/semantic/run.py [--catalog DIR] [--sample 300]

Data: the GSM8K test questions and their published paraphrases, one true pair each, and the training questions, which
share templates and are no duplicates. semhash is given our vectors, so that what differs is the search (an approximate
index, at most 100 neighbours) and the rule of removal. Measured for both: known pairs of which one row goes (recall),
removed rows that resemble no row that stays (false by recomputation in float64), seconds of processor time.

Also: texts a second of the embedder and of sentence-transformers on a sample, what rounding vectors to float16 does to
scores, recall of the index beyond the exact limit, and the opinion on contamination by threshold.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
SHARED = ROOT.parent / "shared" / "data"

from lpt_data.config import DedupConfig, SemanticConfig  # noqa: E402
from lpt_data.dataset import Dataset  # noqa: E402
from lpt_data.dedup import decide  # noqa: E402
from lpt_data.progress import silent  # noqa: E402
from lpt_data.semantic import embed, neighbours  # noqa: E402
from lpt_data.semantic.alike import Semantics  # noqa: E402
from lpt_data.semantic.models import find_model  # noqa: E402
from lpt_data.semantic.numbers import numbers_in  # noqa: E402
from lpt_data.semantic.vectors import distinct_texts, source_of, vectors_of  # noqa: E402

THRESHOLDS = (0.8, 0.85, 0.9, 0.95)
PACKAGES = ("torch", "transformers", "sentence-transformers", "semhash", "faiss-cpu", "numpy")


def data() -> tuple[list[str], list[str], list[str]]:
    def rows(name: str) -> list[dict]:
        return [json.loads(line) for line in (SHARED / name).read_text().splitlines()]

    test = [row["question"] for row in rows("gsm8k/test.jsonl")]
    train = [row["question"] for row in rows("gsm8k/train.jsonl")]
    said = [
        row["text"].split("\nAnswer:")[0].removeprefix("Question: ") for row in rows("rephrased/rephrase_gsm8k.jsonl")
    ]
    both = [(q, r) for q, r in zip(test, said, strict=True) if r.strip()]
    return [q for q, _ in both], [r for _, r in both], train


def rate(model, sample: list[str]) -> dict:
    """Texts a second of processor time, ours and the library's, and the difference between their scores."""
    from sentence_transformers import SentenceTransformer

    embedder = embed.open_embedder(model, "cpu")
    list(embedder.encode([sample[:8]]))
    began = time.process_time()
    ours = np.concatenate([part.vectors for part in embedder.encode([sample])])
    mine = time.process_time() - began
    library = SentenceTransformer(str(model.folder), device="cpu")
    library.encode(sample[:8])
    began = time.process_time()
    theirs = library.encode(sample).astype(np.float64)
    other = time.process_time() - began
    theirs /= np.linalg.norm(theirs, axis=1, keepdims=True)
    a, b = np.triu_indices(len(sample), 1)
    moved = np.abs(neighbours.scores(ours, a, b) - np.einsum("ij,ij->i", theirs[a], theirs[b]))
    return {
        "texts": len(sample),
        "texts_per_cpu_second": round(len(sample) / mine, 1),
        "sentence_transformers_texts_per_cpu_second": round(len(sample) / other, 1),
        "scores_moved_by_float16": {"pairs": len(a), "largest": float(moved.max()), "mean": float(moved.mean())},
    }


def cosine_of(texts: list[str], source) -> tuple[np.ndarray, np.ndarray]:
    said = [text.encode() for text in texts]
    distinct = distinct_texts(said)
    vectors = vectors_of(said, distinct, source).vectors[distinct.of_position]
    wide = vectors.astype(np.float64)
    wide /= np.linalg.norm(wide, axis=1, keepdims=True)
    return vectors, wide @ wide.T


def judged(gone: set[int], cosine: np.ndarray, pairs: int, at: float) -> dict:
    """Known pairs are rows i and pairs + i."""
    kept = np.array(sorted(set(range(len(cosine))) - gone))
    alone = [i for i in gone if cosine[i, kept].max() < at - 1e-6]
    return {
        "removed": len(gone),
        "recall_of_known_pairs": round(sum(i in gone or pairs + i in gone for i in range(pairs)) / pairs, 4),
        "removed_but_like_no_kept_row": len(alone),
        "kept_though_like_a_kept_row": int((np.triu(cosine[np.ix_(kept, kept)], 1) >= at).any(1).sum()),
        "training_questions_removed": sum(i >= 2 * pairs for i in gone),
    }


def ours(path: Path, semantics: Semantics, at: float, same_numbers: bool) -> tuple[set[int], float]:
    config = DedupConfig(
        method=("semantic",), semantic=SemanticConfig(semantics.source.digest, at, 0.75, same_numbers), workers=1
    )
    began = time.process_time()
    result = decide(Dataset.open([str(path)]), config, silent, semantics=semantics)
    return set(result.decisions["row"].to_pylist()), time.process_time() - began


class Given:
    """An encoder that gives vectors which are known."""

    def __init__(self, texts: list[str], vectors: np.ndarray) -> None:
        self.known = dict(zip(texts, vectors.astype(np.float32), strict=True))

    def encode(self, inputs, **kwargs):
        return np.array([self.known[text] for text in inputs])


def theirs(texts: list[str], vectors: np.ndarray, at: float) -> tuple[set[int], float]:
    from semhash import SemHash

    began = time.process_time()
    result = SemHash.from_records(records=texts, model=Given(texts, vectors)).self_deduplicate(threshold=at)
    seconds = time.process_time() - began
    stay = set(result.selected)
    first: dict[str, int] = {}
    for i, text in enumerate(texts):
        first.setdefault(text, i)
    return {i for i, text in enumerate(texts) if text not in stay or first[text] != i}, seconds


def contamination(test: list[str], said: list[str], train: list[str], cosine: np.ndarray) -> list[dict]:
    """Recall of paraphrases and training questions that would go, as `lpt data decontaminate --semantic` judges."""
    n = len(test)
    numbers = [numbers_in(text) for text in (*test, *said, *train)]
    found = []
    for at in (0.7, 0.75, 0.8, 0.85, 0.9):
        for least in (0.0, 0.66):

            def names(row: int, item: int, least: float = least) -> bool:
                return not numbers[item] or len(numbers[item] & numbers[row]) / len(numbers[item]) >= least

            right = sum(cosine[n + i, i] >= at and names(n + i, i) for i in range(n))
            rows, items = np.nonzero(cosine[2 * n :, :n] >= at)
            wrong = {int(r) for r, i in zip(rows, items, strict=True) if names(2 * n + int(r), int(i))}
            found.append(
                {
                    "cosine": at,
                    "numbers": least,
                    "recall": round(right / n, 4),
                    "training_rows": len(wrong),
                    "precision": round(right / (right + len(wrong)), 4) if right else None,
                }
            )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--catalog", type=Path, help="folder with vectors of an earlier run")
    parser.add_argument("--sample", type=int, default=300, help="texts on which the embedder is timed")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "semantic-gsm8k.json")
    given = parser.parse_args()
    if not SHARED.is_dir():
        sys.exit(f"needs {SHARED}")
    test, said, train = data()
    texts, pairs = [*test, *said, *train], len(test)
    with tempfile.TemporaryDirectory() as folder:
        catalog = given.catalog or Path(folder)
        model = find_model("minilm")
        semantics = Semantics(source_of(model, catalog, "cpu"), catalog)
        vectors, cosine = cosine_of(texts, semantics.source)
        path = Path(folder) / "rows.jsonl"
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        ours(path, semantics, 0.9, True)  # kernels compiled, pairs kept
        told = []
        for at in THRESHOLDS:
            plain, seconds = ours(path, semantics, at, False)
            guarded, _ = ours(path, semantics, at, True)
            peer, other = theirs(texts, vectors, at)
            told.append(
                {
                    "threshold": at,
                    "ours": {**judged(plain, cosine, pairs, at), "rethreshold_cpu_seconds": round(seconds, 2)},
                    "ours_same_numbers": judged(guarded, cosine, pairs, at),
                    "semhash": {**judged(peer, cosine, pairs, at), "cpu_seconds": round(other, 2)},
                }
            )
            print(json.dumps(told[-1]), flush=True)
        began = time.process_time()
        exact = neighbours.all_pairs(vectors, 0.75).whole()
        search = time.process_time() - began
        began = time.process_time()
        index = neighbours.all_pairs(vectors, 0.75, exact_limit=1000)
        met = len(index.whole().a)
        body = {
            "command": " ".join(["python", "benchmarks/semantic/run.py", *sys.argv[1:]]).replace(
                str(given.catalog), "DIR"
            ),
            "machine": f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}",
            "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
            "texts": len(texts),
            "known_pairs": pairs,
            "embedder": {**semantics.source.model.told(), **rate(model, train[: given.sample])},
            "thresholds": told,
            "all_pairs": {
                "vectors": len(vectors),
                "floor": 0.75,
                "pairs": len(exact.a),
                "cpu_seconds": round(search, 2),
            },
            "index": {**index.how, "pairs": met, "cpu_seconds": round(time.process_time() - began, 2)},
            "contamination": contamination(test, said, train, cosine),
        }
    given.out.write_text(json.dumps(body, indent=1) + "\n")
    print(json.dumps({k: v for k, v in body.items() if k != "thresholds"}))


if __name__ == "__main__":
    main()
