"""The text that a canonical record says: all of it, its prompt, its response.

Prompt: every message before the last reply, system messages left out, because one system prompt over a whole data set
would make all of its rows look alike. Response: that last reply, with its tool calls as JSON.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from manifests.canon import canonical_bytes, json_text

KEYS = ("text", "prompt", "response", "row")


def text_of(kind: str, record: Mapping[str, Any], key: str) -> str:
    """Return the text of a record under one of KEYS."""
    return _TEXTS[key](kind, record)


def prompt_text(kind: str, record: Mapping[str, Any]) -> str:
    """Return what the record asks; for plain text the text itself."""
    if kind == "text":
        return record["text"]
    if kind == "sft":
        return _said(record["messages"][: _last_reply(record["messages"])])
    if "prompt" in record:
        return _said(record["prompt"])
    chosen, rejected = record["chosen"], record["rejected"]  # a preference with the prompt inside both sides
    same = 0
    while same < min(len(chosen), len(rejected)) and chosen[same] == rejected[same]:
        same += 1
    return _said(chosen[:same])


def response_text(kind: str, record: Mapping[str, Any]) -> str:
    """Return what the record answers: the last reply, the gold answer, the chosen side or the completion."""
    if kind == "text":
        return record["text"]
    if kind == "sft":
        at = _last_reply(record["messages"])
        return _said(record["messages"][at : at + 1])
    if kind == "rlvr":
        return record["answer"]
    return _said(record["chosen" if kind == "preference" else "completion"][-1:])


def all_text(kind: str, record: Mapping[str, Any]) -> str:
    """Return all that a record says, in order, a line break between the parts."""
    if kind == "text":
        return record["text"]
    parts = [value if isinstance(value, str) else _said(value, system=True) for value in _parts(kind, record)]
    return "\n".join(part for part in parts if part)


def _parts(kind: str, record: Mapping[str, Any]) -> list[Any]:
    names = {
        "sft": ("messages",),
        "rlvr": ("prompt", "answer"),
        "preference": ("prompt", "chosen", "rejected"),
        "kto": ("prompt", "completion"),
    }[kind]
    return [record[name] for name in names if name in record]


def _row_text(kind: str, record: Mapping[str, Any]) -> str:
    return record["text"] if kind == "text" else canonical_bytes(kind, record).decode()


def _last_reply(messages: Sequence[Mapping[str, Any]]) -> int:
    """Index of the last message of the assistant; one past the end where there is none."""
    return next((i for i in range(len(messages) - 1, -1, -1) if messages[i].get("role") == "assistant"), len(messages))


def _said(messages: Sequence[Mapping[str, Any]], *, system: bool = False) -> str:
    parts = []
    for message in messages:
        if message.get("role") == "system" and not system:
            continue
        if message.get("content"):
            parts.append(message["content"])
        if message.get("tool_calls"):
            parts.append(json_text(message["tool_calls"]))
    return "\n".join(parts)


_TEXTS = {"text": all_text, "prompt": prompt_text, "response": response_text, "row": _row_text}
