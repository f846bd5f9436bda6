"""The cap: what it counts, where it comes from, and a refusal that names the number needed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lpt_data.dedup import memory
from lpt_data.dedup.memory import (
    BOOKS,
    LEAST_WORK,
    RESERVE,
    WORKING,
    Budget,
    available_bytes,
    budget,
    parse_bytes,
    shown,
)
from manifests.errors import BadInputError


def test_the_room_is_what_the_program_the_reserve_and_the_books_leave() -> None:
    cap = Budget(10**9, "--memory", 2 * 10**8)
    assert cap.room(1000) == 8 * 10**8 - RESERVE - 1000 * WORKING
    assert cap.hold(1000) == cap.room(1000) // 2  # the other half is for what is compared
    assert cap.hold(1_500_000) == 8 * 10**8 - RESERVE - 1_500_000 * BOOKS  # less than that half


def test_a_refusal_names_a_cap_that_is_then_enough() -> None:
    with pytest.raises(BadInputError) as error:
        Budget(10**9, "--memory", 2 * 10**8).hold(10**7)
    needed = int(re.search(r"--memory (\d+)MB", error.value.next)[1]) * 10**6  # type: ignore[index]
    assert needed >= 2 * 10**8 + RESERVE + 10**7 * BOOKS + LEAST_WORK
    assert Budget(needed, "--memory", 2 * 10**8).hold(10**7) >= LEAST_WORK


def test_a_row_whose_tokens_do_not_fit_is_refused() -> None:
    cap = Budget(10**9, "--memory", 2 * 10**8)
    cap.row(6 * 10**7)
    with pytest.raises(BadInputError, match="a row is too large") as error:
        cap.row(10**8)
    needed = int(re.search(r"--memory (\d+)MB", error.value.next)[1]) * 10**6  # type: ignore[index]
    Budget(needed, "--memory", 2 * 10**8).row(10**8)


def test_unasked_it_is_a_share_of_what_is_available(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda: 10**10)
    assert budget(None).cap == 6 * 10**9
    assert "60%" in budget(None).source
    assert budget("4GB").cap == parse_bytes("4GB") == 4 * 10**9
    assert budget("4GB").resident > 10**6


def machine(tmp_path: Path, groups: str, files: dict[str, str]) -> tuple[Path, Path]:
    proc, root = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal: 64000000 kB\nMemAvailable:   32000000 kB\n")
    (proc / "self" / "cgroup").write_text(groups)
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root, proc


def test_the_limit_of_a_cgroup_and_of_those_above_it_is_honoured(tmp_path: Path) -> None:
    files = {
        "memory.max": "max", "memory.current": "9000000000", "memory.stat": "inactive_file 0\n",
        "a/memory.max": "5000000000", "a/memory.current": "3000000000", "a/memory.stat": "anon 1\ninactive_file 500\n",
        "a/b/memory.max": "max", "a/b/memory.current": "10", "a/b/memory.stat": "inactive_file 0\n",
    }  # fmt: skip
    root, proc = machine(tmp_path, "0::/a/b\n", files)
    assert available_bytes(root, proc) == 2_000_000_500


def test_the_older_cgroups_and_none_at_all(tmp_path: Path) -> None:
    files = {
        "memory/x/memory.limit_in_bytes": "800000000", "memory/x/memory.usage_in_bytes": "300000000",
        "memory/x/memory.stat": "total_inactive_file 7\n",
    }  # fmt: skip
    root, proc = machine(tmp_path / "old", "12:cpu:/x\n5:memory:/x\n", files)
    assert available_bytes(root, proc) == 500_000_007
    root, proc = machine(tmp_path / "none", "", {})
    assert available_bytes(root, proc) == 32_000_000 * 1024


@pytest.mark.parametrize(("size", "text"), [(3.2e9, "3.2 GB"), (240e6, "240 MB"), (12_000, "12 KB"), (7, "7 bytes")])
def test_amounts_for_people(size: float, text: str) -> None:
    assert shown(size) == text
