"""Without the trainer's packages: the data side works, a training command says what to install."""

import subprocess
import sys

WITHOUT_TORCH = """
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "transformers", "peft", "safetensors", "tokenizers"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hidden())
from cli.main import run
sys.argv = ["lpt", *sys.argv[1:]]
run()
"""


def lpt(*arguments, cwd):
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, *arguments], cwd=cwd, capture_output=True, text=True, timeout=120
    )


def test_the_data_side_runs_without_torch(tmp_path):
    made = lpt("data", "generate", "countdown", "--n", "40", "--numbers", "2", "--out", "p.jsonl", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    admitted = lpt("admit", "sums", "--contract", "rlvr", "--train", "p.jsonl", "--key", "countdown", cwd=tmp_path)
    assert admitted.returncode == 0, admitted.stderr


def test_a_training_command_names_the_extra(tmp_path):
    lpt("data", "generate", "countdown", "--n", "40", "--numbers", "2", "--out", "p.jsonl", cwd=tmp_path)
    lpt("admit", "sums", "--contract", "rlvr", "--train", "p.jsonl", "--key", "countdown", cwd=tmp_path)
    ran = lpt("eval", "--admitted", "sums:train", "--model", "tiny", cwd=tmp_path)
    assert ran.returncode == 2
    assert "pip install 'lpt[train]'" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_an_audit_with_a_model_names_the_extra(tmp_path):
    made = lpt("data", "generate", "countdown", "--n", "40", "--numbers", "2", "--out", "p.jsonl", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    ran = lpt("data", "audit", "p.jsonl", "--contract", "rlvr", "--model", "tiny", cwd=tmp_path)
    assert ran.returncode == 2
    assert "pip install 'lpt[train]'" in ran.stderr
    assert "Traceback" not in ran.stderr
