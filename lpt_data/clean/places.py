"""Where the texts of a raw row are, and the row with other texts in their places.

The columns that the layout makes a record of are cleaned, as they were written: a rewritten row keeps its layout. Of
messages that is the content, of ShareGPT the value; names, roles, tool calls, tool schemas, gold answers and names of
verifiers are no prose and stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import orjson

from lpt_data.columns import dump
from lpt_data.dataset import Dataset
from manifests.errors import BadInputError

Change = Callable[[str], str]
_NO_PROSE = {"tools", "verifier"}
_GOLD = {"prompt_answer": {"answer"}, "gsm8k": set()}


def text_columns(dataset: Dataset) -> tuple[str, ...]:
    """Return the columns whose texts are cleaned, in the order of the file; BadInputError where there are none."""
    if dataset.kind == "text":
        return (dataset.text_column,)
    left_out = _NO_PROSE | _GOLD.get(dataset.layout, set())
    columns = dataset.consumed - left_out
    if not columns:
        raise BadInputError(
            f"rows of the layout {dataset.layout} hold no prose to clean",
            seen=f"columns: {', '.join(dataset.columns)}",
            next="clean the file that they were made of, or name a column with --text-column",
        )
    return tuple(sorted(columns))


def changed_columns(row: Mapping[str, Any], columns: tuple[str, ...], change: Change) -> dict[str, Any]:
    """Apply `change` to every text in the columns and return those that it changed, with their new values."""
    found = {}
    for name in columns:
        value = row.get(name)
        if value is not None and value != "":  # an Alpaca row without an input has "" there and is whole
            new = _changed(value, change)
            if new is not value:
                found[name] = new
    return found


def _changed(value: Any, change: Change) -> Any:
    """The same object where nothing was changed."""
    if isinstance(value, str):
        turns = _as_turns(value)
        if turns is None:
            new = change(value)
            return value if new == value else new
        after = _changed(turns, change)
        return value if after is turns else dump(after).decode()
    if isinstance(value, list):
        items = [_changed_turn(item, change) for item in value]
        return value if all(a is b for a, b in zip(items, value, strict=True)) else items
    return value


def _as_turns(text: str) -> list[Any] | None:
    """The messages that a cell of text holds where its format cannot nest (CSV), else None."""
    if not text.startswith("[{"):
        return None
    try:
        found = orjson.loads(text)
    except ValueError:
        return None
    turns = isinstance(found, list) and all(isinstance(t, dict) and ("role" in t or "from" in t) for t in found)
    return found if turns else None


def _changed_turn(turn: Any, change: Change) -> Any:
    if not isinstance(turn, dict):
        return turn
    new = dict(turn)
    if isinstance(turn.get("value"), str) and turn.get("from") != "function_call":
        new["value"] = change(turn["value"])
    content = turn.get("content")
    if isinstance(content, str) and (content or not turn.get("tool_calls")):
        new["content"] = change(content)
    elif isinstance(content, list):
        new["content"] = [_changed_part(part, change) for part in content]
    return turn if new == turn else new


def _changed_part(part: Any, change: Change) -> Any:
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        return {**part, "text": change(part["text"])}
    return part
