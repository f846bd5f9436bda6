"""Pages with a drawing: self-contained HTML that loads and runs nothing, every text in it escaped by `manifests.html`.

Drawings are SVG of shapes alone; the numbers stand in tables below them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from manifests.files import write_atomic
from manifests.html import Child, Html, el, join, page

_WIDE, _HIGH = 600, 400  # units
_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:46rem;margin:2rem auto;padding:0 1rem;color:#222}"
    "svg{width:100%;height:auto;border:1px solid #bbb;box-sizing:border-box}figure{margin:1rem 0}"
    "table{border-collapse:collapse;margin:1rem 0;display:block;max-width:100%;overflow-x:auto}"
    "td,th{padding:.15rem .7rem;text-align:right;border-bottom:1px solid #ddd;font-variant-numeric:tabular-nums}"
    "td.name,th.name{text-align:left;padding-left:0}"
    ".axes{display:grid;grid-template-columns:auto minmax(0,1fr);gap:.2rem .5rem;font-size:.85rem;color:#555}"
    ".up{display:flex;flex-direction:column;justify-content:space-between;text-align:right}"
    ".across{display:flex;justify-content:space-between;gap:.6rem;text-align:center}"
    ".curve,.range,.ideal{fill:none;stroke-width:2}.ideal{stroke:#999;stroke-dasharray:6 5}.range{stroke-width:1.5}"
    ".c0{stroke:#0b62a4;fill:#0b62a4}.c1{stroke:#c2500e;fill:#c2500e}.c2{stroke:#3a7d34;fill:#3a7d34}"
    "polyline.c0,polyline.c1,polyline.c2{fill:none}.key{font-weight:bold}.dim{color:#666}"
    "b.c0{color:#0b62a4}b.c1{color:#c2500e}b.c2{color:#3a7d34}"
)


@dataclass(frozen=True)
class Curve:
    """Points of one colour, with intervals where `lows` and `highs` are given; joined by a line, or not."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float]
    lows: Sequence[float] = ()
    highs: Sequence[float] = ()
    line: bool = True


def drawing(
    curves: Sequence[Curve],
    *,
    x: tuple[float, float],
    y: tuple[float, float],
    labels: tuple[str, str],
    ideal: bool,
    said: str,
) -> Html:
    """Curves between the limits `x` and `y`, named by `labels`; `ideal` draws y = x. `said` tells what is seen."""

    def at(value: float, limits: tuple[float, float], size: int) -> float:
        low, high = limits
        share = (min(max(value, low), high) - low) / (high - low) if high > low else 0.5
        return round(share * size, 2)

    def across(value: float) -> float:
        return at(value, x, _WIDE)

    def up(value: float) -> float:
        return round(_HIGH - at(value, y, _HIGH), 2)

    shapes = []
    if ideal:
        low, high = max(x[0], y[0]), min(x[1], y[1])
        shapes.append(el("line", x1=across(low), y1=up(low), x2=across(high), y2=up(high), class_="ideal"))
    for number, curve in enumerate(curves):
        colour = f"c{number % 3}"
        places = [(across(a), up(b)) for a, b in zip(curve.xs, curve.ys, strict=True) if math.isfinite(b)]
        if curve.line:
            points = " ".join(f"{a},{b}" for a, b in places)
            shapes.append(el("polyline", points=points, class_=f"curve {colour}"))
        for a, low, high in zip(curve.xs, curve.lows, curve.highs, strict=False):
            shapes.append(el("line", x1=across(a), x2=across(a), y1=up(low), y2=up(high), class_=f"range {colour}"))
        shapes += [el("rect", x=a - 3, y=b - 3, width=6, height=6, class_=colour) for a, b in places]
    drawn = el("svg", shapes, viewBox=f"0 0 {_WIDE} {_HIGH}", role="img", aria_label=said)
    keys = [el("b", curve.name, class_=f"c{number % 3}") for number, curve in enumerate(curves)]
    if ideal:
        keys.append(el("span", "dashed: as it should be", class_="dim"))
    upright = el("div", [el("span", f"{value:.4g}") for value in (y[1], sum(y) / 2, y[0])], class_="up")
    below = el("div", el("span", f"{x[0]:.4g}"), el("span", labels[0]), el("span", f"{x[1]:.4g}"), class_="across")
    axes = el("div", el("span"), el("span", f"↑ {labels[1]}"), upright, drawn, el("span"), below, class_="axes")
    return el("figure", el("p", join([key, "  "] for key in keys)), axes)


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Html:
    """Numbers under their names; floats to four digits."""
    named = [bool(rows) and all(isinstance(row[at], str) for row in rows) for at in range(len(columns))]
    head = el(
        "tr", [el("th", name, class_="name" if text else None) for name, text in zip(columns, named, strict=True)]
    )
    body = [
        el("tr", [el("td", _shown(v), class_="name" if text else None) for v, text in zip(row, named, strict=True)])
        for row in rows
    ]
    return el("table", el("thead", head), el("tbody", body))


def write_page(path: Path, title: str, *parts: Child) -> None:
    """Write a page of these parts, whole or not at all."""
    whole = page(title, el("h1", title), *parts, style=_STYLE)
    write_atomic(path, whole.encode("utf-8", "backslashreplace"))


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}" if math.isfinite(value) else "none"
    return "none" if value is None else str(value)
