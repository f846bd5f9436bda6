"""Texts that lie in a file of JSON lines are read again instead of held, and nothing else changes by that."""

from __future__ import annotations

import gzip
import json
import os
import random
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from test_spill import CLOCK, finish, start

from lpt_data.config import DedupConfig
from lpt_data.dataset import Dataset, TextBatch
from lpt_data.dedup import decide
from lpt_data.dedup.store import PIECE, Texts
from lpt_data.io.chunks import LARGE, Spans
from lpt_data.io.lines import MAX_LINE
from lpt_data.io.sources import mark_of
from lpt_data.io.spans import read_again
from lpt_data.progress import silent
from lpt_data.spill import Spill
from lpt_data.stage import run_stage
from manifests.catalog import Catalog
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


def spans_of(path: Path, starts: list[int], sizes: list[int]) -> Spans:
    return Spans(str(path), mark_of(os.stat(path)), np.array(starts), np.array(sizes, np.int32))


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


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("ending", [b"\n", b"\r\n"])
def test_the_line_around_a_text_is_found_again(tmp_path: Path, mark: bytes, ending: bytes) -> None:
    rng = random.Random(5)
    lines = [
        json.dumps({"before": "b" * rng.choice([0, 30, 9000]), "text": text, "behind": "c" * rng.choice([0, 9000])})
        for text in rows(600)
    ]
    written = [line.encode() for line in lines]
    path = tmp_path / "in.jsonl"
    path.write_bytes(mark + (ending + ending).join(written))  # blank lines, and none behind the last
    with Spill(tmp_path) as spill:
        store = Texts(spill)
        for batch in Dataset.open(str(path)).texts():
            store.keep(batch)
        for chosen in (np.arange(600), np.sort(np.random.default_rng(1).choice(600, 40, replace=False))):
            found = store.lines(chosen)
            assert found is not None
            assert list(found) == [written[i] for i in chosen]
        assert list(store.lines(np.zeros(0, np.int64)) or ()) == []
        store.keep(TextBatch(np.array([600]), pa.array(["held"]), np.zeros((1, 32), np.uint8)))
        assert store.lines(np.array([3, 600])) is None


@pytest.mark.parametrize("now", [b"", b"x" * 700_000, b"another file\n" * 60_000])
def test_lines_of_a_file_that_is_another_by_then_are_refused_at_once(tmp_path: Path, now: bytes) -> None:
    path = write(tmp_path / "in.jsonl", rows())
    with Spill(tmp_path) as spill:
        store = Texts(spill)
        for batch in Dataset.open(str(path)).texts():
            store.keep(batch)
        path.write_bytes(now)
        found = store.lines(np.arange(3000))
        assert found is not None
        with pytest.raises(BadInputError, match="changed"):
            next(found)


def test_a_file_that_changes_while_its_lines_are_read_is_refused_at_their_end(tmp_path: Path) -> None:
    path = write(tmp_path / "in.jsonl", rows())
    with Spill(tmp_path) as spill:
        store = Texts(spill)
        for batch in Dataset.open(str(path)).texts():
            store.keep(batch)
        found = store.lines(np.arange(40))
        assert found is not None
        next(found)
        with path.open("ab") as file:
            file.write(b"\n")
        with pytest.raises(BadInputError, match="changed"):
            list(found)


def peak_of(folder: Path, path: Path, memory: int, removed: int) -> int:
    """The peak of `lpt data dedup --method exact`, by the clock of its parent."""
    out = tempfile.mkdtemp(dir=folder)
    options = ("--out", f"{out}/out.jsonl", "--method", "exact", "--memory", f"{memory >> 20}MiB")
    code, said = finish(start(folder, str(path), *options, before=(sys.executable, "-c", CLOCK)))
    assert code == 0, (folder / "said.txt").read_text()
    body, end = json.JSONDecoder().raw_decode(said)
    assert body["removed"] == {"exact_duplicate": removed}
    return int(said[end:])


