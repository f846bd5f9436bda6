"""The catalog: what was reported done is there after any crash, and the index is only an index."""

from __future__ import annotations

import hashlib
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import duckdb
import numpy as np
import orjson
import pytest

from manifests import index
from manifests.catalog import Catalog
from manifests.errors import BadInputError, BusyError, UsageError
from manifests.events import GENESIS
from manifests.files import FILE, unfinished_name
from manifests.objects import object_bytes
from manifests.sql import query


@pytest.fixture
def catalog(tmp_path):
    return Catalog.open(tmp_path / ".lpt")


def stage(number: int, **more) -> dict:
    return {"type": "lpt.stage/1", "stage_id": f"s{number}", "stage": "dedup", "rows_in": number, **more}


def dump(catalog: Catalog) -> list:
    """All that the index holds, to compare an incremental one with one made from nothing."""
    with index.opened(catalog, wait=1, read_only=True) as connection:
        tables = [
            connection.execute(f"SELECT * FROM {t} ORDER BY ALL").fetchall()
            for t in ("event", "object", "item", "meta")
        ]
        return [
            *tables,
            *(connection.execute(f"SELECT * FROM {v} ORDER BY ALL").fetchall() for v in index.views.STORED),
        ]


# -- objects


def test_an_object_is_named_by_the_sha256_of_its_file(catalog):
    name = catalog.put(stage(1))
    path = catalog.directory / "objects" / name[:2] / f"{name[2:]}.json"
    assert hashlib.sha256(path.read_bytes()).hexdigest() == name
    assert catalog.get(name) == catalog.get(name[:6]) == stage(1)


def test_equal_bodies_are_one_object_and_one_event(catalog):
    names = {catalog.put(dict(order)) for order in (stage(1).items(), reversed(stage(1).items()))}
    assert len(names) == 1
    assert catalog.events.verify() == 1


def test_what_json_cannot_say_is_said_in_words(catalog, tmp_path):
    body = {
        "type": "lpt.run/1",
        "metrics": {"loss": [np.float32(0.5), math.nan], "x": [math.inf, -math.inf]},
        "n": np.int64(3),
        "path": tmp_path,
        "name": b"caf\xe9".decode("utf-8", "surrogateescape"),
        "flags": (True, None),
    }
    kept = catalog.get(catalog.put(body))
    assert kept["metrics"] == {"loss": [0.5, "NaN"], "x": ["Infinity", "-Infinity"]}
    assert (kept["n"], kept["path"], kept["flags"]) == (3, str(tmp_path), [True, None])
    assert kept["name"] == "caf\\udce9"
    with pytest.raises(UsageError):
        catalog.put({"type": "lpt.run/1", "model": object()})
    with pytest.raises(UsageError):
        object_bytes({"type": "something"})


def test_a_changed_object_is_noticed(catalog):
    name = catalog.put(stage(1))
    catalog.put(stage(2))
    path = catalog.objects.path(name)
    path.write_bytes(path.read_bytes().replace(b"dedup", b"clean"))
    with pytest.raises(BadInputError, match="changed"):
        catalog.get(name)
    with pytest.raises(BadInputError, match="changed"):
        catalog.verify_chain()
    assert catalog.put(stage(1)) == name  # recording it again repairs the file
    catalog.verify_chain()


@pytest.mark.parametrize("ref", ["0000", "ff" * 32, "xyz", "../..", "ab"])
def test_an_unknown_object_is_bad_input(catalog, ref):
    catalog.put(stage(1))
    with pytest.raises(BadInputError):
        catalog.get(ref)


def test_find_gives_the_newest_first_by_type_and_field(catalog):
    for number in range(4):
        catalog.put(stage(number, extra={"odd": number % 2}))
    catalog.put({"type": "lpt.run/1", "run_id": "r"})
    assert [b["stage_id"] for _, b in catalog.find("lpt.stage/1")] == ["s3", "s2", "s1", "s0"]
    assert [b["stage_id"] for _, b in catalog.find("lpt.stage/1", stage_id="s2")] == ["s2"]
    assert [b["stage_id"] for _, b in catalog.find("lpt.stage/1", extra={"odd": 1})] == ["s3", "s1"]
    assert list(catalog.find("lpt.gate/1")) == []


