"""Which variant of a matrix to take: as good as the best one, within every gate, and the cheapest of those.

Variants are compared seed by seed: a seed's data order and first values are shared, so that their difference is the
variant's. A variant is inside the band when its mean paired difference to the best is no larger than the band; whether
the interval of that difference lies inside as well (`shown`) is told beside it: with three seeds it rarely does. Free
to import (no torch).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lpt_train.estimates import Estimate, seeds_mean
from lpt_train.matrix_spec import MatrixSpec
from manifests.policy import Check, Metric, evaluate, verdict_of


@dataclass(frozen=True)
class CellResult:
    """What became of one cell: `values` are the numbers that gates, metric and resources are taken from."""

    variant: str
    seed: int
    status: str  # done | failed
    run_id: str | None
    object_id: str | None
    values: Mapping[str, float]
    failures: tuple[str, ...] = ()
    identity: Mapping[str, Any] = field(default_factory=dict)  # of start and data, to prove that they are shared

    @property
    def name(self) -> str:
        """As a person says it."""
        return f"{self.variant} with seed {self.seed}"


@dataclass(frozen=True)
class VariantResult:
    """One variant over all seeds. `difference` is to the best variant, paired by seed, positive where worse."""

    name: str
    settings: Mapping[str, Any]
    status: str  # complete | incomplete: a cell failed or has no finite value
    value: Estimate | None
    difference: Estimate | None
    inside: bool | None
    shown: bool | None
    checks: tuple[Check, ...]
    passed: bool
    resources: Mapping[str, float | None]

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "name": self.name, "settings": dict(self.settings), "status": self.status, "value": _plain(self.value),
            "difference": _plain(self.difference), "inside": self.inside, "shown": self.shown,
            "checks": [vars(check) for check in self.checks], "passed": self.passed, "resources": dict(self.resources),
        }  # fmt: skip


@dataclass(frozen=True)
class Choice:
    """The variants in the order of the specification, the best one, the winner, and why."""

    variants: tuple[VariantResult, ...]
    best: str | None
    winner: str | None
    reason: str


def choose(spec: MatrixSpec, cells: Sequence[CellResult]) -> Choice:
    """Judge every variant and take the cheapest of those that pass every gate and lie inside the band.

    The best is the one with the best mean among the complete variants that pass every gate. Only complete variants can
    win: a mean over other seeds compares with nothing.
    """
    by_variant = {name: [cell for cell in cells if cell.variant == name] for name in spec.variants}
    values = {name: _values(spec, found) for name, found in by_variant.items()}
    checks = {name: _gates(spec, found) for name, found in by_variant.items()}
    passed = {name: verdict_of(checks[name]) == "accept" for name in by_variant}
    fit = [name for name in by_variant if values[name] is not None and passed[name]]
    sign = -1.0 if spec.more else 1.0
    best = min(fit, key=lambda name: sign * _mean(values[name])) if fit else None
    variants = []
    for name, found in by_variant.items():
        mine, difference = values[name], None
        if mine is not None and best is not None and (against := values[best]) is not None:
            difference = seeds_mean([sign * (mine[seed] - against[seed]) for seed in spec.seeds])
        width = spec.band.width(_mean(values[best])) if best is not None else 0.0
        variants.append(VariantResult(
            name=name, settings=spec.variants[name], status="incomplete" if mine is None else "complete",
            value=seeds_mean(list(mine.values())) if mine is not None else None, difference=difference,
            inside=difference.value <= width if difference else None,
            shown=name == best or difference.high <= width if difference else None, checks=tuple(checks[name]),
            passed=passed[name], resources={resource: _worst(found, resource) for resource in spec.cheapest},
        ))  # fmt: skip
    winner, untold = _cheapest([found for found in variants if found.passed and found.inside])
    reason = untold or _reason(spec, variants, best, winner)
    return Choice(tuple(variants), best, winner.name if winner else None, reason)


def _values(spec: MatrixSpec, cells: Sequence[CellResult]) -> dict[int, float] | None:
    """The metric by seed; None unless every seed has a finite one."""
    found = {cell.seed: cell.values.get(spec.metric, math.nan) for cell in cells if cell.status == "done"}
    whole = set(found) == set(spec.seeds) and all(map(math.isfinite, found.values()))
    return {seed: found[seed] for seed in spec.seeds} if whole else None


def _gates(spec: MatrixSpec, cells: Sequence[CellResult]) -> list[Check]:
    """Each gate on the worst of a variant's cells; one without a finite value of each did not run and does not pass."""
    metrics = []
    for rule in spec.gates.rules:
        values = [cell.values.get(rule.id, math.nan) if cell.status == "done" else math.nan for cell in cells]
        missing = [cell.name for cell, value in zip(cells, values, strict=True) if not math.isfinite(value)]
        known = [value for value in values if math.isfinite(value)]
        if missing or not known:
            told = f"no finite value for {', '.join(missing) or 'any cell'}"
            metrics.append(Metric(rule.id, None, len(known), "error", told))
        else:
            worst = max if rule.reject is not None and rule.reject.op.startswith("<") else min
            metrics.append(Metric(rule.id, worst(known), len(known)))
    return evaluate(spec.gates, metrics)[0]


