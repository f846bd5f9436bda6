"""A row of any layout is followed through a split to the place where it was admitted."""

from __future__ import annotations

import orjson
import pytest

from lpt_data.admit import admit
from lpt_data.config import DedupConfig, SplitConfig
from lpt_data.dataset import Dataset
from lpt_data.dedup import decide
from lpt_data.lineage import identify
from lpt_data.split import split
from lpt_data.stage import run_stage
from manifests.canon import record_id
from manifests.catalog import Catalog
from manifests.why import why

GSM8K = [{"question": f"What is {n} + 1?", "answer": f"#### {n + 1}"} for n in range(30)]
WEB = [{"body": f"text number {n}", "text": n} for n in range(30)]


@pytest.mark.parametrize(("rows", "kind", "column"), [(GSM8K, "sft", "text"), (WEB, "text", "body")])
def test_a_kept_row_is_found_in_the_split_that_it_went_to(tmp_path, rows, kind, column):
    catalog, raw = Catalog.open(tmp_path / ".lpt"), tmp_path / "raw.jsonl"
    raw.write_bytes(b"\n{broken\n" + b"".join(orjson.dumps(row) + b"\n" for row in rows))
    data = Dataset.open([str(raw)], kind=kind, text_column=column)
    body = split(data, SplitConfig(test=5), out=tmp_path / "out", catalog=catalog).body
    files = {name: [str(tmp_path / "out" / f"{name}.jsonl")] for name in ("train", "test")}
    admit("set", kind, files, catalog=catalog, text_column=column)
    answer = why(catalog, f"{raw}:5", identify=identify)
    name = next(name for row, _, _, name in data.identified() if row == 3).hex()
    assert answer.record_id == answer.survivor == name
    assert answer.steps[-1].what == "admitted"
    assert identify(body, str(raw), 0) is None  # the broken line
    assert identify(body, str(raw), 99) is None
    raw.write_bytes(raw.read_bytes() + b"{}")
    assert identify(body, str(raw), 3) is None  # not the file that was read any more


def test_the_id_is_the_canonical_one(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(orjson.dumps({"text": "one"}))
    data = Dataset.open([str(tmp_path / "a.jsonl")])
    assert next(data.identified())[3] == record_id("text", {"text": "one"})


def test_the_same_work_into_a_second_file_stands_once_behind_an_admission(tmp_path):
    """Both files have the same bytes, so an admission of either could be traced to two records of one stage."""
    catalog, raw = Catalog.open(tmp_path / ".lpt"), tmp_path / "raw.jsonl"
    raw.write_bytes(b"".join(orjson.dumps({"text": f"text number {n}"}) + b"\n" for n in (*range(9), 3)))
    for name in ("first", "second"):
        run_stage(
            "dedup", Dataset.open([str(raw)]), DedupConfig(), decide, output=tmp_path / f"{name}.jsonl", catalog=catalog
        )
    split(Dataset.open([str(tmp_path / "first.jsonl")]), SplitConfig(test=2), out=tmp_path / "out", catalog=catalog)
    files = {name: [str(tmp_path / "out" / f"{name}.jsonl")] for name in ("train", "test")}
    body = admit("set", "text", files, catalog=catalog).to_json()
    manifest = next(found for _, found in catalog.find("lpt.admission/1"))
    assert [flow["stage"] for flow in manifest["funnel"]][:2] == ["dedup", "split"]
    assert len(manifest["stages"]) == 2
    assert body["verdict"] in ("accept", "tune")
