"""Canonical keys merge what poses the same problem, and tell apart what does not."""

import hashlib

import pytest

from lpt_data.keys import canonical_key, key_hash, normalise_math, normalise_text
from manifests.errors import RecordError


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("What's up?", "what s  UP"),
        ("ﬁne—print", "FINE PRINT"),
        ("Straße", "STRASSE"),
        ("１２ apples", "12 apples!"),
    ],
)
def test_text_keys_ignore_case_form_and_punctuation(one, other):
    assert normalise_text(one) == normalise_text(other)


def test_marks_of_other_scripts_are_kept():
    assert normalise_text("कि") != normalise_text("क")
    assert normalise_text("お茶。") == "お茶"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("What is 3 + 4?", "what is 3+4", True),
        ("It costs $1,234.50.", "it costs 1234.50", True),
        ("5 × 3 − 2", "5*3-2", True),
        ("a well-known sum", "a well known sum", True),
        ("What is 3 + 4?", "What is 3 - 4?", False),
        ("Take 1.5 cups", "Take 15 cups", False),
        ("Take 12 and 3", "Take 1 and 23", False),
        ("x > 3", "x < 3", False),
    ],
)
def test_math_keys_keep_numbers_and_operators(one, other, same):
    assert (normalise_math(one) == normalise_math(other)) is same


def test_countdown_keys_ignore_the_order_of_the_numbers():
    answer = '{"numbers":[3,1,2],"target":6}'
    one = canonical_key("rlvr", {"prompt": [], "answer": answer}, {}, "countdown")
    other = canonical_key("sft", {"messages": []}, {"nums": [2, 3, 1], "target": 6}, "countdown")
    assert one == other == "[6,[1,2,3]]"
    assert canonical_key("sft", {"messages": []}, {"nums": [2, 3], "target": 6}, "countdown") != one
    with pytest.raises(RecordError):
        canonical_key("rlvr", {"prompt": [], "answer": "12"}, {}, "countdown")


def test_other_keys():
    chat = {
        "messages": [{"role": "user", "content": "def f( x ):\n  return X"}, {"role": "assistant", "content": "no"}]
    }
    assert canonical_key("sft", chat, {}, "code") == "def f( x ): return X"
    assert canonical_key("text", {"text": "A b."}, {"user": 7}, "text") == "a b"
    assert canonical_key("text", {"text": "A b."}, {"user": 7}, "user") == "7"
    with pytest.raises(RecordError) as caught:
        canonical_key("text", {"text": "A"}, {"user": None}, "user")
    assert caught.value.reason == "missing_field"


def test_the_hash_of_a_key_names_its_normaliser():
    assert key_hash("a b", "text") == hashlib.sha256(b"lpt-key/1\0text\0a b").digest()
    assert key_hash("a b", "text") != key_hash("a b", "math")
