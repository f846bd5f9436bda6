"""Atomic writes and locks, with real processes and, where permitted, a real full disk."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import numpy as np
import pytest

from manifests import decisions
from manifests.catalog import Catalog
from manifests.errors import BadInputError, BusyError
from manifests.files import atomic_path, exclusive_lock, make_folder, sweep_killed, unfinished_name, write_atomic


@contextmanager
def small_disk(folder, size="256k", options=""):
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}{options}", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("mounting a small file system is not permitted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True, capture_output=True)


def test_a_file_appears_whole_or_not_at_all(tmp_path):
    target = tmp_path / "out.jsonl"
    write_atomic(target, b"one")

    def fails() -> None:
        with atomic_path(target) as temporary:
            assert temporary.parent == tmp_path
            assert temporary.suffix == ".jsonl"
            temporary.write_bytes(b"half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fails()
    assert target.read_bytes() == b"one"
    assert os.listdir(tmp_path) == ["out.jsonl"]


def test_both_suffixes_are_kept_for_writers_that_look_at_them(tmp_path):
    with atomic_path(tmp_path / "a.jsonl.gz") as temporary:
        assert temporary.name.endswith(".jsonl.gz")
        temporary.write_bytes(b"")


def test_trouble_with_another_file_is_not_blamed_on_the_output(tmp_path):
    with pytest.raises(FileNotFoundError), atomic_path(tmp_path / "out"):
        (tmp_path / "absent").read_bytes()


@pytest.mark.parametrize("parts", [("absent", "x"), ("file", "x")])
def test_a_place_that_cannot_be_written_is_a_three_part_error(tmp_path, parts):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(BadInputError) as caught:
        write_atomic(tmp_path.joinpath(*parts), b"x")
    assert caught.value.seen
    assert caught.value.next
    if parts[0] == "file":
        with pytest.raises(BadInputError):
            make_folder(tmp_path.joinpath(*parts))


def test_a_full_disk_leaves_nothing_half_written(tmp_path):
    with small_disk(tmp_path / "disk") as disk:
        write_atomic(disk / "kept", b"before")
        with pytest.raises(BadInputError) as caught:
            write_atomic(disk / "kept", os.urandom(1 << 20))
        assert "space" in str(caught.value)
        assert (disk / "kept").read_bytes() == b"before"
        assert os.listdir(disk) == ["kept"]
        ids = np.random.default_rng(0).integers(0, 256, (50_000, 32), dtype=np.uint8)
        columns = {
            "row": range(len(ids)),
            "record_id": ids,
            "action": ["remove"] * len(ids),
            "reason": ["x"] * len(ids),
        }
        with pytest.raises(BadInputError):
            decisions.write(disk / "d.parquet", decisions.table(columns))
        assert os.listdir(disk) == ["kept"]


def test_a_catalog_on_a_full_disk_keeps_what_it_reported(tmp_path):
    with small_disk(tmp_path / "disk", "1m") as disk:
        catalog = Catalog.open(disk / ".lpt")
        done = []

        def fill() -> None:
            for number in range(1000):
                done.append(catalog.put({"type": "lpt.test/1", "number": number, "ballast": os.urandom(20_000).hex()}))

        with pytest.raises(BadInputError) as caught:
            fill()
        assert caught.value.exit_code == 5
        assert len(done) > 2
        catalog.verify_chain()
        assert [body["number"] for _, body in catalog.find("lpt.test/1")] == list(reversed(range(len(done))))
        assert not [f for f in disk.rglob(".tmp-*")]


def test_a_read_only_folder_is_named_and_can_still_be_asked(tmp_path):
    from manifests.sql import query

    with small_disk(tmp_path / "disk", "4m") as disk:
        catalog = Catalog.open(disk / ".lpt")
        catalog.put({"type": "lpt.stage/1", "stage_id": "s1", "stage": "dedup", "rows_in": 3})
        catalog.index_path.unlink()
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        with pytest.raises(BadInputError) as caught:
            catalog.put({"type": "lpt.stage/1", "stage_id": "s2"})
        assert "Read-only" in str(caught.value.seen)
        result = query(Catalog.open(disk / ".lpt", create=False), "SELECT stage_id, rows_in FROM v_stage")
        assert result.rows == [("s1", 3)]
        assert any("in memory" in note for note in result.notes)


HOLD = """
import sys, time
from manifests.files import exclusive_lock
with exclusive_lock(sys.argv[1], what="the output"):
    print("held", flush=True)
    time.sleep(60)