def test_the_cap_holds_for_twins_in_wide_rows_and_for_copies_by_the_hundred_thousand(tmp_path: Path) -> None:
    """Measured against few small rows: what a program holds of its libraries hangs on how they lie in the page cache.

    Each twice where the first run took more, as that may have compiled kernels.
    """
    wide = [json.dumps({"id": i, "blob": "b" * (30 << 20), "text": "the same short text"}) for i in range(3)]
    copies = [json.dumps({"id": i, "text": "the same short text"}) for i in range(400_000)]
    few = tmp_path / "few.jsonl"
    few.write_text("\n".join(copies[:40_000]))
    assert few.stat().st_size > LARGE  # the same kernels
    held = min(peak_of(tmp_path, few, 3 << 29, 39_999) for _ in range(2))
    for name, lines, more in (("wide", wide, 160_000_000), ("copies", copies, 205_000_000)):
        path = tmp_path / f"{name}.jsonl"
        path.write_text("\n".join(lines))
        peaks: list[int] = []
        while len(peaks) < 2 and min(peaks, default=held + more) >= held + more:
            peaks.append(peak_of(tmp_path, path, held + (320 << 20), len(lines) - 1))
        assert min(peaks) < held + more, name


def test_rows_of_one_text_are_told_apart_by_their_lines_whatever_the_order_of_the_files(tmp_path: Path) -> None:
    texts = rows()
    texts[::3] = texts[1::3]  # a third of the rows have a twin, with another id
    lines = [json.dumps({"id": i, "text": text}) for i, text in enumerate(texts)]
    kept = []
    for name, order in (("one", lines), ("other", lines[::-1]), ("packed.gz", lines)):
        path = tmp_path / f"{name}.jsonl" if "." not in name else tmp_path / "packed.jsonl.gz"
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "wb") as file:
            file.write("\n".join(order).encode())
        result = decide(Dataset.open(str(path)), DedupConfig(), silent)
        gone = {order[row] for row in result.decisions["row"].to_pylist()}
        kept.append(set(lines) - gone)
    assert kept[0] == kept[1] == kept[2]
    assert len(kept[0]) < 2001


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
        store.keep(batch("first é", "second", spans_of(path, [9, 33], [12, 6])))
        store.evict()
        store.keep(batch("s1", "s2" * PIECE))
        every = ["m1", "m2", "first é", "second", "s1", "s2" * PIECE]
        assert strings(store.gather(np.arange(6))) == every
        assert strings(store.gather(np.array([1, 3, 4]))) == ["m2", "second", "s1"]
        assert [(piece.start, piece.stop) for piece in store.pieces(np.arange(6))] == [(0, 5), (5, 6)]
        assert strings(store.gather(np.zeros(0, np.int64))) == []


@pytest.mark.parametrize(
    "now",
    [
        b'{"text":"other \\u00e8"}\n',
        b'{"text":"first \\u00e8"}\n',
        b'{"text":"other"}\n',
        b'{"text":"fi"st \\u00e9"}\n',
        b'{"text":"first \\u00eq"}\n',
        b'{"text":"first \\u00e\\"}',
    ],
)
def test_a_file_that_is_another_by_then_is_refused(tmp_path: Path, now: bytes) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b'{"text":"first \\u00e9"}\n')
    spans = spans_of(path, [9], [12])
    assert strings(read_again(spans)) == ["first é"]
    path.write_bytes(now)
    os.utime(path, ns=(0, spans.mark[3] + 1))
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


def test_a_file_against_itself_is_read_from_its_start_again(tmp_path: Path) -> None:
    texts = list(dict.fromkeys(rows()))
    path = write(tmp_path / "in.jsonl", texts)
    for method in (("exact",), ("exact", "minhash")):
        config = DedupConfig(workers=1, method=method)
        found = decide(Dataset.open(str(path)), config, silent, reference=Dataset.open(str(path)))
        assert found.decisions.num_rows == len(texts)
        assert set(found.decisions["reason"].to_pylist()) == {"duplicate_of_reference"}
    with Spill(tmp_path) as spill:
        store = Texts(spill)
        for _ in range(2):
            for batch in Dataset.open(str(path)).texts():
                store.keep(batch)
        assert strings(store.gather(np.arange(2 * len(texts)))) == [*texts, *texts]
    with pytest.raises(AssertionError):
        read_again(spans_of(path, [90, 9], [5, 5]))


