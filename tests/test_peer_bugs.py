"""The table of other trainers' faults names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_every_test_of_the_table_exists():
    text = (ROOT / "docs" / "peer_bugs.md").read_text()
    named = re.findall(r"`((?:\w+/)?test_\w+\.py)::(\w+)`", text)
    rows = [line for line in text.splitlines() if line.startswith("| ") and "::" in line]
    assert len(rows) >= 25
    for file, name in named:
        assert f"def {name}(" in (ROOT / "tests" / "lpt_train" / file).read_text(), f"{file}::{name}"


def test_a_row_that_only_a_gpu_can_show_says_so():
    text = (ROOT / "docs" / "peer_bugs.md").read_text()
    for line in (line for line in text.splitlines() if line.startswith("| ") and "::" in line):
        files = re.findall(r"`((?:\w+/)?test_\w+\.py)::", line)
        assert all("gpu" in file for file in files) == ("(on a GPU" in line), line
