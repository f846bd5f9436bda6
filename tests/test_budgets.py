"""The shape of the code, held by numbers: short modules, short functions, no logic in commands, no towers."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("manifests", "lpt_data", "lpt_train", "cli")
FILES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
LONGEST_MODULE, LONGEST_FUNCTION, LONGEST_LOOP = 420, 70, 120
# The one flat loop of each algorithm reads top to bottom and may be longer.
LOOPS = {(f"lpt_train/{name}.py", "train") for name in ("sft", "preference", "kto", "reward", "grpo")}


def functions(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_modules_and_functions_stay_short(path):
    assert len(path.read_text().splitlines()) <= LONGEST_MODULE
    name = str(path.relative_to(ROOT))
    for node in functions(path):
        limit = LONGEST_LOOP if (name, node.name) in LOOPS else LONGEST_FUNCTION
        assert node.end_lineno - node.lineno + 1 <= limit, f"{name}: {node.name}"


def test_only_the_command_line_prints_and_exits():
    for path in FILES:
        if path.parent.name == "cli":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert called not in ("print", "sys.exit", "exit", "typer.Exit"), f"{path}:{node.lineno}"


def test_no_trainer_tower():
    """No class of lpt_train inherits from another of ours, errors and protocols apart."""
    ours = {
        node.name
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and path.is_relative_to(ROOT / "lpt_train")
    }
    for path in FILES:
        if not path.is_relative_to(ROOT / "lpt_train"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.endswith(("Error", "Optim")):
                assert not {ast.unparse(base) for base in node.bases} & ours, f"{path}: {node.name}"


def test_configs_have_at_most_25_fields():
    seen = 0
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and node.name.endswith(("Config", "Options", "Optim", "Lora")):
                seen += 1
                assert sum(isinstance(item, ast.AnnAssign) for item in node.body) <= 25, node.name
    assert seen >= 4
