"""What a mark misses no rule finds: each marked rule on texts made of what it looks for, and of what comes close."""

from __future__ import annotations

import random
import re
import unicodedata

import numpy as np
import pytest
from ftfy.badness import MOJIBAKE_CATEGORIES

from lpt_data.clean import marks, measure, words
from lpt_data.clean.measure import as_bytes, tidied
from lpt_data.clean.outcome import KEEP, Document
from lpt_data.clean.table import RULES

A = "a" * 90  # tokens are put together here, so that no scanner of this repository takes them for real
PIECES = [
    "Ã©", "â€œ", "Â ", "œ ", "Œx", "à²", "√±", "вЂ", "\x85", "\x92", "’", "“", "”", "…”", "“—", "é", "漢字", "ไทย",
    "，", "coo\u212aie", "cookie policy", "COOKIES", "JavaScript disabled", "privacy policy", "Terms of Use",
    "reserved", "All rights reserved", "Lorem Ipsum", "term", "looking", "AKIA" + "QYLPMN5HXZ3VTR2D", 
    "ASIA" + "QYLPMN5HXZ3VTR2D",
    "ghp" + "_" + A[:36], "github_pat" + "_" + A[:82], "glpat" + "-" + A[:20], "xoxb" + "-123-" + A[:12],
    "AIza" + A[:35], "sk_live" + "_" + A[:24], "rk_live" + "_" + A[:24], "sk" + "-" + A[:20] + "T3BlbkFJ" + A[:20],
    "sk" + "-ant-api03-" + A, "hf" + "_" + A[:34], "npm" + "_" + A[:36],
    "eyJ" + A[:10] + ".eyJ" + A[:10] + "." + A[:20],
    "-----BEGIN RSA PRIVATE KEY-----\n" + A + "\n-----END RSA PRIVATE KEY-----", "task-force", "risk-",
    "https://hooks.slack.com/services/" + "T12345678/B12345678/" + A[:24], "4111 1111 1111 1111", "5500005555555559",
    "1 4111111111111111", "x4111111111111111", "DE89 3704 0044 0532 0130 00", "GB29NWBK60161331926819", "8.8.8.8",
    "+49 228 7301234", "+1 (555) 234-5678", "(555) 234-5678", "555.234.5678", "1555-234-5678", "v8.8.8.8", "1.8.8.8.8",
    "2001:4860:4860::8888", "ann@uni.org", "git@github.com", "&amp;", "<p>x</p>", "<!-- c -->", "`<p>`", "\x00",
    "\x1b[31m", "\u200b", "\u00ad", "\ufeff", "\u202e", "e\u0301", "\r\n", "\r", "\n", "\n\n\n\n", "  \n", "\t\n", " ",
    "word", "Word.", "...", "#", "-", "1", "12", "123", "1234",
]  # fmt: skip
MARKED = {name: rule for name, rule in RULES.items() if rule.marks}


def texts(seed: int, count: int) -> list[str]:
    rng = random.Random(seed)
    odd = "".join(MOJIBAKE_CATEGORIES.values())
    joins = ["", " ", "\n", "x", "-", ".", "é"]
    made = []
    for _ in range(count):
        pieces = [rng.choice(PIECES) if rng.random() < 0.8 else rng.choice(odd) for _ in range(rng.randrange(1, 8))]
        made.append("".join(piece + rng.choice(joins) for piece in pieces))
    return made


def test_what_a_mark_misses_no_rule_finds():
    found = set()
    for text in texts(1, 12_000):
        doc = Document(text)
        for name, rule in MARKED.items():
            if name in found and doc.marks & rule.marks:
                continue  # it may speak, and is known to
            if rule.apply(doc, rule.limits) is not KEEP:
                found.add(name)
                assert doc.marks & rule.marks, (name, text)
    assert found == set(MARKED)


USUAL = [
    "plain words.",
    "a - b, c: d; e/f (g) _h_",
    "It\u2019s \u201cfine\u201d \u2014 really\u2026",
    "1,234 and 5.6\n\nv1.2.3",
    "漢字，日本語。",
]


@pytest.mark.parametrize("text", USUAL)
def test_usual_text_is_asked_of_few_rules(text):
    asked = {name for name, rule in MARKED.items() if Document(text).marks & rule.marks}
    assert not asked


