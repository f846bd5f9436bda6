"""The recorded reward model: the same hidden pairs in both runs, a control that is marked, a curve that starts at 0."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

RECORD = Path(__file__).parents[2] / "benchmarks" / "results" / "reward-tiny-cpu.json"


def test_the_control_differs_in_its_labels_alone_and_is_never_accepted():
    record = json.loads(RECORD.read_text())
    right, control = record["runs"]["flipped_0.0"], record["runs"]["flipped_0.5"]
    assert (right["verdict"], control["verdict"]) == ("accept", "control")
    assert (right["control"], control["control"]["flip_labels"]) == (None, 0.5)
    assert (right["data"], right["pairs"], right["prompts"]) == (control["data"], control["pairs"], control["prompts"])
    assert right["metrics"]["eval_accuracy"][0] == control["metrics"]["eval_accuracy"][0]  # one start
    for run in (right, control):
        assert run["accuracy_low"] < run["accuracy"] < run["accuracy_high"]
        assert 0 < run["calibration"]["ece_equal_width"] < 0.5
    assert right["accuracy_low"] > 0.5 > control["accuracy_low"]


def test_the_curve_of_best_of_n_is_of_every_completion():
    curve = json.loads(RECORD.read_text())["best_of_n"]
    assert curve["completions"] == 4 * curve["prompts"]
    assert [point["n"] for point in curve["points"]] == [1, 2, 4]
    first, *others = curve["points"]
    assert (first["kl"], first["gain"]) == (0, 0)
    for point in others:
        assert point["gain"] == pytest.approx(point["gold"] - first["gold"])
        assert point["gain_low"] > 0
