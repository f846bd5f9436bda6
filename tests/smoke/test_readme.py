"""The five-minute tour of the README, run word for word in one empty folder."""

import os
import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parent.parent.parent / "README.md"


def blocks(language: str = "sh") -> list[str]:
    tour = README.read_text("utf-8").split("<!-- tour", 1)[1].split("\n## ", 1)[0]
    return re.findall(rf"^```{language}\n(.*?)^```", tour, re.MULTILINE | re.DOTALL)


def test_the_tour_has_the_main_commands():
    text = "".join(blocks())
    for command in ("data dedup", "data split", "data audit", "admit", "train grpo", "eval", "sql", "manifest verify"):
        assert f"lpt {command}" in text


def test_every_layout_is_in_the_readme_and_in_the_help():
    from cli.options import Layout
    from lpt_data.layouts import LAYOUTS

    table = README.read_text("utf-8").split("\n## What it reads", 1)[1].split("\n## ", 1)[0]
    for name in LAYOUTS:
        assert name in table
        assert name in Layout.__metadata__[0].help


def test_every_command_of_the_tour_runs(tmp_path):
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
    }
    environment.pop("LPT_CATALOG", None)
    script = "set -eux\n" + "".join(blocks())
    for command in (["bash", "-c", script], [sys.executable, "-c", *blocks("python")]):
        ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280)
        assert ran.returncode == 0, ran.stderr[-4000:]
