"""JSON that keeps a schema: the answer of a record is a JSON Schema, the completion must hold one value that keeps it.

The value is read from the last ``json`` fence, the last ``<answer>…</answer>``, or the whole text, first that is there.
A part of JSON Schema 2020-12 of our own, because the package that has all of it is no dependency: what is in `KEYWORDS`
and `REMARKS`. A schema with any other keyword is not half-checked but unreadable: the row cannot be scored.
Patterns are Python's, searched; one that never ends is ended by the limit of the process that scores.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

from lpt_train.rewards.verifier import Canary, Verifier, last_tagged

MAX_JSON = 1 << 20  # characters of a completion's value and of a schema
MAX_DEPTH = 64  # of a schema inside a schema, references followed

_FENCE = re.compile(r"```[ \t]*([^\s`]*)[^\n`]*\n(.*?)```", re.DOTALL)  # of any language, so that ends are no starts
# They say something about a value and demand nothing.
REMARKS = {"$schema", "$id", "$comment", "$defs", "definitions", "title", "description", "default", "examples",
           "deprecated", "readOnly", "writeOnly", "format"}  # fmt: skip
_TYPES: dict[str, Callable[[Any], bool]] = {
    "null": lambda v: v is None,
    "boolean": lambda v: isinstance(v, bool),
    "string": lambda v: isinstance(v, str),
    "number": lambda v: isinstance(v, (int, float)) and not isinstance(v, bool),
    "integer": lambda v: not isinstance(v, bool) and (isinstance(v, int) or (isinstance(v, float) and v.is_integer())),
    "array": lambda v: isinstance(v, list),
    "object": lambda v: isinstance(v, dict),
}


class _Unreadable(Exception):
    """The schema says something that is not understood."""


def _equal(a: Any, b: Any) -> bool:
    """Equality of JSON: 1 and 1.0 are one number, true is none."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(_equal(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_equal(a[k], b[k]) for k in a)
    return bool(a == b)


