from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from manifests import decisions
from manifests.errors import BadInputError

ROWS = {
    "row": np.array([7, 2], np.int64),
    "record_id": np.stack([np.full(32, 171, np.uint8), np.zeros(32, np.uint8)]),
    "action": ["remove", "quarantine"],
    "reason": ["near_duplicate", "invalid_json"],
    "witness_row": [1, None],
    "score": [0.9, None],
}


def test_rows_are_ordered_typed_and_ids_are_hex():
    table = decisions.table(ROWS)
    assert table.schema == decisions.SCHEMA
    assert table["row"].to_pylist() == [2, 7]
    assert table["record_id"].to_pylist() == [None, "ab" * 32]  # a row that was no record has no id
    assert table["witness_id"].to_pylist() == [None, None]
    assert decisions.reasons(table, "remove") == {"near_duplicate": 1}


def test_they_come_back_as_they_were_written(tmp_path):
    table = decisions.concat([decisions.table(ROWS), decisions.empty()])
    decisions.write(tmp_path / "s.parquet", table)
    assert decisions.read(tmp_path / "s.parquet").equals(table)


def test_other_columns_are_refused():
    with pytest.raises(TypeError):
        decisions.table({**ROWS, "why": ["x", "y"]})
    with pytest.raises(TypeError):
        decisions.write("unused", pa.table({"row": [1]}))


def test_a_missing_or_foreign_file_is_bad_input(tmp_path):
    (tmp_path / "text").write_text("no parquet")
    for name in ("absent", "text"):
        with pytest.raises(BadInputError):
            decisions.read(tmp_path / name)
