"""Benchmarks fetched by `datasets` from a hub over HTTP, each in a process: the library reads its settings once."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hub_server import Hub, hub

pytest.importorskip("datasets")
ROOT = Path(__file__).parents[3]
REAL = ROOT.parent / "shared" / "data" / "gsm8k" / "test.jsonl"


def parquet(rows: list[dict]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), sink)
    return sink.getvalue()


def published(config: str, rows: list[dict]) -> dict[str, bytes]:
    """A repository as the hub has those of benchmarks: a card that names the files of a split, and Parquet."""
    card = f"---\nconfigs:\n- config_name: {config}\n  data_files:\n  - split: test\n    path: {config}/test-*\n---\n"
    return {"README.md": card.encode(), f"{config}/test-00000-of-00001.parquet": parquet(rows)}


def sums(count: int) -> list[dict]:
    return [{"question": f"What is {n} plus {n}?", "answer": f"It is {2 * n}.\n#### {2 * n}"} for n in range(count)]


def programs(count: int) -> list[dict]:
    return [
        {"task_id": n, "text": f"Write a function that adds {n}.", "code": f"def f(x):\n    return x + {n}"}
        for n in range(count)
    ]


def add(folder: Path, name: str, server: Hub | str, **environment: str) -> tuple[int, dict, str]:
    address = server if isinstance(server, str) else server.address
    clean = {key: value for key, value in os.environ.items() if key not in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")}
    ran = subprocess.run(
        [sys.executable, "-c", "from cli.main import run; run()", "data", "benchmarks", "add", name, "--json"],
        cwd=folder,
        env={**clean, "PYTHONPATH": str(ROOT), "HF_HOME": str(folder / "hf"), "HF_ENDPOINT": address, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    return ran.returncode, json.loads(ran.stdout), ran.stderr


def test_a_benchmark_comes_over_http_and_is_pinned(tmp_path: Path) -> None:
    with hub({"google-research-datasets/mbpp": published("full", programs(5))}) as server:
        code, body, said = add(tmp_path, "mbpp", server)
        assert code == 0, said
        assert any(asked.startswith("GET") and asked.endswith(".parquet") for asked in server.asked)
    (found,) = body["benchmarks"]
    assert (found["items"], found["layout"], found["expected"], found["pinned"]) == (5, "mbpp", 500, False)
    assert found["content_root"]
    items = (tmp_path / ".lpt" / "benchmarks" / "mbpp" / "items.jsonl").read_text().splitlines()
    assert [json.loads(item)["question"] for item in items] == [row["text"] for row in programs(5)]
    # What it is then stands: the hub with another item under the name is another benchmark.
    changed = [*programs(4), {"task_id": 4, "text": "Write another one.", "code": "pass"}]
    with hub({"google-research-datasets/mbpp": published("full", changed)}) as server:
        code, body, _ = add(tmp_path, "mbpp", server, HF_HOME=str(tmp_path / "other"))
    assert code == 4
    assert "added with other items" in body["error"]["what"]


def test_what_a_hub_calls_gsm8k_is_held_against_the_published_items(tmp_path: Path) -> None:
    with hub({"openai/gsm8k": published("main", sums(5))}) as server:
        code, body, _ = add(tmp_path, "gsm8k", server)
    assert code == 4
    assert "not those of gsm8k as it was published" in body["error"]["what"]
    assert "5 items" in body["error"]["seen"]


@pytest.mark.skipif(not REAL.is_file(), reason="needs the published file")
def test_the_published_items_have_the_digest_of_the_table(tmp_path: Path) -> None:
    rows = [json.loads(line) for line in REAL.read_text().splitlines()]
    with hub({"openai/gsm8k": published("main", rows)}) as server:
        code, body, said = add(tmp_path, "gsm8k", server)
    assert code == 0, said
    assert (body["benchmarks"][0]["items"], body["benchmarks"][0]["pinned"]) == (1319, True)


def test_a_hub_without_it_says_so_and_not_that_a_file_cannot_be_written(tmp_path: Path) -> None:
    with hub({}) as server:
        code, body, _ = add(tmp_path, "mbpp", server)
        gone = server.address
    assert code == 5
    assert body["error"]["what"] == "mbpp could not be fetched"
    assert "cannot be written" not in body["error"]["seen"]
    assert "lpt data benchmarks add mbpp=FILE" in body["error"]["next"]
    code, body, _ = add(tmp_path, "mbpp", gone)  # nobody listens there any more
    assert code == 5
    assert "cannot be reached" in body["error"]["what"]
    assert not (tmp_path / ".lpt" / "benchmarks" / "mbpp").exists()
