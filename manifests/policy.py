"""Policies: what numbers are good enough, as YAML that a person reads, kept whole in each manifest that it judged.

    name: my-sft
    contract: sft
    extends: lpt:sft                 # optional: a shipped policy or a path beside this file
    drop: [duplicates.exact_share]   # optional: inherited checks that do not apply
    checks:
      - {id: truncation.rate, tune: "<= 0.01", reject: "<= 0.05", required: true, next: "lpt data audit …"}

A check of a name that is inherited replaces only the fields it gives. `tune` broken is a warning, `reject` broken a
failure. A required check that was skipped, failed to run or was never measured rejects: nothing is green by
silence, and a pass over no rows at all is reported as skipped. Metrics are stored beside verdicts, so another
policy can judge them later.
"""

from __future__ import annotations

import hashlib
import math
import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

import yaml

from manifests import policy_yaml
from manifests.errors import BadInputError, UsageError

Status = Literal["pass", "warn", "fail", "error", "skipped"]
Severity = Literal["reject", "tune", "info"]
Verdict = Literal["accept", "tune", "reject"]

_OPS = {"<=": operator.le, "<": operator.lt, ">=": operator.ge, ">": operator.gt, "==": operator.eq, "!=": operator.ne}
_BOUND = re.compile(r"(<=|>=|==|!=|<|>)\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)")
_POLICY_KEYS = {"name", "contract", "extends", "drop", "checks"}
_RULE_KEYS = {"id", "tune", "reject", "required", "next"}
_MAX_DEPTH = 10  # policies that extend policies


@dataclass(frozen=True)
class Metric:
    """A measurement: `n` is how many rows (or pairs, or items) it looked at; `rows` are a few examples behind it."""

    id: str
    value: float | None
    n: int
    status: Literal["ok", "error", "skipped"] = "ok"
    reason: str = ""
    rows: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Check:
    """A metric judged. `op` and `threshold` are the bound that decided; `next` is what to type about it."""

    id: str
    status: Status
    value: float | None
    op: str | None
    threshold: float | None
    n: int
    severity: Severity
    required: bool
    next: str = ""
    detail: str = ""


@dataclass(frozen=True)
class Bound:
    """One side of a threshold, e.g. `<= 0.05`."""

    op: str
    threshold: float

    def holds(self, value: float) -> bool:
        """Whether a value keeps the bound."""
        return bool(_OPS[self.op](value, self.threshold))

    def __str__(self) -> str:
        return f"{self.op} {self.threshold:.12g}"


@dataclass(frozen=True)
class Rule:
    """What a policy says about one metric."""

    id: str
    tune: Bound | None = None
    reject: Bound | None = None
    required: bool = False
    next: str = ""


@dataclass(frozen=True)
class Policy:
    """The rules in force. `source` is the effective policy as YAML, inherited rules included; `digest` is its
    sha256."""

    name: str
    contract: str
    rules: tuple[Rule, ...]

    @property
    def source(self) -> str:
        """The effective policy as YAML without `extends`: what a manifest keeps, and what judges the same again."""
        rules = []
        for rule in self.rules:
            entry: dict[str, Any] = {"id": rule.id}
            entry |= {name: str(bound) for name in ("tune", "reject") if (bound := getattr(rule, name))}
            entry |= {"required": True} if rule.required else {}
            entry |= {"next": rule.next} if rule.next else {}
            rules.append(entry)
        body = {"name": self.name, "contract": self.contract, "checks": rules}
        return yaml.safe_dump(body, sort_keys=False, allow_unicode=True, width=1000)

    @property
    def digest(self) -> str:
        """The sha256 of `source`."""
        return hashlib.sha256(self.source.encode()).hexdigest()


def load_policy(ref: str | Path | None, contract: str) -> Policy:
    """Load `lpt:NAME` (shipped), a path, or None for the contract's own; unknown keys, contradictions and a policy
    without a required check are refused."""
    policy = _load(str(ref) if ref is not None else f"lpt:{contract}", Path(), ())
    if policy.contract != contract:
        raise UsageError(
            "the policy is for another contract",
            seen=f"{policy.name} judges {policy.contract}, the data is {contract}",
            next=f"--policy lpt:{contract}",
        )
    if not any(rule.required for rule in policy.rules):
        raise UsageError(
            "a policy that requires no check accepts everything, even what was not looked at",
            seen=f"{policy.name}: {len(policy.rules)} checks, none of them required",
            next=f"add required: true to those that must have run, or extends: lpt:{contract}",
        )
    return policy


