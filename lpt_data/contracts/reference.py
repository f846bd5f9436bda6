"""Reading what the audited rows must not repeat: reference rows (`--against`) and benchmarks (`--benchmark NAME=PATH`).

A benchmark is compared by its whole questions, normalised. Overlap of n-grams or of meaning is not looked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lpt_data.benchmarks.layouts import Published, read_published
from lpt_data.contracts.survey import Contract, Reference, question_hash, row_keys
from lpt_data.dataset import Dataset
from lpt_data.io import expand
from manifests.canon import id_of
from manifests.digests import bytes_sha256
from manifests.errors import BadInputError, LptError

STAGES = ("preference", "rlvr", "sft", "kto")  # kinds of record with a prompt, in the order in which they are tried
# Where a benchmark that has none of the known layouts keeps its questions, first that is there.
QUESTION_COLUMNS = ("question", "prompt", "problem", "instruction", "text")


def sources(dataset: Dataset) -> tuple[dict[str, Any], ...]:
    """Return path, bytes and sha256 of each file of a dataset: what pins a reference to its revision."""
    return tuple({"path": str(f.path), "bytes": f.bytes, "sha256": bytes_sha256(f.path)} for f in dataset.files)


def read_against(paths: Sequence[str], contract: Contract, normaliser: str) -> Reference:
    """Read reference rows into maps from record id and canonical key to row, counted over all files in the order given.

    Rows of another stage (pairs against SFT or RLVR data, say) are read as what they are and compared by their key.
    """
    records: dict[bytes, int] = {}
    keys: dict[bytes, int] = {}
    datasets = open_any(paths, contract.kind)
    start = unread = 0
    for dataset in datasets:
        for batch in dataset.record_batches():
            named = row_keys(dataset.kind, normaliser, batch.rows, batch.records, batch.beside)
            for row, data, key in zip(batch.rows, batch.data, named, strict=True):
                records.setdefault(id_of(dataset.kind, data), start + row)
                keys.setdefault(key, start + row)
        unread += len(dataset.quarantined())
        start += dataset.rows_in
    items = start - unread
    error = "" if items else f"no row of the reference could be read ({unread} quarantined)"
    files = tuple(file for dataset in datasets for file in sources(dataset))
    return Reference("the reference", items, unread, files, records, keys, datasets=datasets, error=error)


def read_other(name: str, paths: Sequence[str]) -> Reference:
    """Read rows that are compared by their texts: seeds or an earlier round, of any kind or with a question column.

    BadInputError where no row can be read: nothing would have been compared.
    """
    expand(paths)
    tried: list[str] = []
    for column in (None, *QUESTION_COLUMNS):
        try:
            dataset = Dataset.open(paths, kind="text", text_column=column) if column else _of_any_kind(paths)
            rows = sum(1 for _ in dataset.identified())
        except LptError as error:
            tried.append(f"{'by its columns' if column is None else f'column {column}'}: {error.what}")
            continue
        unread = len(dataset.quarantined())
        return Reference(name, rows, unread, sources(dataset), datasets=(dataset,))
    raise BadInputError(
        f"{name} cannot be read",
        seen="; ".join(tried[:2]),
        next=f"check the file; its prompts belong in a column called one of: {', '.join(QUESTION_COLUMNS)}",
    )


def _of_any_kind(paths: Sequence[str]) -> Dataset:
    kind = next((kind for kind in ("sft", *STAGES) if all(_fits(path, kind) for path in paths)), None)
    return Dataset.open(paths, kind=kind)


def open_any(paths: Sequence[str], kind: str) -> tuple[Dataset, ...]:
    """Open files as `kind` where their columns fit it, else each as the first of STAGES that they do fit.

    Plain text is compared with plain text alone: its key is the whole text, and no prompt would ever equal it.
    """
    kinds = (kind, *(other for other in STAGES if kind != "text" and other != kind))
    found = [(path, next((k for k in kinds if _fits(path, k)), kind)) for path in paths]
    if all(chosen == kind for _, chosen in found):
        return (Dataset.open(paths, kind=kind),)
    return tuple(Dataset.open([path], kind=chosen) for path, chosen in found)


def _fits(path: str, kind: str) -> bool:
    expand([path])  # a missing file is answered as a missing file
    try:
        Dataset.open([path], kind=kind)
    except LptError:
        return False
    return True


def read_benchmark(name: str, paths: Sequence[str], contracts: Sequence[Contract]) -> Reference:
    """Read the questions of a benchmark in the layout it has; raise BadInputError when no column holds any."""
    expand(paths)  # a missing file is answered as a missing file, not as a layout that does not fit
    tried: list[str] = []
    for contract in contracts:
        try:
            dataset = Dataset.open(paths, kind=contract.kind)
            return _questions(name, dataset, contract)
        except LptError as error:
            tried.append(f"{contract.name}: {error.what}")
    text = next(c for c in contracts if c.name == "text")
    for column in QUESTION_COLUMNS:
        try:
            return _questions(name, Dataset.open(paths, kind="text", text_column=column), text)
        except LptError as error:
            tried.append(f"column {column}: {error.what}")
    if (published := read_published(paths)) is not None:
        return _published_questions(name, published)
    raise BadInputError(
        f"the benchmark {name} has no questions that could be read",
        seen="; ".join(tried),
        next=f"rename the column that holds them to one of: {', '.join(QUESTION_COLUMNS)}",
    )


def _published_questions(name: str, published: Published) -> Reference:
    """A benchmark in a layout of its own: MMLU without a head, MATH in a file for each problem, BBH in one object."""
    found: dict[bytes, int] = {}
    for entry in published.entries:
        found.setdefault(question_hash(entry.question), entry.index)
    files = tuple({"path": f.path, "bytes": f.bytes, "sha256": bytes_sha256(f.path)} for f in published.files)
    return Reference(name, len(published.entries), len(published.unread), files, questions=found)


def _questions(name: str, dataset: Dataset, contract: Contract) -> Reference:
    found: dict[bytes, int] = {}
    for row, record, _ in dataset.records():
        for question in contract.questions(record):
            found.setdefault(question_hash(question), row)
    unread = len(dataset.quarantined())
    if not found and unread:
        raise BadInputError(f"none of its {unread} rows could be read", seen=dataset.quarantined()[0].reason)
    items = dataset.rows_in - unread
    return Reference(name, items, unread, sources(dataset), questions=found)
