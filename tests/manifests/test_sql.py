"""SQL over a catalog with planted truths, and all that a SELECT must not be able to do."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import duckdb
import numpy as np
import pytest

from manifests import decisions, rollouts, views
from manifests.catalog import Catalog
from manifests.errors import BadInputError, BusyError, LptError, UsageError
from manifests.sql import CANNED, Result, query

DOCS = Path(__file__).parents[2] / "docs" / "sql.md"


def record(catalog: Catalog, stage_id: str, rows: int) -> None:
    ids = np.arange(rows * 32, dtype=np.uint8).reshape(-1, 32)
    columns = {
        "row": range(rows),
        "record_id": ids,
        "action": ["remove"] * rows,
        "reason": ["near_duplicate" if row else "empty_text" for row in range(rows)],
        "score": [0.9] * rows,
    }
    decisions.write(catalog.decisions_path(stage_id), decisions.table(columns))
    catalog.put(
        {
            "type": "lpt.stage/1",
            "stage_id": stage_id,
            "stage": "dedup",
            "created": f"2026-11-29T1{rows}:00:00+02:00",
            "rows_in": 10,
            "rows_out": 10 - rows,
            "removed": {"near_duplicate": rows - 1, "empty_text": 1},
            "decisions": {"path": f"decisions/{stage_id}.parquet", "sha256": "", "rows": rows},
            "outputs": [{"path": "out.jsonl", "bytes": 5, "sha256": "ff", "rows": 10 - rows}],
        }
    )


def test_an_index_that_is_cut_short_is_no_fault_of_the_sql(tmp_path):
    own = Catalog.open(tmp_path / ".lpt")
    for number in range(1, 60):
        own.put({"type": "lpt.stage/1", "stage_id": f"s{number}", "note": os.urandom(20_000).hex()})
    own.rebuild()
    path = own.index_path
    os.truncate(path, path.stat().st_size // 3)
    with pytest.raises(BadInputError, match="damaged") as error:
        query(own, "select sum(length(body::varchar)) from object")
    assert error.value.next == "lpt catalog rebuild"
    assert own.rebuild() == 59
    assert query(own, "select count(*) from object where length(body::varchar) > 40000").rows == [(59,)]


def test_a_value_that_python_cannot_hold_is_said(tmp_path):
    with pytest.raises(UsageError, match="cannot hold"):
        query(Catalog.open(tmp_path / ".lpt"), "select interval 2000000000 days")


def test_ctrl_c_ends_a_long_query_at_once(tmp_path):
    script = """
import os, signal, sys, threading, time
from manifests.catalog import Catalog
from manifests.sql import query
threading.Timer(1.5, os.kill, (os.getpid(), signal.SIGINT)).start()
start = time.monotonic()
try:
    query(Catalog.open(sys.argv[1]), "select count(*) from range(100000000000) a, range(1000000) b", seconds=60)
except KeyboardInterrupt:
    print(time.monotonic() - start)
