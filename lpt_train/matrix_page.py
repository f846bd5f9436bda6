"""A matrix as one Markdown page: the choice, the variants, the cells, the specification. Free to import (no torch)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from lpt_train.estimates import Estimate
from lpt_train.matrix_choice import CellResult, Choice, VariantResult
from lpt_train.matrix_spec import MatrixSpec


def page(
    spec: MatrixSpec, cells: Sequence[CellResult], choice: Choice, notes: Sequence[str], object_id: str | None
) -> str:
    """The whole page."""
    winner = f"**{choice.winner}**" if choice.winner else "**none**"
    parts = [
        f"# Matrix {spec.name}: {spec.algorithm} on {_text(spec.admitted or spec.unadmitted)}", "",
        f"Winner: {winner}. {_text(choice.reason)}", "",
        f"{spec.metric} ({'more' if spec.more else 'less'} is better), band {spec.band}, {len(spec.seeds)} seeds; "
        f"catalog object `{object_id}`.", "", *rows(VARIANT_COLUMNS, (variant_row(v, choice) for v in choice.variants)),
    ]  # fmt: skip
    gates = [
        (variant.name, check.id, check.value, f"{check.op} {check.threshold:g}", check.status, check.detail)
        for variant in choice.variants
        for check in variant.checks
    ]
    if gates:
        columns = ["variant", "gate", "worst of its cells", "must be", "status", ""]
        parts += ["", "## Gates", "", *rows(columns, gates)]
    parts += ["", "## Cells", "", *rows(cell_columns(spec), (cell_row(spec, cell) for cell in cells))]
    if notes:
        parts += ["", "## Notes", "", *[f"- {_text(note)}" for note in notes]]
    if spec.source:
        parts += ["", "## Specification", "", *[f"    {line}" for line in spec.source.splitlines()]]
    return "\n".join([*parts, ""])


VARIANT_COLUMNS = (
    "variant", "mean", "95 % interval", "worse than the best by", "95 % interval", "in the band", "gates", "resources",
)  # fmt: skip


def variant_row(variant: VariantResult, choice: Choice) -> tuple[Any, ...]:
    """What a table says of a variant."""
    mark = " (winner)" if variant.name == choice.winner else " (best)" if variant.name == choice.best else ""
    failed = [check.id for check in variant.checks if check.status != "pass"]
    inside = {True: "yes", False: "no", None: "–"}[variant.inside]
    if variant.inside and not variant.shown:
        inside = "yes, not shown"
    resources = ", ".join(f"{name} {_short(value)}" for name, value in variant.resources.items())
    return (
        variant.name + mark, _short(variant.value.value if variant.value else None), interval(variant.value),
        _short(variant.difference.value if variant.difference else None), interval(variant.difference), inside,
        f"failed: {', '.join(failed)}" if failed else "pass" if variant.status == "complete" else variant.status,
        resources,
    )  # fmt: skip


def cell_columns(spec: MatrixSpec) -> list[str]:
    """The head of the table of cells."""
    return ["variant", "seed", "status", spec.metric, *spec.cheapest, "run"]


def cell_row(spec: MatrixSpec, cell: CellResult) -> tuple[Any, ...]:
    """What a table says of a cell; of a failed one, why."""
    numbers = [_short(cell.values.get(name)) for name in (spec.metric, *spec.cheapest)]
    return (cell.variant, cell.seed, cell.status, *numbers, "; ".join(cell.failures) or cell.run_id or "–")


def interval(found: Estimate | None) -> str:
    """An interval in short; of one seed there is none."""
    if found is None or found.n < 2:
        return "–"
    return f"{_short(found.low)} … {_short(found.high)}"


def rows(columns: Sequence[str], body: Iterable[Sequence[Any]]) -> list[str]:
    """A Markdown table."""
    lines = [f"| {' | '.join(columns)} |", f"|{' --- |' * len(columns)}"]
    return lines + [f"| {' | '.join(_text(_short(value)) for value in row)} |" for row in body]


def _short(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:.5g}"


def _text(value: Any) -> str:
    """Text that cannot end a cell, start markup or a tag."""
    return re.sub(r"([\\`*_\[\]<>|#])", r"\\\1", " ".join(str(value).split()))
