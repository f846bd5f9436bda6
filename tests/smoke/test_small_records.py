"""Records of small runs on a CPU hold what is said of them: reward model, matrix of ranks, flipped labels."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lpt_train.matrix_spec import read_spec

ROOT = Path(__file__).parents[2]


def record(name):
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}-tiny-cpu.json").read_text())


def test_the_control_differs_in_its_labels_alone_and_is_never_accepted():
    runs = record("reward")["runs"]
    right, control = runs["flipped_0.0"], runs["flipped_0.5"]
    assert (right["verdict"], control["verdict"]) == ("accept", "control")
    assert (right["control"], control["control"]["flip_labels"]) == (None, 0.5)
    assert (right["data"], right["pairs"], right["prompts"]) == (control["data"], control["pairs"], control["prompts"])
    assert right["metrics"]["eval_accuracy"][0] == control["metrics"]["eval_accuracy"][0]  # one start
    for run in (right, control):
        assert run["accuracy_low"] < run["accuracy"] < run["accuracy_high"]
        assert 0 < run["calibration"]["ece_equal_width"] < 0.5
    assert right["accuracy_low"] > 0.5 > control["accuracy_low"]


def test_the_curve_of_best_of_n_is_of_every_completion():
    curve = record("reward")["best_of_n"]
    assert curve["completions"] == 4 * curve["prompts"]
    assert [point["n"] for point in curve["points"]] == [1, 2, 4]
    first, *others = curve["points"]
    assert (first["kl"], first["gain"]) == (0, 0)
    for point in others:
        assert point["gain"] == pytest.approx(point["gold"] - first["gold"])
        assert point["gain_low"] > 0


def test_the_matrix_took_the_cheapest_within_the_band_that_passes():
    """Of the example's own specification: every cell there, means by hand, the rule applied to them again."""
    body, spec = record("matrix-rank"), read_spec(ROOT / "lpt_train" / "matrix_example.yaml")
    cells = {(cell["variant"], cell["seed"]): cell["value"] for cell in body["cells"] if cell["status"] == "done"}
    assert set(cells) == {(cell.variant, cell.seed) for cell in spec.cells}
    assert (body["band"]["size"], body["cheapest"]) == (spec.band.size, list(spec.cheapest))
    means = {variant["name"]: variant["value"]["value"] for variant in body["variants"]}
    for name, mean in means.items():
        assert mean == pytest.approx(sum(cells[name, seed] for seed in spec.seeds) / 3)
    best = min(means.values())
    within = [v for v in body["variants"] if v["value"]["value"] - best <= 0.02 * best and v["passed"]]
    assert body["winner"] == min(within, key=lambda v: v["resources"]["trainable_parameters"])["name"] == "rank-16"
    assert [v["name"] for v in body["variants"] if not v["passed"]] == ["rank-4"]


def test_flipped_labels_have_three_seeds_and_what_they_miss_is_told():
    rows = record("finding-labels")["rows"]
    assert [(row["labels"], row["seed"]) for row in rows] == [
        (kind, n) for n in (1, 2, 3) for kind in ("pairs", "flipped")
    ]
    for right, flipped in zip(rows[::2], rows[1::2], strict=True):
        assert right["start"] == flipped["start"]
        assert abs(flipped["hidden_probability"] - 0.5) < (right["hidden_probability"] - 0.5) / 4
    told = (ROOT / "examples" / "findings" / "README.md").read_text()
    below = [row["hidden_accuracy"] for row in rows[1::2] if row["high"] < 0.5]
    assert all(f"{accuracy:.2f}" in told for accuracy in below)
    assert "not confirmed" in told
