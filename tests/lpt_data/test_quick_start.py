from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def in_a_new_process(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_neither_pandas_nor_scipy_is_loaded_and_kernels_run() -> None:
    code = (
        "import sys; from lpt_data.quick_start import leave_out_unused; leave_out_unused(); "
        "from lpt_data.text import token_hashes; print(len(token_hashes('one two three'))); "
        "print({'pandas', 'scipy'} & set(sys.modules), sum('lpt' in type(f).__module__ for f in sys.meta_path))"
    )
    assert in_a_new_process(code) == "3\nset() 0"


def test_a_table_can_still_become_a_data_frame() -> None:
    pytest.importorskip("pandas")
    code = (
        "from lpt_data.quick_start import leave_out_unused; leave_out_unused(); "
        "import pyarrow as pa; print(pa.table({'a': [1, 2]}).to_pandas().shape)"
    )
    assert in_a_new_process(code) == "(2, 1)"
