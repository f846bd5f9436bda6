"""Named layouts of raw rows, and how a row of each becomes a canonical record (`manifests.canon.FIELDS`) of a kind.

A layout is told by its columns. A converter takes the row as read and returns the canonical record, or raises
RecordError with the reason under which the row is quarantined. Columns that no layout consumes pass through untouched.
Where a format cannot nest (CSV), a list may be given as JSON text. What is converted is written down here and nowhere
else: to add a layout, write its functions and one line of the table.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from manifests.canon import json_text
from manifests.errors import BadInputError, RecordError, UsageError

Row = Mapping[str, Any]
Convert = Callable[[Row], dict[str, Any]]


@dataclass(frozen=True)
class Layout:
    """Columns that identify a layout and, per kind it can serve, the function row -> canonical record."""

    name: str
    columns: tuple[tuple[str, ...], ...]  # any one of these sets of columns identifies the layout
    convert: Mapping[str, Convert]  # kind -> function; the first kind is the default
    optional: tuple[str, ...] = ()  # columns consumed where they are present
    passes_all: bool = False  # the columns stay beside the record, because it does not hold them word for word

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of record that rows of this layout can be, the default first."""
        return tuple(self.convert)

    @property
    def consumed(self) -> frozenset[str]:
        """Columns that become part of the record; all others pass through."""
        return frozenset() if self.passes_all else frozenset(self.optional).union(*self.columns)


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
        return list(value)
    raise wrong("a list", names[0], value)


# -- messages


def message(value: Any, path: str) -> dict[str, Any]:
    """Return one chat message in canonical form: text content, arguments of calls as JSON text, other fields as
    they are.
    """
    if not isinstance(value, Mapping):
        raise wrong("an object with role and content", path, value)
    built = {name: item for name, item in value.items() if item is not None}
    if "content" in built:
        built["content"] = _content(built["content"], f"{path}.content")
    if "tool_calls" in built:
        if not isinstance(built["tool_calls"], (list, tuple)):
            raise wrong("a list", f"{path}.tool_calls", built["tool_calls"])
        built["tool_calls"] = [_call(c, f"{path}.tool_calls[{i}]") for i, c in enumerate(built["tool_calls"])]
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


def _call(value: Any, path: str) -> dict[str, Any]:
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
    """Return a list of chat messages in canonical form."""
    return [message(value, f"{path}[{i}]") for i, value in enumerate(values)]


def user(text: str) -> dict[str, Any]:
    """Return a message of the user."""
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    """Return a message of the assistant."""
    return {"role": "assistant", "content": text}


def _tools(row: Row) -> dict[str, Any]:
    tools = row.get("tools")
    if tools is None or tools in ([], ""):
        return {}
    return {"tools": json_text(tools)}


def _conversational(value: Any, path: str, role: str) -> list[dict[str, Any]]:
    """TRL's two forms of a prompt or completion: plain text, or a list of messages (also as JSON text of one)."""
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


# -- one function per layout and kind


def _text(row: Row) -> dict[str, Any]:
    return {"text": take_text(row, "text")}


def _messages_sft(row: Row) -> dict[str, Any]:
    return {"messages": messages(take_list(row, "messages"), "messages"), **_tools(row)}


_SHAREGPT_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "model": "assistant",
    "system": "system",
    "tool": "tool",
    "observation": "tool",
    "function_response": "tool",
}


def _sharegpt_sft(row: Row) -> dict[str, Any]:
    turns = [_turn(t, f"conversations[{i}]") for i, t in enumerate(take_list(row, "conversations", "conversation"))]
    if row.get("system"):
        turns.insert(0, {"role": "system", "content": take_text(row, "system")})
    return {"messages": turns, **_tools(row)}


