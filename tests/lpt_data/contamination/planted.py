"""Benchmarks and rows made of words that occur once, so that every share is known by counting; and the slow truth."""

from __future__ import annotations

import itertools
import json
import re

import orjson

from lpt_data.config import DecontaminateConfig
from lpt_data.contamination import config_for, decider, load_benchmarks
from lpt_data.dataset import Dataset
from lpt_data.progress import silent
from manifests import decisions

_numbers = itertools.count()


def words(n: int) -> list[str]:
    """n words that no other text of the test run holds."""
    return [f"word{next(_numbers)}" for _ in range(n)]


def text(*parts: list[str]) -> str:
    return " ".join(word for part in parts for word in part)


class Run:
    """One decontamination of texts (or rows) against benchmarks, {name: items}; items are questions or rows."""

    def __init__(self, folder, rows, benchmarks, **settings):
        def put(name, given):
            path = folder / f"{name}.jsonl"
            made = [one if isinstance(one, dict) else {"text": one} for one in given]
            path.write_text("".join(json.dumps(one) + "\n" for one in made))
            return [str(path)]

        self.dataset = Dataset.open(put("rows", rows))
        self.benchmarks = load_benchmarks({name: put(f"bench-{name}", items) for name, items in benchmarks.items()})
        self.config: DecontaminateConfig = config_for(self.benchmarks, **{"workers": 1, **settings})
        self.result = decider(self.benchmarks)(self.dataset, self.config, silent)
        self.extra = self.result.extra
        self.decisions = {one["row"]: one for one in self.result.decisions.to_pylist()}
        assert self.result.decisions.schema == decisions.SCHEMA

    @property
    def removed(self) -> dict[int, tuple[str, int, float]]:
        """Row -> (criterion, item, score)."""
        return {
            row: (self.detail(row)["criterion"], self.detail(row)["item"], d["score"])
            for row, d in self.decisions.items()
        }

    def detail(self, row: int) -> dict:
        return orjson.loads(self.decisions[row]["detail"])

    def told(self, name: str = "b") -> dict:
        return next(one for one in self.extra["benchmarks"] if one["name"] == name)


def slow_evidence(item: str, row: str, n: int = 8) -> tuple[float, int]:
    """(coverage, longest match of at least n words) by plain Python, for items without stops."""
    a, b = (re.findall(r"\w+", one.lower()) for one in (item, row))
    there = {tuple(b[i : i + n]) for i in range(len(b) - n + 1)}
    covered = {i + k for i in range(len(a) - n + 1) if tuple(a[i : i + n]) in there for k in range(n)}
    longest = 0
    for i in range(len(a)):
        for j in range(len(b)):
            size = 0
            while i + size < len(a) and j + size < len(b) and a[i + size] == b[j + size]:
                size += 1
            longest = max(longest, size)
    return len(covered) / len(a), longest if longest >= n else 0
