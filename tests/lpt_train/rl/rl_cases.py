"""Rows of small rlvr splits."""

from __future__ import annotations

import json
from pathlib import Path

import orjson

from lpt_train.admitted import AdmittedSplit, load_unadmitted


def problem(a: int, b: int) -> dict:
    return {
        "prompt": [{"role": "user", "content": f"{a} {b}"}],
        "answer": json.dumps({"numbers": [a, b], "target": a + b}),
        "verifier": "countdown",
    }


def split_of(path: Path, records: list[dict]) -> AdmittedSplit:
    path.write_bytes(b"".join(orjson.dumps(record) + b"\n" for record in records))
    return load_unadmitted(path, "rlvr")
