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
    "svg{width:100%;height:auto;border:1px solid #bbb}table{border-collapse:collapse;margin:1rem 0}"
    "td,th{padding:.15rem .7rem;text-align:right;border-bottom:1px solid #ddd;font-variant-numeric:tabular-nums}"
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


def drawing(curves: Sequence[Curve], *, x: tuple[float, float], y: tuple[float, float], ideal: bool, said: str) -> Html:
    """Curves between the limits `x` and `y`; `ideal` draws y = x. `said` tells what is seen."""

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
    limits = f"from left to right {x[0]:.4g} to {x[1]:.4g}, from bottom to top {y[0]:.4g} to {y[1]:.4g}"
    return el("figure", drawn, el("p", join([key, "  "] for key in keys), el("span", limits, class_="dim")))


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Html:
    """Numbers under their names; floats to four digits."""
    head = el("tr", [el("th", name) for name in columns])
    body = [el("tr", [el("td", _shown(value)) for value in row]) for row in rows]
    return el("table", el("thead", head), el("tbody", body))


def write_page(path: Path, title: str, *parts: Child) -> None:
    """Write a page of these parts, whole or not at all."""
    whole = page(title, el("h1", title), *parts, style=_STYLE)
    write_atomic(path, whole.encode("utf-8", "backslashreplace"))


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}" if math.isfinite(value) else "none"
    return "none" if value is None else str(value)
