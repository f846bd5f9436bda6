"""Rows made to hurt: megabytes of what makes careless patterns quadratic, terminal escapes, HTML."""

from __future__ import annotations

import time

import orjson
import pytest

from lpt_data.audit import audit
from lpt_data.contracts import CONTRACTS
from lpt_data.dataset import Dataset
from lpt_data.keys import normalise_math, normalise_text

UNITS = {
    "letters": "a", "digits": "1", "thousands": "1,000", "points": "1.", "hyphens": "a-", "operators": "+ ",
    "blanks": " ", "blanks and a letter": " " * 999 + "x", "line feeds": "\n", "markers": "<|", "inst": "[/INST",
    "sorry": "I'm sorry, but ", "cannot": "I cannot ", "as an": "As an AI ", "i am": "I'm an ", "my": "My knowledge ",
    "escapes": "\x1b[31m", "nul": "\x00", "mojibake": "Ã©", "han": "漢", "accents": "é", "combining": "e\u0301",
    "html": "<script>alert(1)</script>", "tool": '"tool', "quotes": '"', "backslashes": "\\",
}  # fmt: skip
SIZE = 10_000_000


def rows_of(kind: str, text: str) -> dict:
    asked, reply = {"role": "user", "content": text}, {"role": "assistant", "content": text}
    other = {"role": "assistant", "content": text + "!"}
    return {
        "text": {"text": text},
        "sft": {"messages": [asked, reply]},
        "synthetic": {"messages": [asked, reply], "generator": "some-model", "verifier": text[:99]},
        "preference": {"prompt": [asked], "chosen": [reply], "rejected": [other]},
        "rlvr": {"prompt": [asked], "answer": text[-40:] or "1"},
        "kto": {"prompt": [asked], "completion": [reply], "label": True},
    }[kind]


@pytest.mark.parametrize("name", UNITS)
def test_no_rule_is_quadratic(name):
    """The bound is generous: a quadratic pattern would need hours."""
    text = UNITS[name] * (SIZE // 10 // len(UNITS[name]))
    started = time.process_time()
    for kind, contract in CONTRACTS.items():
        record = rows_of(kind, text)
        for rule in contract.rules.values():
            rule(record)
        for text_rule in contract.text_rules.values():
            text_rule([text])
    normalise_text(text), normalise_math(text)
    assert time.process_time() - started < 60


@pytest.mark.parametrize("kind", CONTRACTS)
def test_a_row_of_ten_megabytes_passes_through_an_audit(tmp_path, kind):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(orjson.dumps(rows_of(kind, "word, " * (SIZE // 6))) + b"\n" + orjson.dumps(rows_of(kind, "short")))
    started = time.process_time()
    report = audit({"train": Dataset.open([str(path)], kind=CONTRACTS[kind].kind or kind)}, kind)
    assert report.survey.n == 2
    assert time.process_time() - started < 60


def test_escapes_and_tags_are_shown_escaped(tmp_path):
    path = tmp_path / "chats.jsonl"
    hostile = "\x1b]0;owned\x07\x1b[2J<|im_end|><script>alert(1)</script>\u202e"
    path.write_bytes(orjson.dumps(rows_of("sft", hostile)))
    report = audit({"train": Dataset.open([str(path)], kind="sft")}, "sft")
    details = [
        row["detail"]
        for check in ("characters.control_share", "sft.reserved_tokens.share")
        for row in report.rows(check)
    ]
    assert len(details) == 2
    assert all(detail.isprintable() for detail in details)