def _name(value: Any) -> str:
    """A text that two JSON values share when they are equal."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, list):
        return f"[{','.join(map(_name, value))}]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(k)}:{_name(value[k])}" for k in sorted(value)) + "}"
    return json.dumps(value)


def _multiple(value: Any, of: Any) -> bool:
    return (Fraction(str(value)) / Fraction(str(of))).denominator == 1  # a remainder of Decimal has an end


# keyword -> (type it speaks of, or "" for all; what its own value must be; the test)
_SIMPLE: dict[str, tuple[str, Callable[[Any], bool], Callable[[Any, Any], bool]]] = {
    "const": ("", lambda _: True, _equal),
    "enum": ("", lambda w: isinstance(w, list), lambda v, w: any(_equal(v, one) for one in w)),
    "minimum": ("number", _TYPES["number"], lambda v, w: v >= w),
    "maximum": ("number", _TYPES["number"], lambda v, w: v <= w),
    "exclusiveMinimum": ("number", _TYPES["number"], lambda v, w: v > w),
    "exclusiveMaximum": ("number", _TYPES["number"], lambda v, w: v < w),
    "multipleOf": ("number", lambda w: _TYPES["number"](w) and w > 0, _multiple),
    "minLength": ("string", _TYPES["integer"], lambda v, w: len(v) >= w),
    "maxLength": ("string", _TYPES["integer"], lambda v, w: len(v) <= w),
    "pattern": ("string", lambda w: isinstance(w, str), lambda v, w: re.search(w, v) is not None),
    "minItems": ("array", _TYPES["integer"], lambda v, w: len(v) >= w),
    "maxItems": ("array", _TYPES["integer"], lambda v, w: len(v) <= w),
    "uniqueItems": ("array", _TYPES["boolean"], lambda v, w: not w or len(set(map(_name, v))) == len(v)),
    "minProperties": ("object", _TYPES["integer"], lambda v, w: len(v) >= w),
    "maxProperties": ("object", _TYPES["integer"], lambda v, w: len(v) <= w),
    "required": (
        "object",
        lambda w: isinstance(w, list) and all(isinstance(name, str) for name in w),
        lambda v, w: all(name in v for name in w),
    ),
}
_NESTED = {"properties", "patternProperties", "additionalProperties", "items", "prefixItems", "anyOf", "allOf",
           "oneOf", "not", "$ref", "type"}  # fmt: skip
KEYWORDS = {*_SIMPLE, *_NESTED}


class _Schema:
    """One schema with its definitions; `holds` walks a value, `check` the schema itself."""

    def __init__(self, root: Any) -> None:
        self.root = root
        self.followed: list[Any] = []  # what references led to, wherever it stands

    def resolve(self, reference: Any) -> Any:
        """The schema behind ``#``, ``#/$defs/NAME`` and the like; nothing is fetched."""
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            raise _Unreadable
        found = self.root
        for step in reference[1:].split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, dict) or step not in found:
                raise _Unreadable
            found = found[step]
        return found

    def inner(self, schema: dict[str, Any]) -> Iterator[Any]:
        """The schemas inside one."""
        for name in ("additionalProperties", "items", "not"):
            if name in schema:
                yield schema[name]
        for name in ("properties", "patternProperties", "$defs", "definitions"):
            if not isinstance(schema.get(name, {}), dict):
                raise _Unreadable
            yield from schema.get(name, {}).values()
        for name in ("anyOf", "allOf", "oneOf", "prefixItems"):
            if not isinstance(schema.get(name, []), list) or (name in schema and not schema[name]):
                raise _Unreadable
            yield from schema.get(name, [])

    def check(self, schema: Any, depth: int = 0) -> None:
        """Raise `_Unreadable` where a keyword is unknown or its value is none that it takes."""
        if isinstance(schema, bool):
            return
        if not isinstance(schema, dict) or depth > MAX_DEPTH or not set(schema) <= KEYWORDS | REMARKS:
            raise _Unreadable
        for name, (_, takes, _) in _SIMPLE.items():
            if name in schema and not takes(schema[name]):
                raise _Unreadable
        types = schema.get("type", [])
        if not set(types if isinstance(types, list) else [types]) <= set(_TYPES):
            raise _Unreadable
        for pattern in [schema.get("pattern", ""), *schema.get("patternProperties", {})]:
            try:
                re.compile(pattern)
            except re.error as error:
                raise _Unreadable from error
        if "$ref" in schema:
            found = self.resolve(schema["$ref"])
            if not any(found is other for other in self.followed):
                self.followed.append(found)
                self.check(found, depth + 1)
        for inner in self.inner(schema):
            self.check(inner, depth + 1)

    def holds(self, value: Any, schema: Any, depth: int = 0) -> bool:
        """Whether a value keeps a schema."""
        if isinstance(schema, bool):
            return schema
        if depth > MAX_DEPTH:
            raise _Unreadable
        down = depth + 1
        types = schema.get("type")
        if types is not None and not any(_TYPES[t](value) for t in (types if isinstance(types, list) else [types])):
            return False
        for name, (kind, _, test) in _SIMPLE.items():
            if name in schema and (not kind or _TYPES[kind](value)) and not test(value, schema[name]):
                return False
        if "$ref" in schema and not self.holds(value, self.resolve(schema["$ref"]), down):
            return False
        if "not" in schema and self.holds(value, schema["not"], down):
            return False
        if not all(self.holds(value, one, down) for one in schema.get("allOf", [])):
            return False
        if "anyOf" in schema and not any(self.holds(value, one, down) for one in schema["anyOf"]):
            return False
        if "oneOf" in schema and sum(self.holds(value, one, down) for one in schema["oneOf"]) != 1:
            return False
        if isinstance(value, list):
            return self.items(value, schema, down)
        return self.properties(value, schema, down) if isinstance(value, dict) else True

    def items(self, value: list[Any], schema: dict[str, Any], depth: int) -> bool:
        first = schema.get("prefixItems", [])
        rest = schema.get("items", True)
        pairs = [*zip(value, first, strict=False), *((item, rest) for item in value[len(first) :])]
        return all(self.holds(item, one, depth) for item, one in pairs)

    def properties(self, value: dict[str, Any], schema: dict[str, Any], depth: int) -> bool:
        named, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
        for name, item in value.items():
            mine = [named[name]] if name in named else []
            mine += [one for pattern, one in patterns.items() if re.search(pattern, name)]
            if not all(self.holds(item, one, depth) for one in mine or [schema.get("additionalProperties", True)]):
                return False
        return True


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name is there twice")
    return found


