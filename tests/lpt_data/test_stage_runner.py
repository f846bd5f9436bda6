"""No row is lost, nothing is half-written, the same input gives the same bytes, a kill costs nothing."""

import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests_support import keep_all, remove_where

from lpt_data import pending
from lpt_data.config import DedupConfig, identity
from lpt_data.conservation import check_conservation
from lpt_data.dataset import Dataset
from lpt_data.stage import StageResult, run_stage
from manifests import decisions
from manifests.canon import record_id
from manifests.catalog import Catalog
from manifests.digests import bytes_sha256, content_root
from manifests.errors import BadInputError, BusyError, LptError

ROWS = [
    '{"text": "keep  one",   "n": 1}',
    '{"text": "drop one", "n": 2}',
    '{"text": NaN}',
    '{"n": 3.50, "text": "keep \\u00e4"}',
    '{"text": "drop two", "big": 123456789012345678901234567890}',
    '{"text": "keep three", "big": 123456789012345678901234567890}',
]
drop = remove_where(lambda text: text.startswith("drop"))


@pytest.fixture
def catalog(tmp_path):
    return Catalog.open(tmp_path / ".lpt")


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text("\r\n".join(ROWS), encoding="utf-8")
    return path


def run(source, output, catalog, decide=drop, **options):
    data = Dataset.open([str(source)])
    return run_stage("drop", data, DedupConfig(), decide, output=output, catalog=catalog, **options)


def test_lines_are_written_as_they_stand_and_the_books_balance(tmp_path, source, catalog):
    report = run(source, tmp_path / "out.jsonl", catalog).to_json()
    assert (tmp_path / "out.jsonl").read_text() == "".join(ROWS[i] + "\n" for i in (0, 3, 5))
    assert (report["rows_in"], report["rows_out"], report["quarantined"]) == (6, 3, 1)
    assert report["removed"] == {"unwanted": 2}
    assert report["quarantine"] == {"not_a_number": 1}
    ids = [record_id("text", {"text": t}) for t in ("keep  one", "keep ä", "keep three")]
    assert report["content_root"] == content_root(np.array([list(i) for i in ids], np.uint8)).root
    told = decisions.read(report["decisions"]).to_pylist()
    assert [(d["row"], d["action"], d["witness_row"]) for d in told] == [
        (1, "remove", 0),
        (2, "quarantine", None),
        (4, "remove", 0),
    ]
    assert told[1]["detail"].startswith(f"{source}:3: ")
    kept = [json.loads(line) for line in Path(report["quarantine_file"]).read_text().splitlines()]
    assert [(q["row"], q["line"], q["raw"]) for q in kept] == [(2, 3, ROWS[2])]


def test_the_record_holds_inputs_outputs_and_parents(tmp_path, source, catalog):
    first = run(source, tmp_path / "mid.jsonl", catalog)
    second = run(tmp_path / "mid.jsonl", tmp_path / "out.parquet", catalog, keep_all)
    assert second.body["parents"] == [first.object_id]
    assert catalog.get(second.object_id) == second.body
    assert first.body["inputs"] == [
        {
            "path": str(source),
            "bytes": source.stat().st_size,
            "sha256": bytes_sha256(source),
            "format": "jsonl",
            "layout": "text",
            "text_column": "text",
            "rows": 6,
            "first_row": 0,
        }
    ]
    assert first.body["outputs"][0]["sha256"] == second.body["inputs"][0]["sha256"]
    assert first.body["peak_memory_bytes"] > 1 << 20


@pytest.mark.parametrize(
    "name", ["o.jsonl", "o.jsonl.gz", "o.jsonl.zst", "o.json", "o.csv", "o.tsv", "o.parquet", "o.csv.gz"]
)
def test_every_format_holds_the_same_records(tmp_path, source, catalog, name):
    report = run(source, tmp_path / name, catalog)
    again = run(tmp_path / name, tmp_path / "again.jsonl", catalog, keep_all)
    assert again.body["content_root"] == report.body["content_root"]
    assert again.body["rows_in"] == 3


