"""A config turned into the rules that run, each with its thresholds; what makes no sense is refused before any work."""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lpt_data.clean import language
from lpt_data.clean.outcome import Limits, Rule
from lpt_data.clean.table import PRESET_LIMITS, PRESETS, RULES
from lpt_data.config import CleanConfig
from manifests.errors import UsageError

FAMILIES = tuple(dict.fromkeys(name.partition(".")[0] for name in RULES))
CHOICES = {"preset": tuple(PRESETS), "pii": ("mask", "keep"), "secrets": ("drop", "mask", "keep")}


@dataclass(frozen=True)
class Plan:
    """The rules in their order, with thresholds, and those of the preset that cannot run and why."""

    steps: tuple[tuple[Rule, Limits], ...]
    languages: tuple[str, ...]
    skipped: dict[str, str]

    def to_json(self) -> dict[str, Any]:
        """What the record of the stage says about the rules."""
        return {rule.name: dict(limits) for rule, limits in self.steps}


def make_plan(config: CleanConfig) -> Plan:
    """Settle the rules and their thresholds; raises UsageError for a name or value that means nothing."""
    for name, choices in CHOICES.items():
        if getattr(config, name) not in choices:
            raise UsageError(f"no such {name}", seen=getattr(config, name), next=f"one of: {', '.join(choices)}")
    if config.languages:
        language.check_known(config.languages)
    _check_known(config.limits, RULES, "rule")
    names = _names(config)
    steps, skipped = [], {}
    for rule in RULES.values():
        if rule.name not in names:
            continue
        if rule.needs and not config.languages:
            skipped[rule.name] = "no language to keep was named (--languages)"
        elif rule.needs == "english" and "en" not in config.languages:
            skipped[rule.name] = "of English text alone, which is not among --languages"
        else:
            steps.append((rule, _limits(rule, config)))
    if not steps:
        raise UsageError("no rule would run", seen=f"--preset {config.preset}", next="name some: --rules unicode,pii")
    return Plan(tuple(steps), config.languages, skipped)


def _names(config: CleanConfig) -> set[str]:
    """The chosen rules: those named, else those of the preset; secrets, pii and languages as their options say."""
    named = [name for name in config.rules if not name.startswith("-")]
    chosen = set(_expanded(named)) if named else set(PRESETS[config.preset])
    chosen -= set(_expanded(name[1:] for name in config.rules if name.startswith("-")))
    secrets = {name for name in chosen if name.startswith("secrets.")}
    if config.secrets == "keep" or len(secrets) > 1:
        chosen -= secrets - {f"secrets.{config.secrets}"}
    if config.pii == "keep":
        chosen -= {name for name in chosen if name.startswith("pii.")}
    if config.languages:
        chosen.add("language")
    return chosen


def _expanded(names: Iterable[str]) -> list[str]:
    found = []
    for name in names:
        _check_known([name], [*RULES, *FAMILIES], "rule")
        found += [rule for rule in RULES if rule == name or rule.partition(".")[0] == name]
    return found


def _limits(rule: Rule, config: CleanConfig) -> Limits:
    given = config.limits.get(rule.name, {})
    _check_known(given, rule.limits, f"threshold of {rule.name}")
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
            raise UsageError(
                f"the threshold {name} of {rule.name} is no number from 0 on",
                seen=repr(value),
                next=f"{rule.name}: {{{name}: {rule.limits[name]:g}}}",
            )
    return {**rule.limits, **PRESET_LIMITS.get(config.preset, {}).get(rule.name, {}), **given}


def _check_known(names: Iterable[str], known: Iterable[str], what: str) -> None:
    among = list(known)
    for name in names:
        if name not in among:
            near = difflib.get_close_matches(str(name), among, n=1)
            listed = ", ".join(among[:60]) or "it has none"
            raise UsageError(f"no such {what}", seen=name, next=f"did you mean {near[0]}?" if near else listed)


def config_of(given: Mapping[str, Any]) -> CleanConfig:
    """Return the config that a mapping (the file of `--config`, options on top) says; unknown keys are refused."""
    fields = [field.name for field in dataclasses.fields(CleanConfig)]
    _check_known(given, fields, "setting")
    values = dict(given)
    for name in ("rules", "languages"):
        if name in values:
            values[name] = _words(values[name], name)
    limits = values.get("limits", {})
    if not isinstance(limits, dict) or not all(isinstance(inner, dict) for inner in limits.values()):
        raise UsageError("limits is no mapping", seen=repr(limits)[:80], next="limits: {gopher.words: {min: 20}}")
    return CleanConfig(**values)


def _words(value: Any, name: str) -> tuple[str, ...]:
    """A list of words, or one text with commas."""
    parts: Sequence[Any] = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, (list, tuple)) or not all(isinstance(part, str) for part in parts):
        raise UsageError(f"{name} is no list of names", seen=repr(value)[:80], next=f"{name}: [a, b]")
    return tuple(part.strip() for part in parts if part.strip())
