"""Rows of one plain shape are not looked at twice, and what is written does not depend on that."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from tests_support import keep_all, remove_where

from lpt_data.columns import Shape, find_columns
from lpt_data.config import SplitConfig
from lpt_data.dataset import Dataset
from lpt_data.stage import run_stage
from manifests.catalog import Catalog


@pytest.mark.parametrize(
    "rows",
    [
        [{"text": "a", "n": 1, "x": 0.5, "ok": True}, {"text": "b", "n": -(2**63), "x": -1.5, "ok": False}],
        [{"text": "a"}],
    ],
)
def test_one_plain_shape_is_what_a_second_look_finds(rows: list[dict[str, Any]]) -> None:
    shape = Shape()
    shape.see(rows[:1])
    shape.see([])
    shape.see(rows[1:])
    found = shape.columns()
    assert found is not None
    assert found == find_columns(rows)


@pytest.mark.parametrize(
    "rows",
    [
        [{"text": "a", "n": 1}, {"n": 1, "text": "a"}],  # another order
        [{"text": "a", "n": 1}, {"text": "a"}],
        [{"text": "a", "n": 1}, {"text": "a", "n": None}],
        [{"text": "a", "n": 1}, {"text": "a", "n": 1.0}],
        [{"text": "a", "n": 1}, {"text": "a", "n": True}],
        [{"text": "a", "n": 1}, {"text": "a", "n": 2**63}],
        [{"text": "a", "n": 1.5}, {"text": "a", "n": 1.8446744073709552e19}],  # may be an integer that was rounded
        [{"text": "a", "n": [1]}],
        [{"text": "a", "n": {"b": 1}}],
        [{"text": "a", "n": None}],
        [],
    ],
)
@pytest.mark.parametrize("at_once", [True, False])
def test_any_other_shape_is_looked_at_again(rows: list[dict[str, Any]], at_once: bool) -> None:
    shape = Shape()
    for part in [rows] if at_once else [[row] for row in rows]:
        shape.see(part)
    assert shape.columns() is None


ROWS: list[dict[str, Any]] = [{"text": f"row {i}", "n": i, "x": i / 4, "ok": i % 2 == 0} for i in range(30)]


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_the_same_bytes_with_and_without_the_second_look(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS[:20]) + "{broken\n" + json.dumps(ROWS[20]) + "\n")
    written = []
    for number in range(2):
        dataset = Dataset.open([str(path)])

        def decide(data: Dataset, config: Any, progress: Any, number: int = number) -> Any:
            result = remove_where(lambda text: text.endswith("7"))(data, config, progress)
            assert data.uniform is not None
            if number:
                data.uniform = None  # as after a kill, when what was decided is read back
            return result

        out = tmp_path / f"out{number}.{suffix}"
        run_stage("test", dataset, SplitConfig(), decide, output=out, catalog=Catalog.open(tmp_path / f"lpt{number}"))
        written.append(out.read_bytes())
    assert written[0] == written[1]
    if suffix == "parquet":
        kept = [row for row in ROWS[:21] if not row["text"].endswith("7")]
        assert pq.read_table(tmp_path / "out0.parquet").to_pylist() == kept


def test_shapes_are_watched_over_all_files(tmp_path: Path) -> None:
    for name, rows in (("a", [{"text": "one", "n": 1}]), ("b", [{"text": "two", "n": "x"}])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    dataset = Dataset.open([str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")])
    out = tmp_path / "out.parquet"
    run_stage("test", dataset, SplitConfig(), keep_all, output=out, catalog=Catalog.open(tmp_path / "lpt"))
    assert dataset.uniform is None
    assert pq.read_table(out)["n"].to_pylist() == ["1", '"x"']
