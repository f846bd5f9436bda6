"""Each bad row is put aside with file, line and reason; each bad file is an error in three parts."""

import csv
import gzip
import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from lpt_data.dataset import Dataset
from manifests.errors import BadInputError

GOOD = b'{"text": "one good row"}\n'


def texts(path, key="text", **options):
    data = Dataset.open([str(path)], **options)
    found = [t for batch in data.texts(key) for t in batch.texts.to_pylist()]
    return found, [(q.row, q.line, q.reason) for q in data.quarantined()], data


def refused(path, **options):
    with pytest.raises(BadInputError) as caught:
        texts(path, **options)
    error = caught.value
    assert error.what
    assert error.seen
    assert error.next
    assert error.exit_code == 5
    return str(error)


def written(path, data):
    path.write_bytes(data)
    return path


def test_missing_file_names_the_closest(tmp_path):
    written(tmp_path / "train.jsonl", GOOD)
    assert f"did you mean {tmp_path}/train.jsonl?" in refused(tmp_path / "trian.jsonl")
    assert "no file matches" in refused(tmp_path / "*.csv")


def test_folders(tmp_path):
    assert "holds no data file" in refused(tmp_path)
    written(tmp_path / "README", b"text")
    assert "README" in refused(tmp_path)
    (tmp_path / "b").mkdir()
    (tmp_path / ".hidden").mkdir()
    written(tmp_path / "b" / "x.jsonl", b'{"text": "second"}')
    written(tmp_path / "a.jsonl", b'{"text": "first"}')
    written(tmp_path / ".hidden" / "a.jsonl", b'{"text": "never"}')
    assert texts(tmp_path)[0] == ["first", "second"]


def test_a_file_named_twice_would_double_its_rows(tmp_path):
    path = str(written(tmp_path / "a.jsonl", GOOD))
    os.symlink(path, tmp_path / "b.jsonl")
    with pytest.raises(BadInputError, match="named twice"):
        Dataset.open([path, str(tmp_path / "b.jsonl")])


@pytest.mark.parametrize("data", [b"", b"\n\n  \n", b"\xef\xbb\xbf"])
def test_files_without_rows(tmp_path, data):
    assert "empty" in refused(written(tmp_path / "a.jsonl", data)) or "no rows" in refused(tmp_path / "a.jsonl")


