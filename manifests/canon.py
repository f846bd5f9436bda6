"""`lpt-canon/1`: the bytes that a record is, whatever file, order, format or library it came through.

A record of a kind is projected on the fields declared for that kind, nulls are dropped at every depth, and the rest
is written as JSON with sorted keys and no spaces. On this domain (no floats, ASCII keys, safe integers, well-formed
Unicode) the output of orjson is byte for byte RFC 8785; `tests/manifests/test_canon.py` holds that against a second
implementation.

    record_id = sha256("lpt-canon/1" 0x00 kind 0x00 bytes)

Strings are never normalised, stripped or re-cased: a tokenizer sees those differences. JSON whose shape is free
(tool schemas, call arguments, structured answers) is carried as JSON text (see `json_text`), so its floats and
nulls stay as they were written. Two things follow that a user may meet: `content: null` and no `content` are the
same record, and a message with a field outside the closed list below is refused instead of being identified without
it.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import orjson

from manifests.errors import RecordError, UsageError

CANON = "lpt-canon/1"
FIELDS: dict[str, tuple[str, ...]] = {
    "text": ("text",),
    "sft": ("messages", "tools"),
    "preference": ("prompt", "chosen", "rejected"),
    "rlvr": ("prompt", "answer", "verifier"),
    "kto": ("prompt", "completion", "label"),
}
# Contracts whose records are of a kind with another name: a synthetic row is a conversation with columns beside it.
_KIND_OF_CONTRACT = {"synthetic": "sft"}
MAX_INTEGER = 2**53 - 1  # the largest integer that every JSON reader keeps exact (RFC 7493)
MAX_DEPTH = 100

_MESSAGE = ("role", "content", "name", "tool_call_id", "tool_calls")
_PLAIN = frozenset(_MESSAGE) - {"tool_calls"}
_CALL = ("id", "type", "function")
_FUNCTION = ("name", "arguments")


def kind_of(contract: str) -> str:
    """Return the kind of the canonical records of a contract."""
    return _KIND_OF_CONTRACT.get(contract, contract)


def canonical_bytes(kind: str, row: Mapping[str, Any]) -> bytes:
    """Return the canonical JSON of `row` as a record of `kind`; a field without such a form raises RecordError."""
    shapes = _SHAPES.get(kind)
    if shapes is None:
        raise UsageError("unknown kind of record", seen=kind, next=f"one of: {', '.join(FIELDS)}")
    record: dict[str, Any] = {}
    for name, (shape, required) in shapes.items():
        value = row.get(name)
        if value is not None:
            record[name] = shape(value, name)
        elif required:
            raise RecordError(
                f"a {kind} record has no {name!r}", reason="missing_field", field=name, seen=sorted(map(str, row))
            )
    return _dump(record)


def canonical_json(value: Any) -> bytes:
    """Return the canonical JSON of any value in the domain: what `canonical_bytes` does, without a declared shape."""
    return _dump(_plain(value, "", 0))


def record_id(kind: str, row: Mapping[str, Any]) -> bytes:
    """Return the 32 bytes that identify `row` as a record of `kind`."""
    return id_of(kind, canonical_bytes(kind, row))


def id_of(kind: str, data: bytes) -> bytes:
    """Return the 32 bytes that identify the record of `kind` whose canonical bytes are `data`."""
    return hashlib.sha256(id_prefix(kind) + data).digest()


def record_ids(kind: str, rows: Iterable[Mapping[str, Any]]) -> np.ndarray:
    """Return the record ids of `rows` as uint8 [N, 32], in order."""
    if kind == "text":
        return text_ids(row.get("text") for row in rows)
    start = hashlib.sha256(id_prefix(kind))
    digests = []
    for row in rows:
        digest = start.copy()
        digest.update(canonical_bytes(kind, row))
        digests.append(digest.digest())
    return _as_ids(digests)


def text_ids(texts: Iterable[str | None]) -> np.ndarray:
    """Return the ids of the text records `{"text": t}` as uint8 [N, 32], without building a dict per row."""
    prefix = id_prefix("text") + b'{"text":'
    sha256, dumps = hashlib.sha256, orjson.dumps
    digests = []
    for text in texts:
        if type(text) is not str:
            digests.append(record_id("text", {"text": text}))
            continue
        try:
            digests.append(sha256(b"%b%b}" % (prefix, dumps(text))).digest())
        except TypeError:
            digests.append(record_id("text", {"text": text}))  # raises, with the field named
    return _as_ids(digests)


def text_frame() -> tuple[bytes, bytes]:
    """Return what is hashed before and after the inside of the JSON string of a text record."""
    return id_prefix("text") + b'{"text":"', b'"}'


def json_text(value: Any) -> str:
    """Return `value` as JSON text: a string stays as it is, anything else is written compactly in the order it has.

    Raises RecordError for what JSON cannot say, NaN and infinities among it: as null they would be another value.
    """
    if isinstance(value, str):
        return value
    try:
        text = orjson.dumps(value).decode()
    except TypeError as error:
        raise RecordError(
            "a value cannot be written as JSON text", reason="wrong_type", seen=repr(value)[:200], next=str(error)
        ) from error
    if "null" in text and _holds_no_number(value):
        raise RecordError("JSON has no NaN and no infinity", reason="not_a_number", seen=repr(value)[:200])
    return text


def _holds_no_number(value: Any) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, Mapping):
        return any(map(_holds_no_number, value.values()))
    return isinstance(value, (list, tuple)) and any(map(_holds_no_number, value))


@functools.cache
def id_prefix(kind: str) -> bytes:
    """Return what is hashed before the canonical bytes of a record of `kind`."""
    if kind not in FIELDS:
        raise UsageError("unknown kind of record", seen=kind, next=f"one of: {', '.join(FIELDS)}")
    return f"{CANON}\0{kind}\0".encode()


def _as_ids(digests: list[bytes]) -> np.ndarray:
    return np.frombuffer(b"".join(digests), dtype=np.uint8).reshape(-1, 32).copy()


def _dump(value: Any) -> bytes:
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except (TypeError, RecursionError) as error:
        _find_surrogate(value, "")
        raise RecordError("a record cannot be written as JSON", reason="wrong_type", seen=str(error)) from error


# -- the shapes of each kind; every function returns the value with nulls dropped, or raises naming the path


def _string(value: Any, path: str) -> str:
    if isinstance(value, str):
        return value
    raise _wrong(path, "a string", value)


def _boolean(value: Any, path: str) -> bool:
    if isinstance(value, bool):
        return value
    raise _wrong(path, "true or false", value)


def _messages(value: Any, path: str) -> list[dict[str, Any]]:
    if type(value) is list and all(map(_is_plain, value)):
        return value  # nearly every row: nothing to drop, nothing to check further
    return [_message(item, f"{path}[{i}]") for i, item in enumerate(_list(value, path))]


def _is_plain(message: Any) -> bool:
    """Whether a message is already in canonical form: strings alone under known names, no tool calls."""
    if type(message) is not dict or "role" not in message:
        return False
    if len(message) == 2:
        return type(message["role"]) is str and type(message.get("content")) is str
    return message.keys() <= _PLAIN and all(type(item) is str for item in message.values())


def _message(value: Any, path: str) -> dict[str, Any]:
    given = _object(value, path, _MESSAGE, required=("role",))
    message: dict[str, Any] = {}
    for name, item in given.items():
        message[name] = _calls(item, f"{path}.{name}") if name == "tool_calls" else _string(item, f"{path}.{name}")
    return message


def _calls(value: Any, path: str) -> list[dict[str, Any]]:
    calls = []
    for i, item in enumerate(_list(value, path)):
        at = f"{path}[{i}]"
        given = _object(item, at, _CALL, required=("type", "function"))
        call: dict[str, Any] = {name: _string(given[name], f"{at}.{name}") for name in ("id", "type") if name in given}
        function = _object(given["function"], f"{at}.function", _FUNCTION, required=_FUNCTION)
        call["function"] = {name: _string(v, f"{at}.function.{name}") for name, v in function.items()}
        calls.append(call)
    return calls


def _list(value: Any, path: str) -> Any:
    if isinstance(value, (list, tuple, np.ndarray)):  # pandas hands nested lists over as arrays
        return value
    raise _wrong(path, "a list", value)


def _object(value: Any, path: str, allowed: tuple[str, ...], required: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise _wrong(path, "an object", value)
    given = {name: item for name, item in value.items() if item is not None}
    for name in given:
        if name not in allowed:
            raise RecordError(
                "a record has a field that its canonical form does not know",
                reason="unknown_field",
                field=f"{path}.{name}",
                seen=f"{path}.{name}",
                next=f"known here: {', '.join(allowed)}; move it to a column of its own",
            )
    for name in required:
        if name not in given:
            raise RecordError(
                f"{path} has no {name!r}", reason="missing_field", field=f"{path}.{name}", seen=sorted(given)
            )
    return given


_Shape = Callable[[Any, str], Any]
_SHAPES: dict[str, dict[str, tuple[_Shape, bool]]] = {  # field -> (shape, required)
    "text": {"text": (_string, True)},
    "sft": {"messages": (_messages, True), "tools": (_string, False)},
    "preference": {"prompt": (_messages, False), "chosen": (_messages, True), "rejected": (_messages, True)},
    "rlvr": {"prompt": (_messages, True), "answer": (_string, True), "verifier": (_string, False)},
    "kto": {"prompt": (_messages, True), "completion": (_messages, True), "label": (_boolean, True)},
}


# -- the free domain


def _plain(value: Any, path: str, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise RecordError(
            "a value is nested too deeply", reason="nested_too_deeply", field=path, seen=f"> {MAX_DEPTH} levels"
        )
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, int):
        if -MAX_INTEGER <= value <= MAX_INTEGER:
            return int(value)
        raise RecordError(
            f"{path or 'the value'} is an integer that JSON readers round",
            reason="integer_out_of_range",
            field=path,
            seen=value,
            next="write it as a string",
        )
    if isinstance(value, float):
        raise RecordError(
            f"{path or 'the value'} is a float: libraries write the same float differently",
            reason="float_in_record",
            field=path,
            seen=value,
            next="write it as a string",
        )
    if isinstance(value, Mapping):
        return {
            _key(k, path): _plain(v, f"{path}.{k}" if path else str(k), depth + 1)
            for k, v in value.items()
            if v is not None
        }
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{path}[{i}]", depth + 1) for i, item in enumerate(value)]
    raise _wrong(path or "the value", "JSON", value)


def _key(key: Any, path: str) -> str:
    if isinstance(key, str) and key.isascii():
        return key
    raise RecordError(
        f"a key in {path or 'the value'} is not an ASCII string", reason="key_not_ascii", field=path, seen=repr(key)
    )


def _find_surrogate(value: Any, path: str) -> None:
    if isinstance(value, dict):
        for name, item in value.items():
            _find_surrogate(item, f"{path}.{name}" if path else str(name))
    elif isinstance(value, list):
        for i, item in enumerate(value):
            _find_surrogate(item, f"{path}[{i}]")
    elif isinstance(value, str) and any(0xD800 <= ord(c) <= 0xDFFF for c in value):
        raise RecordError(
            f"{path or 'the value'} holds half of a surrogate pair, which is no character",
            reason="lone_surrogate",
            field=path,
            seen=value[:80].encode("ascii", "backslashreplace").decode(),
            next="repair the text at its source",
        )


def _wrong(path: str, expected: str, value: Any) -> RecordError:
    reason = "not_a_number" if isinstance(value, float) and value != value else "wrong_type"
    return RecordError(
        f"{path} must be {expected}", reason=reason, field=path, seen=f"{type(value).__name__}: {repr(value)[:80]}"
    )
