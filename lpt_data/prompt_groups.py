"""Which rows ask the same, directly or through others: the groups that must not straddle splits or stages.

Two rows are joined when

- they have the same canonical key (`lpt_data.keys`);
- one conversation goes on from the other: the prompt of one is, by its key, the whole history of a turn of the other;
- their two sides answer different histories: such a row belongs to both of its prompts;
- a column named by the user has the same value in both (a source document, an author, a conversation id);
- their prompts are near-duplicates, verified by the Jaccard similarity of their shingles (`lpt_data.dedup.near`).

Groups are the connected components, so a chain of near-duplicates stays together. Meanings are not compared.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from lpt_data.dataset import Dataset, TextBatch
from lpt_data.keys import NORMALISERS, key_hash, key_of
from lpt_data.record_text import prompt_text
from manifests.canon import json_text
from manifests.errors import RecordError

NEAR = 0.8  # Jaccard similarity of the word 5-grams of two prompts: the customary line of near-duplication
_BATCH = 4096
Record = Mapping[str, Any]


class Links(NamedTuple):
    """What joins a row to others: 32-byte hashes. A row without `same` is joined to nothing."""

    own: bytes  # its canonical key, b"" for a prompt that says nothing
    same: tuple[bytes, ...]  # its key first, then keys of other histories it answers, then values of group columns
    histories: tuple[bytes, ...] = ()  # shorter histories inside its prompt: they join where they are a whole prompt


def links(
    kind: str,
    record: Record,
    extra: Mapping[str, Any],
    key: str,
    columns: Sequence[str] = (),
    hashed: bytes | None = None,
) -> Links:
    """Return the links of a row under a key; RecordError where the key is a column that the row has not.

    `hashed` is the key hash of the row where it is known already.
    """
    grouped = tuple([_column(name, extra[name]) for name in columns if extra.get(name) is not None])
    if hashed and key in NORMALISERS and _is_one_question(kind, record):
        return Links(hashed, (hashed, *grouped))
    asked = key not in NORMALISERS or prompt_text(kind, record).strip()
    own = (hashed or key_of(kind, record, extra, key)) if asked else b""
    mine = (own,) if own else ()
    if kind == "text" or key not in NORMALISERS or key == "countdown":
        return Links(own, (*mine, *grouped))
    others = [_key(said, key) for side in ("chosen", "rejected") for said in _other_histories(record, side)]
    history = _history(kind, record)
    turns = [i for i, message in enumerate(history[:-1]) if message.get("role") == "user"]
    shorter = [_key(history[: i + 1], key) for i in turns]
    return Links(own, (*mine, *(o for o in others if o), *grouped), tuple(h for h in shorter if h))


def _is_one_question(kind: str, record: Record) -> bool:
    """Whether a pair is a question, one turn long, and two replies: no other history is in it."""
    if kind != "preference":
        return False
    prompt, chosen, rejected = record.get("prompt") or (), record["chosen"], record["rejected"]
    if not len(prompt) == len(chosen) == len(rejected) == 1:
        return False
    if chosen[0].get("role") == "user" or rejected[0].get("role") == "user":
        return False
    said = prompt[0].get("content") if prompt[0].get("role") == "user" else None
    return bool(said) and not said.isspace()


def _column(name: str, value: Any) -> bytes:
    return hashlib.sha256(f"lpt-group/1\0{name}\0{json_text(value)}".encode()).digest()


def _history(kind: str, record: Record) -> list[Any]:
    if kind != "sft":
        return list(record.get("prompt") or ())
    messages = record["messages"]
    replies = [i for i, message in enumerate(messages) if message.get("role") == "assistant"]
    return list(messages[: replies[-1] if replies else len(messages)])


def _other_histories(record: Record, side: str) -> Iterator[list[Any]]:
    """What the last reply of a side answers, where the side has turns of the user of its own."""
    messages = list(record.get(side) or ())
    asks = [i for i, message in enumerate(messages) if message.get("role") == "user"]
    if not asks:
        return
    own = messages[: asks[-1] + 1]
    yield [*(record.get("prompt") or ()), *own]
    if asks[0] == 0:  # a whole conversation, which shares nothing with the prompt that the row names
        yield own


def _key(messages: Sequence[Any], key: str) -> bytes | None:
    record = {"prompt": list(messages)}
    return key_hash(NORMALISERS[key]("rlvr", record, {}), key) if prompt_text("rlvr", record).strip() else None


# -- groups


class Groups:
    """Rows of any number of sources joined into connected components; nodes are numbered in the order added."""

    def __init__(self) -> None:
        self._parent: list[int] = []
        self._node_of: dict[bytes, int] = {}
        self._waiting: list[tuple[int, tuple[bytes, ...]]] = []

    def __len__(self) -> int:
        return len(self._parent)

    def add(self, link: Links) -> int:
        """Add a row and return its node."""
        node = len(self._parent)
        self._parent.append(node)
        for hashed in link.same:
            self.join(node, self._node_of.setdefault(hashed, node))
        if link.histories:
            self._waiting.append((node, link.histories))
        return node

    def join(self, a: int, b: int) -> None:
        """Join the groups of two nodes."""
        a, b = self._find(a), self._find(b)
        if a != b:
            self._parent[max(a, b)] = min(a, b)

    def join_near(self, sources: Iterable[Dataset], threshold: float = NEAR) -> None:
        """Join near-duplicate prompts of the sources whose rows were added, in that order; they are read again."""
        from lpt_data.dedup.near import components  # loads the compiled kernels

        found = components((batch for source in sources for batch in prompt_batches(source)), threshold)
        for node in np.flatnonzero(found != np.arange(len(found))).tolist():
            self.join(node, int(found[node]))

    def roots(self) -> np.ndarray:
        """Return the smallest node of the group of each node: int64 [n]."""
        for node, histories in self._waiting:
            for hashed in histories:
                if (other := self._node_of.get(hashed)) is not None:
                    self.join(node, other)
        return np.array([self._find(node) for node in range(len(self._parent))], np.int64)

    def _find(self, node: int) -> int:
        parent = self._parent
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node


def prompt_batches(dataset: Dataset) -> Iterator[TextBatch]:
    """Yield the prompts of every row that has a record; a blank one is an empty text, which resembles nothing."""
    rows: list[int] = []
    texts: list[str] = []
    for row, record, _ in dataset.records():
        rows.append(row)
        texts.append(prompt_text(dataset.kind, record))
        if len(rows) == _BATCH:
            yield _batch(rows, texts)
            rows, texts = [], []
    if rows:
        yield _batch(rows, texts)


def _batch(rows: list[int], texts: list[str]) -> TextBatch:
    ids = np.zeros((len(rows), 32), np.uint8)  # not compared
    return TextBatch(np.array(rows, np.int64), pa.array(texts, pa.large_string()), ids)


def read_links(dataset: Dataset, key: str, columns: Sequence[str] = ()) -> Iterator[tuple[int, bytes, Links, str]]:
    """Yield (row, record id, links, why it has no key or "") of each row that has a record."""
    for row, record, extra, name in dataset.identified():
        try:
            made = links(dataset.kind, record, extra, key, columns)
        except RecordError as error:
            yield row, name, Links(b"", ()), error.what
            continue
        yield row, name, made, "" if made.same else "the prompt says nothing"
