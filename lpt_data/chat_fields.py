"""The fields of foreign rows: taken by name, checked by type, chat messages brought into canonical form.

What `lpt_data.layouts` and `lpt_data.preference_layouts` build their converters from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from manifests.canon import json_text
from manifests.errors import RecordError

Row = Mapping[str, Any]


def wrong(what: str, path: str, value: Any, reason: str = "wrong_type") -> RecordError:
    """Return the error of a value that has not the type or form that its column needs."""
    return RecordError(
        f"{path} must be {what}", reason=reason, field=path, seen=f"{type(value).__name__}: {repr(value)[:80]}"
    )


def take(row: Row, *names: str) -> Any:
    """Return the first of the named columns that is present and not null; raise `missing_field` when there is none."""
    for name in names:
        value = row.get(name)
        if value is not None:
            return value
    raise RecordError(
        f"a row has no {names[0]!r}",
        reason="missing_field",
        field=names[0],
        seen=f"columns: {', '.join(map(str, row))[:200]}",
    )


def take_text(row: Row, *names: str) -> str:
    """Return a column that must be text."""
    value = take(row, *names)
    if isinstance(value, str):
        return value
    raise wrong("text", names[0], value)


def take_list(row: Row, *names: str) -> list[Any]:
    """Return a column that must be a list, or JSON text of one."""
    value = take(row, *names)
    if isinstance(value, str):
        try:
            value = orjson.loads(value)
        except ValueError:
            raise wrong("a list", names[0], value) from None
    if isinstance(value, (list, tuple)):
        return value if type(value) is list else list(value)
    raise wrong("a list", names[0], value)


# -- messages


# What other formats call the fields of a message.
OTHER_NAMES = {"from": "role", "speaker": "role", "text": "content", "value": "content"}
RENAME = "in each message rename "


def message(value: Any, path: str) -> dict[str, Any]:
    """Return one chat message in canonical form: text content, arguments of calls as JSON text, other fields as
    they are.
    """
    if not isinstance(value, Mapping):
        raise wrong("an object with role and content", path, value)
    built = {name: item for name, item in value.items() if item is not None}
    if others := [f"{name} → {ours}" for name, ours in OTHER_NAMES.items() if name in built and ours not in built]:
        raise RecordError(f"{RENAME}{', '.join(others)}", reason="unknown_field", field=path, seen=path)
    if "content" in built:
        built["content"] = _content(built["content"], f"{path}.content")
    if "tool_calls" in built:
        if not isinstance(built["tool_calls"], (list, tuple)):
            raise wrong("a list", f"{path}.tool_calls", built["tool_calls"])
        built["tool_calls"] = [tool_call(c, f"{path}.tool_calls[{i}]") for i, c in enumerate(built["tool_calls"])]
        if not built["tool_calls"]:
            del built["tool_calls"]
    return built


def _content(value: Any, path: str) -> str:
    """Text, or the text parts of OpenAI's list form; a part that is no text is refused, not left out."""
    if isinstance(value, str):
        return value
    if not isinstance(value, (list, tuple)):
        raise wrong("text", path, value)
    parts = []
    for i, part in enumerate(value):
        text = part.get("text") if isinstance(part, Mapping) and part.get("type") in ("text", None) else None
        if not isinstance(text, str):
            raise wrong("a text part", f"{path}[{i}]", part, "content_not_text")
        parts.append(text)
    return "".join(parts)


def tool_call(value: Any, path: str) -> dict[str, Any]:
    """Return one tool call in canonical form, its arguments as JSON text."""
    if not isinstance(value, Mapping):
        raise wrong("a tool call", path, value)
    call = {name: item for name, item in value.items() if item is not None}
    function = call.get("function")
    if not isinstance(function, Mapping):
        raise wrong("an object with name and arguments", f"{path}.function", function)
    inner = {name: item for name, item in function.items() if item is not None}
    inner["arguments"] = json_text(inner.get("arguments", {}))
    return {**call, "type": call.get("type", "function"), "function": inner}


def messages(values: Iterable[Any], path: str) -> list[dict[str, Any]]:
    """Return a list of chat messages in canonical form: the list itself where nothing is to be done."""
    if type(values) is list and all(map(_is_canonical, values)):
        return values
    return [message(value, f"{path}[{i}]") for i, value in enumerate(values)]


def _is_canonical(value: Any) -> bool:
    """Whether a message is one of role and text alone, as nearly all are."""
    return (
        type(value) is dict and len(value) == 2 and type(value.get("content")) is str and type(value.get("role")) is str
    )


def user(text: str) -> dict[str, Any]:
    """Return a message of the user."""
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    """Return a message of the assistant."""
    return {"role": "assistant", "content": text}


def tools_of(row: Row) -> dict[str, Any]:
    """Return {"tools": JSON text} where a row declares tools, else {}."""
    tools = row.get("tools")
    if tools is None or tools in ([], ""):
        return {}
    return {"tools": json_text(tools)}


def conversational(value: Any, path: str, role: str) -> list[dict[str, Any]]:
    """Return the messages of TRL's two forms of a prompt or completion: text, or messages (also as JSON text)."""
    if isinstance(value, str):
        if value.startswith("[{") and path == "prompt" and _is_messages(value):
            return messages(orjson.loads(value), path)
        return [{"role": role, "content": value}]
    if isinstance(value, (list, tuple)):
        return messages(value, path)
    raise wrong("text or a list of messages", path, value)


def _is_messages(text: str) -> bool:
    try:
        found = orjson.loads(text)
    except ValueError:
        return False
    return all(isinstance(item, dict) and "role" in item for item in found)
