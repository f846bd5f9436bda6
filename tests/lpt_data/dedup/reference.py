"""The slow truth that dedup is tested against: plain Python sets of word tuples, every pair compared."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from lpt_data.config import DedupConfig
from lpt_data.dataset import TextBatch
from lpt_data.dedup.minhash import Scheme
from lpt_data.dedup.report import REASONS
from lpt_data.dedup.rows import read, threads
from lpt_data.dedup.stage import Work, check, find
from lpt_data.spill import Spill

Outcome = dict[int, tuple[str, int, float]]  # input row -> reason, witness row (-1: none), score


def shingle_tuples(text: str, ngram: int = 5) -> set[tuple[str, ...]]:
    tokens = re.findall(r"\w+", text.lower())
    return {tuple(tokens[i : i + ngram]) for i in range(len(tokens) - ngram + 1)}


def jaccard(a: str, b: str, ngram: int = 5) -> float:
    left, right = shingle_tuples(a, ngram), shingle_tuples(b, ngram)
    return len(left & right) / len(left | right)


def identifier(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def batches(texts: Sequence[str], size: int) -> list[TextBatch]:
    return [
        TextBatch(
            np.arange(i, i + len(part)),
            pa.array(part, pa.large_string()),
            np.frombuffer(b"".join(map(identifier, part)), np.uint8).reshape(-1, 32),
        )
        for i in range(0, len(texts), size)
        for part in [list(texts[i : i + size])]
    ]


@dataclass(frozen=True)
class Small:
    """A budget without books: so many bytes for texts, signatures and shingle sets, whatever the rows."""

    bytes: int

    def room(self, rows: int) -> int:
        return self.bytes

    def hold(self, rows: int, *, at_least: bool = False) -> int:
        return self.bytes // 2

    def row(self, size: int) -> None:
        pass

    def left(self, rows: int) -> int:
        return self.bytes

    def claim(self, size: int, rows: int, what: str, instead: str) -> None:
        pass


def dedup(texts: Sequence[str], config: DedupConfig | None = None, size: int = 7, room: int = 1 << 40) -> Outcome:
    return dedup_and_counts(texts, config, size, room)[0]


def dedup_and_counts(
    texts: Sequence[str], config: DedupConfig | None = None, size: int = 7, room: int = 1 << 40
) -> tuple[Outcome, dict]:
    config = config or DedupConfig(workers=1)
    bands = check(config)
    scheme = Scheme(config.ngram, bands.num_perm if bands else 0, config.seed)
    run, close = threads(config.workers)
    with Spill() as spill:
        work = Work(config, bands, scheme, run, spill, Small(room))
        rows = read(batches(texts, size), scheme, bands, run, spill=spill, budget=work.budget)
        found, counts = find(rows, work)
        counts["spilled"] = spill.bytes
    close()
    outcome = {
        int(i): (REASONS[found.reason[i]], int(found.witness[i]), float(found.score[i]))
        for i in np.flatnonzero(found.reason)
    }
    return outcome, counts


def survivors(texts: Sequence[str], outcome: Outcome) -> list[str]:
    return sorted(text for row, text in enumerate(texts) if row not in outcome)