def test_columns_of_mixed_types_become_json_text_and_the_report_says_so(tmp_path, source, catalog):
    report = run(source, tmp_path / "out.parquet", catalog)
    table = pq.read_table(tmp_path / "out.parquet")
    assert report.to_json()["columns_as_json_text"] == ["n", "big"]
    assert table["n"].to_pylist() == ["1", "3.5", None]
    assert table["big"].to_pylist() == [None, None, "123456789012345678901234567890"]  # not rounded to a float


def test_parquet_to_parquet_keeps_every_type(tmp_path, catalog):
    table = pa.table(
        {
            "text": ["a", "drop", "b"],
            "when": pa.array([1, 2, 3], pa.timestamp("ns", "UTC")),
            "small": pa.array([1, None, 3], pa.int8()),
            "nested": [{"x": [1.5]}, None, {"x": None}],
        }
    )
    pq.write_table(table, tmp_path / "in.parquet")
    run(tmp_path / "in.parquet", tmp_path / "out.parquet", catalog)
    assert pq.read_table(tmp_path / "out.parquet").equals(table.filter(pa.array([True, False, True])))


def test_nan_in_parquet_is_no_null_in_json(tmp_path, catalog):
    pq.write_table(pa.table({"text": ["a", "b"], "score": [1.0, float("nan")]}), tmp_path / "in.parquet")
    with pytest.raises(BadInputError, match="NaN"):
        run(tmp_path / "in.parquet", tmp_path / "out.jsonl", catalog)
    assert not (tmp_path / "out.jsonl").exists()
    assert run(tmp_path / "in.parquet", tmp_path / "out.parquet", catalog).body["rows_out"] == 2


def test_content_does_not_depend_on_the_order_of_files_or_rows(tmp_path, catalog):
    lines = [f'{{"text": "row {i}"}}\n' for i in range(50)]
    roots = set()
    for seed in range(3):
        random.Random(seed).shuffle(lines)
        (tmp_path / "a.jsonl").write_text("".join(lines[:20]))
        (tmp_path / "b.jsonl").write_text("".join(lines[20:]))
        data = Dataset.open([str(tmp_path / n) for n in random.Random(seed).sample(["a.jsonl", "b.jsonl"], 2)])
        decide = remove_where(lambda text: text.endswith("7"))
        roots.add(
            run_stage("x", data, None or DedupConfig(), decide, output=tmp_path / "o.jsonl", catalog=catalog).body[
                "content_root"
            ]
        )
    assert len(roots) == 1


def test_the_same_work_is_not_done_twice_and_a_broken_output_is_made_again(tmp_path, source, catalog):
    calls = []

    def counted(dataset, config, progress):
        calls.append(1)
        return drop(dataset, config, progress)

    out = tmp_path / "out.jsonl"
    first = run(source, out, catalog, counted)
    data = out.read_bytes()
    again = run(source, out, catalog, counted)
    assert again.reused
    assert (again.object_id, len(calls)) == (first.object_id, 1)
    out.write_bytes(data + b"x")
    assert not run(source, out, catalog, counted).reused
    assert (out.read_bytes(), len(calls)) == (data, 2)
    source.write_text(ROWS[0] + "\n")
    assert run(source, out, catalog, counted).body["stage_id"] != first.body["stage_id"]


def test_workers_and_memory_are_no_part_of_the_identity():
    few = DedupConfig(workers=1, memory="1GB")
    assert identity(few) == identity(DedupConfig(workers=8))
    assert identity(few) != identity(dataclasses.replace(few, threshold=0.7))


def test_a_dry_run_writes_nothing(tmp_path, source, catalog):
    report = run(source, tmp_path / "out.jsonl", catalog, dry_run=True)
    assert report.to_json()["removed"] == {"unwanted": 2}
    assert sorted(os.listdir(tmp_path)) == [".lpt", "in.jsonl"]
    assert not os.listdir(tmp_path / ".lpt" / "decisions")


def test_outputs_are_refused_before_any_work(tmp_path, source, catalog):
    def never(dataset, config, progress):
        raise AssertionError

    (tmp_path / "folder.jsonl").mkdir()
    os.symlink(source, tmp_path / "link.jsonl")
    for name, what in [
        ("in.jsonl", "one of the inputs"),
        ("link.jsonl", "one of the inputs"),
        ("folder.jsonl", "is a folder"),
        ("absent/out.jsonl", "does not exist"),
        ("out.xlsx", "extension"),
        ("x" * 300 + ".jsonl", "cannot be written"),
        ("out", "extension"),
    ]:
        with pytest.raises(BadInputError, match=what):
            run(source, tmp_path / name, catalog, never)


