"""The arrow at run time: what a command may load before it is asked to do anything."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "numba", "polars", "pyarrow", "duckdb")


def loaded_after(statement: str) -> set[str]:
    """The heavy modules in sys.modules after `statement` ran in a fresh interpreter."""
    code = f"import sys\n{statement}\nprint(*(m for m in {HEAVY!r} if m in sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(ran.stdout.split())


def test_the_command_line_loads_nothing_heavy_before_a_command_runs():
    assert loaded_after("import cli.main") == set()


def test_help_loads_nothing_heavy():
    asked = "import sys; sys.argv = ['lpt', '--help']\nimport contextlib, io, cli.main\n"
    asked += "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit): cli.main.run()"
    assert loaded_after(asked) == set()


@pytest.mark.parametrize("package", ["manifests", "lpt_data", "lpt_train", "lpt_data.config", "lpt_train.config"])
def test_packages_and_configs_are_free_to_import(package):
    assert loaded_after(f"import {package}") == set()


@pytest.mark.parametrize(
    "module",
    ["lpt_data.stage", "lpt_data.dedup", "lpt_data.admit", "lpt_data.audit", "manifests.catalog", "manifests.sql"],
)
def test_the_data_side_and_the_manifests_load_no_tensor_library(module):
    assert loaded_after(f"import {module}") & {"torch", "transformers"} == set()


def test_the_probe_itself_can_fail():
    assert "numba" in loaded_after("import numba")
