"""Policies: the truth table of verdicts by hand, inheritance, and a loader that refuses what YAML would swallow."""

from __future__ import annotations

import math
import os

import pytest

from manifests.errors import BadInputError, UsageError
from manifests.policy import (
    Bound,
    Check,
    Metric,
    Policy,
    Rule,
    checks_from_json,
    evaluate,
    exit_code,
    load_policy,
    parse_policy,
    verdict_of,
)
from manifests.policy_yaml import parse, shipped

LE = Rule("rate", tune=Bound("<=", 0.01), reject=Bound("<=", 0.05), required=True, next="lpt …")


def judge(metrics, *rules) -> tuple[str, list[str], int]:
    checks, verdict = evaluate(Policy("p", "sft", rules), metrics)
    return verdict, [check.status for check in checks], exit_code(verdict, checks)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.0, ("accept", ["pass"], 0)),
        (0.01, ("accept", ["pass"], 0)),
        (0.0100001, ("tune", ["warn"], 3)),
        (0.05, ("tune", ["warn"], 3)),
        (0.0501, ("reject", ["fail"], 4)),
        (math.inf, ("reject", ["fail"], 4)),
        (math.nan, ("reject", ["error"], 5)),
        (None, ("reject", ["error"], 5)),
    ],
)
def test_bounds_by_hand(value, expected):
    assert judge([Metric("rate", value, 10)], LE) == expected


def test_the_check_carries_the_bound_that_decided():
    for value, bound in ((0.0, 0.01), (0.02, 0.01), (0.2, 0.05)):
        (check,), _ = evaluate(Policy("p", "sft", (LE,)), [Metric("rate", value, 10, reason="why")])
        assert (check.op, check.threshold, check.value, check.n, check.next) == ("<=", bound, value, 10, "lpt …")
        assert check.severity == ("tune" if check.status == "warn" else "reject")


@pytest.mark.parametrize("status", ["error", "skipped"])
def test_a_required_check_that_did_not_run_is_no_pass(status):
    metric = Metric("rate", None, 0, status=status, reason="no tokenizer")
    assert judge([metric], LE) == ("reject", [status], 5)
    assert judge([], LE) == ("reject", ["skipped"], 5)
    optional = Rule("rate", reject=Bound("<=", 0.05))
    assert judge([metric], optional) == ("accept", [status], 0)
    assert judge([], optional) == ("accept", ["skipped"], 0)


def test_a_pass_over_nothing_is_not_green():
    assert judge([Metric("rate", 0.0, 0)], LE) == ("reject", ["skipped"], 5)
    assert judge([Metric("rate", 0.9, 0)], LE) == ("reject", ["fail"], 4)


def test_a_metric_that_broke_without_a_rule_is_still_listed():
    metrics = [
        Metric("rate", 0, 1),
        Metric("other", None, 0, status="error", reason="it crashed"),
        Metric("fine", 1, 1),
    ]
    assert judge(metrics, LE) == ("accept", ["pass", "error"], 0)


def test_a_metric_given_twice_is_an_error():
    with pytest.raises(UsageError):
        judge([Metric("rate", 0, 1), Metric("rate", 1, 1)], LE)


@pytest.mark.parametrize(
    ("statuses", "verdict"),
    [([], "accept"), (["pass", "warn"], "tune"), (["warn", "fail"], "reject"), (["fail", "warn"], "reject")],
)
def test_the_worst_check_decides(statuses, verdict):
    checks = [Check(str(i), s, 0, "<=", 0, 1, "tune", False) for i, s in enumerate(statuses)]
    assert verdict_of(checks) == verdict


@pytest.mark.parametrize(
    ("op", "holds"), [("<=", "xx-"), ("<", "x--"), (">=", "-xx"), (">", "--x"), ("==", "-x-"), ("!=", "x-x")]
)
def test_operators(op, holds):
    assert "".join("x" if Bound(op, 2).holds(v) else "-" for v in (1, 2, 3)) == holds


# -- files


@pytest.mark.parametrize("name", shipped())
def test_shipped_policies_load_for_their_contract_and_survive_the_manifest(name):
    policy = load_policy(name, name.removeprefix("lpt:"))
    assert policy == load_policy(None, policy.contract)
    again = parse_policy(policy.source)
    assert (again, again.digest) == (policy, policy.digest)
    with pytest.raises(UsageError, match="another contract"):
        load_policy(name, "nothing")
    assert judge([], *policy.rules)[0] == "reject"  # an audit that measured nothing is never green


def test_a_child_replaces_only_what_it_says(tmp_path):
    (tmp_path / "base.yaml").write_text(
        "name: base\ncontract: sft\nchecks:\n"
        "  - {id: a, tune: '<= 1', reject: '<= 5', required: true, next: fix}\n"
        "  - {id: b, reject: '>= 1e-3'}\n  - {id: c, reject: '== 0'}\n"
    )
    (tmp_path / "child.yaml").write_text(
        "name: strict\nextends: base.yaml\ndrop: [c]\nchecks:\n"
        "  - {id: a, reject: '<= 2'}\n  - {id: b, reject: null}\n  - {id: d, tune: '< 3'}\n"
    )
    policy = load_policy(tmp_path / "child.yaml", "sft")
    assert policy.name == "strict"
    assert policy.rules == (
        Rule("a", Bound("<=", 1), Bound("<=", 2), True, "fix"),
        Rule("b"),
        Rule("d", tune=Bound("<", 3)),
    )
    assert "extends" not in policy.source
    assert load_policy(tmp_path / "base.yaml", "sft").digest != policy.digest


