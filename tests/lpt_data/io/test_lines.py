"""Strict JSON lines: each kind of damage has its reason, and equal keys are found at any depth."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lpt_data.io.lines import MAX_LINE, parse_lines, split_lines


def lines_of(blocks, **options):
    return [(number + i, line) for number, lines in split_lines(blocks, **options) for i, line in enumerate(lines)]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"a": 1', "invalid_json"),
        (b"{'a': 1}", "invalid_json"),
        (b'{"a": 1} {"b": 2}', "invalid_json"),
        (b'{"a": NaN}', "not_a_number"),
        (b'{"a": [1, {"b": -Infinity}]}', "not_a_number"),
        (b'{"a": 1e999}', "not_a_number"),
        (b'{"a": "x\x00y"}', "nul_byte"),
        (b'{"a": "\\ud800"}', "lone_surrogate"),
        (b'{"a": "\\udc00 x"}', "lone_surrogate"),
        (b'{"a": "\xed\xa0\x80"}', "invalid_utf8"),
        (b'{"a": "\xff"}', "invalid_utf8"),
        (b'{"a": 1, "a": 1}', "duplicate_key"),
        (b'{"a": {"b": [{"c": 1, "c": 2}]}}', "duplicate_key"),
        (b'{"a\\u0062": 1, "ab": 2}', "duplicate_key"),
        (b'{"a": 1, "a": "one \\u0022 and two"}', "duplicate_key"),  # the escape hides a quotation mark
        (b"[1, 2]", "not_an_object"),
        (b"null", "not_an_object"),
        (b'"text"', "not_an_object"),
        (b"[" * 5000, "invalid_json"),
        (b'{"a": ' + b"[" * 300 + b"]" * 300 + b"}", "nested_too_deeply"),  # read by orjson, which cannot write it
        (b'{"a": ' * 1000 + b"1" + b"}" * 1000, "nested_too_deeply"),
    ],
)
def test_each_damage_has_its_reason_and_its_neighbours_are_read(line, reason):
    rows, bad = parse_lines([b'{"id": 1}', line, b'{"id": "\\u0022"}'])
    assert [b.reason for b in bad] == [reason]
    assert bad[0].place == 1
    assert rows == [{"id": 1}, None, {"id": '"'}]


def test_what_is_odd_and_right_is_read():
    odd = [b' {"a" : "x\\u0000y" } ', b'{"a": "\\ud83d\\ude00"}', '{"a": "ä\u2028"}'.encode(), b"{}", b'{"": {"": ""}}']
    rows, bad = parse_lines(odd)
    assert not bad
    assert rows == [json.loads(line) for line in odd]


keys = st.sampled_from(["a", "b", 'q"', "ä", "\\", ":"])
values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3) | st.lists(st.tuples(keys, inner), max_size=3).map(lambda p: ("pairs", p))
    ),
    max_leaves=8,
)


def written(value):
    """JSON text of a value in which objects are lists of pairs, so that keys can repeat."""
    if isinstance(value, tuple):
        return "{" + ", ".join(f"{json.dumps(k)} :{written(v)}" for k, v in value[1]) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(written, value)) + "]"
    return json.dumps(value)


def repeats(value):
    if isinstance(value, tuple):
        names = [k for k, _ in value[1]]
        return len(set(names)) < len(names) or any(repeats(v) for _, v in value[1])
    return isinstance(value, list) and any(map(repeats, value))


@given(st.lists(st.lists(st.tuples(keys, values), max_size=4).map(lambda p: ("pairs", p)), min_size=1, max_size=4))
def test_a_row_is_refused_exactly_when_a_key_repeats(rows):
    _, bad = parse_lines([written(row).encode() for row in rows])
    assert [b.place for b in bad] == [i for i, row in enumerate(rows) if repeats(row)]


@given(st.lists(st.binary(max_size=9).filter(lambda b: b"\n" not in b and not b.endswith(b"\r"))), st.integers(1, 7))
def test_lines_do_not_depend_on_where_blocks_end(lines, size):
    text = b"\r\n".join(lines) + b"\r\n" if lines else b""
    blocks = [text[i : i + size] for i in range(0, len(text), size)]
    assert lines_of(blocks) == [(i + 1, line) for i, line in enumerate(lines)]


def test_a_line_over_the_limit_is_not_held_and_the_next_one_is_read():
    assert lines_of([b"a\nxxx", b"xxx", b"xx\nb"], limit=7) == [(1, b"a"), (2, None), (3, b"b")]
    assert lines_of([b"xxx", b"xxx\n"], limit=6) == [(1, b"xxxxxx")]
    assert lines_of([b"xxx", b"xxxx"], limit=6) == [(1, None)]
    assert MAX_LINE == 64 * 2**20
