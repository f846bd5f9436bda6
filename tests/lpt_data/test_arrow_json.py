"""Free JSON in Parquet: the record of the same JSON line, or a refusal; never another record in silence."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lpt_data.dataset import Dataset


def calls(*arguments):
    """A conversation for each value of the arguments of its one call."""
    return [
        {
            "messages": [
                {"role": "user", "content": f"ask {n}"},
                {
                    "role": "assistant",
                    "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": value}}],
                },
            ]
        }
        for n, value in enumerate(arguments)
    ]


def ids(path, kind="sft"):
    """Record ids by row, and the reasons of the rows that have none."""
    dataset = Dataset.open([str(path)], kind=kind)
    found = {row: name.hex() for row, _, _, name in dataset.identified()}
    return found, {bad.row: bad.reason for bad in dataset.quarantined()}


def both(tmp_path, rows, kind="sft"):
    """The ids of rows as JSON lines and as the Parquet that Arrow makes of them."""
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return ids(tmp_path / "rows.jsonl", kind), ids(tmp_path / "rows.parquet", kind)


@pytest.mark.parametrize(
    "arguments",
    [
        [{"city": "Rome"}, {"day": 3}],  # Arrow gives each the field of the other
        [{"a": 1, "b": 2}, {"b": 2, "a": 1}],  # and one order
        [{"x": 1}, {"x": 1.5}],  # and one type
        [{"x": None, "y": 1}, {"y": 1}],  # and no way to tell a null from nothing
    ],
)
def test_arguments_as_structs_are_refused_and_never_another_record(tmp_path, arguments):
    rows = [*calls(*arguments), {"messages": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}]}]
    (lines, bad), (parquet, refused) = both(tmp_path, rows)
    assert (len(lines), bad) == (3, {})
    assert refused == {0: "json_as_struct", 1: "json_as_struct"}
    assert parquet == {2: lines[2]}  # a row without such a value is the row that it was


def test_the_refusal_says_where_and_what_to_do(tmp_path):
    rows = [*calls({"city": "Rome"}), {"messages": [{"role": "user", "content": "u"}]}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    dataset = Dataset.open([str(tmp_path / "rows.parquet")], kind="sft")
    list(dataset.records())
    (bad,) = dataset.quarantined()
    assert "messages[1].tool_calls[0].function.arguments is typed by Arrow" in bad.detail
    assert "write it as JSON text" in bad.detail


def test_arguments_as_text_are_the_same_record_in_both(tmp_path):
    texts = [json.dumps(value) for value in ({"city": "Rome", "n": None}, {"day": 1.5}, {"b": 1, "a": [1, {"c": 2}]})]
    lines, parquet = both(tmp_path, calls(*texts))
    assert lines == parquet
    assert len(lines[0]) == 3


@pytest.mark.parametrize("form", ["messages", "conversations"])
def test_tools_and_answers_as_structs_are_refused(tmp_path, form):
    turns = [{"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}]
    tools = [[{"name": "f", "parameters": {"x": {"type": "string"}}}], [{"name": "g", "parameters": {"y": {}}}], []]
    rows = [{form: turns, "tools": value} for value in tools[:1]] + [{form: turns, "tools": None}, {form: turns}]
    rows = [row | {"n": n} for n, row in enumerate(rows)]
    (lines, bad), (parquet, refused) = both(tmp_path, rows)
    assert (bad, refused) == ({}, {0: "json_as_struct"})
    assert parquet == {1: lines[1], 2: lines[2]}
    asked = [{"prompt": "p", "answer": {"numbers": [1, 2], "target": 3}}, {"prompt": "q", "answer": None}]
    pq.write_table(pa.Table.from_pylist(asked), tmp_path / "asked.parquet")
    with pytest.raises(Exception, match="no row of") as nothing:
        ids(tmp_path / "asked.parquet", "rlvr")
    assert "json_as_struct" in nothing.value.seen


def test_lists_of_integers_and_maps(tmp_path):
    (lines, _), (parquet, refused) = both(tmp_path, [{"prompt": "p", "answer": [3, 1]}], "rlvr")
    assert (parquet, refused) == (lines, {})
    table = pa.table({"prompt": ["p", "q"], "answer": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64()))})
    pq.write_table(table, tmp_path / "maps.parquet")
    with pytest.raises(Exception, match="no row of") as nothing:
        ids(tmp_path / "maps.parquet", "rlvr")
    assert "json_as_struct" in nothing.value.seen