# -- the place


def test_where_the_catalog_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LPT_CATALOG", raising=False)
    with pytest.raises(BadInputError):
        Catalog.open(create=False)
    assert not (tmp_path / ".lpt").exists()
    assert Catalog.open().directory.resolve() == (tmp_path / ".lpt").resolve()
    monkeypatch.setenv("LPT_CATALOG", str(tmp_path / "other"))
    assert Catalog.open().directory == tmp_path / "other"
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInputError, match="not a folder"):
        Catalog.open(tmp_path / "file")


@pytest.mark.parametrize("name", ["../x", "", "a/b", ".hidden", "x" * 101])
def test_names_that_are_no_names_never_become_paths(catalog, name):
    with pytest.raises(UsageError):
        catalog.admit_version(name, lambda version: {})
    with pytest.raises(UsageError):
        catalog.decisions_path(name)


def test_it_can_be_moved(catalog, tmp_path):
    name = catalog.put(stage(1))
    shutil.move(catalog.directory, tmp_path / "elsewhere")
    moved = Catalog.open(tmp_path / "elsewhere", create=False)
    assert moved.get(name) == stage(1)
    assert moved.sync()


# -- the log


def test_every_line_names_the_one_before_it(catalog):
    assert catalog.head == GENESIS
    heads = [catalog.head]
    for number in range(3):
        catalog.put(stage(number))
        heads.append(catalog.head)
    assert [event.prev for event in catalog.events.read()] == heads[:-1]
    line = (catalog.directory / "events.jsonl").read_bytes().splitlines()[-1]
    assert catalog.head == hashlib.sha256(b"lpt-event/1\0" + line).hexdigest()


@pytest.mark.parametrize("fault", ["changed", "removed", "inserted", "swapped", "garbage", "types"])
def test_a_tampered_log_is_noticed(catalog, fault):
    for number in range(4):
        catalog.put(stage(number))
    path = catalog.directory / "events.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    lines = {
        "changed": [lines[0].replace(b'"s0"', b'"s9"'), *lines[1:]],
        "removed": [lines[0], *lines[2:]],
        "inserted": [lines[0], lines[0], *lines[1:]],
        "swapped": [lines[1], lines[0], *lines[2:]],
        "garbage": [lines[0], b"{}\n", *lines[1:]],
        "types": [lines[0], b'{"seq":1,"prev":5,"at":6,"type":7,"object":8,"facets":{}}\n', *lines[2:]],
    }[fault]
    path.write_bytes(b"".join(lines))
    with pytest.raises(BadInputError):
        catalog.verify_chain()
    with pytest.raises(BadInputError):
        catalog.rebuild()


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_a_log_that_is_no_file_is_bad_input_and_no_wait(catalog, make):
    make(catalog.directory / "events.jsonl")
    for ask in (catalog.verify_chain, catalog.rebuild, lambda: catalog.head, lambda: catalog.put(stage(1))):
        with pytest.raises(BadInputError):
            ask()


def test_objects_that_a_cut_off_log_does_not_name_are_said(catalog):
    names = [catalog.put(stage(number)) for number in range(3)]
    log = catalog.directory / "events.jsonl"
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:2]))
    assert catalog.rebuild() == 2
    assert [names[2][:16] in note for note in catalog.notes] == [True]
    log.unlink()  # what the note says to do
    again = Catalog.open(catalog.directory)
    assert (again.rebuild(), again.notes) == (3, [])