def test_texts_of_wide_and_of_long_rows_are_read_load_by_load(tmp_path: Path) -> None:
    """Gaps that are read along, gaps that are not, and a text larger than a load; each text in its order."""
    rng = random.Random(8)
    texts = [f"{i} é\n" + "y" * (5 << 20 if i == 400 else rng.randrange(50)) for i in range(1500)]
    widths = [9000 if i % 7 == 0 else 7500 for i in range(1500)]
    lines = [json.dumps({"meta": "x" * width, "text": text}) for text, width in zip(texts, widths, strict=True)]
    path = tmp_path / "in.jsonl"
    path.write_text("\n".join(lines))
    with Spill(tmp_path) as spill:
        store = Texts(spill)
        for batch in Dataset.open(str(path)).texts():
            store.keep(batch)
        assert store.bytes_held == 0
        assert strings(store.gather(np.arange(1500))) == texts
        few = np.sort(np.random.default_rng(1).choice(1500, 200, replace=False))
        assert strings(store.gather(few)) == [texts[i] for i in few]


def test_the_cap_holds_for_small_texts_in_wide_rows(tmp_path: Path) -> None:
    """150 MB of rows with 0.2 MB of text: by an outside clock, no more is held than for 8 MB of them."""
    peaks = []
    for count in (1000, 20_000):
        path = tmp_path / f"in{count}.jsonl"
        with path.open("w") as file:
            file.writelines(json.dumps({"text": f"{i // 2:x} yz", "meta": "x" * 7500}) + "\n" for i in range(count))
        out = str(tmp_path / f"out{count}.jsonl")
        options = ("--out", out, "--method", "exact", "--memory", "560MB")
        code, said = finish(start(tmp_path, str(path), *options, before=(sys.executable, "-c", CLOCK)))
        assert code == 0, (tmp_path / "said.txt").read_text()
        body, end = json.JSONDecoder().raw_decode(said)
        assert body["removed"] == {"exact_duplicate": count // 2}
        assert body["text_bytes_held"] == 0
        peaks.append(int(said[end:]))
    assert peaks[1] < 560 * 10**6
    assert peaks[1] - peaks[0] < 60 * 10**6


def test_texts_that_become_others_of_the_same_size_while_they_are_compared(tmp_path: Path) -> None:
    """In a dry run as well, where nothing is written whose marks would be looked at."""
    texts = rows()
    path = write(tmp_path / "in.jsonl", texts)
    catalog = Catalog.open(tmp_path / "lpt")

    def progress(done: int, total: int | None, label: str) -> None:
        if label == "comparing":
            found = path.stat()
            path.write_bytes(path.read_bytes().replace(b"w1", b"v1"))
            assert path.stat().st_size == found.st_size
            os.utime(path, ns=(0, found.st_mtime_ns + 1))

    for dry_run in (True, False):
        write(path, texts)
        with pytest.raises(BadInputError, match="changed"):
            run_stage(
                "dedup", Dataset.open(str(path)), DedupConfig(workers=1), decide, output=tmp_path / "out.jsonl",
                catalog=catalog, progress=progress, dry_run=dry_run,
            )  # fmt: skip


@pytest.mark.parametrize("blanks", [b" " * LARGE, b" " * 99 + b"\n" * LARGE, (b" " * 99 + b"\n") * (LARGE // 99)])
def test_blank_lines_by_the_block_are_no_rows(tmp_path: Path, blanks: bytes) -> None:
    texts = rows()
    path = write(tmp_path / "in.jsonl", texts)
    path.write_bytes(path.read_bytes() + blanks)
    found = [text for batch in Dataset.open(str(path)).texts() for text in batch.texts.to_pylist()]
    assert found == texts
