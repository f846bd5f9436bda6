"""Each rule on one conversation: what it must catch, what it must not, and the nearest thing to a fault."""

from __future__ import annotations

import pytest

from lpt_data.contracts.sft import empty_turn, parts, questions, reserved_token, role_fault, tool_call_fault
from lpt_data.contracts.survey import Parts
from manifests.canon import canonical_bytes


def chat(*turns: str | dict, tools: str | None = None) -> dict:
    """`"u:hello"` is a user turn; dicts are messages as they are."""
    roles = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}
    messages = [t if isinstance(t, dict) else {"role": roles[t[0]], "content": t[2:]} for t in turns]
    return {"messages": messages, **({"tools": tools} if tools is not None else {})}


def call(name: str = "add", arguments: str = '{"a": 1}', call_id: str | None = "c1") -> dict:
    body = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "tool_calls": [{"id": call_id, **body} if call_id else body]}


def result(call_id: str | None = "c1", content: str = "2") -> dict:
    return {"role": "tool", "content": content, **({"tool_call_id": call_id} if call_id else {})}


TOOLS = '[{"type": "function", "function": {"name": "add"}}]'


@pytest.mark.parametrize(
    "turns",
    [
        ["u:q", "a:r"],
        ["s:be brief", "u:q", "a:r"],
        ["u:q", "a:r", "u:q2", "a:r2"],
        ["u:q", call(), result(), "a:r"],
        ["u:q", call(), result(), result("c2"), "a:r"],
        ["u:q", call(), result(), call(), result(), "a:r"],
        ["u:q", call()],  # the lesson may be the call itself
    ],
)
def test_turns_in_order_are_no_fault(turns):
    assert role_fault(chat(*turns)) is None


@pytest.mark.parametrize(
    ("turns", "fault"),
    [
        ([], "ends with nothing, not with assistant"),
        (["u:q"], "ends with user, not with assistant"),
        (["s:x"], "ends with system, not with assistant"),
        (["a:r"], "turn 0: assistant after the start"),
        (["s:x", "a:r"], "turn 1: assistant after system"),
        (["u:q", "u:q", "a:r"], "turn 1: user after user"),
        (["u:q", "a:r", "a:r"], "turn 2: assistant after assistant"),
        (["u:q", "s:x", "a:r"], "turn 1: system after user"),
        (["u:q", "a:r", result(), "a:r"], "turn 2: tool without a tool call before it"),
        (["u:q", call(), result(), "u:q", "a:r"], "turn 3: user after tool"),
        (["u:q", call(), result()], "ends with tool, not with assistant"),
        (["u:q", {"role": "bot", "content": "r"}], "turn 1: unknown role 'bot'"),
        (["u:q", {"role": "Assistant", "content": "r"}], "turn 1: unknown role 'Assistant'"),
    ],
)
def test_turns_out_of_order_name_the_turn(turns, fault):
    assert role_fault(chat(*turns)) == fault


def test_empty_turns():
    assert empty_turn(chat("u:q", "a:r")) is None
    assert empty_turn(chat("u:q", "a: \n\u200b")) == "turn 1: assistant is empty"
    assert empty_turn(chat("s:", "u:q", "a:r")) == "turn 0: system is empty"
    assert empty_turn(chat("u:q", {"role": "assistant"})) == "turn 1: assistant is empty"
    # near misses: a call needs no words, and a tool may return nothing
    assert empty_turn(chat("u:q", call(), result(content=""), "a:done")) is None


@pytest.mark.parametrize(
    "turns",
    [
        ["u:q", "a:r"],
        ["u:q", call(), result(), "a:r"],
        ["u:q", call(), result(None), call(call_id="c9")],
        ["u:q", call(call_id=None), result(None), "a:r"],
        ["u:q", call(arguments="{}"), result(), call(), result(), "a:r"],  # an id may return once it was answered
        ["u:q", call()],
    ],
)
def test_tool_calls_that_fit(turns):
    assert tool_call_fault(chat(*turns, tools=TOOLS)) is None