def _worst(cells: Sequence[CellResult], resource: str) -> float | None:
    """The most that a finished cell of the variant took, of time the mean; None unless each has a finite value."""
    values = [cell.values.get(resource, math.nan) for cell in cells if cell.status == "done"]
    if not values or not all(map(math.isfinite, values)):
        return None
    return sum(values) / len(values) if resource.endswith("seconds") else max(values)


def _cheapest(variants: Sequence[VariantResult]) -> tuple[VariantResult | None, str]:
    """The variant that takes the least of the first resource, among equals of the next one, and so on.

    None where there is no variant, and where the resource that is to decide is not known of each; then the reason, too.
    """
    left = list(variants)
    for resource in left[0].resources if left else ():
        if len(left) == 1:
            break
        costs = {variant.name: variant.resources[resource] for variant in left}
        if missing := [name for name, cost in costs.items() if cost is None]:
            return None, (
                f"none of {', '.join(costs)} is taken for its {resource}: there is no finite value of it for "
                + ", ".join(missing)
            )
        least = min(cost for cost in costs.values() if cost is not None)
        left = [variant for variant in left if costs[variant.name] == least]
    return (left[0] if left else None), ""


def _reason(spec: MatrixSpec, variants: Sequence[VariantResult], best: str | None, winner: VariantResult | None) -> str:
    if winner is None or best is None:
        lines = []
        for variant in variants:
            failed = [check for check in variant.checks if check.status != "pass"]
            told = [f"{check.id} {_said(check)}" for check in failed] or ["a cell failed or has no finite value"]
            lines.append(f"{variant.name}: {'; '.join(told)}")
        return "no variant is complete and passes every gate: " + " | ".join(lines)
    equal = [variant.name for variant in variants if variant.passed and variant.inside]
    if winner.difference is None or winner.name == best:
        return f"{best} has the best {spec.metric}" + (
            ", and no cheaper variant is within the band" if len(equal) < 2 else " and is the cheapest within the band"
        )
    shown = "" if winner.shown else "; the interval of that difference is wider than the band"
    return (
        f"{winner.name} is the cheapest of {len(equal)} within the band ({spec.band}) of {best}: worse by "
        f"{winner.difference.value:.4g} in {spec.metric}{shown}"
    )


def _said(check: Check) -> str:
    if check.status == "fail":
        return f"is {check.value:.6g}, must be {check.op} {check.threshold:.6g}"
    return f"could not be checked, {check.detail}"


def _mean(values: Mapping[int, float] | None) -> float:
    return math.nan if not values else sum(values.values()) / len(values)


def _plain(found: Estimate | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {name: None if value in (math.inf, -math.inf) else value for name, value in vars(found).items()}
