"""`lpt data dedup --dry-run` foretells and writes nothing; a refusal says what would do."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from cli.main import run; run()", "data", "dedup", "in.jsonl", "--out", "o.jsonl"]
    environment = {"PYTHONPATH": str(Path(__file__).parents[2]), "PATH": "/usr/bin:/bin", "HOME": str(folder)}
    return subprocess.run(
        [*command, *options], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = [{"text": " ".join(f"w{i * 20 + k}" for k in range(30))} for i in range(300)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows + rows[:10]))
    return tmp_path


def test_a_dry_run_foretells_and_writes_nothing(folder: Path) -> None:
    ran = run(folder, "--dry-run", "--json")
    assert ran.returncode == 0, ran.stderr
    body = json.loads(ran.stdout)
    assert body["dry_run"] is True
    assert (body["rows"], body["rows_are_exact"], body["sample_rows"]) == (310, True, 310)
    assert body["candidates_between"] == [body["candidates"]] * 2
    assert body["spilled_bytes"] == 0
    assert 0 < body["seconds"] < 60
    assert body["needed_bytes"] < body["cap_bytes"]
    assert "catalog head" not in ran.stderr
    assert [path.name for path in folder.iterdir() if not path.name.startswith(".")] == ["in.jsonl"]
    said = run(folder, "--dry-run").stderr
    assert "smallest cap that works" in said
    assert "nothing was written" in said


def test_a_cap_below_the_smallest_is_refused_and_foretold(folder: Path) -> None:
    said = run(folder, "--dry-run", "--memory", "50MB")
    assert said.returncode == 0
    assert "the cap is too small" in said.stderr
    ran = run(folder, "--memory", "50MB")
    assert ran.returncode == 5
    assert "50 MB (--memory)" in ran.stderr
    assert "next: --memory " in ran.stderr
    assert not (folder / "o.jsonl").exists()
