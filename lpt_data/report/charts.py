"""Charts as inline SVG: shapes alone, stretched to the width of the page; numbers stand beside them as text.

No text is inside the drawings, so it stays readable at any width, and every chart has its numbers in a table.
Coordinates are attributes, which a strict content policy allows; colours are classes of the style sheet.
"""

from __future__ import annotations

from collections.abc import Sequence

from lpt_data.report import words
from lpt_data.report.parts import LISTED, Column, swatch, table
from lpt_data.report.story import Curve, Flow, Histogram
from manifests.html import Html, el, join

WIDE = 1000  # units across
FILES = 4  # sources that are named
SHADES = 5  # colours for reasons; the rest share the last one
DOTTED = 40  # points of a line up to which each is marked
_LEAST = 3.0  # units that something is wide at least, so that one row in a million is seen


def funnel(flows: Sequence[Flow]) -> Html:
    """Draw stages below each other: bars as wide as their rows, what went beside what stayed, and the sum in words."""
    widest = max((flow.rows_in + flow.repeated for flow in flows), default=0) or 1
    items = []
    for number, flow in enumerate(flows):
        into = number > 0 and flows[number - 1].rows_out == flow.rows_in
        onward = number + 1 < len(flows) and flows[number + 1].rows_in == flow.rows_out
        above = el("div", _band(flow.rows_in, widest) if into else None, _head(flow), class_="over")
        below = el("div", _band(flow.rows_out, widest) if onward else None, _legend(flow), class_="over")
        items.append(el("li", above, _bar(flow, widest), below))
    return el("ol", items, class_="funnel")


def _head(flow: Flow) -> Html:
    named = el("code", flow.stage_id, class_="dim") if flow.stage_id else None
    title = el("span", el("b", flow.title), " ", named)
    files = [f"{name} ({rows:,})" if rows is not None else name for name, rows in flow.sources[:FILES]]
    if len(flow.sources) > FILES:
        files.append(f"and {len(flow.sources) - FILES:,} more")
    origin = el("p", "from ", ", ".join(files), class_="sum dim") if files else None
    total = el("span", words.rows(flow.rows_in), " in", class_="n")
    return join([el("div", title, total, class_="flow-head"), origin])


def _bar(flow: Flow, widest: int) -> Html:
    segments = [("kept", flow.rows_out)]
    segments += [(f"gone-{min(i, SHADES - 1) + 1}", n) for i, (_, n) in enumerate(flow.removed.items())]
    segments.append(("aside", flow.quarantined))
    at, shapes = 0.0, []
    for name, n in segments:
        wide = max(_LEAST, WIDE * n / widest) if n else 0.0
        if n:
            shapes.append(el("rect", x=_at(at), y=0, width=_at(max(wide - 1.5, 1.5)), height=20, class_=name))
        at += wide
    return _svg(shapes, max(WIDE, at), 20, "bar", _in_words(flow))


def _band(rows: int, widest: int) -> Html:
    """The rows that go on from one bar to the next, drawn behind the words between them."""
    shape = el("rect", x=0, y=0, width=_at(max(_LEAST, WIDE * rows / widest) - 1.5), height=10)
    return el("svg", shape, viewBox=f"0 0 {WIDE} 10", preserveAspectRatio="none", class_="band", aria_hidden="true")


def _legend(flow: Flow) -> Html:
    entries = [_key("kept", "kept", flow.rows_out, flow)]
    entries += [
        _key(f"gone-{min(i, SHADES - 1) + 1}", reason, n, flow) for i, (reason, n) in enumerate(flow.removed.items())
    ]
    if flow.quarantined:
        entries.append(_key("aside", "set aside, could not be used", flow.quarantined, flow))
    sign = el("span", "✓", class_="pass") if flow.balanced else el("b", "✕ rows are missing", class_="fail")
    return join([el("ul", entries, class_="legend"), el("p", _in_words(flow), " ", sign, class_="sum dim")])


def _key(name: str, said: str, n: int, flow: Flow) -> Html:
    return el(
        "li", swatch(name), said, " ", el("b", words.count(n), class_="n"),
        " ", el("span", words.share(n, flow.rows_in + flow.repeated), class_="dim"),
    )  # fmt: skip


def _in_words(flow: Flow) -> str:
    """The conservation of rows as a sum."""
    repeated = f" + {flow.repeated:,} repeated" if flow.repeated else ""
    gone = f"{flow.lost:,} removed + {flow.quarantined:,} set aside"
    return f"{flow.rows_in:,} in{repeated} = {flow.rows_out:,} out + {gone}"


