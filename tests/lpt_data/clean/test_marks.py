"""What a mark misses no rule finds: each marked rule on texts made of what it looks for, and of what comes close."""

from __future__ import annotations

import random

import pytest
from ftfy.badness import MOJIBAKE_CATEGORIES

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
    assert asked <= {"unicode.nfc"}


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
