from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lpt_data.text_arrays import may_be_blank, text_bytes, wide

TEXTS = ["", "é", None, "four", " ", "ab\0"]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()])
def test_bytes_are_those_of_the_slice(kind: pa.DataType) -> None:
    values = [None if text is None else text.encode() for text in TEXTS]
    array = pa.array(values, pa.large_binary()).cast(kind)
    assert text_bytes(array) == 2 + 4 + 1 + 3
    assert text_bytes(array.slice(3, 2)) == 5
    assert text_bytes(array.slice(6)) == 0
    assert text_bytes(pa.chunked_array([array, array])) == 20
    assert text_bytes(pa.array([1, 2])) == 0


def test_bytes_lie_at_any_depth() -> None:
    rows = [[{"role": "user", "content": "hello"}], [], None, [{"role": "a", "content": None}]]
    array = pa.array(rows)
    assert text_bytes(array) == 4 + 5 + 1
    assert text_bytes(array.slice(1)) == 1


@pytest.mark.parametrize("first", [0, 2])
def test_a_wide_array_says_the_same(first: int) -> None:
    for texts in (TEXTS, ["a", "", "bcd"]):
        array = pa.array(texts, pa.string()).slice(first)
        assert wide(array).type == pa.large_string()
        assert wide(array).to_pylist() == texts[first:]


@given(st.lists(st.none() | st.text(max_size=3)))
def test_no_blank_text_is_taken_for_another(texts: list[str | None]) -> None:
    doubtful = may_be_blank(pa.array(texts, pa.large_string())).tolist()
    assert len(doubtful) == len(texts)
    assert all(d for d, text in zip(doubtful, texts, strict=True) if not (text or "").strip())
    assert not may_be_blank(pa.array(["a", "~ "], pa.large_string())).any()