@pytest.mark.parametrize("number", range(6))
def test_a_rebuild_without_a_log_keeps_the_order_of_a_run_that_went_on(catalog, number):
    """Its records share `created`, so nothing but what grows says which is the newest."""
    base = {"type": "lpt.run/1", "run_id": "sft-1", "created": "2026-11-30T00:00:00Z", "number": number}
    catalog.put(base | {"status": "stopped", "steps": 2, "seconds": 1.5})
    catalog.put(base | {"status": "failed", "steps": 3, "seconds": "damaged"})
    catalog.put(base | {"status": "done", "steps": 4, "seconds": 1.5})
    (catalog.directory / "events.jsonl").unlink()
    again = Catalog.open(catalog.directory)
    assert again.rebuild() == 3
    assert query(again, "SELECT status, steps FROM v_run").rows == [("done", 4)]
    assert next(again.find("lpt.run/1", run_id="sft-1"))[1]["status"] == "done"  # what `lpt report sft-1` shows


def test_one_damaged_object_does_not_hide_the_others_from_who_can_do_without_it(catalog):
    gone, kept = catalog.put(stage(1)), catalog.put(stage(2))
    catalog.objects.path(gone).unlink()
    with pytest.raises(BadInputError):
        list(catalog.find("lpt.stage/1"))
    assert [name for name, _ in catalog.find("lpt.stage/1", strict=False)] == [kept]
    assert list(catalog.find("lpt.stage/1", strict=False, stage_id="s1")) == []
    assert len(catalog.notes) == 1
    assert gone[:16] in catalog.notes[0]


def test_rebuild_makes_the_index_without_what_is_gone_or_edited_and_names_it(catalog):
    gone, edited, kept = (catalog.put(stage(number)) for number in (1, 2, 3))
    catalog.objects.path(gone).unlink()
    catalog.objects.path(edited).chmod(0o644)
    catalog.objects.path(edited).write_bytes(b'{"type": "lpt.stage/1"}')
    for log_too in (False, True):
        if log_too:  # the objects are all there is
            (catalog.directory / "events.jsonl").unlink()
        again = Catalog.open(catalog.directory)
        assert again.rebuild() == (1 if log_too else 3)
        lost = {edited} if log_too else {gone, edited}
        assert set(again.unreadable()) == lost
        assert all(any(name[:16] in note for note in again.notes) for name in lost)
        assert [name for name, _ in again.find("lpt.stage/1", strict=False)] == [kept]
    catalog.objects.path(edited).unlink()
    assert Catalog.open(catalog.directory).unreadable() == []


def test_rebuild_says_which_decisions_are_gone_or_changed(catalog):
    for name in ("same", "gone", "changed"):
        path = catalog.decisions_path(name)
        path.write_bytes(b"rows")
        entry = {"path": f"decisions/{name}.parquet", "sha256": hashlib.sha256(b"rows").hexdigest(), "rows": 1}
        catalog.put({"type": "lpt.stage/1", "stage_id": name, "decisions": entry})
    catalog.decisions_path("gone").unlink()
    catalog.decisions_path("changed").write_bytes(b"rowz")
    catalog.rebuild()
    assert sorted(note.split()[4] for note in catalog.notes) == ["changed", "gone"]


@pytest.mark.parametrize("torn", [b'{"seq": 1, "pre', b"\0" * 300, b"x" * 70_000])
def test_a_torn_last_line_is_put_aside_and_the_log_goes_on(catalog, torn):
    first = catalog.put(stage(1))
    log = catalog.directory / "events.jsonl"
    with open(log, "ab") as file:
        file.write(torn)
    assert [name for name, _ in catalog.find("lpt.stage/1")] == [first]  # readers do not see it
    second = catalog.put(stage(2))
    catalog.verify_chain()
    assert [name for name, _ in catalog.find("lpt.stage/1")] == [second, first]
    assert [p.read_bytes() for p in catalog.directory.glob("events.torn-*")] == [torn]
    assert catalog.notes == []


def test_long_lines_do_not_hide_the_last_event(catalog):
    for number in range(3):
        catalog.put({"type": "lpt.stage/1", "stage_id": "s" * 200_000, "n": number})
    catalog.verify_chain()
    assert catalog.events.last().seq == 2


# -- the index


