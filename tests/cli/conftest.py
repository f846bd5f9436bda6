"""A model and catalogs to try commands on."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from command_line import invoke, jsonl, mount, sums

from manifests import files, index


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No catalog but the one of the folder, one thread, no network."""
    monkeypatch.delenv("LPT_CATALOG", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits here for another process gives up in a tenth of the time: ten seconds pass in one."""
    clock = SimpleNamespace(**{**vars(time), "monotonic": lambda: 10 * time.monotonic()})
    for module in (files, index):
        monkeypatch.setattr(module, "time", clock)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of two layers of width 32 with the byte-level tokenizer."""
    import torch

    from lpt_train.tiny import make_tiny

    torch.set_num_threads(1)
    return make_tiny(tmp_path_factory.mktemp("model") / "small", hidden=32, layers=2, heads=2)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose catalog holds `sums@1` (rlvr: train, test) and `chats@1` (sft, admitted with a tokenizer)."""
    folder = tmp_path_factory.mktemp("place")
    jsonl(folder / "train.jsonl", sums(24))
    jsonl(folder / "test.jsonl", sums(6, start=50))
    words = ("one", "two", "three", "four", "five", "six")
    chats = [
        {"messages": [{"role": "user", "content": f"say {a} then {b}"}, {"role": "assistant", "content": f"{a}, {b}"}]}
        for a in words
        for b in words
    ]
    jsonl(folder / "chats.jsonl", chats)
    rlvr = ("--contract", "rlvr", "--train", "train.jsonl", "--test", "test.jsonl", "--key", "countdown")
    admitted = invoke("admit", "sums", *rlvr, cwd=folder)
    assert admitted.code in (0, 3), admitted.stderr
    sft = ("--contract", "sft", "--train", "chats.jsonl", "--tokenizer", "tiny", "--max-length", 128)
    admitted = invoke("admit", "chats", *sft, cwd=folder)
    assert admitted.code in (0, 3), admitted.stderr
    return folder


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 256 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.name != "posix" or not mount(folder, "-o", "size=256k"):
        pytest.skip("needs the right to mount a small disk")
    yield folder
    subprocess.run(["umount", str(folder)], check=False)