def parse_policy(text: str, origin: str = "a manifest") -> Policy:
    """Read a policy from YAML text, e.g. the one kept in a manifest; it may extend shipped policies only."""
    return _build(policy_yaml.parse(text, origin, _POLICY_KEYS), origin, None, (origin,))


def evaluate(policy: Policy, metrics: Sequence[Metric]) -> tuple[list[Check], Verdict]:
    """Judge metrics: one check for each rule, in the policy's order, then one for each metric that broke without a
    rule."""
    measured: dict[str, Metric] = {}
    for metric in metrics:
        if metric.id in measured:
            raise UsageError("a metric was given twice", seen=metric.id, next="give every metric its own id")
        measured[metric.id] = metric
    checks = [_judge(rule, measured.get(rule.id)) for rule in policy.rules]
    ruled = {rule.id for rule in policy.rules}
    checks += [_judge(Rule(m.id), m) for m in metrics if m.id not in ruled and m.status == "error"]
    return checks, verdict_of(checks)


def verdict_of(checks: Iterable[Check]) -> Verdict:
    """Return the verdict that checks add up to."""
    verdict: Verdict = "accept"
    for check in checks:
        if check.status == "fail" or _not_run(check):
            return "reject"
        if check.status == "warn":
            verdict = "tune"
    return verdict


def exit_code(verdict: str, checks: Sequence[Check]) -> int:
    """Return 0 for accept, 3 for tune, 4 for reject, and 5 when a required check did not run."""
    if any(_not_run(check) for check in checks):
        return 5
    return {"accept": 0, "tune": 3, "reject": 4}[verdict]


def checks_from_json(entries: Sequence[Mapping[str, Any]]) -> list[Check]:
    """Read the checks of a manifest; fields that a later version added are left out."""
    known = [f.name for f in fields(Check)]
    try:
        return [Check(**{name: entry[name] for name in known if name in entry}) for entry in entries]
    except (TypeError, AttributeError) as error:
        raise BadInputError(
            "the checks of a manifest cannot be read", seen=str(error), next="verify the manifest"
        ) from error


def _not_run(check: Check) -> bool:
    return check.required and check.status in ("error", "skipped")


def _judge(rule: Rule, metric: Metric | None) -> Check:
    bound = rule.tune or rule.reject
    severity: Severity = "reject" if rule.reject or rule.required else "tune" if rule.tune else "info"
    check = Check(
        rule.id,
        "skipped",
        None,
        bound.op if bound else None,
        bound.threshold if bound else None,
        0,
        severity,
        rule.required,
        rule.next,
        "it was not measured",
    )
    if metric is None:
        return check
    check = replace(check, value=metric.value, n=metric.n, detail=metric.reason)
    if metric.status != "ok":
        return replace(check, status=metric.status)
    if metric.value is None or math.isnan(metric.value):
        return replace(check, status="error", value=None, detail=metric.reason or "the measurement is not a number")
    if rule.reject is not None and not rule.reject.holds(metric.value):
        return _broken(check, rule.reject, "fail", "reject")
    if rule.tune is not None and not rule.tune.holds(metric.value):
        return _broken(check, rule.tune, "warn", "tune")
    if metric.n == 0:
        return replace(check, detail=metric.reason or "there was nothing to look at")
    return replace(check, status="pass")


def _broken(check: Check, bound: Bound, status: Status, severity: Severity) -> Check:
    return replace(check, status=status, op=bound.op, threshold=bound.threshold, severity=severity)


# -- reading


def _load(ref: str, beside: Path, seen: tuple[str, ...]) -> Policy:
    text, origin, base = policy_yaml.fetch(ref, beside)
    if origin in seen or len(seen) > _MAX_DEPTH:
        raise BadInputError("policies extend each other in a circle", seen=" → ".join([*seen, origin]), next="break it")
    return _build(policy_yaml.parse(text, origin, _POLICY_KEYS), origin, base, (*seen, origin))


