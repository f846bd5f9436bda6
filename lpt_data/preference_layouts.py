"""Preferences and labelled completions of foreign rows as canonical records.

A pair is asked in one of four forms, told apart by what its columns hold:

| columns | prompt is | chosen and rejected are |
|---|---|---|
| prompt, chosen, rejected | text or messages | text, or messages without the prompt (TRL, explicit) |
| chosen, rejected | what both share | whole conversations (TRL, implicit) |
| prompt, chosen, rejected | their first messages | whole conversations (UltraFeedback and its kin) |
| chosen, rejected | what both share | plain transcripts: `Human:` and `Assistant:` in turns, two endings (HH) |

Whole conversations are cut where they diverge, at the last turn that both share, however many turns came before it. At
least one message stays on each side and the prompt never ends with the assistant, so that sides which never diverge
give an identical pair, not an empty one. What the sides do not share stays on its side, where the contract finds it.
"""

from __future__ import annotations

import re
from typing import Any

import orjson

from lpt_data.chat_fields import Row, conversational, message, messages, take, wrong
from manifests.errors import RecordError

SCORES = ("score_chosen", "score_rejected")
_SPEAKER = re.compile(r"(?:\A\s*|\n\n)(Human|Assistant):")
_ROLES = {"Human": "user", "Assistant": "assistant"}
Messages = list[dict[str, Any]]


def pair(row: Row) -> dict[str, Any]:
    """Return prompt, chosen and rejected of a row in any of the forms above."""
    given = _prompt(row)
    chosen, rejected = (_side(take(row, name), name, given) for name in ("chosen", "rejected"))
    if given is None:
        return divided(chosen, rejected)
    if _is_ours(row):
        return {"prompt": given, "chosen": chosen, "rejected": rejected}
    ends = [_end_of_prompt(side, given) for side in (chosen, rejected)]
    if all(ends):
        shared = chosen[: ends[0]] == rejected[: ends[1]]
        return divided(chosen, rejected, at_least=ends[0] if shared else 0)
    return {"prompt": given, "chosen": chosen[ends[0] :], "rejected": rejected[ends[1] :]}


def divided(chosen: Messages, rejected: Messages, at_least: int = 0) -> dict[str, Any]:
    """Cut two whole conversations where they diverge; the prompt has at least `at_least` messages.

    Comparing with the last common message, and not with the first that differs, would give it to both sides whenever
    nothing differs.
    """
    shortest = min(len(chosen), len(rejected))
    same = next((i for i in range(shortest) if chosen[i] != rejected[i]), shortest)
    same = min(same, shortest - 1)
    while same > 0 and chosen[same - 1].get("role") == "assistant":
        same -= 1
    same = max(same, at_least)  # an empty side has nothing to leave
    return {"prompt": chosen[:same], "chosen": chosen[same:], "rejected": rejected[same:]}


def labelled(row: Row) -> dict[str, Any]:
    """Return prompt, completion and label: one completion, wanted or not."""
    label = take(row, "label")
    if label in ("true", "false"):  # as a format of text writes it
        label = label == "true"
    if not isinstance(label, bool):
        raise wrong("true or false", "label", label)
    prompt = conversational(take(row, "prompt"), "prompt", "user")
    return {
        "prompt": prompt,
        "completion": conversational(take(row, "completion"), "completion", "assistant"),
        "label": label,
    }


def transcript(text: str, path: str) -> Messages:
    """Return the turns of a plain transcript; an open `Assistant:` at its end is no turn.

    One space after the colon belongs to the form and not to the text. RecordError for text before the first speaker.
    """
    marks = list(_SPEAKER.finditer(text))
    if not marks or text[: marks[0].start()].strip():
        raise RecordError(
            f"{path} is plain text with no prompt that it shares with the other side",
            reason="no_shared_prompt",
            field=path,
            seen=repr(text[:80]),
            next="give a column prompt, or whole conversations",
        )
    ends = [mark.start() for mark in marks[1:]] + [len(text)]
    turns = [
        {"role": _ROLES[mark[1]], "content": text[mark.end() : end].removeprefix(" ")}
        for mark, end in zip(marks, ends, strict=True)
    ]
    if turns[-1]["role"] == "assistant" and not turns[-1]["content"].strip():
        turns.pop()
    return turns


def _prompt(row: Row) -> Messages | None:
    """The prompt that a row names; None where it names none and both sides must share one."""
    value = row.get("prompt")
    if value is None:
        return None
    if isinstance(value, str) and _open_transcript(value):
        return transcript(value, "prompt")
    return conversational(value, "prompt", "user")


def _open_transcript(text: str) -> bool:
    """Whether a prompt is a transcript that waits for the assistant, and no text that merely quotes one."""
    return text.rstrip().endswith("\n\nAssistant:") and _SPEAKER.match(text) is not None


def _side(value: Any, path: str, prompt: Messages | None) -> Messages:
    if isinstance(value, str):
        if value.startswith("[{") and (turns := _json_messages(value)) is not None:
            return messages(turns, path)
        if prompt is None:
            return transcript(value, path)
        return [{"role": "assistant", "content": value}]
    if isinstance(value, (list, tuple)):
        return messages(value, path)
    if isinstance(value, dict):
        return [message(value, path)]
    raise wrong("text or a list of messages", path, value)


def _json_messages(text: str) -> list[Any] | None:
    """Messages as a format without nesting writes them."""
    try:
        found = orjson.loads(text)
    except ValueError:
        return None
    return found if all(isinstance(item, dict) and "role" in item for item in found) else None


def _end_of_prompt(side: Messages, prompt: Messages) -> int:
    """Number of messages at the start of a side that are the prompt, a system message before it too; 0 for none."""
    start = int(side[:1] != prompt[:1] and side[:1] != [] and side[0].get("role") == "system")
    end = start + len(prompt)
    return end if prompt and side[start:end] == prompt else 0


def _is_ours(row: Row) -> bool:
    """Whether a row is a canonical one that lpt wrote: read as it stands, or its id would change on the way."""
    name = row.get("record_id")
    return isinstance(name, str) and re.fullmatch(r"[0-9a-f]{64}", name) is not None
