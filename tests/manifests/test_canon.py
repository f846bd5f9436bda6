"""lpt-canon/1: hand-worked bytes, the second implementation of RFC 8785 as oracle, and what has no canonical form."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import rfc8785
from hypothesis import given, settings
from hypothesis import strategies as st

from manifests.canon import (
    FIELDS,
    MAX_INTEGER,
    canonical_bytes,
    canonical_json,
    json_text,
    kind_of,
    record_id,
    record_ids,
    text_ids,
)
from manifests.errors import RecordError, UsageError

CHAT = {"messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]}
CALL = {
    "messages": [
        {
            "role": "assistant",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"b": 2.50, "a": null}'}}
            ],
        }
    ],
    "tools": '[{"name": "add"}]',
}
MESSAGES = [{"role": "user", "content": "hi"}]


def test_bytes_by_hand():
    assert canonical_bytes("text", {"text": "né\n", "score": 0.5}) == '{"text":"né\\n"}'.encode()
    assert canonical_bytes("sft", CHAT) == (
        b'{"messages":[{"content":"2+2?","role":"user"},{"content":"4","role":"assistant"}]}'
    )
    assert canonical_bytes("kto", {"prompt": MESSAGES, "completion": [], "label": False}) == (
        b'{"completion":[],"label":false,"prompt":[{"content":"hi","role":"user"}]}'
    )


def test_record_id_by_hand():
    expected = hashlib.sha256(b"lpt-canon/1\0text\0" + b'{"text":"a"}').digest()
    assert record_id("text", {"text": "a"}) == expected
    assert record_ids("text", [{"text": "a"}]).tobytes() == expected
    assert text_ids(["a"]).tobytes() == expected


def test_json_text_stays_as_it_was_written():
    arguments = json.loads(canonical_bytes("sft", CALL))["messages"][0]["tool_calls"][0]["function"]["arguments"]
    assert arguments == '{"b": 2.50, "a": null}'
    assert json_text('{"b": 2.50}') == '{"b": 2.50}'
    assert json_text({"b": 2.5, "a": None}) == '{"b":2.5,"a":null}'
    for value in (float("nan"), {"a": [1.5, float("-inf")]}):  # Parquet can hold them; null would be another value
        with pytest.raises(RecordError, match="no NaN"):
            json_text(value)
    with pytest.raises(RecordError):
        json_text({1, 2})


def test_kinds_do_not_share_ids():
    preference = {"prompt": MESSAGES, "chosen": MESSAGES, "rejected": MESSAGES}
    assert record_id("sft", {"messages": MESSAGES}) != record_id("text", {"text": "hi"})
    bodies = {record_id("rlvr", {"prompt": MESSAGES, "answer": "4"}), record_id("preference", preference)}
    assert len(bodies) == 2


# -- laws

_text = st.text(st.characters(blacklist_categories=["Cs"]))
_key = st.text(st.characters(max_codepoint=127), max_size=8)
_values = st.recursive(
    st.booleans() | st.integers(-MAX_INTEGER, MAX_INTEGER) | _text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_key, inner, max_size=4),
    max_leaves=12,
)


@given(_values)
@settings(max_examples=300, deadline=None)
def test_canonical_json_is_rfc_8785_on_its_domain(value):
    assert canonical_json(value) == rfc8785.dumps(value)


@given(_text)
@settings(max_examples=200, deadline=None)
def test_text_records_are_rfc_8785(text):
    expected = hashlib.sha256(b"lpt-canon/1\0text\0" + rfc8785.dumps({"text": text})).digest()
    assert record_id("text", {"text": text}) == expected == text_ids([text]).tobytes()


_message = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant"])}, optional={"content": _text, "name": _text}
)


@given(st.lists(_message, max_size=4), st.none() | _text)
@settings(max_examples=100, deadline=None)
def test_chat_records_are_rfc_8785_and_nulls_are_nothing(messages, tools):
    row = {"messages": messages} | ({"tools": tools} if tools is not None else {})
    with_nulls = {
        "messages": [{**dict.fromkeys(("content", "name", "tool_calls")), **m} for m in messages],
        "tools": tools,
    }
    assert canonical_bytes("sft", row) == rfc8785.dumps(row) == canonical_bytes("sft", with_nulls)


@given(st.permutations(["messages", "tools", "extra"]))
def test_order_of_columns_and_other_columns_change_nothing(names):
    row = {**CALL, "extra": 1.5}
    assert record_id("sft", {name: row[name] for name in names}) == record_id("sft", CALL)


@pytest.mark.parametrize(
    ("one", "other"), [("\u00e9", "e\u0301"), ("a", " a"), ("a", "A"), ("a", "a\n"), ("\ufb01", "fi"), ("", "\ufeff")]
)
def test_strings_are_never_normalised(one, other):
    assert record_id("text", {"text": one}) != record_id("text", {"text": other})


def test_parquet_gives_the_ids_of_jsonl(tmp_path):
    rows = [CALL, CHAT]  # Parquet fills the fields that one of them lacks with nulls
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    (tmp_path / "rows.jsonl").write_bytes(b"\n".join(orjson.dumps(row) for row in rows))
    from_parquet = pq.read_table(tmp_path / "rows.parquet").to_pylist()
    from_lines = [orjson.loads(line) for line in (tmp_path / "rows.jsonl").read_bytes().splitlines()]
    assert from_parquet != from_lines
    assert np.array_equal(record_ids("sft", from_parquet), record_ids("sft", from_lines))


def test_pandas_arrays_are_lists():
    row = {"messages": np.array(CHAT["messages"], dtype=object)}
    assert record_id("sft", row) == record_id("sft", CHAT)


# -- what has no canonical form


@pytest.mark.parametrize(
    ("kind", "row", "reason", "field"),
    [
        ("text", {"text": None}, "missing_field", "text"),
        ("text", {}, "missing_field", "text"),
        ("text", {"text": 3}, "wrong_type", "text"),
        ("text", {"text": b"raw"}, "wrong_type", "text"),
        ("text", {"text": float("nan")}, "not_a_number", "text"),
        ("text", {"text": "a\ud800b"}, "lone_surrogate", "text"),
        ("sft", {"messages": "hi"}, "wrong_type", "messages"),
        ("sft", {"messages": [None]}, "wrong_type", "messages[0]"),
        ("sft", {"messages": ["hi"]}, "wrong_type", "messages[0]"),
        ("sft", {"messages": [{"content": "hi"}]}, "missing_field", "messages[0].role"),
        ("sft", {"messages": [{"role": "user", "content": 1.0}]}, "wrong_type", "messages[0].content"),
        ("sft", {"messages": [{"role": "user", "weight": 1}]}, "unknown_field", "messages[0].weight"),
        ("sft", {"messages": [{"role": "user", "content": "\udfff"}]}, "lone_surrogate", "messages[0].content"),
        ("sft", {"messages": [], "tools": [{"name": "f"}]}, "wrong_type", "tools"),
        ("kto", {"prompt": [], "completion": [], "label": 1}, "wrong_type", "label"),
        ("rlvr", {"prompt": [], "answer": 42}, "wrong_type", "answer"),
        (
            "sft",
            {
                "messages": [
                    {"role": "a", "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {}}}]}
                ]
            },
            "wrong_type",
            "messages[0].tool_calls[0].function.arguments",
        ),
        (
            "sft",
            {"messages": [{"role": "a", "tool_calls": [{"type": "function", "function": {"name": "f"}}]}]},
            "missing_field",
            "messages[0].tool_calls[0].function.arguments",
        ),
    ],
)
def test_a_row_without_a_canonical_form_names_the_field(kind, row, reason, field):
    with pytest.raises(RecordError) as caught:
        canonical_bytes(kind, row)
    assert (caught.value.reason, caught.value.field) == (reason, field)
    with pytest.raises(RecordError):
        record_ids(kind, [row])


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (1.0, "float_in_record"),
        (float("nan"), "float_in_record"),
        (-0.0, "float_in_record"),
        (2**53, "integer_out_of_range"),
        (-(2**53), "integer_out_of_range"),
        ({"ключ": 1}, "key_not_ascii"),
        ({1: 1}, "key_not_ascii"),
        ("\ud83d", "lone_surrogate"),
        ({"a": [{"b": "\ud83d"}]}, "lone_surrogate"),
        (b"x", "wrong_type"),
        ({1, 2}, "wrong_type"),
    ],
)
def test_values_outside_the_domain_are_refused(value, reason):
    with pytest.raises(RecordError) as caught:
        canonical_json({"x": value})
    assert caught.value.reason == reason


def test_the_limits_of_the_domain_are_inside():
    assert canonical_json([MAX_INTEGER, -MAX_INTEGER, True, None, {"a": None}]) == (
        b"[9007199254740991,-9007199254740991,true,null,{}]"
    )


def test_depth_is_bounded():
    value: object = "x"
    for _ in range(5000):
        value = [value]
    with pytest.raises(RecordError) as caught:
        canonical_json(value)
    assert caught.value.reason == "nested_too_deeply"


def test_an_unknown_kind_is_a_usage_error_that_names_the_known_ones():
    for call in (canonical_bytes, record_id):
        with pytest.raises(UsageError, match="rlvr"):
            call("dpo", {})
    assert set(FIELDS) == {"text", "sft", "preference", "rlvr", "kto"}


def test_the_records_of_a_contract_are_of_its_own_kind_but_for_the_synthetic_one():
    assert [kind_of(name) for name in ("text", "sft", "preference", "rlvr")] == ["text", "sft", "preference", "rlvr"]
    assert kind_of("synthetic") == "sft"
    assert kind_of("made up") == "made up"  # whoever asks for its fields says so


def test_no_rows_have_no_ids():
    assert record_ids("sft", []).shape == (0, 32)
    assert text_ids([]).shape == (0, 32)
