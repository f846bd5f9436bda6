"""The command in little memory: the cap holds by an outside clock, and a kill or a full disk costs nothing."""

from __future__ import annotations

import json
import os
import random
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lpt_data.dedup.store import Table
from lpt_data.spill import Queues, Spill
from manifests.errors import BadInputError

# A small parent that clocks from outside: a child's peak counts what its parent held when it forked.
CLOCK = "import resource, subprocess, sys; code = subprocess.run(sys.argv[1:]).returncode; "
CLOCK += "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024); sys.exit(code)"
COMMAND = [sys.executable, "-c", "from cli.main import run; run()", "data", "dedup"]


def start(
    folder: Path, *options: str, limit: Callable[[], None] | None = None, before: tuple[str, ...] = ()
) -> subprocess.Popen[bytes]:
    command = [*before, *COMMAND, *options, "--catalog", str(folder / "lpt"), "--workers", "1", "--json"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with (folder / "said.txt").open("wb") as said:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, env=environment, preexec_fn=limit)


def finish(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    """Exit code and standard output of a process."""
    assert process.stdout is not None
    with process.stdout as stdout:
        out = stdout.read().decode()
    return process.wait(), out


@pytest.fixture(scope="module")
def texts() -> list[str]:
    rng = random.Random(9)
    rows = [" ".join(f"w{rng.randrange(20_000)}" for _ in range(180)) for _ in range(24_000)]
    for place in range(0, len(rows), 4):
        rows[place] = rows[rng.randrange(len(rows))] + " end" * rng.randrange(2)
    return rows


@pytest.fixture
def corpus_file(tmp_path: Path, texts: list[str]) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def smallest(folder: Path, path: Path) -> str:
    """The smallest cap that the command itself says would do."""
    code, _ = finish(start(folder, str(path), "--out", str(folder / "x.jsonl"), "--memory", "1MB"))
    assert code == 5
    return re.search(r"--memory (\d+MB) or more", (folder / "said.txt").read_text())[1]  # type: ignore[index]


def test_the_cap_holds_and_nothing_else_changes(tmp_path: Path, corpus_file: Path, texts: list[str]) -> None:
    cap = smallest(tmp_path, corpus_file)
    random.Random(1).shuffle(texts)
    other = tmp_path / "shuffled.jsonl"
    other.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    roots, spilled = set(), []
    for number, (path, memory) in enumerate(((corpus_file, "20GB"), (corpus_file, cap), (other, cap))):
        out = tmp_path / f"out{number}.jsonl"
        options = (str(path), "--out", str(out), "--memory", memory)
        code, said = finish(start(tmp_path, *options, before=(sys.executable, "-c", CLOCK)))
        assert code == 0
        body, end = json.JSONDecoder().raw_decode(said)
        peak = int(said[end:])
        roots.add((body["content_root"], json.dumps(body["removed"], sort_keys=True)))
        spilled.append(body["memory"]["spilled_bytes"])
        if memory == cap:
            assert peak <= int(cap.removesuffix("MB")) * 10**6
    assert len(roots) == 1
    assert spilled[0] == 0
    assert min(spilled[1:]) > 10**7
    assert peak == pytest.approx(body["peak_memory_bytes"], rel=0.05)
    assert (tmp_path / "out0.jsonl").read_bytes() == (tmp_path / "out1.jsonl").read_bytes()


def spilled_bytes(pid: int, folder: Path) -> int:
    """Bytes in the nameless file of a process, 0 before there is one."""
    for handle in Path(f"/proc/{pid}/fd").iterdir():
        try:
            name = os.readlink(handle)
            if name.startswith(f"{folder}/") and name.endswith(" (deleted)"):
                return handle.stat().st_size
        except OSError:
            continue
    return 0


def test_killed_while_it_spills_it_leaves_nothing_and_ends_the_same(tmp_path: Path, corpus_file: Path) -> None:
    cap, out = smallest(tmp_path, corpus_file), tmp_path / "out.jsonl"
    before = {path.name for path in tmp_path.iterdir()}
    process = start(tmp_path, str(corpus_file), "--out", str(out), "--memory", cap)
    until = time.monotonic() + 60
    while process.poll() is None and spilled_bytes(process.pid, tmp_path) < 10**6 and time.monotonic() < until:
        time.sleep(0.002)
    assert spilled_bytes(process.pid, tmp_path) >= 10**6
    process.send_signal(signal.SIGKILL)
    assert finish(process)[0] == -signal.SIGKILL
    assert {path.name for path in tmp_path.iterdir()} == before
    assert finish(start(tmp_path, str(corpus_file), "--out", str(out), "--memory", cap))[0] == 0
    whole = tmp_path / "whole.jsonl"
    assert finish(start(tmp_path, str(corpus_file), "--out", str(whole)))[0] == 0
    assert out.read_bytes() == whole.read_bytes()


def test_a_full_disk_is_said_and_the_output_stands_as_it_was(tmp_path: Path, corpus_file: Path) -> None:
    cap, out = smallest(tmp_path, corpus_file), tmp_path / "out.jsonl"
    out.write_text("what was there\n")
    before = {path.name for path in tmp_path.iterdir()}

    def full() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (3 << 20, 3 << 20))

    code, _ = finish(start(tmp_path, str(corpus_file), "--out", str(out), "--memory", cap, limit=full))
    said = (tmp_path / "said.txt").read_text()
    assert code == 5
    assert "the spill file" in said
    assert "next:" in said
    assert "Traceback" not in said
    assert out.read_text() == "what was there\n"
    assert {path.name for path in tmp_path.iterdir()} == before


def test_two_at_once_write_one_output_one_after_the_other(tmp_path: Path, corpus_file: Path) -> None:
    out = tmp_path / "out.jsonl"
    both = [start(tmp_path, str(corpus_file), "--out", str(out)) for _ in range(2)]
    codes = sorted(finish(process)[0] for process in both)
    assert codes in ([0, 0], [0, 75])  # the second one finds the work done, or gives up waiting
    assert len(out.read_text().splitlines()) > 16_000


def test_a_corpus_of_empty_rows_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text('{"text": ""}\n' * 5000)
    code, _ = finish(start(tmp_path, str(path), "--out", str(tmp_path / "out.jsonl")))
    assert code == 5
    assert "all bad" in (tmp_path / "said.txt").read_text()


def test_what_was_spilled_is_read_back(tmp_path: Path) -> None:
    with Spill(tmp_path) as spill:
        assert spill.append([np.arange(3), np.zeros(0)]) == 0
        assert spill.append([np.array([7], np.uint8)]) == 24
        assert spill.read(0, np.int64, 3).tolist() == [0, 1, 2]
        assert list(tmp_path.iterdir()) == []
        table, queues = Table(2, spill), Queues(2, np.int64, spill, 0)
        table.add(np.array([[1, 2], [3, 4]], np.uint64))
        table.close_block()
        table.evict()
        table.add(np.array([[5, 6]], np.uint64))
        table.close_block()
        assert [values.tolist() for _, values in table.column(1)] == [[2, 4], [6]]
        assert table.take(np.array([1, 2])).tolist() == [[3, 4], [5, 6]]
        for number in range(2000):
            queues.add(number % 2, np.array([number]))
        assert queues.read(1).tolist() == list(range(1, 2000, 2))
    with pytest.raises(BadInputError, match="spill file"), Spill(tmp_path / "not there") as spill:
        spill.append([np.arange(3)])