def _turn(value: Any, path: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise wrong("an object with from and value", path, value)
    if "from" not in value:
        return message(value, path)  # the column name of ShareGPT, the turns of OpenAI
    speaker = value["from"]
    text = value.get("value")
    if not isinstance(text, str):
        raise wrong("text", f"{path}.value", text)
    if speaker == "function_call":
        return {"role": "assistant", "tool_calls": _function_call(text, f"{path}.value")}
    role = _SHAREGPT_ROLES.get(speaker) if isinstance(speaker, str) else None
    if role is None:
        raise wrong(f"one of {', '.join(_SHAREGPT_ROLES)}", f"{path}.from", speaker, "unknown_role")
    return {"role": role, "content": text}


def _function_call(text: str, path: str) -> list[dict[str, Any]]:
    try:
        given = orjson.loads(text)
    except ValueError:
        raise wrong("JSON of a function call", path, text) from None
    calls = given if isinstance(given, list) else [given]
    return [_call({"function": call}, f"{path}[{i}]") for i, call in enumerate(calls)]


def _alpaca_sft(row: Row) -> dict[str, Any]:
    asked, given = take_text(row, "instruction"), row.get("input")
    if given is not None and not isinstance(given, str):
        raise wrong("text", "input", given)
    turns = [user(f"{asked}\n\n{given}" if given else asked), assistant(take_text(row, "output"))]
    if row.get("system"):
        turns.insert(0, {"role": "system", "content": take_text(row, "system")})
    return {"messages": turns}


def _gsm8k_sft(row: Row) -> dict[str, Any]:
    return {"messages": [user(take_text(row, "question")), assistant(take_text(row, "answer"))]}


def _gsm8k_rlvr(row: Row) -> dict[str, Any]:
    solution = take_text(row, "answer")
    _, mark, gold = solution.rpartition("####")
    gold = gold.strip().replace(",", "")
    if not mark or not gold:
        raise RecordError(
            "a solution names no final answer", reason="missing_gold_answer", field="answer", seen=repr(solution[-80:])
        )
    return {"prompt": [user(take_text(row, "question"))], "answer": gold, "verifier": "integer"}


def _prompt_completion_sft(row: Row) -> dict[str, Any]:
    prompt = _conversational(take(row, "prompt"), "prompt", "user")
    return {"messages": prompt + _conversational(take(row, "completion"), "completion", "assistant"), **_tools(row)}


def _prompt_answer_rlvr(row: Row) -> dict[str, Any]:
    answer = take(row, "answer")
    if isinstance(answer, (bool, float)):
        raise wrong("text, an integer or JSON", "answer", answer)
    text = answer if isinstance(answer, str) else json_text(answer)
    verifier = row.get("verifier")
    if verifier is None:
        verifier = _verifier_of(text)
    named = {"verifier": verifier} if verifier is not None else {}
    return {"prompt": _conversational(take(row, "prompt"), "prompt", "user"), "answer": text, **named}


def _verifier_of(answer: str) -> str | None:
    """The verifier that an answer without one is for, where its form leaves no doubt."""
    if re.fullmatch(r"\s*[-+]?\d[\d,]*\s*", answer):
        return "integer"
    if answer.startswith("{"):
        try:
            if set(orjson.loads(answer)) == {"numbers", "target"}:
                return "countdown"
        except ValueError:
            pass
    return None


def countdown_problem(row: Row) -> tuple[list[int], int]:
    """Return (numbers, target) of a row in the layout countdown; numbers in the order given."""
    numbers = [_integer(value, "nums") for value in take_list(row, "nums", "numbers")]
    if not numbers:
        raise wrong("a list of integers", "nums", numbers)
    return numbers, _integer(take(row, "target"), "target")


def _integer(value: Any, path: str) -> int:
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,15}", value.strip()):
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**53:
        return value
    raise wrong("an integer", path, value)


def countdown_prompt(numbers: Sequence[int], target: int) -> str:
    """Return the question a Countdown problem is asked with."""
    return (
        f"Using the numbers {', '.join(map(str, numbers))}, each exactly once, and the operations + - * /, "
        f"write an expression that equals {target}. Put the expression alone inside <answer></answer>."
    )


