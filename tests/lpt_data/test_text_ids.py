from __future__ import annotations

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from lpt_data.text_ids import ids_of
from manifests.canon import text_ids


def test_every_character_below_a_thousand_and_the_last_ones() -> None:
    texts = [f"{chr(c)}a{chr(c)}" for c in range(1000)] + ["\ufffe", "\U0010ffff", "", "\\" * 200, '"' * 64, "x" * 129]
    assert (ids_of(pa.array(texts)) == text_ids(texts)).all()


@given(st.lists(st.text(max_size=200)), st.integers(0, 3))
@settings(max_examples=200, deadline=None)
def test_any_texts_and_slices_of_them(texts: list[str], first: int) -> None:
    array = pa.array(texts, pa.large_string()).slice(first)
    assert (ids_of(array) == text_ids(texts[first:])).all()
    assert ids_of(array).shape == (len(array), 32)