@pytest.mark.parametrize(
    ("name", "data", "seen"),
    [
        ("a.jsonl", b"PK\x03\x04" + bytes(99), "zip"),
        ("a.jsonl", b"\x7fELF" + bytes(99), "a program"),
        ("a.jsonl", bytes(range(1, 30)) * 9, "no text file"),
        ("a.jsonl", '{"text": "wide"}'.encode("utf-16"), "UTF-16"),
        ("a.jsonl", gzip.compress(GOOD, mtime=0), "gzip"),
        ("a.jsonl.gz", GOOD, "no gzip file"),
        ("a.jsonl.zst", gzip.compress(GOOD, mtime=0), "gzip"),
        ("a.parquet", GOOD, "no Parquet file"),
        ("a.txt", GOOD, "extension"),
        ("a", GOOD, "extension"),
        ("a.parquet.gz", GOOD, "extension"),
    ],
)
def test_files_that_are_not_what_they_say(tmp_path, name, data, seen):
    assert seen in refused(written(tmp_path / name, data))


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl.zst"])
def test_a_stream_that_is_cut_short_or_damaged(tmp_path, name):
    text = b"".join(b'{"text": "row %d %s"}\n' % (i, os.urandom(20).hex().encode()) for i in range(3000))
    packed = (
        gzip.compress(text, mtime=0)
        if name.endswith("gz")
        else zstandard.ZstdCompressor(write_checksum=True).compress(text)
    )
    assert texts(written(tmp_path / name, packed * 2))[2].rows_in == 6000  # several members are one stream
    for cut in (len(packed) // 2, len(packed) - 1):
        assert "cut short" in refused(written(tmp_path / name, packed[:cut]))
    damaged = bytearray(packed)
    damaged[len(packed) // 2] ^= 0xFF
    assert "damaged" in refused(written(tmp_path / name, bytes(damaged)))


def test_bom_crlf_blank_lines_and_no_last_line_feed(tmp_path):
    data = b'\xef\xbb\xbf{"text": "a"}\r\n\r\n  \n{"text": "b"}\r\n{"text": }\r\n{"text": "c"}'
    found, bad, data_set = texts(written(tmp_path / "a.jsonl", data))
    assert found == ["a", "b", "c"]
    assert bad == [(2, 5, "invalid_json")]
    assert data_set.rows_in == 4


def test_rows_of_the_wrong_type_are_put_aside_and_never_widened(tmp_path):
    rows = ['"x"', "1", "1.5", "true", "null", '["x"]', '""', '" \\n"', '"y"']
    data = "\n".join(f'{{"text": {value}}}' for value in rows) + '\n{"other": 1}'
    found, bad, _ = texts(written(tmp_path / "a.jsonl", data.encode()))
    assert found == ["x", "y"]
    reasons = ["wrong_type", "wrong_type", "wrong_type", "missing_field", "wrong_type", "empty_text", "empty_text"]
    assert bad == [(i + 1, i + 2, reason) for i, reason in enumerate(reasons)] + [(9, 10, "missing_field")]


def test_dates_and_numbers_in_text_stay_text(tmp_path):
    data = b'{"text": "2024-01-01"}\n{"text": "2024-01-01T00:00:00Z"}\n{"text": "00012"}\n{"text": "NaN"}'
    assert texts(written(tmp_path / "a.jsonl", data))[0] == ["2024-01-01", "2024-01-01T00:00:00Z", "00012", "NaN"]
    assert texts(written(tmp_path / "a.csv", b"text\n2024-01-01\n00012\n1e5\n"))[0] == ["2024-01-01", "00012", "1e5"]


def test_a_file_of_bad_rows_only_says_why(tmp_path):
    message = refused(written(tmp_path / "a.jsonl", b'{"text": NaN}\nhello\n{"text": 1, "text": 2}\n'))
    assert "no row of" in message
    for reason in ("not_a_number", "invalid_json", "duplicate_key"):
        assert reason in message
    written(tmp_path / "b.jsonl", GOOD)
    with pytest.raises(BadInputError, match="a.jsonl"):
        list(Dataset.open([str(tmp_path / "b.jsonl"), str(tmp_path / "a.jsonl")]).texts("text"))


def test_a_line_of_50_mb_works_and_one_of_65_mib_is_put_aside(tmp_path):
    path = tmp_path / "a.jsonl"
    with open(path, "wb") as file:
        file.write(GOOD + b'{"text": "' + b"x" * 50_000_000 + b'"}\n')
        file.write(b'{"text": "' + b"y" * (65 << 20) + b'"}\n' + GOOD)
    found, bad, _ = texts(path)
    assert [len(t) for t in found] == [12, 50_000_000, 12]
    assert bad == [(2, 3, "line_too_long")]


def test_a_wrong_column_lists_the_columns_and_the_closest(tmp_path):
    path = written(tmp_path / "a.jsonl", b'{"contents": "x", "id": 1}\n')
    assert "did you mean contents?" in refused(path, text_column="content")
    message = refused(path)
    assert "contents, id" in message
    assert "--text-column" in message
    assert texts(path, text_column="contents")[0] == ["x"]
    data = Dataset.open([str(path)], text_column="contents")
    with pytest.raises(BadInputError, match="did you mean contents"):
        list(data.texts("content"))


def test_csv(tmp_path):
    data = b'id,text\r\n1,"two\r\nlines, one cell"\r\n2\r\n3,a,b\r\n4,"say ""hi"""\r\n5,\xff\r\n6,a\x00b\r\n7,last'
    found, bad, _ = texts(written(tmp_path / "a.csv", data))
    assert found == ["two\r\nlines, one cell", 'say "hi"', "last"]
    assert bad == [(1, 4, "ragged_row"), (2, 5, "ragged_row"), (4, 7, "invalid_utf8"), (5, 8, "nul_byte")]
    assert "a quoted cell has no end" in refused(written(tmp_path / "b.csv", b'text\nx\n"never closed\nmore\n'))
    assert "each column once" in refused(written(tmp_path / "c.csv", b"text,text\nx,y\n"))
    assert "no rows" in refused(written(tmp_path / "d.csv", b"text\n"))
    assert texts(written(tmp_path / "a.tsv", b"id\ttext\n1\tx, y\n"))[0] == ["x, y"]


def test_a_huge_csv_cell(tmp_path):
    before = csv.field_size_limit()
    path = tmp_path / "a.csv"
    with open(path, "wb") as file:
        file.write(b"text\n" + b"x" * 1_000_000 + b"\n" + b"y" * (65 << 20) + b"\nlast\n")
    found, bad, _ = texts(path)
    assert [len(t) for t in found] == [1_000_000, 4]
    assert bad == [(1, 3, "line_too_long")]
    csv.field_size_limit(before)


def test_json_arrays(tmp_path):
    array = (
        b'[\n {"text": "a"},\n {"text": NaN}, {"text": "b", "text": "c"}, 7, {"text": "\\ud800"},\n {"text": "d"}]\n'
    )
    found, bad, _ = texts(written(tmp_path / "a.json", array))
    assert found == ["a", "d"]
    assert bad == [(1, 2, "not_a_number"), (2, 3, "duplicate_key"), (3, 4, "not_an_object"), (4, 5, "lone_surrogate")]
    assert "cut short" in refused(written(tmp_path / "b.json", b'[{"text": "a"}, {"text": "b'))
    assert "after 1 whole elements" in refused(written(tmp_path / "b.json", b'[{"text": "a"}'))
    assert "no valid JSON array" in refused(written(tmp_path / "b.json", b'[{"text": "a"} {"text": "b"}]'))
    assert "no rows" in refused(written(tmp_path / "b.json", b"[]"))
    assert texts(written(tmp_path / "c.json", b'{"text": "a"}\n{"text": "b"}\n'))[0] == ["a", "b"]  # lines after all


def test_parquet(tmp_path):
    path = tmp_path / "a.parquet"
    broken = pa.array([b"fine", b"\xff\xfe", b"good"], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"text": pa.concat_arrays([broken, pa.array([None, " ", "last"])]), "n": range(6)}), path)
    for layout in (None, "text"):
        found, bad, data = texts(path, layout=layout)
        assert found == ["fine", "good", "last"]
        assert bad == [(1, 2, "invalid_utf8"), (3, 4, "missing_field"), (4, 5, "empty_text")]
    assert [row for row, _, _ in data.records()] == [0, 2, 5]
    whole = path.read_bytes()
    assert "damaged" in refused(written(tmp_path / "b.parquet", whole[: len(whole) // 2]))
    assert "damaged" in refused(written(tmp_path / "b.parquet", whole[:-1]))
    pq.write_table(pa.table({"text": [1, 2]}), path)
    assert "is no text" in refused(path)


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())]
)
def test_every_arrow_text_type_has_the_ids_of_json_lines(tmp_path, kind):
    said = ["ä plain text", "second", "ä plain text"]
    pq.write_table(pa.table({"text": pa.array(said).cast(kind)}), tmp_path / "a.parquet")
    written(tmp_path / "a.jsonl", "\n".join(json.dumps({"text": t}) for t in said).encode())
    ids = []
    for name in ("a.parquet", "a.jsonl"):
        batches = list(Dataset.open([str(tmp_path / name)]).texts("text"))
        assert batches[0].texts.type == pa.large_string()
        ids.append(np.concatenate([b.ids for b in batches]))
    assert (ids[0] == ids[1]).all()