def _countdown_rlvr(row: Row) -> dict[str, Any]:
    numbers, target = countdown_problem(row)
    answer = orjson.dumps({"numbers": numbers, "target": target}).decode()
    return {"prompt": [user(countdown_prompt(numbers, target))], "answer": answer, "verifier": "countdown"}


def _countdown_sft(row: Row) -> dict[str, Any]:
    numbers, target = countdown_problem(row)
    reply = assistant(f"<answer>{take_text(row, 'solution')}</answer>")
    return {"messages": [user(countdown_prompt(numbers, target)), reply]}


LAYOUTS: dict[str, Layout] = {
    layout.name: layout
    for layout in (
        Layout("text", (("text",),), {"text": _text}),
        Layout("messages", (("messages",),), {"sft": _messages_sft}, optional=("tools",)),
        Layout(
            "sharegpt", (("conversations",), ("conversation",)), {"sft": _sharegpt_sft}, optional=("system", "tools")
        ),
        Layout("alpaca", (("instruction", "output"),), {"sft": _alpaca_sft}, optional=("input", "system")),
        Layout("gsm8k", (("question", "answer"),), {"sft": _gsm8k_sft, "rlvr": _gsm8k_rlvr}),
        Layout("prompt_completion", (("prompt", "completion"),), {"sft": _prompt_completion_sft}, optional=("tools",)),
        Layout("prompt_answer", (("prompt", "answer"),), {"rlvr": _prompt_answer_rlvr}, optional=("verifier",)),
        Layout(
            "countdown",
            (("nums", "target"), ("numbers", "target")),
            {"rlvr": _countdown_rlvr, "sft": _countdown_sft},
            passes_all=True,
        ),
    )
}
# Columns named like the fields of a record, beside the record's own id: a file that lpt wrote. These layouts read it.
_CANONICAL = ("text", "messages", "prompt_answer")


def named(name: str, kind: str | None = None) -> Layout:
    """Return the layout of that name, able to serve `kind`, or raise BadInputError with those that are.

    A name that no layout has is a UsageError.
    """
    fit = [known for known, layout in LAYOUTS.items() if kind is None or kind in layout.kinds]
    if name in fit:
        return LAYOUTS[name]
    if name in LAYOUTS:
        raise BadInputError(
            f"rows of the layout {name} are no {kind} records", seen=name, next=f"one of: {', '.join(fit)}"
        )
    near = difflib.get_close_matches(name, LAYOUTS, n=1)
    raise UsageError(
        "no layout has that name",
        seen=name,
        next=f"did you mean {near[0]}? Known: {', '.join(LAYOUTS)}" if near else f"one of: {', '.join(LAYOUTS)}",
    )


def detect(columns: Sequence[str], kind: str | None = None) -> Layout:
    """Return the one layout that fits the columns (and the kind), or raise BadInputError with the columns seen."""
    present = set(columns)
    fit = [layout for layout in LAYOUTS.values() if any(present.issuperset(need) for need in layout.columns)]
    serving = [layout for layout in fit if kind is None or kind in layout.kinds]
    if "record_id" in present and len(serving) > 1:
        serving = [layout for layout in serving if layout.name in _CANONICAL] or serving
    if len(serving) == 1:
        return serving[0]
    seen = f"columns: {', '.join(columns)}"
    what_for = f" for {kind} records" if kind else ""
    if serving:
        names = ", ".join(layout.name for layout in serving)
        raise BadInputError(
            f"the columns fit several layouts{what_for}: {names}",
            seen=seen,
            next=f"choose with --layout {serving[0].name} or --layout {serving[1].name}",
        )
    if fit:
        raise BadInputError(
            f"rows of the layout {fit[0].name} are no {kind} records",
            seen=seen,
            next=f"{fit[0].name} serves {', '.join(fit[0].kinds)}; or rename the columns",
        )
    table = "; ".join(f"{n} ({' or '.join('+'.join(need) for need in known.columns)})" for n, known in LAYOUTS.items())
    raise BadInputError(
        f"the columns fit no known layout{what_for}",
        seen=seen,
        next=f"name the text with --text-column COLUMN, or rename the columns to one of: {table}",
    )