"""
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / ".lpt")], capture_output=True, text=True)
    assert done.stderr == ""
    assert float(done.stdout) < 20


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    catalog = Catalog.open(tmp_path_factory.mktemp("made") / ".lpt")
    record(catalog, "aaaa1111", 3)
    record(catalog, "bbbb2222", 2)
    check = {"id": "trunc.rate", "status": "warn", "value": 0.03, "op": "<=", "threshold": 0.01, "n": 7, "next": "lpt"}
    unrun = {"id": "pii", "status": "skipped", "value": None, "n": 0, "required": False, "detail": "no model"}
    file = {"path": "train-00000.parquet", "bytes": 9, "sha256": "aa", "rows": 7}
    split = {"rows": 7, "files": [file], "content_root": "cc", "key": {"normaliser": "text", "root": "k", "count": 6}}
    manifest = catalog.put(
        {
            "type": "lpt.admission/1",
            "name": "web",
            "version": 1,
            "contract": "text",
            "verdict": "tune",
            "policy": {"name": "text", "digest": "d"},
            "splits": {"train": split, 'odd "name"': {**split, "rows": 1, "files": []}},
            "checks": [check, unrun],
            "stages": [next(catalog.find("lpt.stage/1"))[0]],
        }
    )
    catalog.put(
        {
            "type": "lpt.run/1",
            "run_id": "r1",
            "manifest": manifest,
            "split": "web@1:train",
            "verified": "admitted",
            "tainted": False,
            "metrics": {"loss": [2.5, 1.5], "it's odd": [0, "NaN"]},
            "checkpoint": {"path": "runs/r1/last", "sha256": "ee"},
            "rollouts": {"path": "rollouts/r1.parquet", "rows": 12, "sha256": ""},
        }
    )
    rollouts.write(catalog.rollouts_path("r1"), [rollout(n) for n in range(12)])
    for k, run in ((1, {"run_id": "r1", "tainted": True}), (2, None)):
        evaluated = {"model": {"name": f"m{k}", "digest": "dd", "made_from": run}, "split": "web@1:test", "k": k}
        numbers = {"n": 4, "accuracy": 0.5, "low": 0.2, "high": 0.8, "temperature": 1.0, "seed": 3, "unscorable": 1}
        items = [{"record_id": "aa", "score": 1.0}] * 4
        body = {"type": "lpt.eval/1", "reward": "record", "tainted": run is not None, "items": items}
        catalog.put(body | evaluated | numbers | {"created": f"2026-11-29T0{k}:00:00Z", "verified": "admitted"})
    return catalog.directory


def rollout(n: int) -> dict:
    """The n-th of twelve completions: its reward is n, but that of the last could not be given."""
    row = {"step": n // 4, "record_id": f"{n // 2:064x}", "sample": n % 2, "completion": "x" * 1000, "reward": float(n)}
    row |= {"group_index": n // 2 % 2, "advantage": 0.5, "finish": "stop", "tokens": 9, "failure": None}
    return row | ({"reward": None, "advantage": None, "failure": "timeout"} if n == 11 else {})


@pytest.fixture
def catalog(made, tmp_path):
    shutil.copytree(made, tmp_path / ".lpt")
    return Catalog.open(tmp_path / ".lpt")


def test_the_views_say_what_was_recorded(catalog):
    def ask(sql):
        return query(catalog, sql).rows

    assert ask("SELECT stage_id, removed, rows_out FROM v_stage ORDER BY 1") == [("aaaa1111", 3, 7), ("bbbb2222", 2, 8)]
    assert ask("SELECT DISTINCT created FROM v_stage WHERE removed = 3") == [(datetime(2026, 11, 29, 11),)]
    assert ask("SELECT name, version, verdict, rows, policy FROM v_manifest") == [("web", 1, "tune", 8, "text")]
    assert ask("SELECT split, rows, files, keys FROM v_split ORDER BY rows") == [
        ('odd "name"', 1, 0, 6),
        ("train", 7, 1, 6),
    ]
    assert ask("SELECT check_id, status, value, threshold FROM v_check ORDER BY 1") == [
        ("pii", "skipped", None, None),
        ("trunc.rate", "warn", 0.03, 0.01),
    ]
    assert ask("SELECT metric, first, last FROM v_metric WHERE metric = 'loss'") == [("loss", 2.5, 1.5)]
    assert ask("SELECT isnan(last) FROM v_metric WHERE metric LIKE 'it%'") == [(True,)]
    assert ask("SELECT run_id, path FROM v_checkpoint") == [("r1", "runs/r1/last")]
    assert ask("SELECT kind, count(*) FROM v_artifact GROUP BY 1 ORDER BY 1") == [
        ("checkpoint", 1),
        ("split", 1),
        ("stage output", 2),
    ]
    assert ask("SELECT child_label, parent_label FROM v_lineage ORDER BY 1") == [("r1", "web@1"), ("web@1", "bbbb2222")]
    assert ask("SELECT count(*) FROM v_gate") == ask("SELECT count(*) FROM v_waiver") == [(0,)]


def test_decisions_say_why_a_row_went(catalog):
    result = query(catalog, "SELECT stage, reason FROM v_decision WHERE stage_id = 'aaaa1111' AND row = 0")
    assert result == Result(["stage", "reason"], ["VARCHAR", "VARCHAR"], [("dedup", "empty_text")])
    assert query(catalog, "@lost-rows").rows == [
        ("dedup", "near_duplicate", "remove", 3),
        ("dedup", "empty_text", "remove", 2),
    ]
    ident = bytes(range(32)).hex()
    assert query(catalog, f"SELECT count(*) FROM V_Decision WHERE record_id = '{ident}'").rows == [(2,)]


def test_rollouts_are_read_beside_the_catalog(catalog):
    assert query(catalog, "SELECT count(*), count(reward), max(length(completion)) FROM v_rollout").rows == [
        (12, 11, 400)
    ]
    (row,) = query(catalog, "SELECT * FROM v_rollout WHERE reward = 7").rows
    assert row == ("r1", 1, f"{3:064x}", 1, "x" * 400, 7.0, None, 1, 0.5, "stop", 9)
    assert query(catalog, "SELECT failure, advantage FROM v_rollout WHERE reward IS NULL").rows == [("timeout", None)]
    found = query(catalog, "@rollouts")
    which, reward = (found.columns.index(name) for name in ("which", "reward"))
    assert [(r[which], r[reward]) for r in found.rows] == [
        *(("worst", float(n)) for n in range(5)),
        *(("best", float(n)) for n in (10, 9, 8, 7, 6)),
    ]


def test_rollouts_that_are_gone_or_damaged_are_a_note_and_a_rebuild_does_not_need_them(catalog, tmp_path):
    path = catalog.rollouts_path("r1")
    kept = path.read_bytes()
    path.write_bytes(kept[: len(kept) // 2])
    result = query(catalog, "SELECT * FROM v_rollout")
    assert (result.rows, len(result.notes)) == ([], 1)
    assert "rollouts of run r1 are not in this answer" in result.notes[0]
    path.unlink()
    assert "the file is missing" in query(catalog, "SELECT * FROM v_rollout").notes[0]
    assert query(catalog, "SELECT * FROM v_run").notes == []
    assert catalog.rebuild() == len(list(catalog.events.read()))
    (tmp_path / "outside.parquet").write_bytes(kept)
    path.symlink_to(tmp_path / "outside.parquet")
    assert "link out of the catalog" in query(catalog, "SELECT * FROM v_rollout").notes[0]
    for name in ("../outside", "a/b", ""):
        catalog.put({"type": "lpt.run/1", "run_id": name, "rollouts": {"path": "x"}})
    notes = query(catalog, "SELECT * FROM v_rollout").notes
    assert len([note for note in notes if note.startswith("rollouts of run")]) == 4


def test_evaluations_are_rows(catalog):
    columns = "run_id, model, split, reward, n, accuracy, low, high, temperature, k, seed, tainted"
    assert query(catalog, f"SELECT {columns} FROM v_eval ORDER BY k").rows == [
        ("r1", "m1", "web@1:test", "record", 4, 0.5, 0.2, 0.8, 1.0, 1, 3, True),
        (None, "m2", "web@1:test", "record", 4, 0.5, 0.2, 0.8, 1.0, 2, 3, False),
    ]
    assert [row[1] for row in query(catalog, "@evals").rows] == ["m2", "r1"]
    heads = query(catalog, "SELECT head->>'$.items' FROM object WHERE type = 'lpt.eval/1'").rows
    assert heads == [(None,), (None,)]  # a thousand items are no part of what every question reads


@pytest.mark.parametrize("name", CANNED)
def test_every_canned_query_runs_on_a_full_and_on_an_empty_catalog(catalog, tmp_path, name):
    assert query(catalog, f"@{name}").columns
    assert query(Catalog.open(tmp_path / "empty"), f"@{name}").rows == []


def test_canned_queries_find_what_they_promise(catalog):
    assert [row[2] for row in query(catalog, "@not-checked").rows] == ["pii"]
    assert [row[2] for row in query(catalog, "@untrained").rows] == ['odd "name"']
    assert query(catalog, "@tainted").rows == []
    runs = query(catalog, "SELECT algorithm, split, steps FROM v_run ORDER BY created DESC").rows
    assert [row[2:4] + row[5:6] for row in query(catalog, "@compare").rows] == runs
    assert query(catalog, "@checks").rows[0][2] == "trunc.rate"
    with pytest.raises(UsageError, match="lost-rows"):
        query(catalog, "@nothing")


def test_runs_of_one_second_and_settings_are_compared_run_by_run(tmp_path):
    own = Catalog.open(tmp_path / "seeds")
    for seed in (1, 2):
        same = {"type": "lpt.run/1", "created": "2026-11-30T00:00:00Z", "algorithm": "sft", "steps": 4}
        own.put(same | {"run_id": f"sft-{seed}", "seed": seed, "metrics": {"loss": [2.0, 1.0]}})
    found = query(own, "@compare")
    picked = [found.columns.index(name) for name in ("run_id", "seed", "loss")]
    assert sorted(tuple(row[at] for at in picked) for row in found.rows) == [("sft-1", 1, 1.0), ("sft-2", 2, 1.0)]


def test_results_are_bounded_and_say_so(catalog):
    result = query(catalog, "SELECT * FROM range(10)", limit=3)
    assert ([row[0] for row in result.rows], result.truncated) == ([0, 1, 2], True)
    assert not query(catalog, "SELECT * FROM range(3)", limit=3).truncated


# -- what it refuses

NOT_SELECT = [
    "COPY event TO '{out}'",
    "COPY (SELECT 1) TO '{out}'",
    "EXPORT DATABASE '{out}'",
    "ATTACH '{out}' AS x",
    "INSTALL httpfs",
    "LOAD httpfs",
    "PRAGMA database_list",
    "SET threads = 1",
    "SET enable_external_access = true",
    "RESET lock_configuration",
    "DROP TABLE event",
    "DELETE FROM event",
    "UPDATE object SET type = 'x'",
    "INSERT INTO meta VALUES ('a', 'b')",
    "WITH x AS (SELECT 1) INSERT INTO meta SELECT 'a', 'b' FROM x",
    "CREATE TABLE t (a INT)",
    "CREATE TEMP MACRO f() AS 1",
    "ALTER TABLE event ADD COLUMN x INT",
    "CALL pragma_version()",
    "CHECKPOINT",
    "VACUUM",
    "BEGIN",
    "PREPARE p AS SELECT 1",
    "EXPLAIN ANALYZE SELECT 1",
    "USE memory",
]
NO_FILES = [
    "SELECT * FROM read_csv('/etc/passwd')",
    "SELECT * FROM read_text('/etc/passwd')",
    "SELECT * FROM read_blob('/etc/passwd')",
    "SELECT * FROM '/etc/passwd'",
    "SELECT * FROM '{secret}'",
    "SELECT * FROM read_text('{secret}')",
    "SELECT * FROM read_text('{decisions}/../../secret.txt')",
    "SELECT * FROM read_text('{decisions}/link/secret.txt')",
    "SELECT * FROM glob('/etc/*')",
    "SELECT * FROM glob('{decisions}/../*')",
    "SELECT * FROM parquet_metadata('/etc/passwd')",
    "SELECT * FROM sniff_csv('/etc/passwd')",
    "SELECT * FROM read_json('http://127.0.0.1:9/x.json')",
    "SELECT * FROM read_parquet('s3://bucket/x.parquet')",
    "SELECT getenv('HOME')",
    "SELECT * FROM duckdb_secrets()",
    "SELECT * FROM query('COPY event TO ''{out}''')",
    "SELECT * FROM enable_logging(storage := 'file', storage_path := '{out}')",
    "SELECT * FROM catalog",
]


@pytest.fixture
def places(catalog, tmp_path):
    (tmp_path / "secret.txt").write_text("secret")
    (catalog.directory / "decisions" / "link").symlink_to(tmp_path)
    return {
        "secret": str(tmp_path / "secret.txt"),
        "decisions": str(catalog.directory / "decisions"),
        "out": str(tmp_path / "out"),
    }


@pytest.mark.parametrize("sql", NOT_SELECT)
def test_only_a_select_is_run(catalog, places, sql):
    before = catalog.index_path.read_bytes()
    with pytest.raises(UsageError) as caught:
        query(catalog, sql.format(**places))
    assert "SELECT" in caught.value.what or "cannot be run" in caught.value.what
    assert catalog.index_path.read_bytes() == before
    assert not os.path.lexists(places["out"])


@pytest.mark.parametrize("sql", NO_FILES)
def test_no_file_and_no_network_is_reached(catalog, places, sql):
    with pytest.raises(UsageError) as caught:
        query(catalog, sql.format(**places))
    assert caught.value.seen
    assert caught.value.next
    assert not os.path.lexists(places["out"])


@pytest.mark.parametrize("sql", ["", "  ", "-- nothing", "SELECT 1; SELECT 2", "SELECT 1; DROP TABLE event"])
def test_exactly_one_statement(catalog, sql):
    with pytest.raises(UsageError, match="exactly one"):
        query(catalog, sql)


@pytest.mark.parametrize(
    "sql", ["SELEC 1", "SELECT nope FROM v_stage", "SELECT * FROM nope", "SELECT 'x'::INT", "SELECT (", "PIVOT x ON y"]
)
def test_bad_sql_is_answered_with_what_the_database_says(catalog, sql):
    with pytest.raises(UsageError) as caught:
        query(catalog, sql)
    assert caught.value.exit_code == 2
    assert caught.value.seen
    assert caught.value.next


def test_a_query_is_stopped_in_time(catalog):
    with pytest.raises(UsageError, match="longer than"):
        query(
            catalog,
            "SELECT count(*) FROM range(1000000) a, range(1000000) b WHERE hash(a.range + b.range) = 1",
            seconds=0.3,
        )


def test_a_query_cannot_take_the_memory_of_the_machine(catalog):
    with pytest.raises(UsageError, match="memory"):
        query(catalog, "SELECT list(range ORDER BY hash(range)) FROM range(200000000)")


# -- the catalog around it


def test_a_deleted_or_damaged_decision_file_is_a_note_and_the_rest_answers(catalog, tmp_path):
    catalog.decisions_path("aaaa1111").unlink()
    result = query(catalog, "SELECT count(*) FROM v_decision")
    assert result.rows == [(2,)]
    assert any("aaaa1111" in note and "missing" in note for note in result.notes)
    catalog.decisions_path("bbbb2222").write_bytes(b"no parquet")
    result = query(catalog, "SELECT count(*) FROM v_decision")
    assert result.rows == [(0,)]
    assert len(result.notes) == 2
    outside = tmp_path / "outside.parquet"
    decisions.write(outside, decisions.empty())
    catalog.decisions_path("aaaa1111").symlink_to(outside)
    assert any("link out" in note for note in query(catalog, "SELECT count(*) FROM v_decision").notes)
    assert query(catalog, "SELECT count(*) FROM v_stage").notes == []


def test_a_moved_catalog_answers_from_where_it_is(catalog, tmp_path):
    moved = tmp_path / "it's moved" / "catalog"
    moved.parent.mkdir()
    shutil.move(catalog.directory, moved)
    assert query(Catalog.open(moved, create=False), "SELECT count(*) FROM v_decision").rows == [(5,)]


def test_what_the_index_missed_is_read_first(catalog):
    log = catalog.events
    body = {"type": "lpt.run/1", "run_id": "spooled"}
    log.append(catalog.objects.write(b'{"run_id": "spooled", "type": "lpt.run/1"}'), body)
    assert ("spooled",) in query(catalog, "SELECT run_id FROM v_run").rows


HOLD = """
import sys, time, duckdb
connection = duckdb.connect(sys.argv[1], read_only=sys.argv[2] == "r")
print("held", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("mode", ["w", "r"])
def test_while_another_process_has_the_index(catalog, mode):
    command = [sys.executable, "-c", HOLD, str(catalog.index_path), mode]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        holder.stdout.readline()
        if mode == "w":
            with pytest.raises(BusyError) as caught:
                query(catalog, "SELECT 1", wait=0.2)
            assert f"pid {holder.pid}" in caught.value.seen
        else:
            catalog.put({"type": "lpt.run/1", "run_id": "new"})
            result = query(catalog, "SELECT run_id FROM v_run", wait=0.2)
            assert result.rows == [("r1",)]
            assert any("newest records are missing" in note for note in result.notes)
        holder.kill()
    assert query(catalog, "SELECT count(*) FROM v_stage").rows == [(2,)]


def test_a_broken_index_is_made_again_and_answers(catalog):
    catalog.index_path.write_bytes(b"broken" * 1000)
    result = query(catalog, "SELECT count(*) FROM v_stage")
    assert result.rows == [(2,)]
    assert any("moved to" in note for note in result.notes)


def test_bodies_that_are_not_what_views_expect_break_no_view(catalog):
    for number, body in enumerate(
        [{"splits": 3}, {"checks": {"a": 1}}, {"splits": {"x": 1}}, {"version": "one"}, {"parents": 7}]
    ):
        catalog.put({"type": "lpt.admission/1", "name": f"odd{number}", **body})
        catalog.put({"type": "lpt.stage/1", "stage_id": f"odd{number}", "removed": [1], "outputs": "x", **body})
        catalog.put({"type": "lpt.run/1", "metrics": [1, {"a": 2}], "checkpoint": "x", **body})
    for view in views.STORED:
        query(catalog, f"SELECT * FROM {view}")


def test_every_column_is_documented_and_every_documented_column_exists(catalog):
    text = DOCS.read_text("utf-8")
    documented = {
        view: set(re.findall(r"`([a-z_0-9]+)`", block))
        for view, block in re.findall(r"^### `(v_[a-z]+)`\n(.*?)(?=^#|\Z)", text, re.M | re.S)
    }
    found = {}
    for view in views.NAMES:
        found[view] = set(query(catalog, f"SELECT * FROM {view} LIMIT 0").columns)
        assert found[view] <= documented[view], view
    assert set(documented) == set(found)
    for name in CANNED:
        assert f"@{name}" in text


def test_the_examples_of_the_documentation_run(catalog):
    blocks = re.findall(r"```sql\n(.*?)```", DOCS.read_text("utf-8"), re.S)
    assert len(blocks) >= 3
    for block in blocks:
        query(catalog, block)


def test_a_catalog_without_records_answers(tmp_path):
    empty = Catalog.open(tmp_path / "new")
    assert query(empty, "SELECT count(*) FROM v_manifest").rows == [(0,)]
    with pytest.raises(LptError):
        query(empty, "SELECT * FROM missing")
    assert duckdb.connect(str(empty.index_path), read_only=True).execute("SELECT 1").fetchall() == [(1,)]
