"""Column types without guessing, writers that give the same bytes, and the canonical Parquet of an admitted split."""

import decimal
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lpt_data.columns import dump, find_columns
from lpt_data.dataset import Dataset
from lpt_data.write import canonical_schema, write_canonical, write_jsonl, write_tables
from manifests.canon import record_ids
from manifests.errors import BadInputError


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, None, 2], pa.int64()),
        ([1.5, 2.0], pa.float64()),
        ([True, False], pa.bool_()),
        (["2024-01-01", "12"], pa.string()),
        ([None, None], pa.string()),
        ([["a"], [], None], pa.list_(pa.string())),
        ([{"a": 1}, {"b": "x"}], pa.struct([("a", pa.int64()), ("b", pa.string())])),
        (
            [[{"role": "user"}], [{"role": "user", "name": "n"}]],
            pa.list_(pa.struct([("role", pa.string()), ("name", pa.string())])),
        ),
        ([1, 1.5], None),
        ([1, "1"], None),
        ([1, True], None),
        ([["a", 1]], None),
        ([{"a": 1}, {"a": "x"}], None),
        ([{}], None),
        ([2**63], None),
        ([{str(i): 1} for i in range(101)], None),
        ([{"a": 1}, [1]], None),
    ],
)
def test_a_column_has_the_type_of_all_its_values_or_is_json_text(values, kind):
    rows = [{"c": value} for value in values]
    columns = find_columns(rows)
    assert columns.as_json == (() if kind is not None else ("c",))
    assert columns.schema.field("c").type == (kind if kind is not None else pa.string())
    column = columns.table(rows)["c"].to_pylist()
    if kind is None:
        assert [json.loads(text) for text in column] == values


def test_what_json_cannot_say():
    assert dump({"n": 2**70}) == b'{"n":1180591620717411303424}'
    assert dump({"d": decimal.Decimal("1.10")}) == b'{"d":"1.10"}'
    with pytest.raises(BadInputError, match="parquet"):
        dump({"b": b"bytes"})


def turns(*pairs):
    return [{"role": role, "content": content} for role, content in pairs]


def test_canonical_files_read_back_as_what_they_hold(tmp_path):
    records = [
        {"prompt": turns(("user", "1+1")), "answer": "2", "verifier": "integer"},
        {"prompt": turns(("user", "x")), "answer": "y"},
    ]
    ids = record_ids("rlvr", records)
    extra = [
        {"level": 1, "answer": "kept", "record_id": "of something else"},
        {"level": "hard", "nums": [1, 2], "target": 3},
    ]
    assert write_canonical(tmp_path / "a.parquet", "rlvr", records, ids, extra) == ["level"]
    table = pq.read_table(tmp_path / "a.parquet")
    assert table.column_names == [
        "record_id",
        "prompt",
        "answer",
        "verifier",
        "level",
        "source_answer",
        "nums",
        "target",
    ]
    assert table["record_id"].to_pylist() == [row.tobytes().hex() for row in ids]
    assert table["level"].to_pylist() == ["1", '"hard"']
    again = list(Dataset.open([str(tmp_path / "a.parquet")], kind="rlvr").identified())
    assert [name for _, _, _, name in again] == [row.tobytes() for row in ids]


@pytest.mark.parametrize("kind", ["text", "sft", "preference", "rlvr", "kto"])
def test_every_kind_has_a_schema_even_without_rows(tmp_path, kind):
    write_canonical(tmp_path / "a.parquet", kind, [], record_ids(kind, []))
    assert pq.read_schema(tmp_path / "a.parquet").equals(canonical_schema(kind))


def test_tool_calls_survive_the_canonical_file(tmp_path):
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1.50, "y": null}'}}
    record = {"messages": [*turns(("user", "q")), {"role": "assistant", "tool_calls": [call]}], "tools": '[{"a":null}]'}
    ids = record_ids("sft", [record])
    write_canonical(tmp_path / "a.parquet", "sft", [record], ids)
    found = list(Dataset.open([str(tmp_path / "a.parquet")], kind="sft").identified())
    assert found[0][1]["messages"][1]["tool_calls"] == [call]
    assert found[0][3] == ids[0].tobytes()


def test_more_rows_than_a_row_group_and_the_same_bytes_twice(tmp_path):
    records = [{"text": f"row {i}"} for i in range(120_000)]
    ids = record_ids("text", records)
    for name in ("a.parquet", "b.parquet"):
        write_canonical(tmp_path / name, "text", iter(records), ids)
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()
    with pq.ParquetFile(tmp_path / "a.parquet") as file:
        groups = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
    assert groups == [50_000, 50_000, 20_000]
    batches = Dataset.open([str(tmp_path / "a.parquet")]).texts("text")
    assert sum(len(b.rows) for b in batches) == 120_000


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "a.json", "a.csv", "a.tsv.gz", "a.parquet"])
def test_rows_written_are_rows_read(tmp_path, name):
    rows = [{"id": str(i), "text": f'line\n"{i}", ä\t\\'} for i in range(7000)]
    assert write_jsonl(tmp_path / name, iter(rows)) == 7000
    data = Dataset.open([str(tmp_path / name)])
    assert [{**extra, **record} for _, record, extra in data.records()] == rows
    assert data.quarantined() == []
    first = (tmp_path / name).read_bytes()
    write_jsonl(tmp_path / name, rows)
    assert (tmp_path / name).read_bytes() == first


def test_row_groups_end_by_bytes_too_and_wherever_tables_end(tmp_path):
    texts = ["x" * (20_000 if i < 3_000 else 10) for i in range(70_500)]
    whole = pa.table({"text": texts, "nested": [[{"a": text[:9]}] for text in texts]})
    written = []
    for size in (70_500, 999, 1_000, 20_001):
        parts = [whole.slice(at, size) for at in range(0, len(whole), size)]
        assert write_tables(tmp_path / "a.parquet", whole.schema, iter(parts)) == 70_500
        written.append((tmp_path / "a.parquet").read_bytes())
    assert len(set(written)) == 1
    with pq.ParquetFile(tmp_path / "a.parquet") as file:
        assert [file.metadata.row_group(i).num_rows for i in range(4)] == [1000, 1000, 1000, 50_000]
        assert file.read().equals(whole)