def test_a_child_of_a_shipped_policy(tmp_path):
    (tmp_path / "mine.yaml").write_text("name: mine\nextends: lpt:sft\nchecks:\n  - {id: mine.own, reject: '<= 0'}\n")
    ours, theirs = load_policy(tmp_path / "mine.yaml", "sft"), load_policy(None, "sft")
    assert ours.rules == (*theirs.rules, Rule("mine.own", reject=Bound("<=", 0)))


BAD = {
    "no yaml": "name: [",
    "no mapping": "- a",
    "an unknown key": "name: x\ncontract: sft\ncheks: []",
    "an unknown rule key": "name: x\ncontract: sft\nchecks: [{id: a, rejct: '<= 0'}]",
    "a repeated key": "name: x\nname: y\ncontract: sft",
    "a repeated check": "name: x\ncontract: sft\nchecks: [{id: a}, {id: a}]",
    "no name": "contract: sft\nchecks: []",
    "no contract": "name: x",
    "no id": "name: x\ncontract: sft\nchecks: [{reject: '<= 0'}]",
    "no bound": "name: x\ncontract: sft\nchecks: [{id: a, reject: 0.5}]",
    "a wrong bound": "name: x\ncontract: sft\nchecks: [{id: a, reject: '=< 0.5'}]",
    "code in a bound": "name: x\ncontract: sft\nchecks: [{id: a, reject: '<= __import__(1)'}]",
    "required no boolean": "name: x\ncontract: sft\nchecks: [{id: a, required: 'no'}]",
    "contradiction in value": "name: x\ncontract: sft\nchecks: [{id: a, tune: '<= 5', reject: '<= 1'}]",
    "contradiction in way": "name: x\ncontract: sft\nchecks: [{id: a, tune: '<= 1', reject: '>= 5'}]",
    "an alias": "name: &n x\ncontract: *n",
    "a tag": "name: !!python/object/apply:os.system [id]\ncontract: sft",
    "a bound that nothing breaks": "name: x\ncontract: sft\nchecks: [{id: a, reject: '<= 1e999'}]",
    "a parent with NUL in its name": 'name: x\ncontract: sft\nextends: "a\\0b"',
    "a parent without an end": "name: x\ncontract: sft\nextends: /dev/zero",
    "a parent that is a folder": "name: x\ncontract: sft\nextends: .",
    "a circle": "name: x\ncontract: sft\nextends: p.yaml",
    "an absent parent": "name: x\ncontract: sft\nextends: absent.yaml",
    "a dropped stranger": "name: x\ncontract: sft\ndrop: [a]",
    "checks no list": "name: x\ncontract: sft\nchecks: {id: a}",
}


@pytest.mark.parametrize("name", BAD)
def test_a_policy_that_is_wrong_is_refused_whole(tmp_path, name):
    (tmp_path / "p.yaml").write_text(BAD[name])
    with pytest.raises(BadInputError) as caught:
        load_policy(tmp_path / "p.yaml", "sft")
    assert caught.value.seen
    assert caught.value.next


def test_where_there_is_no_policy(tmp_path):
    with pytest.raises(UsageError, match="lpt:sft"):
        load_policy("lpt:nothing", "sft")
    with pytest.raises(BadInputError):
        load_policy(tmp_path / "absent.yaml", "sft")
    os.mkfifo(tmp_path / "pipe.yaml")
    with pytest.raises(BadInputError, match="is a file"):
        load_policy(tmp_path / "pipe.yaml", "sft")
    (tmp_path / "huge.yaml").write_bytes(b"#" * (2 << 20))
    with pytest.raises(BadInputError, match="1 MiB"):
        load_policy(tmp_path / "huge.yaml", "sft")
    with pytest.raises(BadInputError, match="shipped"):
        parse_policy("name: x\ncontract: sft\nextends: /etc/passwd")


def test_checks_of_a_manifest_are_read_back():
    checks, _ = evaluate(Policy("p", "sft", (LE,)), [Metric("rate", 0.2, 10)])
    from dataclasses import asdict

    assert checks_from_json([{**asdict(checks[0]), "later": 1}]) == checks
    with pytest.raises(BadInputError):
        checks_from_json([{"id": "x"}])


@pytest.mark.parametrize(
    "checks",
    ["checks: []", "", "checks: [{id: a, reject: '<= 0'}]", "extends: lpt:sft\ndrop: [{all}]"],
    ids=["an empty list", "no list", "none required", "all dropped"],
)
def test_a_policy_that_requires_nothing_is_refused(tmp_path, checks):
    every = ", ".join(rule.id for rule in load_policy("lpt:sft", "sft").rules)
    (tmp_path / "mine.yaml").write_text(f"name: mine\ncontract: sft\n{checks.replace('{all}', every)}\n")
    with pytest.raises(UsageError, match="requires no check") as refused:
        load_policy(tmp_path / "mine.yaml", "sft")
    assert "required: true" in refused.value.next


@pytest.mark.parametrize("text", ["[" * 5000 + "]" * 5000, "a: " + "{b: " * 200 + "1" + "}" * 200, "a: 2026-99-99"])
def test_yaml_that_is_too_deep_or_no_date_is_bad_input(text):
    with pytest.raises(BadInputError, match="not YAML") as error:
        parse(text, "x", ["a"])
    assert error.value.next
