"""Commands that write end with the head of the log, those that only look say nothing of it."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from cli.main import app
from manifests.catalog import Catalog


def test_commands_that_write_print_the_head(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LPT_CATALOG", raising=False)
    rows = [{"question": f"What is {n} + 1?", "answer": f"#### {n + 1}"} for n in range(100, 130)]
    (tmp_path / "raw.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def run(line: str) -> bool:
        ran = CliRunner().invoke(app, line.split(), catch_exceptions=False)
        assert ran.exit_code in (0, 3), ran.output
        return f"catalog head {Catalog.open().head}" in ran.stderr

    assert not run("data dedup raw.jsonl --layout gsm8k --method exact --out clean.jsonl --dry-run")
    assert run("data dedup raw.jsonl --layout gsm8k --method exact --out clean.jsonl")
    assert run("data split clean.jsonl --layout gsm8k --key math --test 5 --out splits --json")
    assert run("admit set --contract rlvr --train splits/train.jsonl --test splits/test.jsonl")
    assert not run("manifest list")