"""


def test_the_second_waits_and_then_says_who_holds_it(tmp_path):
    lock = tmp_path / "out.lock"
    with subprocess.Popen([sys.executable, "-c", HOLD, str(lock)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(BusyError) as caught, exclusive_lock(lock, wait=0.3, what="the output"):
            pass
        assert f"pid {holder.pid}" in str(caught.value)
        assert caught.value.exit_code == 75
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    with exclusive_lock(lock, wait=2.0, what="the output"):  # the lock of a killed process is nobody's
        pass
    with exclusive_lock(lock, wait=0.0, what="the output"):
        pass


def test_a_lock_is_taken_as_soon_as_it_is_free(tmp_path):
    lock = tmp_path / "l"
    code = HOLD.replace("sleep(60)", "sleep(0.5)")
    with subprocess.Popen([sys.executable, "-c", code, str(lock)], stdout=subprocess.PIPE) as holder:
        holder.stdout.readline()
        start = time.monotonic()
        with exclusive_lock(lock, wait=30, what="the output"):
            assert time.monotonic() - start < 25


def test_what_a_killed_process_left_is_swept_and_what_a_living_one_has_is_not(tmp_path):
    mine = tmp_path / unfinished_name("model")
    gone = tmp_path / mine.name.replace(f"-{os.getpid()}-", "-999999999-")
    others = [tmp_path / gone.name.replace("model", "models"), tmp_path / ".tmp-model-elsewhere-999999999-aa"]
    for folder in (mine, gone, *others):
        (folder / "part").mkdir(parents=True)
    sweep_killed(tmp_path, "model")
    assert [folder.exists() for folder in (mine, gone, *others)] == [True, False, True, True]
    sweep_killed(tmp_path / "nowhere", "model")


def test_what_another_namespace_of_pids_has_is_not_swept(tmp_path, monkeypatch):
    """Two containers of one host name and a shared folder: what is no pid here may be a living one there."""
    theirs = tmp_path / unfinished_name("model").replace(f"-{os.getpid()}-", "-999999999-")
    theirs.mkdir()
    here = os.stat
    other = os.stat_result((0, here("/proc/self/ns/pid").st_ino + 1, *[0] * 8))
    monkeypatch.setattr(os, "stat", lambda path, **more: other if path == "/proc/self/ns/pid" else here(path, **more))
    sweep_killed(tmp_path, "model")
    assert theirs.exists()
    monkeypatch.undo()
    sweep_killed(tmp_path, "model")
    assert not theirs.exists()


def test_what_another_boot_or_an_earlier_lpt_has_is_not_swept(tmp_path, monkeypatch):
    """Two machines of one host name: the first namespace of pids has one number on both, a boot has its own."""
    boot = tmp_path / "boot_id"
    monkeypatch.setattr("manifests.files._BOOT", boot)
    names = {}
    for which, text in (("earlier", None), ("theirs", "0123456789"), ("mine", "17650493-93e7\n")):
        boot.unlink(missing_ok=True)
        if text is not None:
            boot.write_text(text)
        names[which] = tmp_path / unfinished_name("model").replace(f"-{os.getpid()}-", "-999999999-")
        names[which].write_bytes(b"half")
    sweep_killed(tmp_path, "model")
    assert [name for name, path in names.items() if path.exists()] == ["earlier", "theirs"]
    boot.unlink()  # no boot is told here: as before, and nobody else's
    sweep_killed(tmp_path, "model")
    assert [name for name, path in names.items() if path.exists()] == ["theirs"]
