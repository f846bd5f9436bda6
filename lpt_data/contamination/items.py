"""Benchmarks as items: a question, an answer where there is one, a record id."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lpt_data.benchmarks.layouts import read_published
from lpt_data.contracts.reference import QUESTION_COLUMNS, sources
from lpt_data.dataset import Dataset
from lpt_data.record_text import prompt_text, response_text
from manifests.digests import bytes_sha256
from manifests.errors import BadInputError, LptError

# Where a benchmark read by its question column keeps its answers, first that holds text (HumanEval, MBPP, MATH).
ANSWER_COLUMNS = ("canonical_solution", "solution", "code", "answer", "completion", "output", "response")


@dataclass(frozen=True)
class Item:
    """One item of a benchmark; `index` is its row in the benchmark's files."""

    benchmark: int
    index: int
    record_id: bytes
    question: str
    answer: str
    code: str = ""  # a program that rows are compared with by its names' places and not by their spelling


@dataclass(frozen=True)
class Benchmark:
    """A benchmark as it was read."""

    name: str
    sources: tuple[dict[str, Any], ...]  # path, bytes, sha256: the revision
    layout: str
    unread: tuple[tuple[int, str], ...]  # (row, reason) of the rows that could not be read
    first: int  # of its items in Benchmarks.items
    count: int


@dataclass(frozen=True)
class Benchmarks:
    """All benchmarks of one run; items of one benchmark lie together, in the order of its files."""

    benchmarks: tuple[Benchmark, ...]
    items: tuple[Item, ...]

    def of(self, number: int) -> range:
        """Positions of the items of one benchmark."""
        found = self.benchmarks[number]
        return range(found.first, found.first + found.count)


def load_benchmarks(paths: Mapping[str, Sequence[str]]) -> Benchmarks:
    """Read ``{name: paths}``; BadInputError for a benchmark that is missing, empty, or has no questions to read."""
    if not paths:
        raise BadInputError("no benchmark was named", next="--benchmark gsm8k=test.jsonl")
    benchmarks: list[Benchmark] = []
    items: list[Item] = []
    for number, (name, files) in enumerate(paths.items()):
        found = _published(name, number, files, len(items)) or _read(name, number, files, len(items))
        benchmarks.append(found[0])
        items += found[1]
    return Benchmarks(tuple(benchmarks), tuple(items))


def _published(name: str, number: int, paths: Sequence[str], first: int) -> tuple[Benchmark, list[Item]] | None:
    """Read a benchmark in the layout that it is published in, where its columns tell one but not a layout of rows."""
    published = read_published(paths)
    if published is None or published.layout == "gsm8k":
        return None
    items = [Item(number, e.index, e.record_id, e.question, e.answer, e.code) for e in published.entries]
    files = tuple({"path": f.path, "bytes": f.bytes, "sha256": bytes_sha256(f.path)} for f in published.files)
    return Benchmark(name, files, published.layout, published.unread, first, len(items)), items


def _read(name: str, number: int, paths: Sequence[str], first: int) -> tuple[Benchmark, list[Item]]:
    tried: list[str] = []
    for column in (None, *QUESTION_COLUMNS):
        try:
            dataset = Dataset.open(paths) if column is None else Dataset.open(paths, kind="text", text_column=column)
            found = list(_items(number, dataset))
        except LptError as error:
            tried.append(f"{'by its columns' if column is None else f'column {column}'}: {error.what}")
            continue
        if found:
            layout = dataset.layout if column is None else f"column {column}"
            unread = tuple((q.row, q.reason) for q in dataset.quarantined())
            return Benchmark(name, sources(dataset), layout, unread, first, len(found)), found
        tried.append(f"read as {dataset.layout}: no items")
    raise BadInputError(
        f"the benchmark {name} has no items that could be read",
        seen="; ".join(tried[:2]),
        next=f"check the file; its questions belong in a column called one of: {', '.join(QUESTION_COLUMNS)}",
    )


def _items(number: int, dataset: Dataset) -> Iterator[Item]:
    for row, record, extra, name in dataset.identified():
        if dataset.kind == "text":
            said = (extra.get(column) for column in ANSWER_COLUMNS)
            answer = next((value for value in said if isinstance(value, str)), "")
        else:
            answer = response_text(dataset.kind, record)
        yield Item(number, row, name, prompt_text(dataset.kind, record), answer)