def histogram(given: Histogram) -> Html:
    """Draw one row of bars for each series, all over the same axis, each as high as its own highest bar."""
    rows = [_series(name, counts, given) for name, counts in given.series.items() if sum(counts)]
    edges = given.edges
    marks = [edges[0], edges[len(edges) // 2], edges[-1]]
    axis = el("div", [el("span", words.value(mark)) for mark in marks], class_="axis n")
    unit = el("p", given.unit, f" — {given.note}" if given.note else "", class_="dim small")
    numbers = table(
        [Column(f"from, {given.unit}", number=True), Column("to below", number=True)]
        + [Column(name, number=True) for name in given.series],
        [[edges[i], edges[i + 1], *(counts[i] for counts in given.series.values())] for i in range(len(edges) - 1)],
        caption=given.title,
    )
    shown = el("details", el("summary", "The numbers"), numbers, class_="numbers")
    return el("figure", el("figcaption", given.title), rows, axis, unit, shown, class_="histogram")


def _series(name: str, counts: Sequence[int], given: Histogram) -> Html:
    highest = max(counts)
    shapes = [
        el(
            "rect",
            x=i * 10 + 0.5,
            y=_at(100 - 100 * n / highest),
            width=9,
            height=_at(100 * n / highest),
            class_="kept",
        )
        for i, n in enumerate(counts)
        if n
    ]
    peak = counts.index(highest)
    said = (
        f"{words.rows(sum(counts))}; most, {highest:,}, from {words.value(given.edges[peak])} "
        f"to {words.value(given.edges[peak + 1])}"
    )
    head = el("div", el("b", name), " ", el("span", said, class_="dim small"), class_="series")
    return join([head, _svg(shapes, 10 * len(counts), 100, "bars", f"{given.title}, {name}: {said}")])


def curve(points: Sequence[Sequence[float]], at: float, labels: tuple[str, str], said: str) -> Html:
    """Draw y, from 0 to 1, over x, with a line at `at`; `labels` say what they are, `said` what the line shows."""
    low, high = points[0][0], points[-1][0]
    across = (high - low) or 1.0
    line = " ".join(f"{_at(WIDE * (x - low) / across)},{_at(100 - 98 * y)}" for x, y in points)
    where = _at(WIDE * (at - low) / across)
    shapes = [
        el("line", x1=0, x2=WIDE, y1=100, y2=100, class_="base"),
        el("line", x1=where, x2=where, y1=0, y2=100, class_="mark"),
        el("polyline", points=line, class_="curve"),
    ]
    axis = el("div", [el("span", words.value(x)) for x in (low, (low + high) / 2, high)], class_="axis n")
    numbers = table([Column(labels[0], number=True), Column(labels[1], number=True)], points, caption=labels[1])
    title = el("figcaption", labels[1], el("span", ", from 0 to 1", class_="dim small"))
    drawn = _svg(shapes, WIDE, 102, "plot", f"{labels[1]} by {labels[0]}")
    told = [el("p", labels[0], class_="dim small"), el("p", said, class_="small")]
    return el(
        "figure", title, drawn, axis, told, el("details", el("summary", "The numbers"), numbers, class_="numbers")
    )


def lines(given: Curve, dashed: Sequence[int] = ()) -> Html:
    """Draw a metric over the steps, and in another colour what was measured of it; a dashed line at each step named."""
    every = [point for points in given.lines.values() for point in points]
    left, right = min(x for x, _ in every), max(x for x, _ in every)
    low, high = min(y for _, y in every), max(y for _, y in every)
    across, up = (right - left) or 1.0, (high - low) or 1.0
    shapes = [el("line", x1=0, x2=WIDE, y1=100, y2=100, class_="base")]
    for step in dashed[:LISTED]:
        if left <= step <= right:
            where = _at(WIDE * (step - left) / across)
            shapes.append(el("line", x1=where, x2=where, y1=0, y2=100, class_="mark"))
    keys, rows = [], []
    for number, (name, points) in enumerate(given.lines.items()):
        at = [f"{_at(WIDE * (x - left) / across)},{_at(99 - 97 * (y - low) / up)}" for x, y in points]
        shapes.append(el("polyline", points=" ".join(at), class_="curve second" if number else "curve"))
        if len(points) <= DOTTED:  # a line between measurements that are far apart is no measurement
            dots = " ".join(f"M{place}h0" for place in at)
            shapes.append(el("path", d=dots, class_="curve second dots" if number else "curve dots"))
        ends = f"{words.value(points[0][1])} to {words.value(points[-1][1])}"
        keys.append(el("li", swatch("gone-1" if number else "kept"), name, " ", el("span", ends, class_="dim n")))
        rows += [[name, x, y] for x, y in points]
    said = f"{given.name} from step {left:,} to {right:,}, between {words.value(low)} and {words.value(high)}"
    middle = (low + high) / 2
    upright = el("div", [el("span", words.value(y)) for y in dict.fromkeys((high, middle, low))], class_="upright n")
    axis = el("div", [el("span", f"{left:,}"), el("span", "step"), el("span", f"{right:,}")], class_="axis n")
    drawn = [upright, _svg(shapes, WIDE, 102, "plot", said), el("span"), axis]
    numbers = table([Column("metric"), Column("step", number=True), Column("value", number=True)], rows, caption=said)
    return el(
        "figure", el("figcaption", given.name), el("ul", keys, class_="legend"), el("div", drawn, class_="axes"),
        el("details", el("summary", "The numbers"), numbers, class_="numbers"),
    )  # fmt: skip


def twin_bar(asked: float, observed: float) -> Html:
    """Draw two shares below each other: what was asked for and what came."""
    shapes = [
        el("rect", x=0, y=0, width=_at(WIDE * asked), height=8, class_="asked"),
        el("rect", x=0, y=10, width=_at(WIDE * observed), height=8, class_="kept"),
    ]
    said = f"asked {words.share(asked, 1)}, drawn {words.share(observed, 1)}"
    return _svg(shapes, WIDE, 18, "twin", said)


def interval(low: float, value: float, high: float) -> Html:
    """Draw a share with its interval on a line from 0 to 1."""
    shapes = [
        el("line", x1=0, x2=WIDE, y1=6, y2=6, class_="base"),
        el("rect", x=_at(WIDE * low), y=3, width=_at(max(4.0, WIDE * (high - low))), height=6, class_="range"),
        el("rect", x=_at(min(WIDE - 4.0, WIDE * value)), y=0, width=4, height=12, class_="kept"),
    ]
    return _svg(shapes, WIDE, 12, "interval", f"{value:.3f}, between {low:.3f} and {high:.3f}")


def _svg(shapes: Sequence[Html], width: float, height: float, name: str, said: str) -> Html:
    return el(
        "svg", shapes, viewBox=f"0 0 {_at(width)} {_at(height)}", preserveAspectRatio="none", class_=name, role="img",
        aria_label=said,
    )  # fmt: skip


def _at(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")