def test_a_pipe_is_no_input(tmp_path):
    os.mkfifo(tmp_path / "a.jsonl")
    assert "no regular file" in refused(tmp_path / "a.jsonl")


def test_a_folder_that_may_not_be_read(tmp_path):
    path = written(tmp_path / "a.jsonl", GOOD)
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read everything")
    assert "Permission denied" in refused(path)


def mounted(folder: Path, options: str) -> bool:
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=False, capture_output=True
    )
    return done.returncode == 0


@pytest.fixture
def small_disk(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    if not mounted(folder, "size=64k"):
        pytest.skip("needs the right to mount a small disk")
    yield folder
    subprocess.run(["umount", str(folder)], check=False)


def test_a_full_disk_leaves_nothing_behind(tmp_path, small_disk):
    from tests_support import keep_all

    from lpt_data.config import DedupConfig
    from lpt_data.stage import run_stage
    from manifests.catalog import Catalog

    lines = b"".join(b'{"text": "%s"}\n' % os.urandom(500).hex().encode() for _ in range(400))
    data = Dataset.open([str(written(tmp_path / "a.jsonl", lines))])
    catalog = Catalog.open(tmp_path / ".lpt")
    for name in ("out.jsonl", "out.parquet", "out.jsonl.gz", "out.jsonl.zst", "out.json"):
        with pytest.raises(BadInputError, match="cannot be written") as caught:
            run_stage("keep", data, DedupConfig(), keep_all, output=small_disk / name, catalog=catalog)
        assert "No space left" in caught.value.seen
        assert os.listdir(small_disk) == []
    assert not list(catalog.find("lpt.stage/1"))


def test_a_read_only_disk(tmp_path, small_disk):
    from lpt_data.places import check_outputs

    data = Dataset.open([str(written(tmp_path / "a.jsonl", GOOD))])
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(BadInputError, match="Read-only file system"):
        check_outputs([small_disk / "out.jsonl"], data)


def test_messages_with_other_names_for_their_fields_are_told_what_to_rename(tmp_path):
    turn = {"from": "user", "text": "hello"}
    rows = "".join(json.dumps({"messages": [turn, {**turn, "from": "assistant"}]}) + "\n" for _ in range(3))
    path = written(tmp_path / "a.jsonl", rows.encode())
    with pytest.raises(BadInputError, match="no row of") as error:
        list(Dataset.open([str(path)], kind="sft").records())
    assert error.value.next == "in each message rename from → role, text → content"
