"""Small records that the tests of training share."""

from __future__ import annotations

from pathlib import Path

import orjson


def chat(*turns: str) -> list[dict[str, str]]:
    """Messages that alternate user and assistant, the user first."""
    return [{"role": "assistant" if n % 2 else "user", "content": text} for n, text in enumerate(turns)]


def chats(count: int) -> list[dict]:
    """`count` sft records of different lengths, in no order of length."""
    words = ["one", "two", "three", "four", "five", "six", "seven"]
    return [
        {"messages": chat(f"say {words[n % 7]} {n}", " ".join(words[n % 5 : n % 5 + 1 + n % 4]))} for n in range(count)
    ]


def write_jsonl(path: Path, records: list[dict]) -> Path:
    path.write_bytes(b"".join(orjson.dumps(record) + b"\n" for record in records))
    return path
