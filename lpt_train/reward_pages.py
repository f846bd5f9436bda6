"""The pages about reward models: how reliable one is, and how far it can be optimised against."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lpt_train.best_of_n import OverOptimisation
from lpt_train.charts import Curve, drawing, table, write_page
from manifests.html import el


def write_reliability_page(path: Path, body: dict[str, Any], model: str) -> None:
    """Write the page of a report: the diagram and every number."""
    told = body["calibration"]
    curves = [
        Curve(name, [b["confidence"] for b in told[key]], [b["accuracy"] for b in told[key]],
              [b["accuracy_low"] for b in told[key]], [b["accuracy_high"] for b in told[key]], line=False)
        for name, key in (("bins of equal width", "bins"), ("bins of equal numbers", "equal_mass_bins"))
    ]  # fmt: skip
    low = min(0.5, *(b["accuracy_low"] for b in told["bins"] + told["equal_mass_bins"]))
    drawn = drawing(
        curves, x=(0.5, 1.0), y=(low, 1.0), ideal=True,
        labels=("confidence: the chance that the model gives to the side it prefers", "share of pairs it has right"),
        said="share of pairs in the right order by the confidence of the model",
    )  # fmt: skip
    temperature, held = told["temperature"], told["temperature"]["held_out"] or {}
    names = ("ece_equal_width", "ece_equal_mass", "brier", "log_loss")
    scores = [(name.replace("_", " "), told[name], held.get(name)) for name in names]
    rows = [(b["low"], b["high"], b["n"], b["confidence"], b["accuracy"]) for b in told["bins"]]
    why = temperature["why_not"] or temperature["held_out_why_not"]
    facts = [(name.replace("_", " "), body[name]) for name in ("accuracy", "accuracy_low", "accuracy_high")]
    facts += [("pairs", body["pairs"]), ("prompts", body["prompts"]), ("mean margin", body["mean_margin"])]
    facts += [(f"length: {name.replace('_', ' ')}", value) for name, value in body["length"].items()]
    facts += [(f"position: {name.replace('_', ' ')}", value) for name, value in body["position"].items()]
    write_page(
        path, "Reliability of a reward model",
        el("p", f"{model} after training, on {body['split']}: {body['pairs']:,} pairs of {body['prompts']:,} prompts."),
        el("p", el("b", reliability(body))),
        el("p", "The chance is s(|margin|), s the logistic function; on the dashed line that chance is true."),
        el("p", "The interval of the accuracy is clustered by prompt; bars are over pairs and too short where a "
           "prompt has several.", class_="dim"),
        drawn, table(["from", "to", "pairs", "claimed", "right"], rows),
        el("p", "Best temperature: ", _shown(temperature["value"]), f" ({why})" if why else "."),
        table(["score", "as it is", "after a temperature fitted on other prompts"], scores),
        table(["measure", "value"], facts),
    )  # fmt: skip


def write_curve_page(path: Path, found: OverOptimisation, of: str) -> None:
    """Write the page of an over-optimisation curve: proxy and gold by KL, each on its own scale from best-of-1."""
    points = found.points
    xs = [point.kl for point in points]
    gold = Curve("gold", xs, [p.gold for p in points], [p.gold_low for p in points], [p.gold_high for p in points])
    proxy = Curve("proxy", xs, [p.proxy for p in points], [p.proxy_low for p in points], [p.proxy_high for p in points])
    drawn = [
        drawing(
            [curve], x=(0.0, max(xs)), y=(min(curve.lows), max(curve.highs)), ideal=False,
            labels=("KL(n) in nats, at most", f"{curve.name} reward"),
            said=f"{curve.name} reward by the most KL of best-of-n",
        )
        for curve in (gold, proxy)
    ]  # fmt: skip
    columns = ["n", "KL at most", "proxy", "gold", "from", "to", "gold since n = 1", "from", "to"]
    rows = [(p.n, p.kl, p.proxy, p.gold, p.gold_low, p.gold_high, p.gain, p.gain_low, p.gain_high) for p in points]
    left_out = ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in found.left_out.items())
    write_page(
        path, "Best of n by a reward model",
        el("p", f"{of}: {found.completions:,} completions of {found.prompts:,} prompts. Left out: {left_out}."),
        el("p", verdict(found)), *drawn, table(columns, rows),
        el("p", "Intervals are 95 %, over prompts; that of the loss since the peak for every n together. KL is in nats "
           "and an upper bound.", class_="dim"),
    )  # fmt: skip


def reliability(body: dict[str, Any]) -> str:
    """What the pairs say of the model, in one sentence: whether it is better than chance, and than length alone."""
    low, high = body["accuracy_low"], body["accuracy_high"]
    length = max(body["length"]["longer_is_chosen"], 1 - body["length"]["longer_is_chosen"])
    seen = f"{body['accuracy']:.1%} of the pairs in the right order (95 % {low:.1%} to {high:.1%})"
    if low <= 0.5:
        return f"{seen}: no better than chance can be."
    if body["accuracy"] <= length:
        return f"{seen}: better than chance, and no better than length alone, which has {length:.1%}."
    return f"{seen}: better than chance; length alone has {length:.1%}."


def verdict(found: OverOptimisation) -> str:
    """What the curve says, in one sentence."""
    last = found.points[-1].n
    lost = f"{found.loss:.4g} (95 % {found.loss_low:.4g} to {found.loss_high:.4g})"
    if found.over_optimised:
        return f"Over-optimised: gold is largest at n = {found.peak} and has lost {lost} at n = {last}."
    if found.peak == last:
        return f"Gold is largest at the largest n, {last}; the proxy was not optimised beyond its worth here."
    return f"Gold is largest at n = {found.peak}; what it lost until n = {last}, {lost}, may be chance."


def _shown(value: float | None) -> str:
    return "none" if value is None else f"{value:.3f}"
