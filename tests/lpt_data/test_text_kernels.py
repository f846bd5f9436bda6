from __future__ import annotations

import random
import sys

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lpt_data.text import buffers, normal_form, tables, token_hashes, words


def same_tokens(texts: list[str]) -> None:
    """Equal tokens have equal hashes, different ones different hashes, and their number agrees."""
    hash_of: dict[str, int] = {}
    token_of: dict[int, str] = {}
    for text in texts:
        expected, got = words(text), token_hashes(text).tolist()
        assert len(expected) == len(got), repr(text)
        for token, value in zip(expected, got, strict=True):
            assert hash_of.setdefault(token, value) == value, repr((text, token))
            assert token_of.setdefault(value, token) == token, repr((text, token))


def test_words_are_pythons_for_spaced_scripts() -> None:
    assert words("Don't stop_it: x1, ÉTÉ!") == ["don", "t", "stop_it", "x1", "été"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("你好，world 世界", ["你", "好", "world", "世", "界"]),
        ("Pythonで書く", ["python", "で", "書", "く"]),
        ("ลบ ที่", ["ล", "บ", "ท", "\u0e35", "\u0e48"]),
        ("한국어 문장", ["한국어", "문장"]),
        ("مرحبا بالعالم", ["مرحبا", "بالعالم"]),
        ("🙂🙂", []),
    ],
)
def test_characters_of_unspaced_scripts_are_tokens(text: str, expected: list[str]) -> None:
    assert words(text) == expected
    same_tokens([text, *expected])


def test_every_code_point_is_read_as_python_reads_it() -> None:
    texts = [f"x{chr(c)}Y {chr(c)}" for c in range(sys.maxunicode + 1) if not 0xD800 <= c < 0xE000]
    joined = [" ".join(texts[i : i + 500]) for i in range(0, len(texts), 500)]
    same_tokens(joined)


def test_the_final_sigma_and_the_dotted_i_follow_python() -> None:
    assert words("ΟΔΟΣ ΣΟΦΟΣ") == ["οδος", "σοφος"]
    same_tokens(["ΟΔΟΣ οδος οδοσ", "Σ", "ΑΣ.Β ΑΣ. β", "İstanbul i stanbul", "xİ İİ"])


def test_random_unicode() -> None:
    rng = random.Random(5)
    pools = [
        lambda: chr(rng.randrange(32, 127)),
        lambda: chr(
            rng.choice([rng.randrange(0x80, 0x3000), rng.randrange(0x3000, 0xD800), rng.randrange(0xE000, 0x20000)])
        ),
        lambda: rng.choice(" \u0130ΣσςaB.\u0307ไทย世界ÀÉ"),
    ]
    same_tokens(["".join(rng.choice(pools)() for _ in range(rng.randrange(60))) for _ in range(3000)])


@given(st.lists(st.text(max_size=40), max_size=5))
@settings(max_examples=200, deadline=None)
def test_any_text(texts: list[str]) -> None:
    same_tokens(texts)


def hash_of(token: str, light: bool = False) -> int:
    """The hash as `lpt_data.text` words it: eight bytes at a time, what is left, the length, and a bit for light."""
    mask = 2**64 - 1

    def fold(h: int, w: int) -> int:
        h = (h ^ w) * 0xFF51AFD7ED558CCD & mask
        return h ^ (h >> 32)

    raw, h = token.encode(), 0x9E3779B97F4A7C15
    whole = len(raw) // 8 * 8
    for i in range(0, whole, 8):
        h = fold(h, int.from_bytes(raw[i : i + 8], "big"))
    h = fold(h, int.from_bytes(raw[whole:], "big")) + len(raw) * 0xD6E8FEB86659FD93 & mask
    h = (h ^ (h >> 33)) * 0xFF51AFD7ED558CCD & mask
    h = (h ^ (h >> 33)) * 0xC4CEB9FE1A85EC53 & mask
    return (h ^ (h >> 33)) & ~1 | light


@given(st.lists(st.sampled_from(["a", "Zz_9", "é", "É", "世", "ไ", "İ", "Ⱥ", " ", ".", "🙂", "12345678", "x" * 61])))
@settings(max_examples=200, deadline=None)
def test_the_hash_of_a_token_is_the_one_that_is_written_down(pieces: list[str]) -> None:
    text = "".join(pieces) * 3
    expected = [hash_of(word, "\u0e01" <= word <= "\u0e5b") for word in words(text)]
    assert token_hashes(text).tolist() == expected


def test_long_tokens_that_differ_in_one_place_differ() -> None:
    base = "a" * 50
    same_tokens([base[:i] + "b" + base[i + 1 :] for i in range(50)] + ["a" * n for n in range(1, 40)])


def test_broken_utf8_is_read_to_its_end_and_no_further() -> None:
    from lpt_data.text import tokens_of

    table = tables()
    out = np.empty(64, np.uint64)
    for raw in (b"\xff\xfe", b"abc \xe4\xb8", b"\xf4\xbf\xbf\xbf x", b"\xf7", b"\x80\x80"):
        data = np.frombuffer(raw + b"tail", np.uint8)
        count, chars = tokens_of(data, 0, len(raw), table.ascii, table.unicode, out)
        assert 0 <= count <= len(raw)
        assert chars <= len(raw)


def test_sliced_and_null_arrays_keep_their_rows() -> None:
    array = pa.array(["zero", "one two", None, "drei"], pa.large_string()).slice(1)
    offsets, data = buffers(array)
    assert [bytes(data[a:b]) for a, b in zip(offsets, offsets[1:], strict=False)] == [b"one two", b"", b"drei"]


def test_the_normal_form_keeps_what_tells_formulas_apart() -> None:
    assert normal_form("  Two\t\nWords ") == "two words"
    assert normal_form("2 + 2") != normal_form("2 - 2")
