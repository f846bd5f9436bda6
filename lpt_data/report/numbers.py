"""Histograms of lengths and of scores."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from lpt_data.report.story import Histogram


def lengths_histogram(title: str, unit: str, series: Mapping[str, np.ndarray], note: str = "") -> Histogram | None:
    """Count lengths between powers of two, because they spread over orders of magnitude; None where there is none."""
    filled = {name: values[values >= 0] for name, values in series.items()}
    everything = np.concatenate([*filled.values(), np.zeros(0, np.int64)])
    if not len(everything):
        return None
    low = int(np.floor(np.log2(max(1, everything.min()))))
    high = int(np.ceil(np.log2(max(2, everything.max() + 1))))
    half = 0.5 if high - low <= 6 else 1.0  # steps of half a power where there are few
    exponents = np.arange(low, high + half / 2, half)
    edges = np.unique(np.round(2.0**exponents))
    if everything.min() < edges[0]:
        edges = np.array([0.0, *edges])
    return _histogram(title, unit, filled, edges, note)


def scores_histogram(title: str, unit: str, series: Mapping[str, np.ndarray], note: str = "") -> Histogram | None:
    """Count similarities in twenty steps from the smallest twentieth that is there to 1; None where there is none."""
    filled = {name: values[np.isfinite(values)] for name, values in series.items()}
    everything = np.concatenate([*filled.values(), np.zeros(0)])
    if not len(everything) or everything.min() < 0 or everything.max() > 1:
        return None
    first = np.floor(everything.min() * 20) / 20
    steps = 20 if first < 1 else 1
    edges = np.round(np.linspace(min(first, 0.95), 1.0, steps + 1), 4)
    return _histogram(title, unit, filled, edges, note)


def _histogram(title: str, unit: str, series: Mapping[str, np.ndarray], edges: np.ndarray, note: str) -> Histogram:
    counts = {name: tuple(np.histogram(values, edges)[0].tolist()) for name, values in series.items() if len(values)}
    return Histogram(title, unit, tuple(edges.tolist()), counts, note)