def parse(text: str) -> Any:
    """The value of a JSON text; ValueError for what is none: NaN, a name given twice, an infinite number, too deep."""
    if len(text) > MAX_JSON:
        raise ValueError("too long")
    try:
        value = json.loads(text, parse_constant=_refuse, object_pairs_hook=_unique)
        json.dumps(value, allow_nan=False)  # 1e999 is read as infinity
        return value
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def read_schema(answer: str) -> _Schema | None:
    """The schema of a record's answer, None where it cannot be read or holds a keyword that is not known."""
    try:
        schema = _Schema(parse(answer))
        schema.check(schema.root)
    except (ValueError, TypeError, _Unreadable, RecursionError):
        return None
    return schema if isinstance(schema.root, dict) else None


def said(completion: str) -> str:
    """Where the value of a completion stands."""
    found = _FENCE.findall(completion[-MAX_JSON:]) if "```" in completion else []
    fences = [text for language, text in found if language.lower() in ("", "json")]
    if fences:
        return fences[-1]
    tagged = last_tagged(completion)
    return completion if tagged is None else tagged


def score(completion: str, answer: str) -> float | None:
    """1.0 when the completion is JSON that keeps the schema, 0.0 when not; None where the schema cannot be read."""
    schema = read_schema(answer)
    if schema is None:
        return None
    try:
        value = parse(said(completion).strip())
    except ValueError:
        return 0.0
    try:
        return float(schema.holds(value, schema.root))
    except (_Unreadable, RecursionError):
        return None  # a reference that never ends


def parse_gold(answer: str) -> bool:
    """Whether the answer is a schema that is understood in full."""
    return read_schema(answer) is not None


def gold_completion(answer: str) -> str | None:
    """A completion that must score 1: one of the schema's own examples; None where it has none."""
    schema = read_schema(answer)
    examples = schema.root.get("examples") if schema is not None else None
    return json.dumps(examples[0]) if isinstance(examples, list) and examples else None


def wrong_completion(answer: str) -> str | None:
    """A completion that must score 0: no JSON."""
    return "{'no': JSON}" if parse_gold(answer) else None


_PERSON = (
    '{"type": "object", "properties": {"name": {"type": "string", "minLength": 1}, "age": {"type": "integer",'
    ' "minimum": 0}}, "required": ["name"], "additionalProperties": false}'
)
VERIFIER = Verifier(
    name="schema",
    score=score,
    parse_gold=parse_gold,
    gold_completion=gold_completion,
    wrong_completion=wrong_completion,
    canaries=(
        Canary('{"name": "Ada", "age": 36}', _PERSON, 1.0),
        Canary('Here it is:\n```json\n{"name": "Ada"}\n```\nDone.', _PERSON, 1.0),
        Canary('{"age": 36}', _PERSON, 0.0),
        Canary('{"name": "Ada", "age": true}', _PERSON, 0.0),
        Canary('{"name": "Ada", "role": "poet"}', _PERSON, 0.0),
        Canary('The name is {"name": "Ada"}', _PERSON, 0.0),
        Canary('{"name": "Ada", "name": ""}', _PERSON, 0.0),
        Canary('{"name": "Ada"}', '{"unevaluatedProperties": false}', None),
    ),
)
