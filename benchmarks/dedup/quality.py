"""What a removal is worth, by plain Python over raw texts: planted pairs found, and removals that nothing justifies.

A removal is false when no row that stays has a true Jaccard similarity of at least the threshold. Every pair at it
shares one of the rarest shingles of both (prefix filter, Chaudhuri et al. 2006), so looking those up misses none.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict
from pathlib import Path

RECALL_FROM = 0.85


def shingles(text: str) -> set[tuple[str, ...]]:
    tokens = re.findall(r"\w+", text.lower())
    return {tuple(tokens[i : i + 5]) for i in range(max(1, len(tokens) - 4))}


def recall(truth: Path, gone: set[int], documents: int) -> dict[str, float]:
    """How many planted pairs with a true similarity of at least RECALL_FROM lost at least one of their rows."""
    planted = [json.loads(line) for line in truth.read_text().splitlines()]
    near = [pair for pair in planted if pair["jaccard"] >= RECALL_FROM and pair["id"] < documents]
    found = sum(pair["id"] in gone or pair["of"] in gone for pair in near)
    return {"planted_pairs": len(near), "planted_pairs_found": found, "recall": round(found / max(len(near), 1), 6)}


def false_removals(texts: list[str], gone: set[int], threshold: float) -> int:
    """Removed rows that no kept row resembles. Holds the shingles of all texts: for samples."""
    sets = [frozenset(map(hash, shingles(text))) for text in texts]
    often = Counter(value for one in sets for value in one)
    index: dict[int, list[int]] = defaultdict(list)
    for row, one in enumerate(sets):
        if row not in gone:
            for value in _prefix(one, often, threshold):
                index[value].append(row)
    false = 0
    for row in gone:
        others = {other for value in _prefix(sets[row], often, threshold) for other in index[value]}
        best = max((len(sets[row] & sets[o]) / len(sets[row] | sets[o]) for o in others), default=0.0)
        false += best < threshold
    return false


def _prefix(one: frozenset[int], often: Counter[int], threshold: float) -> list[int]:
    return sorted(one, key=lambda value: (often[value], value))[: len(one) - math.ceil(threshold * len(one)) + 1]
