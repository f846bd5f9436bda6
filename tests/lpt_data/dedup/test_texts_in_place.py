"""Texts that lie in a file of JSON lines are read again instead of held, and nothing else changes by that."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from lpt_data.config import DedupConfig
from lpt_data.dataset import Dataset, TextBatch
from lpt_data.dedup import decide
from lpt_data.dedup.store import PIECE, Texts
from lpt_data.io.chunks import LARGE, Spans
from lpt_data.io.lines import MAX_LINE
from lpt_data.io.spans import read_again
from lpt_data.progress import silent
from lpt_data.spill import Spill
from manifests.errors import BadInputError

ODD = ['a "quoted" word', "back\\slash\n\ttab", "é 世界 😀", "\u2028 \x01", "C:\\", "x"]


def rows(count: int = 3000) -> list[str]:
    rng = random.Random(3)
    texts = [f"{rng.choice(ODD)} " + " ".join(f"w{rng.randrange(900)}" for _ in range(90)) for _ in range(count)]
    for place in range(0, count, 5):
        texts[place] = texts[rng.randrange(count)] + rng.choice(["", " end", " \\"])
    return texts


def write(path: Path, texts: list[str], *, ascii_only: bool = False, mark: bytes = b"") -> Path:
    lines = [json.dumps({"id": i, "text": text}, ensure_ascii=ascii_only) for i, text in enumerate(texts)]
    path.write_bytes(mark + "\n".join(lines).encode() + b"\n")
    assert path.stat().st_size > LARGE
    return path


def strings(texts: tuple[np.ndarray, np.ndarray]) -> list[str]:
    offsets, data = texts
    return [data[a:b].tobytes().decode() for a, b in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)]


@pytest.mark.parametrize(("ascii_only", "mark"), [(True, b""), (False, b""), (False, b"\xef\xbb\xbf")])
def test_every_text_is_found_where_it_lies(tmp_path: Path, ascii_only: bool, mark: bytes) -> None:
    texts = rows()
    path = write(tmp_path / "in.jsonl", texts, ascii_only=ascii_only, mark=mark)
    with Spill(tmp_path) as spill:
        store = Texts(spill)
        for batch in Dataset.open(str(path)).texts():
            assert batch.spans is not None
            store.keep(batch)
        assert store.held == store.bytes_held == 0
        assert store.bytes == sum(len(text.encode()) for text in texts)
        assert strings(store.gather(np.arange(len(texts)))) == texts
        few = np.sort(np.random.default_rng(1).choice(len(texts), 40, replace=False))
        assert [bytes(text).decode() for text in store.some(few)] == [texts[i] for i in few]
        assert store.one(17).decode() == texts[17]


def test_lines_that_are_odd_long_or_blank_move_nothing(tmp_path: Path) -> None:
    texts = rows()
    lines = [json.dumps({"text": text}).encode() for text in texts]
    lines[700] = b'{"text": "nested", "more": {"a": 1}}'
    lines[800] = b"  "
    lines[900] = b'{"text": "' + b"x" * MAX_LINE + b'"}'
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"\n".join(lines))
    with Spill(tmp_path) as spill:
        store = Texts(spill)
        for batch in Dataset.open(str(path)).texts():
            store.keep(batch)
        assert 0 < store.bytes_held < store.bytes
        expected = ["nested" if i == 700 else text for i, text in enumerate(texts) if i not in (800, 900)]
        assert strings(store.gather(np.arange(len(expected)))) == expected


def test_parts_in_memory_in_the_spill_file_and_in_place_are_one_store(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b'{"text":"first \\u00e9"}\n{"text":"second"}\n')
    ids = np.zeros((2, 32), np.uint8)

    def batch(a: str, b: str, spans: Spans | None = None) -> TextBatch:
        return TextBatch(np.arange(2), pa.array([a, b], pa.large_string()), ids, spans)

    with Spill(tmp_path) as spill:
        store = Texts(spill)
        store.keep(batch("m1", "m2"))
        store.keep(batch("first é", "second", Spans(str(path), np.array([9, 33]), np.array([12, 6], np.int32))))
        store.evict()
        store.keep(batch("s1", "s2" * PIECE))
        every = ["m1", "m2", "first é", "second", "s1", "s2" * PIECE]
        assert strings(store.gather(np.arange(6))) == every
        assert strings(store.gather(np.array([1, 3, 4]))) == ["m2", "second", "s1"]
        assert [(piece.start, piece.stop) for piece in store.pieces(np.arange(6))] == [(0, 5), (5, 6)]
        assert strings(store.gather(np.zeros(0, np.int64))) == []


@pytest.mark.parametrize(
    "now",
    [b'{"text":"other"}\n', b'{"text":"fi"st \\u00e9"}\n', b'{"text":"first \\u00eq"}\n', b'{"text":"first \\u00e\\"}'],
)
def test_a_file_that_is_another_by_then_is_refused(tmp_path: Path, now: bytes) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b'{"text":"first \\u00e9"}\n')
    spans = Spans(str(path), np.array([9]), np.array([12], np.int32))
    assert strings(read_again(spans)) == ["first é"]
    path.write_bytes(now)
    with pytest.raises(BadInputError, match="changed"):
        read_again(spans)
    path.unlink()
    with pytest.raises(BadInputError, match="cannot be read"):
        read_again(spans)


def test_held_or_not_the_decisions_are_the_same(tmp_path: Path) -> None:
    texts = rows()
    plain = write(tmp_path / "in.jsonl", texts)
    lines = plain.read_bytes().splitlines()
    other = tmp_path / "in.json"  # an array: its texts are held
    other.write_bytes(b"[" + b",".join(lines) + b"]")
    config = DedupConfig(workers=1, keep="first")  # copies are told apart by the row as written, spaces and all
    found = [decide(Dataset.open(str(path)), config, silent) for path in (plain, other)]
    assert found[0].extra["text_bytes_held"] == 0
    assert found[1].extra["text_bytes_held"] == found[1].extra["text_bytes"] == found[0].extra["text_bytes"]
    assert found[0].decisions.num_rows > 500
    assert found[0].decisions.equals(found[1].decisions)
    assert np.array_equal(found[0].record_ids, found[1].record_ids)
