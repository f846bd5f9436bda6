"""Every stage command that writes ends with the head of the log; a dry run, which writes nothing, does not."""

import json
import subprocess
import sys
from pathlib import Path

LPT = Path(sys.executable).parent / "lpt"


def said(folder, *arguments):
    ran = subprocess.run([LPT, *arguments], cwd=folder, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    return ran.stderr


def test_drop_ends_with_the_head_of_the_log(tmp_path):
    row = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    command = (
        "data",
        "drop",
        "rows.jsonl",
        "--contract",
        "sft",
        "--check",
        "sft.turns.empty_share",
        "--out",
        "o.jsonl",
    )
    assert "catalog head" not in said(tmp_path, *command, "--dry-run")
    assert "catalog head" in said(tmp_path, *command).splitlines()[-1]