def test_a_folder_that_may_not_be_written(tmp_path, source, catalog):
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o555)
    if os.access(folder, os.W_OK):
        pytest.skip("this user may write everywhere")
    with pytest.raises(BadInputError, match="cannot be written"):
        run(source, folder / "out.jsonl", catalog)


def test_a_stage_that_loses_rows_writes_nothing(tmp_path, source, catalog):
    def changed(**columns):
        def decide(dataset, config, progress):
            result = drop(dataset, config, progress)
            table = result.decisions
            for name, values in columns.items():
                table = table.set_column(table.schema.get_field_index(name), name, pa.array(values, table[name].type))
            return dataclasses.replace(result, decisions=table.cast(decisions.SCHEMA))

        return decide

    broken = {
        "two decisions": changed(row=[1, 1]),
        "names row 6": changed(row=[1, 6]),
        "was not kept": changed(witness_row=[4, 0]),
        "has two": changed(row=[1, 2]),  # row 2 is in quarantine
        "new values": changed(action=["rewrite", "remove"]),  # a row to rewrite, and nothing to write
        "an action is none": changed(action=["burn", "remove"]),
    }
    for what, decide in broken.items():
        with pytest.raises(LptError, match=what):
            run(source, tmp_path / "out.jsonl", catalog, decide)
    assert not (tmp_path / "out.jsonl").exists()
    ids = np.zeros((2, 32), np.uint8)
    with pytest.raises(LptError, match="no record id"):
        check_conservation(2, StageResult(decisions.empty(), ids), [])
    with pytest.raises(LptError, match="record ids"):
        check_conservation(3, StageResult(decisions.empty(), ids + 1), [])
    with pytest.raises(LptError, match="no output"):
        check_conservation(2, StageResult(decisions.empty(), ids + 1, {}, np.array([0, 2], np.uint8)), [], 2)


def test_an_input_that_changes_meanwhile_is_noticed(tmp_path, source, catalog):
    def meddled(dataset, config, progress):
        result = drop(dataset, config, progress)
        source.write_text("\n".join(reversed(ROWS)))
        return result

    with pytest.raises(BadInputError, match="changed while it was read"):
        run(source, tmp_path / "out.jsonl", catalog, meddled)
    assert not (tmp_path / "out.jsonl").exists()


def twins_go(dataset, config, progress):
    """Remove each row whose text was there before."""
    seen, twins = set(), set()
    for batch in dataset.texts():
        for text in batch.texts.to_pylist():
            (twins if text in seen else seen).add(text)
    return remove_where(lambda text: text in twins)(dataset, config, progress)


def test_what_was_decided_of_a_changed_input_is_not_used_later(tmp_path, source, catalog):
    """Twenty rows; meanwhile row 5 becomes row 3, and afterwards itself again."""
    before = [f'{{"text": "row {i:02}"}}\n' for i in range(20)]
    source.write_text("".join(before))
    marked = source.stat()

    def meddled(dataset, config, progress):
        source.write_text("".join([*before[:5], before[3], *before[6:]]))
        os.utime(source, ns=(0, marked.st_mtime_ns + 1))
        return twins_go(dataset, config, progress)

    for dry_run in (True, False):
        source.write_text("".join(before))
        with pytest.raises(BadInputError, match="changed while it was read"):
            run(source, tmp_path / "out.jsonl", catalog, meddled, dry_run=dry_run)
    assert not list((catalog.directory / "decisions").glob("*.pending*"))
    source.write_text("".join(before))
    report = run(source, tmp_path / "out.jsonl", catalog, twins_go)
    assert (report.body["rows_out"], report.body["removed"]) == (20, {})


def test_a_note_goes_when_the_input_changes_while_it_is_written(tmp_path, source, catalog):
    def progress(done, total, label):
        if label == "writing":
            source.write_text("\n".join(reversed(ROWS)))

    with pytest.raises(BadInputError, match="changed while it was read"):
        run(source, tmp_path / "out.jsonl", catalog, progress=progress)
    assert not list((catalog.directory / "decisions").glob("*.pending*"))


