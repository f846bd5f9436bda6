"""Texts folded as columns of bytes are what Python's own functions make of them one by one."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from lpt_data.folding import spaced
from lpt_data.keys import key_hashes, key_of, normalise_math, normalise_text, normalised

SHARED = Path(__file__).parents[2].parent / "shared" / "data"
DEFINITIONS = {"text": normalise_text, "math": normalise_math}
ALPHABET = "ab1 2,.-+*/=<>%^  \t\n\x1c\x0b_$'\"A\x7f\x00" + "é÷−¼٣ﬁ　İẞʼ…—।ก\u0300"


def random_texts(rng: random.Random, alphabet: str) -> list[str]:
    return ["".join(rng.choices(alphabet, k=rng.randrange(40))) for _ in range(20_000)]


@pytest.mark.parametrize("normaliser", DEFINITIONS)
@pytest.mark.parametrize("size", [len(ALPHABET), 33])  # with and without characters beyond ASCII
def test_keys_of_a_batch_are_those_of_its_texts(normaliser, size):
    texts = random_texts(random.Random(size), ALPHABET[:size])
    expected = [DEFINITIONS[normaliser](text).encode() for text in texts]
    assert normalised(texts, normaliser) == expected
    assert [normalised([text], normaliser)[0] for text in texts[:500]] == expected[:500]


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("It costs 1,234,567.50!", "it costs 1234567.50"),
        ("1,23 and 12,3456 and 1,2345", "1 23 and 12 3456 and 1 2345"),
        ("a.b .5 5. 5.5", "a b 5 5 5.5"),
        ("well-known x - 3 = -y", "well known x-3=-y"),
        (" + 2 ", "+2"),
        ("3 - - 2", "3--2"),
        ("", ""),
        (",.-", "-"),
    ],
)
def test_hand_worked_keys(text, key):
    assert normalise_math(text) == key
    assert normalised([text] * 20, "math") == [key.encode()] * 20


def test_white_space_alone():
    texts = random_texts(random.Random(4), "ab \t\n\r\x0b\x1f\u3000\u00a0é")
    assert spaced(texts) == [" ".join(text.split()).encode() for text in texts]


def test_hashes_of_a_batch_are_those_of_its_rows():
    rows = [{"prompt": [{"role": "user", "content": f"{n},000 + {n}?"}], "answer": "1"} for n in range(50)]
    beside = [{"group": str(n)} for n in range(50)]
    for normaliser in ("text", "math", "code", "group"):
        expected = [key_of("rlvr", row, extra, normaliser) for row, extra in zip(rows, beside, strict=True)]
        assert key_hashes("rlvr", rows, beside, normaliser) == expected


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data are not here")
def test_keys_of_real_texts():
    texts = [json.loads(line)["text"] for line in (SHARED / "tldr" / "tldr.jsonl").open(encoding="utf-8")]
    texts += [json.loads(line)["text"] for line in (SHARED / "eips" / "eips.jsonl").open(encoding="utf-8")][:200]
    texts += [json.loads(line)["question"] for line in (SHARED / "gsm8k" / "train.jsonl").open(encoding="utf-8")]
    for normaliser, define in DEFINITIONS.items():
        assert normalised(texts, normaliser) == [define(text).encode() for text in texts]
