#!/usr/bin/env python3
"""Makes a seeded corpus of documents of about 1.8 KB, a quarter of them near-duplicates of an earlier one.

usage: corpus.py OUT.jsonl DOCUMENTS SEED
Writes OUT.jsonl {id, text} and OUT.jsonl.truth {id, of, jaccard}. Words are drawn by Zipf's law from an invented
vocabulary; documents are put together from 60-word passages that other documents use too, as pages share boilerplate.
"""

from __future__ import annotations

import json
import random
import sys
from itertools import accumulate
from pathlib import Path

PASSAGES, PASSAGE, WINDOW = 8000, 120, 20_000
SYLLABLES = [a + b for a in "bcdfghklmnprstvz" for b in ("a", "e", "i", "o", "u", "an", "er", "is")]


def shingles(words: list[str], ngram: int = 5) -> set[tuple[str, ...]]:
    return {tuple(words[i : i + ngram]) for i in range(len(words) - ngram + 1)}


def make(out: Path, documents: int, seed: int) -> None:
    rng = random.Random(seed)
    vocabulary = list({"".join(rng.choices(SYLLABLES, k=rng.randint(1, 5))) for _ in range(40_000)})
    vocabulary.sort()
    rng.shuffle(vocabulary)
    weights = list(accumulate(1 / (rank + 3) for rank in range(len(vocabulary))))
    passages = [rng.choices(vocabulary, cum_weights=weights, k=PASSAGE) for _ in range(PASSAGES)]
    made: list[list[str]] = [[]] * WINDOW  # the last documents, by number modulo WINDOW
    with out.open("w") as corpus, Path(f"{out}.truth").open("w") as truth:
        for i in range(documents):
            if i > 100 and rng.random() < 0.25:
                of = rng.randrange(max(0, i - WINDOW), i)
                words = list(made[of % WINDOW])
                for _ in range(rng.choice([0, 1, 2, 3, 4, 6, 8, 12])):
                    words[rng.randrange(len(words))] = rng.choice(vocabulary)
                a, b = shingles(words), shingles(made[of % WINDOW])
                truth.write(json.dumps({"id": i, "of": of, "jaccard": round(len(a & b) / len(a | b), 4)}) + "\n")
            else:
                words = []
                for _ in range(4 + (rng.random() < 0.5)):
                    passage, start = rng.choice(passages), rng.randrange(PASSAGE - 60)
                    words += passage[start : start + 60]
            made[i % WINDOW] = words
            corpus.write(json.dumps({"id": i, "text": " ".join(words)}) + "\n")


if __name__ == "__main__":
    make(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
