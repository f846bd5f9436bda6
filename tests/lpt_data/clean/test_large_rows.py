"""Megabytes in one row, of the kinds that make careless patterns quadratic, take seconds and no more.

The bounds are generous: a quadratic pattern would need hours.
"""

import time

import pytest

from lpt_data.clean import RULES, clean_text, make_plan
from lpt_data.clean.outcome import Document
from lpt_data.config import CleanConfig

SIZE = 2_000_000
ROWS = {
    "letters": "a",
    "words": "word ",
    "digits": "1",
    "dotted": "1.",
    "hyphens": "1-",
    "blanks": " ",
    "blanks and a letter": " " * 1000 + "x",
    "line feeds": "\n",
    "carriage returns": "\r",
    "at signs": "a@",
    "long locals": "a" * 80 + "@",
    "domains": "a@" + "b." * 40,
    "plus signs": "+1 ",
    "brackets": "(555) ",
    "colons": "2001:",
    "tags": "<p ",
    "scripts": "<script>",
    "comments": "<!--",
    "entities": "&amp",
    "back-ticks": "`<p>",
    "tokens": "eyJ",
    "token prefixes": "sk-",
    "github": "ghp_",
    "keys": "-----BEGIN PRIVATE KEY-----",
    "capitals": "AB12",
    "escapes": "\x1b[",
    "mojibake": "Ã©",
    "accents": "é",
    "combining": "e\u0301",
    "han": "中",
    "thai": "ก",
    "notices": "javascript ",
}


@pytest.mark.parametrize("name", ROWS)
def test_no_rule_is_quadratic(name):
    unit = ROWS[name]
    doc = Document(unit * (SIZE // len(unit.encode())))
    slow = {}
    for rule in RULES.values():
        if rule.needs:  # a model of languages looks at the start of the text alone
            continue
        start = time.process_time()
        rule.apply(doc, rule.limits)
        slow[rule.name] = time.process_time() - start
    assert max(slow.values()) < 60, sorted(slow.items(), key=lambda item: -item[1])[:3]


@pytest.mark.parametrize("name", ["at signs", "tags", "accents", "words"])
def test_ten_megabytes_pass_through_every_rule(name):
    text = ROWS[name] * (10_000_000 // len(ROWS[name].encode()))
    start = time.process_time()
    clean_text(text, make_plan(CleanConfig(limits={"gopher.words": {"min": 0, "max": 10**9}})))
    assert time.process_time() - start < 120
