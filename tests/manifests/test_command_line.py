"""The command in a record: as typed, within bounds, and always text that a record can hold."""

from __future__ import annotations

import sys

import orjson
import pytest

from manifests.command_line import LONGEST, MOST, command_line


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (
            ["/opt/venv/bin/lpt", "data", "dedup", "a b.jsonl", "--out", "../o.jsonl"],
            ["lpt", "data", "dedup", "a b.jsonl", "--out", "../o.jsonl"],
        ),
        (["train.py"], ["train.py"]),
        ([""], [""]),
        ([], [""]),
        (["lpt", "na\udcefve.jsonl"], ["lpt", "na\ufffdve.jsonl"]),
        (["lpt", "x" * (LONGEST + 9)], ["lpt", "x" * LONGEST]),
    ],
)
def test_what_was_typed(monkeypatch, argv, said):
    monkeypatch.setattr(sys, "argv", argv)
    assert command_line() == said
    assert orjson.loads(orjson.dumps(command_line())) == said


def test_a_glob_of_a_million_files_is_cut(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["lpt", *map(str, range(10**6))])
    assert len(command_line()) == MOST + 1