@pytest.mark.parametrize(
    ("turns", "tools", "fault"),
    [
        (["u:q", call("sub"), result(), "a:r"], TOOLS, "turn 1: calls 'sub', which tools does not declare"),
        (["u:q", call(arguments="{a: 1}"), result(), "a:r"], TOOLS, "turn 1: arguments of 'add' are not JSON"),
        (["u:q", call(arguments=""), result(), "a:r"], TOOLS, "turn 1: arguments of 'add' are not JSON"),
        (
            ["u:q", call(arguments="[1]"), result(), "a:r"],
            TOOLS,
            "turn 1: arguments of 'add' are a list, not an object",
        ),
        (["u:q", call(""), result(), "a:r"], TOOLS, "turn 1: call without a name"),
        (["u:q", call(), result("c2"), "a:r"], TOOLS, "turn 2: result for 'c2', which no open call has"),
        (["u:q", call(), result(), result(), "a:r"], TOOLS, "turn 3: result for 'c1', which no open call has"),
        (["u:q", call(), "a:r"], TOOLS, "turn 2: call 'c1' was not answered"),
        (["u:q", "a:r"], "not json", None),
        (["u:q", "a:r"], '{"name": "add"}', "tools is a dict, not a list"),
        (["u:q", "a:r"], '[{"type": "function"}]', "tools[0] has no name"),
    ],
)
def test_tool_calls_that_do_not_fit(turns, tools, fault):
    found = tool_call_fault(chat(*turns, tools=tools))
    assert found == fault if fault is not None else found is not None and found.startswith("tools is not JSON")


def test_any_name_may_be_called_where_no_tools_are_declared():
    assert tool_call_fault(chat("u:q", call("anything"), result(), "a:r")) is None


def test_two_open_calls_cannot_share_an_id():
    double = call()
    double["tool_calls"] = double["tool_calls"] * 2
    assert tool_call_fault(chat("u:q", double, result(), "a:r")) == "turn 1: call id 'c1' occurs twice"


@pytest.mark.parametrize("token", ["<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<end_of_turn>", "[INST]", "[/INST]"])
def test_turn_markers_inside_content(token):
    assert reserved_token(chat("u:q", f"a:stop {token} go")) == f"turn 1: {token!r} in the text of assistant"


@pytest.mark.parametrize("fine", ["<|", "a <b> c", "x |> f", "[INSTALL]", "<im_end>", "im_end", "<|anything else|>"])
def test_text_that_looks_like_a_marker(fine):
    assert reserved_token(chat("u:q", f"a:{fine}")) is None


def halves(conversation: dict) -> Parts:
    return parts(conversation, canonical_bytes("sft", conversation))


def test_what_is_asked_is_all_but_the_last_turn():
    one, other = (chat("s:x", "u:q", "a:r", "u:q2", f"a:{last}") for last in ("r2", "r3"))
    assert halves(one).asked == halves(other).asked
    assert halves(one).learned != halves(other).learned
    assert b"r2" in halves(one).learned
    assert b"r2" not in halves(one).asked
    assert all(word in halves(one).asked for word in (b"x", b"q", b"r", b"q2"))
    for changed in (chat("s:y", "u:q", "a:r", "u:q2", "a:r2"), chat("u:q", "a:r", "u:q2", "a:r2")):
        assert halves(changed).asked != halves(one).asked
        assert halves(changed).learned == halves(one).learned


def test_tools_are_asked_too():
    with_tools, others = (chat("u:q", "a:r", tools=tools) for tools in ("[]", TOOLS))
    assert halves(with_tools).asked != halves(others).asked
    assert halves(with_tools).asked != halves(chat("u:q", "a:r")).asked
    assert halves(with_tools).learned == halves(others).learned
    assert halves({"messages": []}) == parts({"messages": []}, b'{"messages":[]}')


def test_questions_are_the_turns_of_the_user():
    assert questions(chat("s:x", "u:q", "a:r", "u:q2", "a:r2")) == ["q", "q2"]
