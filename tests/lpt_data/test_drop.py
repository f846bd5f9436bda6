"""Rows behind checks are taken out on record; a check that did not run takes out nothing."""

import json
import shlex

import pytest

from lpt_data.audit import audit
from lpt_data.dataset import Dataset
from lpt_data.drop import drop
from manifests import decisions
from manifests.catalog import Catalog
from manifests.errors import CheckNotRunError, UsageError


def chat(asked, answered):
    return {"messages": [{"role": "user", "content": asked}, {"role": "assistant", "content": answered}]}


ROWS = [chat("a", "1"), chat("b", " "), chat("c", "3"), chat("", " "), chat("e", "5")]


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def dropped(tmp_path, rows, *checks, **options):
    catalog = Catalog.open(tmp_path / ".lpt")
    data = Dataset.open([str(rows)], kind="sft")
    out = tmp_path / "out.jsonl"
    return drop(data, "sft", checks, out=out, catalog=catalog, **options), out, catalog


def test_the_rows_behind_a_check_go_and_say_which(tmp_path, rows):
    report, out, catalog = dropped(tmp_path, rows, "sft.turns.empty_share")
    assert [json.loads(line) for line in out.read_text().splitlines()] == [ROWS[0], ROWS[2], ROWS[4]]
    table = decisions.read(catalog.decisions_path(report.to_json()["stage_id"]))
    assert table["row"].to_pylist() == [1, 3]
    assert table["reason"].to_pylist() == ["sft.turns.empty_share"] * 2
    again = audit({"train": Dataset.open([str(out)], kind="sft")}, "sft")
    assert again.outcomes["sft.turns.empty_share"].value == 0


def test_nothing_behind_a_check_keeps_every_row(tmp_path, rows):
    report, out, _ = dropped(tmp_path, rows, "sft.roles.bad_share")
    assert report.to_json()["rows_out"] == 5
    assert out.read_bytes() == rows.read_bytes()


def test_a_leak_goes_out_of_train_by_its_key(tmp_path, rows):
    held_out = tmp_path / "test.jsonl"
    held_out.write_text(json.dumps(chat("C!", "3")) + "\n")  # the text key reads neither case nor punctuation
    _, out, _ = dropped(tmp_path, rows, "against.keys", against=[str(held_out)])
    assert [json.loads(line) for line in out.read_text().splitlines()] == [ROWS[0], ROWS[1], ROWS[3], ROWS[4]]


def test_a_check_that_did_not_run_removes_nothing(tmp_path, rows):
    with pytest.raises(CheckNotRunError, match="did not run"):
        dropped(tmp_path, rows, "against.keys")
    assert not (tmp_path / "out.jsonl").exists()


def test_an_unknown_check_and_no_check_are_usage_errors(tmp_path, rows):
    with pytest.raises(UsageError, match="no such check"):
        dropped(tmp_path, rows, "sft.nonsense")
    with pytest.raises(UsageError, match="no check"):
        dropped(tmp_path, rows)


def test_the_line_that_an_audit_prints_is_this_command(tmp_path, rows):
    report = audit({"train": Dataset.open([str(rows)], kind="sft")}, "sft")
    line = next(check.next for check in report.checks if check.id == "sft.turns.empty_share")
    shown, _, then = line.partition("  # to take them out: ")
    assert shlex.split(shown)[:3] == ["lpt", "data", "audit"]
    wanted = ["lpt", "data", "drop", str(rows), "--contract", "sft", "--check", "sft.turns.empty_share"]
    assert shlex.split(then) == [*wanted, "--out", "clean.jsonl"]
