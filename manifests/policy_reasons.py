"""Why each check is in a shipped policy: the comment above it, for people who meet its name for the first time."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from manifests.policy import Bound, load_policy
from manifests.policy_yaml import fetch, shipped

_ENTRY = re.compile(r" *- *\{id: ([A-Za-z0-9_.]+)")
_HEAD = """# Checks

What `lpt data audit` and `lpt admit` check, by contract. Outside of *tune* a split can be trained on and passes no
release gate; outside of *reject* nothing trains on it. *Must run*: data with a check that did not run is not accepted.
Another policy is a file for `--policy`, and may say `extends: lpt:NAME`. Made from the files in
[manifests/policies](../manifests/policies).
"""


@cache
def reasons(policy: str) -> dict[str, str]:
    """By id, why `policy` (such as ``lpt:sft``) itself has a check; neighbours may share a comment."""
    text, _, _ = fetch(policy, Path())
    found: dict[str, str] = {}
    said: list[str] = []
    fresh = False  # whether `said` has no check below it yet
    for line in text.partition("\nchecks:\n")[2].splitlines():
        if line.lstrip().startswith("#"):
            said = [*said, line.lstrip(" #")] if fresh else [line.lstrip(" #")]
            fresh = True
        elif entry := _ENTRY.match(line):
            found[entry[1]] = " ".join(said)
            fresh = False
    return found


@cache
def reason_of(check_id: str) -> str:
    """Why that check is made, by the first policy that has it; "" for one that no shipped policy has."""
    return next((reasons(name)[check_id] for name in shipped() if check_id in reasons(name)), "")


def page() -> str:
    """The Markdown of docs/checks.md: every check of every shipped policy with its limits and its reason."""
    parts = [_HEAD]
    for name in shipped():
        policy = load_policy(name, name.removeprefix("lpt:"))
        why = {rule.id: reasons(name).get(rule.id) or reason_of(rule.id) for rule in policy.rules}  # some are inherited
        parts.append(f"\n## {policy.contract}\n\n| check | tune | reject | must run | why |\n|---|---|---|---|---|\n")
        parts += [
            f"| `{rule.id}` | {_limit(rule.tune)} | {_limit(rule.reject)} | {'yes' if rule.required else ''} "
            f"| {why[rule.id].replace('|', '&#124;').replace('<', '&lt;')} |\n"
            for rule in policy.rules
        ]
    return "".join(parts)


def _limit(bound: Bound | None) -> str:
    return "" if bound is None else str(bound).replace("<", "&lt;").replace(">", "&gt;")
