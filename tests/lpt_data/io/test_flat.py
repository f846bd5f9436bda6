"""What is scanned is what a strict parser reads, and what it would refuse is never scanned."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lpt_data.dataset import Dataset, Quarantine
from lpt_data.io import readers
from lpt_data.io.flat import ODD, Keys, scan
from lpt_data.io.jsonl import chosen_lines, read_jsonl
from lpt_data.io.lines import cut_lines, parse_lines
from lpt_data.io.sources import expand

FIRST = b'{"id": 7, "text": "first", "x": 0.5, "ok": true}'
KEYS = Keys.of(FIRST)
assert KEYS is not None


NO_UTF8 = (b"\xff", b"\xc0\x80", b"\xe4\xb8", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xf0\x80\x80\x80")


def line(text: str = '"t"', number: str = "1", x: str = "0.5", ok: str = "true") -> bytes:
    return f'{{"id": {number}, "text": {text}, "x": {x}, "ok": {ok}}}'.encode("utf-8", "surrogatepass")


def check(lines: bytes) -> int:
    """Compare a scan with the parser, line by line; returns how many lines were flat."""
    found = scan(lines, KEYS)
    if found is None:
        assert len(lines) < 4 * (lines.count(b"\n") + 1)
        return 0
    rows = [one for one in cut_lines(lines) if one.strip()]
    assert [lines[a:b].removesuffix(b"\r") for a, b in zip(found.starts, found.ends, strict=True)] == rows
    parsed, _ = parse_lines(rows)
    for place, row in enumerate(parsed):
        if found.kinds[place, 0] == ODD:
            continue
        assert row is not None, rows[place]
        assert list(row) == list(found.keys.names)
        part = slice(place, place + 1)
        names = [name for name, value in row.items() if value is not None]
        values = found.table(part, names).to_pylist()[0] if names else {}
        assert {name: values.get(name) for name in row} == row
        assert [type(values[name]) for name in names] == [type(row[name]) for name in names]
    return int((found.kinds[:, 0] != ODD).sum())


@pytest.mark.parametrize(
    "good",
    [
        FIRST,
        b'\t{ "id" :7 ,"text":"",\r"x":-0.0,"ok":false}  \r',
        line('"\\u0000\\ud83d\\ude00\\/\\b\\f\\n\\r\\t\\\\\\" \\u00e9 é 世 🙂 \x7f"'),
        line(number="-999999999999999999", x="100000000000000000.25"),
        line(number="0", ok="null"),
        line("null", "null", "null", "null"),
        line('"' + "long " * 99 + '\\n"', '"text"', "true", "1"),
    ],
)
def test_plain_lines_are_taken(good: bytes) -> None:
    assert check(good) == 1
    assert check(b"\n \r\n" + good + b"\n\x0b\n" + good) == 2


@pytest.mark.parametrize(
    "odd",
    [
        b'{"id": 7, "text": "first", "x": 0.5}',
        b'{"id": 7, "text": "first", "x": 0.5, "ok": true, "ok": true}',
        b'{"id": 7, "id": 7, "x": 0.5, "ok": true}',
        b'{"text": "first", "id": 7, "x": 0.5, "ok": true}',
        b'{"i\\u0064": 7, "text": "first", "x": 0.5, "ok": true}',
        FIRST + b",",
        FIRST + FIRST,
        FIRST[:-1],
        FIRST[1:],
        b"[" + FIRST + b"]",
        b"null",
        b"{}",
        line("[]"),
        line("{}"),
        line("NaN"),
        line("-"),
        line("tru"),
        line("True"),
        line('"a'),
        line('"a\tb"'),
        line('"a\0b"'),
        line('"\\x"'),
        line('"\\u12g4"'),
        line('"\\ud83d"'),
        line('"\\ude00\\ud83d"'),
        line('"\\ud83d\\u0041"'),
        line('"\ud800"'),
        line(number="01"),
        line(number="-0"),
        line(number="+1"),
        line(number="9223372036854775807"),
        line(number="123456789012345678901234567890"),
        line(x="1e3"),
        line(x="1."),
        line(x=".5"),
        line(x="1.5e999"),
        *(line('"%"').replace(b"%", bad) for bad in NO_UTF8),
    ],
)
def test_every_other_line_goes_to_the_parser(odd: bytes) -> None:
    assert check(odd) == 0
    assert check(FIRST + b"\n" + odd + b"\n" + FIRST) == 2


ESCAPES = ['\\"', r"\n", r"\u00e9", r"\ud83d\ude00", r"\ud83d", r"\u0022"]
PIECES = [*'{}[]:,"\\.-\n\t\r 01é世🙂\x7f', *ESCAPES, "id", "text", '"id":', '"text":']
PIECES += ["-1", "01", "1.5", "1e5", "true", "false", "null", FIRST.decode(), FIRST.decode() + "\n", "x" * 70]


@given(st.lists(st.sampled_from(PIECES), max_size=12))
@settings(max_examples=400, deadline=None)
def test_any_mixture_of_pieces(pieces: list[str]) -> None:
    check("".join(pieces).encode())


def test_one_byte_changed_anywhere() -> None:
    rng = random.Random(3)
    whole = b"\n".join([FIRST, line('"é\\n\\ud83d\\ude00 世界"'), line('"' + "ab " * 40 + '"', "-12", "3.25", "false")])
    for _ in range(6000):
        at = rng.randrange(len(whole))
        changed = bytes([rng.choice([rng.randrange(256), *b'"\\{}:,\n0'])])
        check(whole[:at] + changed + whole[at + rng.randrange(2) :])


@given(st.lists(st.tuples(st.text(), st.integers(-(2**70), 2**70), st.floats(allow_nan=False), st.booleans())))
@settings(max_examples=100, deadline=None)
def test_what_a_writer_writes_is_read(rows: list[tuple[Any, ...]]) -> None:
    texts = [dict(zip(KEYS.names, (n, t, x, ok), strict=True)) for t, n, x, ok in rows]
    for ascii_only in (True, False):
        check(b"\n".join(json.dumps(row, ensure_ascii=ascii_only).encode("utf-8", "ignore") for row in texts))


def test_no_keys_of_a_line_that_is_not_flat() -> None:
    assert Keys.of(b"[1]") is None
    assert Keys.of(b"{}") is None
    assert Keys.of(b'{"a": []}') is None
    assert Keys.of(b"{") is None
    keys = Keys.of('{"é\\"": 1, "b": null}'.encode())
    assert keys is not None
    assert keys.names == ('é"', "b")
    assert bytes(keys.written) == '"é\\"""b"'.encode()