def slowly(text: str) -> str:
    """The definition of tidy white space, one step after the other."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    text = "\n".join(line.rstrip(" \t") for line in text.split("\n"))
    while "\n\n\n\n" in text:
        text = text.replace("\n\n\n\n", "\n\n\n")
    text = text.lstrip("\n")
    body = text.rstrip("\n")
    return body + text[len(body) : len(body) + 1]


def test_white_space_in_one_pass_is_white_space_step_by_step():
    rng = random.Random(2)
    for _ in range(5000):
        text = "".join(rng.choices("ab \t\n\n\r\u3000é\f", k=rng.randrange(24)))
        assert tidied(as_bytes(text)).tobytes().decode() == slowly(text), repr(text)


def _bytes(text: str) -> np.ndarray:
    return np.frombuffer(text.encode(), np.uint8)


def test_windows_find_what_a_look_at_every_byte_finds():
    rng = random.Random(3)
    for text in texts(2, 6_000):
        text = "".join(part + "x" * rng.choice([0, 0, 1, 7, 40, 50]) for part in re.split("( )", text)) * 2
        assert marks._marks(_bytes(text), marks._KINDS, True) == marks._marks(_bytes(text), marks._KINDS, False), text


@pytest.mark.parametrize("number", ["1" * 70 + "-2345", "212-555-1234", "4" + "1" * 15, "GB29NWBK60161331926819"])
@pytest.mark.parametrize("at", range(40, 70))
def test_a_number_across_the_end_of_the_windows_is_seen(number, at):
    for behind in ("", " " + "z" * 30):
        data = _bytes("y" * (at - 1) + " " + number + behind)
        assert marks._marks(data, marks._KINDS, True) == marks._marks(data, marks._KINDS, False) != 0


def test_what_nfc_may_change_or_join_is_marked():
    """Every code point that is no letter by itself in NFC, has a combining class, or is the second of a pair."""
    seconds = {chr(v) for v in range(0x1161, 0x1176)} | {chr(t) for t in range(0x11A8, 0x11C3)}  # of Hangul syllables
    for char in map(chr, range(0x110000)):
        parts = unicodedata.decomposition(char).split()
        if len(parts) == 2 and not parts[0].startswith("<"):
            seconds.add(chr(int(parts[1], 16)))
    for char in (chr(code) for code in range(0x80, 0x110000) if not 0xD800 <= code < 0xE000):
        if char in seconds or unicodedata.combining(char) or not unicodedata.is_normalized("NFC", char):
            assert marks.marks(_bytes("a" + char)) & marks.UNCOMPOSED, hex(ord(char))


def test_the_words_of_a_text_are_those_of_its_lines():
    """Lines are short enough to be read byte by byte, the text is read by windows."""
    rng = random.Random(4)
    spaces = [" ", " ", " ", "  ", "\t", "\x1c", "\v", "\r", "\u3000", "\x85"]
    odd = ["the", "to", "be-of", "{x}", "#1", "...", "a...", "....b", "end.", "\u2026", "\u2022", "- x", "é", "中文字",
           "ภาษา", "x" * 9, "word" * 4, "and/that", "1st", "_", "'have'", "w\u0130th", "with"]  # fmt: skip
    for _ in range(1_500):
        lines = []
        for _ in range(rng.randrange(1, 12)):
            line = "".join(rng.choice(odd) + rng.choice(spaces) for _ in range(rng.randrange(0, 9)))
            lines.append(line.encode()[:60].decode("utf-8", "ignore"))
        text = "\n".join(lines)
        facts, hashes, sizes = measure.measure(_bytes(text))
        each = [measure.measure(_bytes(line)) for line in lines]
        assert hashes.tolist() == [word for one in each for word in one[1].tolist()], text
        assert sizes.tolist() == [size for one in each for size in one[2].tolist()]
        for name in ("word_chars", "hashes", "ellipses", "lines", "bullet_lines", "ellipsis_lines", "terminal_lines",
                     "short_lines", "sentences", "curly_brackets", "unspaced_words"):  # fmt: skip
            assert getattr(facts, name) == sum(getattr(one[0], name) for one in each), (name, text)
        assert facts.chars == len(text)
        assert facts.line_feeds == len(lines) - 1
        assert facts.stop_words == len(set(re.findall(r"[^\W\d_]+", text.lower())) & set(words.STOP_WORDS))