def test_two_at_once_the_second_is_told_who(tmp_path, source, catalog):
    inside, go_on = threading.Event(), threading.Event()

    def slow(dataset, config, progress):
        inside.set()
        assert go_on.wait(20)
        return drop(dataset, config, progress)

    first = threading.Thread(target=run, args=(source, tmp_path / "out.jsonl", catalog, slow))
    first.start()
    assert inside.wait(20)
    with pytest.raises(BusyError, match=f"pid {os.getpid()}"):
        run(source, tmp_path / "out.jsonl", catalog, wait=0.2)
    go_on.set()
    first.join()
    assert run(source, tmp_path / "out.jsonl", catalog).reused


KILLED = textwrap.dedent("""
    import os, signal, sys
    sys.path.insert(0, sys.argv[1])
    from pathlib import Path
    from tests_support import remove_where
    from lpt_data.config import DedupConfig
    from lpt_data.dataset import Dataset
    from lpt_data.stage import run_stage
    from manifests.catalog import Catalog

    def progress(done, total, label):
        if label == sys.argv[5] and done > 1000:
            os.kill(os.getpid(), signal.SIGKILL)

    catalog = Catalog.open(sys.argv[4])
    decide = remove_where(lambda text: text.startswith("drop"))
    run_stage("drop", Dataset.open([sys.argv[2]]), DedupConfig(), decide, output=Path(sys.argv[3]), catalog=catalog,
              progress=progress)
""")


@pytest.mark.parametrize("moment", ["reading", "writing"])
def test_kill_9_and_the_same_command_again_give_the_same_bytes(tmp_path, moment):
    words = ["drop", "keep"]
    lines = [f'{{"text": "{words[i % 3 > 0]} {i} {"x" * 400}"}}\n' for i in range(5000)]
    (tmp_path / "in.jsonl").write_text("".join(lines))
    out = tmp_path / "out" / "o.jsonl.gz"
    out.parent.mkdir()
    arguments = [str(Path(__file__).parent), str(tmp_path / "in.jsonl"), str(out), str(tmp_path / ".lpt")]
    done = subprocess.run([sys.executable, "-c", KILLED, *arguments, moment], check=False, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    assert not out.exists()
    catalog = Catalog.open(tmp_path / ".lpt")
    assert not list(catalog.find("lpt.stage/1"))

    calls = []

    def counted(dataset, config, progress):
        calls.append(1)
        return drop(dataset, config, progress)

    report = run(tmp_path / "in.jsonl", out, catalog, counted)
    assert len(calls) == (1 if moment == "reading" else 0)  # what was decided before the kill is not decided again
    assert os.listdir(out.parent) == ["o.jsonl.gz"]  # nor is a half-written file left
    assert not list((tmp_path / ".lpt" / "decisions").glob("*.pending*"))
    fresh = run(tmp_path / "in.jsonl", tmp_path / "fresh.jsonl.gz", Catalog.open(tmp_path / "other"))
    assert out.read_bytes() == (tmp_path / "fresh.jsonl.gz").read_bytes()
    assert report.body["decisions"]["sha256"] == fresh.body["decisions"]["sha256"]
    assert report.extra == fresh.extra
    catalog.verify_chain()


def test_a_note_that_cannot_be_used_is_ignored(tmp_path, source, catalog):
    data = Dataset.open([str(source)])
    stage_id = run(source, tmp_path / "a.jsonl", catalog).body["stage_id"]
    note = pending.path_of(catalog.directory, stage_id)
    assert pending.load(note, data) is None
    note.write_bytes(b"PK\x03\x04 torn")
    assert pending.load(note, data) is None
    assert run(source, tmp_path / "b.jsonl", catalog).body["rows_out"] == 3


def test_progress_is_told(tmp_path, source, catalog):
    told = []
    run(source, tmp_path / "o.jsonl", catalog, progress=lambda done, total, label: told.append((done, total, label)))
    assert told[-1] == (6, 6, "writing")
    assert "reading" in [label for _, _, label in told]
