from __future__ import annotations

import json
import random
from typing import Any

import pytest

from lpt_train.rewards import schema
from lpt_train.rewards.schema import parse, parse_gold, said, score

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1},
        "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}},
    },
    "required": ["name"],
    "additionalProperties": False,
    "$defs": {"tag": {"enum": ["a", "b"]}},
}


def keeps(value: Any, rules: Any) -> float | None:
    return score(json.dumps(value), json.dumps(rules))


@pytest.mark.parametrize(
    ("value", "rules"),
    [
        ({"name": "Ada", "tags": ["a", "b"]}, PERSON),
        (1.0, {"type": "integer"}),
        (1, {"const": 1.0}),
        (0.3, {"multipleOf": 0.1}),
        ([1, "a", True], {"prefixItems": [{"type": "integer"}, {"type": "string"}]}),
        ([1, True], {"uniqueItems": True}),  # true is no number
        ({"x1": 1}, {"patternProperties": {"^x": {"type": "integer"}}, "additionalProperties": False}),
        (5, {"oneOf": [{"minimum": 3}, {"maximum": 1}]}),
        ("anything", {"minimum": 9}),  # a bound of numbers says nothing about text
        ("é", {"maxLength": 1}),
        (None, {"title": "remarks demand nothing", "default": 3}),
    ],
)
def test_values_that_keep_a_schema(value, rules):
    assert keeps(value, rules) == 1.0


@pytest.mark.parametrize(
    ("value", "rules"),
    [
        ({"name": ""}, PERSON),
        ({"name": "Ada", "tags": ["c"]}, PERSON),
        ({"name": "Ada", "role": 1}, PERSON),
        ({}, PERSON),
        (True, {"type": "integer"}),
        (1.5, {"type": "integer"}),
        ([1, 1.0], {"uniqueItems": True}),
        (5, {"oneOf": [{"minimum": 3}, {"minimum": 1}]}),
        (5, {"not": {"type": "integer"}}),
        (5, {"allOf": [{"minimum": 3}, {"maximum": 4}]}),
        ("ba", {"pattern": "^a"}),
        ({"a": 1}, {"properties": {"a": False}}),
    ],
)
def test_values_that_do_not(value, rules):
    assert keeps(value, rules) == 0.0


@pytest.mark.parametrize(
    "rules",
    [
        "not json", "[]", "true", '{"type": "integr"}', '{"dependentRequired": {}}', '{"pattern": "("}',
        '{"$ref": "x"}', '{"required": 3}', '{"$ref": "#/$defs/none"}', '{"anyOf": []}', '{"minimum": "3"}',
        '{"type": "a", "type": 1}',
    ],
)  # fmt: skip
def test_a_schema_that_is_not_understood_in_full_scores_nothing(rules):
    assert parse_gold(rules) is False
    assert score("{}", rules) is None


def test_a_schema_that_never_ends_is_unscorable():
    assert keeps(1, {"$ref": "#"}) is None
    assert keeps({"a": {"a": {}}}, {"properties": {"a": {"$ref": "#"}}}) == 1.0


@pytest.mark.parametrize("text", ["NaN", "1e999", '{"a": 1, "a": 2}', "[" * 100_000, "", "'a'", "1 2", "x" * (1 << 21)])
def test_what_is_no_json(text):
    with pytest.raises(ValueError):
        parse(text)
    assert score(text, '{"type": "object"}') == 0.0


def test_where_the_value_stands():
    assert said('```json\n{"a": 1}\n```\nor\n```\n[2]\n```') == "[2]\n"
    assert said("so <answer>3</answer>") == "3"
    assert score("```json\n3", '{"type": "integer"}') == 0.0  # a fence that never closes
    assert score("```" * 300_000, "{}") == 0.0


def test_the_self_test_uses_an_example_of_the_schema():
    answer = json.dumps({"type": "integer", "examples": [3]})
    assert score(schema.gold_completion(answer), answer) == 1.0
    assert score(schema.wrong_completion(answer), answer) == 0.0
    assert schema.gold_completion(json.dumps({"type": "integer"})) is None


def test_a_fence_of_another_language_holds_no_value_and_a_multiple_has_no_largest():
    completion = '```text\nno\n```\nHere:\n```json\n{"a": 1}\n```'
    assert score(completion, '{"type": "object"}') == 1.0
    assert score("1e300", '{"multipleOf": 0.01}') == 1.0
    assert score("1", '{"properties": {"a": {"$ref": "#anchor"}}}') is None
    assert score("{}", '{"$ref": "#/examples", "examples": {"unevaluatedProperties": false}}') is None
    assert score('{"a": {"a": 1}}', '{"properties": {"a": {"$ref": "#"}}}') == 1.0


def test_two_thousand_drawn_schemas_judge_as_the_reference_does():
    reference = pytest.importorskip("jsonschema")
    draw = random.Random(0)

    def value(depth: int = 0) -> Any:
        kind = draw.randrange(8 if depth < 3 else 6)
        if kind < 3:
            return [None, draw.choice([True, False]), draw.randrange(-3, 9)][kind]
        if kind < 6:
            return draw.choice([0.5, 1.0, -1.0]) if kind == 3 else "".join(draw.choices("ab", k=draw.randrange(4)))
        items = [value(depth + 1) for _ in range(draw.randrange(4))]
        return items if kind == 6 else dict(zip("abc", items, strict=False))

    def rules(depth: int = 0) -> dict[str, Any]:
        types = ["object", "array", "string", "integer", "number", "null", "boolean", ["string", "integer"]]
        plain = {
            "type": lambda: draw.choice(types), "enum": lambda: [value(2) for _ in range(3)], "const": lambda: value(2),
            "minimum": lambda: draw.randrange(4), "exclusiveMaximum": lambda: draw.randrange(4),
            "multipleOf": lambda: draw.choice([2, 0.5]), "minLength": lambda: draw.randrange(3),
            "pattern": lambda: draw.choice(["^a", "b$"]), "minItems": lambda: draw.randrange(3),
            "uniqueItems": lambda: True, "required": lambda: ["a"], "maxProperties": lambda: 1,
        }  # fmt: skip
        made = {name: make() for name, make in plain.items() if draw.random() < 0.12}
        if depth < 3:
            nested = {
                "properties": lambda: {n: rules(depth + 1) for n in "ab"}, "items": lambda: rules(depth + 1),
                "additionalProperties": lambda: draw.choice([False, rules(depth + 1)]),
                "prefixItems": lambda: [rules(depth + 1)], "not": lambda: rules(depth + 1),
                **{n: lambda: [rules(depth + 1), rules(depth + 1)] for n in ("anyOf", "oneOf", "allOf")},
            }  # fmt: skip
            made |= {name: make() for name, make in nested.items() if draw.random() < 0.15}
        return made

    kept = 0
    for _ in range(2000):
        asked, given = rules(), value()
        expected = reference.Draft202012Validator(asked).is_valid(given)
        kept += expected
        assert keeps(given, asked) == float(expected), (asked, given)
    assert 500 < kept < 1500