def test_rebuilt_from_files_it_is_the_index_that_grew(catalog):
    for number in range(3):
        catalog.put(stage(number, removed={"dup": 2}, outputs=[{"path": "o", "bytes": 1, "sha256": "aa", "rows": 1}]))
    catalog.put({"type": "lpt.run/1", "run_id": "r", "metrics": {"loss": [2.0, math.nan]}})
    catalog.admit_version("web", lambda v: {"type": "lpt.admission/1", "name": "web", "version": v, "splits": {}})
    grown = dump(catalog)
    catalog.index_path.unlink()
    assert catalog.rebuild() == 5
    assert repr(dump(catalog)) == repr(grown)
    shutil.copytree(catalog.directory / "objects", catalog.directory / "copy")
    assert catalog.rebuild() == 5
    assert repr(dump(catalog)) == repr(grown)


def test_a_lost_log_is_made_again_from_the_objects(catalog):
    for number, created in ((1, "2026-02-01"), (2, "2026-01-01")):
        catalog.put(stage(number, created=created))
    (catalog.directory / "events.jsonl").unlink()
    assert catalog.rebuild() == 2
    assert [body["stage_id"] for _, body in catalog.find("lpt.stage/1")] == ["s1", "s2"]


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_an_index_that_is_no_file_is_set_aside_and_made_again(catalog, make):
    catalog.put(stage(1))
    good = dump(catalog)
    catalog.index_path.unlink()
    make(catalog.index_path)
    catalog.sync()
    assert dump(catalog) == good


