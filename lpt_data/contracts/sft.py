"""Supervised fine-tuning: conversations whose assistant turns are the lesson.

What it does not do: judge whether an answer is right or good, look for personal data, or compare by meaning.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from lpt_data.batches import RecordBatch
from lpt_data.contracts import groups, rendered, replies, suspects
from lpt_data.contracts.common import Marked, Record, Rule, is_blank, user_turns
from lpt_data.contracts.survey import Contract, Parts

if TYPE_CHECKING:
    from lpt_data.plain import Plain, Shape

ROLES = ("system", "user", "assistant", "tool")
# What may stand before a turn. None is the start of the conversation; a tool speaks after a tool call alone.
MAY_FOLLOW: dict[str, tuple[str | None, ...]] = {
    "system": (None,),
    "user": (None, "system", "assistant"),
    "assistant": ("user", "tool"),
    "tool": ("assistant", "tool"),
}
# Turn markers of the common chat templates: inside content they end or forge a turn once the template is applied.
RESERVED = re.compile(
    r"<\|(?:im_start|im_end|im_sep|endoftext|eot_id|eom_id|start_header_id|end_header_id|begin_of_text|end_of_text"
    r"|system|user|assistant|end)\|>|<(?:start|end)_of_turn>|\[/?INST\]"
)


def role_fault(record: Record) -> str | None:
    """The first break of turn order: system first, user and assistant in turns, tool after a call, assistant last."""
    return order_fault(shape(record["messages"]))


def shape(messages: Sequence[Record]) -> tuple[tuple[Any, bool], ...]:
    """Return of each message its role and whether it calls tools."""
    return tuple([(m.get("role"), bool(m.get("tool_calls"))) for m in messages])


@functools.lru_cache(4096)
def order_fault(turns: tuple[tuple[Any, bool], ...]) -> str | None:
    """Return what is wrong with the order of turns of that shape; few shapes make up a whole data set."""
    before: str | None = None
    calling = False
    for index, (role, calls) in enumerate(turns):
        if role not in ROLES:
            return f"turn {index}: unknown role {role!r}"
        if before not in MAY_FOLLOW[role]:
            return f"turn {index}: {role} after {before or 'the start'}"
        if role == "tool" and not calling:
            return f"turn {index}: tool without a tool call before it"
        if role != "tool":
            calling = calls
        before = role
    if before != "assistant":
        return f"ends with {before or 'nothing'}, not with assistant"
    return None


def empty_turn(record: Record) -> str | None:
    """The first turn without visible text. A call without words and a tool that returned nothing are no faults."""
    for index, message in enumerate(record["messages"]):
        if not is_blank(message.get("content")):
            continue
        if message.get("role") != "tool" and not message.get("tool_calls"):
            return f"turn {index}: {message.get('role')} is empty"
    return None


def _tool_names(tools: str | None) -> set[str] | str:
    """Return the declared tool names, or a sentence saying why the declaration cannot be read."""
    if tools is None:
        return set()
    try:
        declared = orjson.loads(tools)
    except orjson.JSONDecodeError as error:
        return f"tools is not JSON: {error}"
    if not isinstance(declared, list):
        return f"tools is a {type(declared).__name__}, not a list"
    names = set()
    for index, tool in enumerate(declared):
        body = tool.get("function", tool) if isinstance(tool, dict) else None
        if not isinstance(body, dict) or not isinstance(body.get("name"), str):
            return f"tools[{index}] has no name"
        names.add(body["name"])
    return names


def _call_fault(call: Record, names: set[str], open_ids: set[str]) -> str | None:
    """Check one call and add its id to `open_ids`."""
    function = call.get("function") or {}
    name = function.get("name")
    if not isinstance(name, str) or not name:
        return "call without a name"
    if names and name not in names:
        return f"calls {name!r}, which tools does not declare"
    try:
        arguments = orjson.loads(function.get("arguments") or "")
    except orjson.JSONDecodeError:
        return f"arguments of {name!r} are not JSON"
    if not isinstance(arguments, dict):
        return f"arguments of {name!r} are a {type(arguments).__name__}, not an object"
    if (call_id := call.get("id")) is not None:
        if call_id in open_ids:
            return f"call id {call_id!r} occurs twice"
        open_ids.add(call_id)
    return None


def tool_call_fault(record: Record) -> str | None:
    """The first call or result that does not fit: declared, arguments a JSON object, ids paired, none left open."""
    names = _tool_names(record.get("tools"))
    if isinstance(names, str):
        return names
    open_ids: set[str] = set()
    for index, message in enumerate(record["messages"]):
        if message.get("role") == "tool":
            if (call_id := message.get("tool_call_id")) is None:
                open_ids = set(sorted(open_ids)[1:])  # a result without an id answers one call, whichever
                continue
            if call_id not in open_ids:
                return f"turn {index}: result for {call_id!r}, which no open call has"
            open_ids.discard(call_id)
            continue
        if open_ids:
            return f"turn {index}: call {min(open_ids)!r} was not answered"
        for call in message.get("tool_calls") or ():
            if fault := _call_fault(call, names, open_ids):
                return f"turn {index}: {fault}"
    return None


def reserved_token(record: Record) -> str | None:
    """A turn marker of a chat template inside a message."""
    for index, message in enumerate(record["messages"]):
        found = RESERVED.search(message.get("content") or "")
        if found:
            return f"turn {index}: {found.group()!r} in the text of {message.get('role')}"
    return None


def parts(record: Record, data: bytes) -> Parts:
    """Split a conversation into what is asked (all before the last turn, tools too) and what is learned (the last)."""
    messages, tools = record["messages"], record.get("tools")
    learned = orjson.dumps(messages[-1], option=orjson.OPT_SORT_KEYS) if messages else b""
    if tools is None and data.endswith(learned, 0, len(data) - 2):  # before "]}"
        return Parts(data[: len(data) - 2 - len(learned)], learned)
    return Parts(orjson.dumps([messages[:-1], tools], option=orjson.OPT_SORT_KEYS), learned)


def spans(plain: Plain) -> tuple[np.ndarray, np.ndarray]:
    """The same parts of plain conversations: the bytes of a message begin before its text, and two end the record."""
    from lpt_data.plain_kernels import digests_of

    learned = plain.inside[plain.first[1:] - 1] - len('{"content":"')
    asked = digests_of(plain.json, plain.bounds[:-1], learned)
    return asked, digests_of(plain.json, learned, plain.bounds[1:] - len("]}"))


def look(batch: RecordBatch, key: str, keys: Sequence[bytes]) -> list[replies.Facts]:
    """Return what is kept of the last replies."""
    plain = batch.plain
    if plain is None:
        return replies.look([reply(record) for record in batch.records])

    def last(shape: Shape) -> int:
        return max((i for i, slot in enumerate(shape.slots) if slot.role == "assistant"), default=-1)

    place = plain.of_shape(last)
    return replies.look_plain(plain, np.where(place < 0, -1, plain.first[:-1] + place))


def reply(record: Record) -> str:
    """Return the last reply."""
    return replies.last_reply(record["messages"])


def questions(record: Record) -> list[str]:
    """The turns of the user."""
    return user_turns(record["messages"])


RULES: dict[str, Rule] = {
    "sft.roles.bad_share": Marked(role_fault, suspects=suspects.by_shape(role_fault)),
    "sft.turns.empty_share": Marked(empty_turn, suspects=suspects.blank),
    "sft.tool_calls.bad_share": Marked(tool_call_fault, ('"tool',), suspects=suspects.by_shape(tool_call_fault)),
    **replies.RULES,
    "sft.reserved_tokens.share": Marked(
        reserved_token, (r"<\|", "_of_turn>", r"INST\]"), literals=(b"<|", b"_of_turn>", b"INST]")
    ),
}
MEASURES = {
    "sft.inputs.duplicated_share": groups.duplicated_inputs,
    "sft.inputs.conflicting_share": groups.conflicting_outputs,
    "sft.render.failed_share": rendered.render_failures,
    "sft.truncation.rate": rendered.truncation_rate,
    "sft.truncation.tokens_lost_share": rendered.tokens_lost,
    "sft.supervised.share": rendered.supervised_share,
    "sft.supervised.zero_rows": rendered.zero_supervised,
    "sft.stop.unsupervised_share": rendered.unsupervised_stops,
    "sft.bos.double_share": rendered.double_bos,
    "sft.mask.inexact_share": rendered.inexact_masks,
    **replies.MEASURES,
}
CONTRACT = Contract(
    "sft",
    default_key="text",
    parts=parts,
    spans=spans,
    questions=questions,
    render=rendered.conversation,
    look=look,
    sample=reply,
    sees=("language",),
    rules=RULES,
    measures=MEASURES,
)
