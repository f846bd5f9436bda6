"""Rows of a generated file as prompts with their answers, whatever wrote the file.

| a row holds | as |
|---|---|
| one answer | `completion`, `response`, `output`, `solution`, … as text |
| several | a list of texts, or of objects with a text (`completions`, `outputs` of vLLM, `responses`, `samples`) |
| an answer of an API | `choices`, or `response.body.choices` of a batch, whose prompts are in the file of requests |
| a conversation | `messages`: the last reply is the answer |

A row that is none of these is put in quarantine with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from lpt_data.chat_fields import conversational, messages, take_list, wrong
from lpt_data.config import SynthConfig
from lpt_data.dataset import Dataset
from lpt_data.io import expand
from lpt_data.io.readers import read
from lpt_data.layouts import Layout
from manifests.arrow import plain_rows
from manifests.canon import json_text
from manifests.errors import BadInputError, RecordError

PROMPTS = ("prompt", "question", "problem", "instruction")
ANSWERS = (
    "completion", "completions", "responses", "response", "outputs", "output", "generations", "samples", "solutions",
    "solution", "choices",
)  # fmt: skip
TEXTS = ("text", "completion", "content", "response", "output", "solution", "answer")  # of an answer that is an object
GOLDS = ("answer", "gold", "ground_truth", "reference", "schema")
MODELS = ("generator", "model")


@dataclass(frozen=True)
class Generation:
    """A row: its prompt, as text or as JSON of messages, and its answers."""

    prompt: str
    answers: tuple[str, ...]
    models: tuple[str, ...]  # of each answer, "" where the row does not say
    used: frozenset[str]  # columns that were read


def open_generations(inputs: Sequence[str], config: SynthConfig, requests: Mapping[str, Any] | None = None) -> Dataset:
    """Open generated files as rows whose record is their prompt; BadInputError where the first row has no answers."""

    def convert(row: Mapping[str, Any]) -> dict[str, Any]:
        return {"text": read_row(row, config, requests).prompt}

    files = expand(inputs)
    seen = next((row for row in _first_rows(files[0]) if row), {})
    try:
        convert(seen)
    except RecordError as error:
        raise BadInputError(
            f"the first row cannot be read as a prompt with its answers: {error.what}",
            seen=f"columns: {', '.join(map(str, seen))}",
            next="name the columns with --prompt COLUMN and --completion COLUMN",
        ) from error
    layout = Layout("generated", (), {"text": convert}, passes_all=True)
    return Dataset(files, "text", layout, "text", list(seen))


def _first_rows(source: Any) -> list[dict[str, Any]]:
    for chunk in read(source):
        rows = chunk.records if isinstance(chunk.records, list) else plain_rows(chunk.records.slice(0, 1))
        if rows:
            return list(rows[:1])
    raise BadInputError("a file holds no rows", seen=source.path, next="leave it out, or make it again")


def read_requests(paths: Sequence[str]) -> dict[str, Any]:
    """Return custom_id -> messages of the request file of a batch; a request that is none is no prompt of a row."""
    found: dict[str, Any] = {}
    for source in expand(list(paths)):
        for chunk in read(source):
            rows = chunk.records if isinstance(chunk.records, list) else plain_rows(chunk.records)
            for row in rows:
                body = row.get("body")
                if isinstance(row.get("custom_id"), str) and isinstance(body, Mapping):
                    found[row["custom_id"]] = body.get("messages") or body.get("prompt") or body.get("input")
    if not found:
        raise BadInputError(
            "no request of a batch was found", seen=", ".join(paths), next="rows need custom_id and body.messages"
        )
    return found


def read_row(row: Mapping[str, Any], config: SynthConfig, requests: Mapping[str, Any] | None = None) -> Generation:
    """Return the prompt and the answers of a row; RecordError with the reason for a row that has none."""
    if config.completion is None and "messages" in row and not any(name in row for name in ANSWERS):
        return _conversation(row)
    names = config.completion.split(",") if config.completion else [n for n in ANSWERS if row.get(n) is not None][:1]
    present = [name for name in names if row.get(name) is not None]
    if not present:
        raise _missing(names[0] if names else "completion", row)
    answers, models = [], []
    for name in present:
        value, model = _unwrapped(_parsed(row[name]))
        items = value if isinstance(value, (list, tuple)) else [value]
        model = next((str(row[n]) for n in MODELS if row.get(n)), model or (name if len(names) > 1 else ""))
        answers += [_text(item, f"{name}[{i}]") for i, item in enumerate(items)]
        models += [model] * len(items)
    if not answers:
        raise RecordError(
            "a row holds no answer", reason="no_answer", field=present[0], seen=repr(row[present[0]])[:80]
        )
    prompt, used = _prompt(row, config, requests)
    return Generation(prompt, tuple(answers), tuple(models), frozenset({*present, *used, *MODELS}))


def _conversation(row: Mapping[str, Any]) -> Generation:
    turns = messages(take_list(row, "messages"), "messages")
    if not turns or turns[-1].get("role") != "assistant" or not isinstance(turns[-1].get("content"), str):
        raise RecordError("a conversation does not end with a reply", reason="no_answer", field="messages")
    model = next((str(row[n]) for n in MODELS if row.get(n)), "")
    return Generation(_as_prompt(turns[:-1]), (turns[-1]["content"],), (model,), frozenset({"messages", *MODELS}))


def _parsed(value: Any) -> Any:
    """The value of a cell; a format that cannot nest holds a list or an object as JSON text."""
    if isinstance(value, str) and value[:2] in ('["', "[{", '{"'):
        try:
            found = orjson.loads(value)
        except ValueError:
            return value
        texts = isinstance(found, list) and all(isinstance(item, (str, dict)) for item in found)
        nested = isinstance(found, dict) and ("choices" in found or "body" in found)
        return found if texts or nested else value
    return value


def _unwrapped(value: Any) -> tuple[Any, str]:
    """The answers inside the response of an API, and the model that it names."""
    model = ""
    for _ in range(3):
        if not isinstance(value, Mapping):
            break
        model = str(value.get("model") or model)
        inner = next((value[n] for n in ("body", "choices", "outputs") if value.get(n) is not None), None)
        if inner is None:
            break
        value = inner
    return value, model


def _text(item: Any, path: str) -> str:
    if isinstance(item, Mapping) and isinstance(item.get("message"), Mapping):
        item = item["message"].get("content")
    elif isinstance(item, Mapping):
        item = next((item[n] for n in TEXTS if isinstance(item.get(n), str)), None)
    if not isinstance(item, str):
        raise wrong("text, or an object with a text", path, item)
    return item


def _prompt(
    row: Mapping[str, Any], config: SynthConfig, requests: Mapping[str, Any] | None
) -> tuple[str, tuple[str, ...]]:
    if config.prompt is None and requests is not None and isinstance(row.get("custom_id"), str):
        asked = requests.get(row["custom_id"])
        if asked is None:
            raise RecordError(
                "no request has this id", reason="no_request", field="custom_id", seen=repr(row["custom_id"])[:80]
            )
        return _as_prompt(asked), ()
    name = config.prompt or next((n for n in (*PROMPTS, "messages") if row.get(n) is not None), None)
    if name is None or row.get(name) is None:
        raise _missing(name or "prompt", row)
    if name == "instruction" and isinstance(row.get("input"), str):
        return f"{row[name]}\n\n{row['input']}" if row["input"] else str(row[name]), (name, "input")
    return _as_prompt(row[name]), (name,)


def _as_prompt(value: Any) -> str:
    """A prompt as it is written: text, or JSON of messages (of one message of the user alone, its text)."""
    turns = conversational(value, "prompt", "user")
    if len(turns) == 1 and set(turns[0]) == {"role", "content"} and turns[0]["role"] == "user":
        return turns[0]["content"]
    return json_text(turns)


def _missing(name: str, row: Mapping[str, Any]) -> RecordError:
    return RecordError(
        f"a row has no {name!r}",
        reason="missing_field",
        field=name,
        seen=f"columns: {', '.join(map(str, row))[:200]}",
    )


def gold(row: Mapping[str, Any], verifier: str, config: SynthConfig) -> tuple[str | None, tuple[str, ...]]:
    """Return what the verifier compares a row's answers with (None where the row has nothing), and its columns."""
    if config.answer is not None:
        return _gold_text(row.get(config.answer)), (config.answer,)
    if verifier == "countdown" and "target" in row:
        nums = row.get("nums", row.get("numbers"))
        return json_text({"numbers": nums, "target": row["target"]}), ("nums", "numbers", "target")
    tests = next((n for n in ("tests", "test", "test_list") if row.get(n)), None)
    if verifier == "code" and tests is not None and "answer" not in row:
        told = {"tests": row[tests], "entry_point": row.get("entry_point"), "prefix": row.get("prefix") or ""}
        return json_text(told), (tests, "entry_point", "prefix")
    name = next((n for n in GOLDS if row.get(n) is not None), None)
    return (None, ()) if name is None else (_gold_text(row[name]), (name,))


def _gold_text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json_text(value)