@pytest.mark.parametrize("damage", ["garbage", "empty", "middle", "wal"])
def test_a_broken_index_is_set_aside_and_made_again(catalog, damage):
    for number in range(3):
        catalog.put(stage(number))
    good = dump(catalog)
    path = catalog.index_path
    if damage == "wal":
        crash_with_a_wal(path)
        wal = path.with_name(path.name + ".wal")
        data = bytearray(wal.read_bytes())
        start = len(data) // 3  # damage that DuckDB refuses; other places make it drop transactions in silence
        data[start : start + 200] = os.urandom(200)
        wal.write_bytes(bytes(data))
    else:
        data = path.read_bytes()
        middle = data[: len(data) // 4] + os.urandom(len(data) // 2) + data[-(len(data) // 4) :]
        path.write_bytes({"garbage": os.urandom(5000), "empty": b"", "middle": middle}[damage])
    new = catalog.put(stage(9))
    assert new in {row[0] for row in dump(catalog)[1]}
    assert len(dump(catalog)[0]) == len(good[0]) + 1
    assert any("moved to" in note for note in catalog.notes)
    assert list((catalog.directory / "quarantine").glob("*/catalog.duckdb"))


def crash_with_a_wal(path):
    """Leave a write-ahead log beside the file, as a killed writer does."""
    code = f"""
import duckdb, os, signal
c = duckdb.connect({str(path)!r})
for i in range(50):
    c.execute("INSERT INTO meta VALUES (?, 'x')", [f"junk{{i}}"])
os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", code], check=False)
    assert path.with_name(path.name + ".wal").stat().st_size > 100


def test_an_index_of_another_version_or_another_log_is_made_again(catalog):
    catalog.put(stage(1))
    connection = duckdb.connect(str(catalog.index_path))
    connection.execute("UPDATE meta SET value = 'older' WHERE key = 'schema'")
    connection.execute("DROP VIEW v_stage")
    connection.close()
    catalog.put(stage(2))
    assert len(dump(catalog)[0]) == 2
    other = Catalog.open(catalog.directory.parent / "other")
    other.put(stage(3))
    shutil.copy(catalog.index_path, other.index_path)
    other.sync()
    assert [row[3] for row in dump(other)[0]] == [name for name, _ in other.find("lpt.stage/1")]


def test_a_missing_object_is_a_note_and_not_the_end_of_the_index(catalog):
    name = catalog.put(stage(1))
    catalog.put(stage(2))
    catalog.objects.path(name).unlink()
    assert catalog.rebuild() == 2
    assert any(name[:16] in note for note in catalog.notes)
    assert len(dump(catalog)[1]) == 1


# -- two processes

HOLD = """
import sys, time, duckdb
connection = duckdb.connect(sys.argv[1])
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture
def held(catalog):
    catalog.put(stage(1))
    with subprocess.Popen([sys.executable, "-c", HOLD, str(catalog.index_path)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"held\n"
        yield holder
        holder.kill()


def test_a_busy_index_names_its_holder_and_loses_nothing(catalog, held):
    with pytest.raises(BusyError) as caught:
        catalog.check_free(wait=0.2)
    assert f"pid {held.pid}" in caught.value.seen
    assert "duckdb.connect" in caught.value.seen  # the command, not only a number
    assert caught.value.exit_code == 75
    assert catalog.sync(wait=0.1) is False
    name = catalog.put(stage(2))  # a run must never fail because of the index
    assert any("busy" in note for note in catalog.notes)
    assert catalog.get(name) == stage(2)
    with pytest.raises(BusyError):
        catalog.rebuild(wait=0.1)
    held.kill()
    held.wait()
    catalog.check_free(wait=2)
    assert catalog.sync(wait=5)
    assert {row[0] for row in dump(catalog)[1]} >= {name}


WRITE = """
import os, sys
from manifests.catalog import Catalog
catalog = Catalog.open(sys.argv[1])
number = 0
while True:
    name = catalog.put({"type": "lpt.test/1", "writer": os.getpid(), "number": number, "ballast": "x" * 3000})
    os.write(1, (name + "\\n").encode())
    number += 1
"""


def test_kill_at_any_moment_loses_nothing_that_was_reported(tmp_path):
    """Writers are killed at random moments, two at a time; then every reported object must be whole, logged and
    indexed."""
    folder = tmp_path / ".lpt"
    rng = random.Random(7)
    reported = []
    for _ in range(5):
        writers = [
            subprocess.Popen([sys.executable, "-c", WRITE, str(folder)], stdout=subprocess.PIPE) for _ in range(2)
        ]
        first = [w.stdout.readline() for w in writers]  # so that the moment falls into the work and not into the start
        time.sleep(rng.uniform(0.0, 0.25))
        for writer, line in zip(writers, first, strict=True):
            writer.send_signal(signal.SIGKILL)
            rest = writer.communicate()[0].split(b"\n")[:-1]  # a cut line was not reported
            reported += [name.strip().decode() for name in [line, *rest]]
    catalog = Catalog.open(folder)
    catalog.verify_chain()
    logged = {event.object for event in catalog.events.read()}
    assert len(reported) > 12
    assert set(reported) <= logged
    catalog.put(stage(1))
    assert catalog.notes == [] or all("moved to" in note for note in catalog.notes)
    grown = dump(catalog)
    assert {row[0] for row in grown[1]} >= set(reported)
    catalog.rebuild()
    assert repr(dump(catalog)) == repr(grown)


REBUILD = """
import sys
from manifests.catalog import Catalog
catalog = Catalog.open(sys.argv[1])
print("go", flush=True)
while True:
    catalog.rebuild()
"""


def test_a_killed_rebuild_leaves_an_index_or_makes_one(catalog):
    for number in range(5):
        catalog.put(stage(number))
    good = repr(dump(catalog))
    rng = random.Random(3)
    for _ in range(4):
        with subprocess.Popen(
            [sys.executable, "-c", REBUILD, str(catalog.directory)], stdout=subprocess.PIPE
        ) as process:
            process.stdout.readline()
            time.sleep(rng.uniform(0.0, 0.15))
            process.kill()
        assert catalog.sync()
        assert repr(dump(catalog)) == good
    catalog.rebuild()
    assert not list(catalog.directory.glob(".catalog-*"))


HALF = """
import os, sys
from pathlib import Path
from manifests.files import atomic_path
with atomic_path(Path(sys.argv[1])) as temporary:
    temporary.write_bytes(b"half")
    os.utime(temporary, (0, 0))
    print(temporary, flush=True)
    sys.stdin.readline()
    temporary.write_bytes(b"whole")
"""


def test_a_rebuild_sweeps_what_a_killed_writer_left_and_nothing_of_a_living_one(catalog):
    """However old the half-written file is, and wherever in the catalog it lies."""
    places = [catalog.directory / name for name in ("objects/ab/cd.json", "decisions/x.parquet")]
    for place in places:
        place.parent.mkdir(exist_ok=True)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    writers = [subprocess.Popen([sys.executable, "-c", HALF, str(place)], **pipes) for place in places]
    half = [Path(writer.stdout.readline().strip()) for writer in writers]
    writers[0].kill()
    writers[0].wait()
    elsewhere = half[1].with_name(half[0].name.replace(".tmp-file-", ".tmp-file-elsewhere-"))
    elsewhere.write_bytes(b"half")
    os.utime(elsewhere, (0, 0))
    catalog.rebuild()
    assert [path.exists() for path in (*half, elsewhere)] == [False, True, True]
    (note,) = [note for note in catalog.notes if "half-written" in note]
    assert note.startswith("2 half-written files of a day and more are kept")
    assert str(elsewhere) in note
    writers[1].communicate("go\n")
    assert places[1].read_bytes() == b"whole"
    for writer in writers:
        writer.stdin.close()
        writer.stdout.close()


def test_two_sweeps_at_once_do_not_meet(catalog):
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait()
    for n in range(300):
        name = unfinished_name(FILE).replace(f"-{os.getpid()}-", f"-{gone.pid}-")
        (catalog.directory / "decisions" / f"{name}-{n}").write_bytes(b"half")
    code = "import sys; from manifests.catalog import Catalog; Catalog.open(sys.argv[1])._sweep()"
    sweeps = [subprocess.Popen([sys.executable, "-c", code, str(catalog.directory)]) for _ in range(2)]
    assert [sweep.wait() for sweep in sweeps] == [0, 0]
    assert not list((catalog.directory / "decisions").iterdir())


ADMIT = """
import sys, time
from manifests.catalog import Catalog
def build(version):
    time.sleep(0.2)
    return {"type": "lpt.admission/1", "name": "web", "version": version, "splits": {}, "who": sys.argv[2]}
print(Catalog.open(sys.argv[1]).admit_version("web", build, wait=60))
"""


def test_two_admissions_at_once_get_two_versions(catalog):
    started = [
        subprocess.Popen([sys.executable, "-c", ADMIT, str(catalog.directory), str(who)], stdout=subprocess.PIPE)
        for who in range(3)
    ]
    names = {process.communicate()[0].strip() for process in started}
    assert len(names) == 3
    assert sorted(body["version"] for _, body in catalog.find("lpt.admission/1", name="web")) == [1, 2, 3]


def test_a_version_that_failed_is_given_again_and_its_leftovers_move_aside(catalog):
    def fails(version: int) -> dict:
        (catalog.splits_dir / f"web@{version}").mkdir()
        raise RuntimeError

    with pytest.raises(RuntimeError):
        catalog.admit_version("web", fails)
    made = []

    def build(version: int) -> dict:
        folder = catalog.splits_dir / f"web@{version}"
        made.append((version, folder.exists()))
        return {"type": "lpt.admission/1", "name": "web", "version": version, "splits": {}}

    catalog.admit_version("web", build)
    assert made == [(1, False)]
    assert any("did not finish" in note for note in catalog.notes)
    with pytest.raises(UsageError):
        catalog.admit_version("web", lambda version: {"type": "lpt.admission/1", "name": "web", "version": 7})


def test_the_log_is_plain_json_lines(catalog):
    catalog.put({"type": "lpt.run/1", "run_id": "r1", "status": "done"})
    (line,) = (catalog.directory / "events.jsonl").read_bytes().splitlines()
    body = orjson.loads(line)
    assert sorted(body) == ["at", "facets", "object", "prev", "seq", "type"]
    assert (body["seq"], body["type"], body["facets"]) == (0, "lpt.run/1", {"run_id": "r1"})