def _build(body: dict[str, Any], origin: str, base: Path | None, seen: tuple[str, ...]) -> Policy:
    parent: Policy | None = None
    if (extends := body.get("extends")) is not None:
        if base is None and not str(extends).startswith("lpt:"):
            raise BadInputError(
                "this policy can extend shipped ones only", seen=f"{origin}: {extends}", next="lpt:NAME"
            )
        parent = _load(str(extends), base or Path(), seen)
    rules = {rule.id: rule for rule in parent.rules} if parent else {}
    for dropped in _strings(body.get("drop"), "drop", origin):
        if rules.pop(dropped, None) is None:
            raise BadInputError(
                "a check that is dropped was not inherited", seen=f"{origin}: {dropped}", next="correct its id"
            )
    entries = body.get("checks") or []
    if not isinstance(entries, list):
        raise BadInputError(
            "checks is not a list", seen=f"{origin}: {type(entries).__name__}", next="- {id: …, reject: …}"
        )
    given = set()
    for entry in entries:
        rule = _rule(entry, rules, origin)
        if rule.id in given:
            raise BadInputError("a check is there twice", seen=f"{origin}: {rule.id}", next="keep one of them")
        given.add(rule.id)
        rules[rule.id] = rule
    contract: Any = body.get("contract") or (parent.contract if parent else None)
    name: Any = body.get("name") or (parent.name if parent else None)
    if not isinstance(contract, str) or not isinstance(name, str):
        raise BadInputError("a policy needs a name and a contract", seen=origin, next="e.g. name: mine, contract: sft")
    return Policy(name, contract, tuple(rules.values()))


def _rule(entry: Any, inherited: Mapping[str, Rule], origin: str) -> Rule:
    if not isinstance(entry, dict) or not isinstance(entry.get("id"), str):
        raise BadInputError("a check has no id", seen=f"{origin}: {entry!r}"[:300], next="- {id: …, reject: '<= 0'}")
    policy_yaml.refuse_unknown(entry, _RULE_KEYS, f"{origin}: {entry['id']}")
    rule = inherited.get(entry["id"], Rule(entry["id"]))
    bounds = {
        name: None if entry[name] is None else _bound(entry[name], f"{origin}: {rule.id}")
        for name in ("tune", "reject")
        if name in entry
    }
    rule = replace(rule, tune=bounds.get("tune", rule.tune), reject=bounds.get("reject", rule.reject))
    for name, kind in (("required", bool), ("next", str)):
        if name in entry:
            if not isinstance(entry[name], kind):
                raise BadInputError(
                    f"{name} has the wrong type", seen=f"{origin}: {rule.id}", next=f"a {kind.__name__}"
                )
            rule = replace(rule, **{name: entry[name]})
    _consistent(rule, origin)
    return rule


def _consistent(rule: Rule, origin: str) -> None:
    """Refuse a value that would be rejected and yet keep the tune bound: such a pair is a typing error."""
    if rule.tune is None or rule.reject is None:
        return
    tune, reject = rule.tune, rule.reject
    same = tune.op[0] == reject.op[0] and tune.op[0] in "<>"
    looser = reject.threshold >= tune.threshold if tune.op[0] == "<" else reject.threshold <= tune.threshold
    if not same or not looser:
        raise BadInputError(
            "tune and reject contradict each other",
            seen=f"{origin}: {rule.id}: tune {tune}, reject {reject}",
            next="both must point the same way, and reject must allow at least what tune allows",
        )


def _bound(text: Any, origin: str) -> Bound:
    match = _BOUND.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        raise BadInputError("not a bound", seen=f"{origin}: {text!r}", next="e.g. '<= 0.05', with quotes")
    if math.isinf(float(match[2])):
        raise BadInputError("a bound that nothing can break", seen=f"{origin}: {text}"[:300], next="e.g. '<= 0.05'")
    return Bound(match[1], float(match[2]))


def _strings(value: Any, name: str, origin: str) -> list[str]:
    if value is None:
        return []
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return value
    raise BadInputError(f"{name} is not a list of ids", seen=f"{origin}: {value!r}"[:300], next=f"{name}: [some.check]")
