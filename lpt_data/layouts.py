"""Named layouts of raw rows, and how a row of each becomes a canonical record (`manifests.canon.FIELDS`) of a kind.

A layout is told by its columns. A converter takes the row as read and returns the canonical record, or raises
RecordError with the reason under which the row is quarantined. Columns that no layout consumes pass through untouched.
Where a format cannot nest (CSV), a list may be given as JSON text. What is converted is written down here and nowhere
else: to add a layout, write its functions and one line of the table.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from lpt_data import preference_layouts as preference
from lpt_data.chat_fields import (
    RENAME,
    Row,
    assistant,
    conversational,
    message,
    messages,
    take,
    take_list,
    take_text,
    tool_call,
    tools_of,
    user,
    wrong,
)
from manifests.canon import json_text
from manifests.errors import BadInputError, RecordError, UsageError

Convert = Callable[[Row], dict[str, Any]]


@dataclass(frozen=True)
class Layout:
    """Columns that identify a layout and, per kind it can serve, the function row -> canonical record."""

    name: str
    columns: tuple[tuple[str, ...], ...]  # any one of these sets of columns identifies the layout
    convert: Mapping[str, Convert]  # kind -> function; the first kind is the default
    optional: tuple[str, ...] = ()  # columns consumed where they are present
    beside: tuple[str, ...] = ()  # columns that help to tell the layout and stay beside the record
    passes_all: bool = False  # the columns stay beside the record, because it does not hold them word for word

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of record that rows of this layout can be, the default first."""
        return tuple(self.convert)

    @property
    def consumed(self) -> frozenset[str]:
        """Columns that become part of the record; all others pass through."""
        consumed = frozenset(self.optional).union(*self.columns).difference(self.beside)
        return frozenset() if self.passes_all else consumed


# -- one function per layout and kind


def _text(row: Row) -> dict[str, Any]:
    return {"text": take_text(row, "text")}


def _messages_sft(row: Row) -> dict[str, Any]:
    return {"messages": messages(take_list(row, "messages"), "messages"), **tools_of(row)}


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
    return {"messages": turns, **tools_of(row)}


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
    return [tool_call({"function": call}, f"{path}[{i}]") for i, call in enumerate(calls)]


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
    prompt = conversational(take(row, "prompt"), "prompt", "user")
    return {"messages": prompt + conversational(take(row, "completion"), "completion", "assistant"), **tools_of(row)}


def _prompt_answer_rlvr(row: Row) -> dict[str, Any]:
    answer = take(row, "answer")
    if isinstance(answer, (bool, float)):
        raise wrong("text, an integer or JSON", "answer", answer)
    text = answer if isinstance(answer, str) else json_text(answer)
    verifier = row.get("verifier")
    if verifier is None:
        verifier = _verifier_of(text)
    named = {"verifier": verifier} if verifier is not None else {}
    return {"prompt": conversational(take(row, "prompt"), "prompt", "user"), "answer": text, **named}


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
        # Generated rows; their other columns of provenance are listed in `lpt_data.contracts.provenance`.
        Layout(
            "synthetic",
            (("prompt", "completion", "generator"), ("prompt", "completion", "generator", "answer")),
            {"sft": _prompt_completion_sft},
            optional=("tools",),
            beside=("generator", "answer"),
        ),
        Layout("prompt_answer", (("prompt", "answer"),), {"rlvr": _prompt_answer_rlvr}, optional=("verifier",)),
        Layout(
            "countdown",
            (("nums", "target"), ("numbers", "target")),
            {"rlvr": _countdown_rlvr, "sft": _countdown_sft},
            passes_all=True,
        ),
        Layout("preference", (("prompt", "chosen", "rejected"),), {"preference": preference.pair}),
        Layout("chosen_rejected", (("chosen", "rejected"),), {"preference": preference.pair}),
        Layout(
            "ultrafeedback",
            (("chosen", "rejected", *preference.SCORES), ("prompt", "chosen", "rejected", *preference.SCORES)),
            {"preference": preference.pair},
            beside=preference.SCORES,
        ),
        Layout("kto", (("prompt", "completion", "label"),), {"kto": preference.labelled}),
    )
}
# Columns named like the fields of a record, beside the record's own id: a file that lpt wrote. These layouts read it.
_CANONICAL = ("text", "messages", "prompt_answer", "preference", "kto")


def _closest(fit: Sequence[Layout], present: set[str]) -> list[Layout]:
    """Leave out a layout whose columns another one that fits has too, and more: prompt and completion are no more
    than that, a label beside them makes another kind of row.
    """
    told = [max((set(need) for need in layout.columns if present.issuperset(need)), key=len) for layout in fit]
    return [layout for layout, mine in zip(fit, told, strict=True) if not any(mine < other for other in told)]


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
    serving = _closest([layout for layout in fit if kind is None or kind in layout.kinds], present)
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
    able = {name: known.columns for name, known in LAYOUTS.items() if kind is None or kind in known.kinds}
    table = "; ".join(f"{n} ({' or '.join('+'.join(need) for need in columns)})" for n, columns in able.items())
    way = {
        "preference": "make pairs of scored responses with lpt data pairs --responses COLUMN,COLUMN, or ",
        None: "name the text with --text-column COLUMN, or ",
        "text": "name the text with --text-column COLUMN, or ",
    }.get(kind, "")
    raise BadInputError(
        f"the columns fit no known layout{what_for}",
        seen=seen,
        next=f"{way}rename the columns to {'one of: ' if len(able) > 1 else ''}{table}",
    )


def told_apart(columns: Sequence[str], read_as: Layout, first: str = "") -> str:
    """What to do with a file of which no row fits the layout that it was read as: what is wrong with its `first` row,
    or its own columns, may say."""
    if first.startswith(RENAME):
        return first.partition(";")[0]
    present = set(columns)
    own = [one for one in LAYOUTS.values() if any(present.issuperset(need) for need in one.columns)]
    if not own or read_as in own:
        return f"check the file, or choose another layout with --layout (it was read as {read_as.name})"
    looks = _closest(own, present)[0].name
    return (
        f"it looks like {looks}, and was read as {read_as.name} like the first file: the files "
        "of one command share a layout, so run it for each by itself; `lpt data mix` brings them together"
    )


def choose(columns: Sequence[str], kind: str | None, layout: str | None, text_column: str) -> Layout:
    """Return the layout of a file with these columns, as named or as they say it; BadInputError where none fits."""
    if text_column != "text":
        if layout not in (None, "text") or kind not in (None, "text"):
            raise BadInputError(
                "a text column is for the layout text alone",
                seen=f"--layout {layout}, {kind}",
                next="leave one of them out",
            )
        if text_column not in columns:
            near = difflib.get_close_matches(text_column, columns, n=1)
            raise BadInputError(
                f"no column is called {text_column}",
                seen=f"columns: {', '.join(columns)}",
                next=f"did you mean {near[0]}?" if near else "name one of them",
            )
        return LAYOUTS["text"]
    return detect(columns, kind) if layout is None else named(layout, kind)