def passes(path: Path) -> Iterator[tuple[list[Any], list[Quarantine], Any]]:
    for large in (0, 1 << 40):  # scanned, parsed
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("lpt_data.io.jsonl.LARGE", large)
            patch.setattr("lpt_data.dataset.LARGE", large)
            dataset = Dataset.open(str(path))
            dataset.watch_columns = True
            rows = []
            for batch in dataset.texts():
                assert batch.texts.type == pa.large_string()
                rows += zip(batch.rows.tolist(), batch.texts.to_pylist(), map(bytes, batch.ids), strict=True)
            yield rows, dataset.quarantined(), (dataset.uniform, dataset.rows_in)


@pytest.mark.parametrize("seed", range(6))
def test_the_rows_and_the_quarantine_of_a_file_do_not_depend_on_scanning(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    odd = ["{broken", "", "  ", "null", '{"text": "b", "id": 1}', '{"id": 1, "text": 5}', '{"id": 1, "text": null}']
    odd += ['{"id": 1, "text": " \\n"}', '{"id": 1, "text": "\u2003"}', '{"id": 1, "id": 2, "text": "d"}', '{"id": 1}']
    odd += ['{"id": 1e3, "text": "exponent"}', '{"id": 1.5, "text": "float"}', '{"id": null, "text": "no id"}']
    often = rng.choice([0, 0.001, 0.02, 0.4])
    lines = []
    for i in range(6000):
        text = "".join(
            rng.choices(["word ", "é", '"', "\\", "\n", "世", "🙂", "\u2003"], [9, 1, 1, 1, 1, 1, 1, 1], k=25)
        )
        lines.append(json.dumps({"id": i, "text": text + "."}, ensure_ascii=i % 3 == 0))
        if rng.random() < often:
            lines.append(rng.choice(odd))
    path = tmp_path / "in.jsonl"
    path.write_text(rng.choice(["\n", "\r\n"]).join(lines), newline="")
    scanned, parsed = passes(path)
    assert scanned == parsed
    assert len(scanned[0]) >= 6000
    if not often:
        assert scanned[2][0] is not None


def test_many_keys_and_many_short_lines_take_no_memory(tmp_path: Path) -> None:
    wide = orjson.dumps({"text": "t", **{f"k{i}": 1 for i in range(20_000)}})
    keys = Keys.of(wide)
    assert keys is not None
    assert scan(wide + b"\n" + b"{}\n" * 100_000, keys) is None
    path = tmp_path / "in.jsonl"
    path.write_bytes(wide + b"\n" + b'{"text": "u"}\n' * 100_000)
    chunks = list(readers.read(expand(str(path))[0], ["text"]))
    assert sum(len(chunk.offsets) for chunk in chunks) == 100_001


def test_blocks_are_scanned_and_numbered_across_their_borders(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    lines = [orjson.dumps({"text": f"{i} " + "x" * (i % 97), "n": i}) for i in range(20_000)]
    lines[7000:7000] = [b"", b'{"text": 3, "n": 1}', b"{"]
    path.write_bytes(b"\n".join(lines))
    chunks = list(readers.read(expand(str(path))[0], ["text", "n"]))
    tables = [chunk for chunk in chunks if isinstance(chunk.records, pa.Table)]
    assert sum(chunk.rows for chunk in chunks) == 20_002
    assert sum(chunk.rows for chunk in tables) == 20_000
    assert [(b.offset, b.line, b.reason) for chunk in chunks for b in chunk.bad] == [(7001, 7003, "invalid_json")]
    numbers = np.concatenate([chunk.lines for chunk in tables])
    values = np.concatenate([chunk.records["n"].to_numpy() for chunk in tables])
    assert (numbers == values + 1 + 3 * (values >= 7000)).all()
    assert all(chunk.types == {"text": str, "n": int} for chunk in tables)


@pytest.mark.parametrize("large", [0, 1 << 40])
def test_chosen_lines_are_those_of_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: int) -> None:
    monkeypatch.setattr("lpt_data.io.jsonl.LARGE", large)
    path = tmp_path / "in.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"a": 0}\r\n\n{"a": 1}\n \t\n{broken\n{"a": 3}')
    chosen = np.array([False, False, True, False, True, True])  # the file's first row is number 2
    found = [
        pair for rows, lines in chosen_lines(expand(str(path))[0], chosen, 2) for pair in zip(rows, lines, strict=True)
    ]
    assert found == [(2, b'{"a": 0}'), (4, b"{broken"), (5, b'{"a": 3}')]


@pytest.mark.parametrize("large", [0, 1 << 40])
def test_rows_that_are_not_kept_have_no_place_in_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: int
) -> None:
    monkeypatch.setattr("lpt_data.io.jsonl.LARGE", large)
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"".join(orjson.dumps({"text": f"{i}", "n": i}) + b"\n" for i in range(40_000)))
    keep = np.arange(40_000) % 3 == 0
    chunks = list(read_jsonl(expand(str(path))[0], ["n", "text"], keep))
    assert sum(chunk.rows for chunk in chunks) == 40_000
    if not large:
        assert all(chunk.records.column_names == ["n", "text"] for chunk in chunks)
        assert np.concatenate([c.offsets for c in chunks]).tolist() == np.flatnonzero(keep).tolist()
        assert [n for c in chunks for n in c.records["n"].to_pylist()] == np.flatnonzero(keep).tolist()
    longer = list(read_jsonl(expand(str(path))[0], ["text"], keep[:-1]))  # the file has grown: its end is read
    assert sum(chunk.rows for chunk in longer) == 40_000
