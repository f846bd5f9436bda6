"""The method `semantic` in a recipe."""

from __future__ import annotations

import json

import pytest
from recipe_cases import run_in
from tiny_embedder import static_model

from manifests.errors import UsageError

RECIPE = """
inputs: {pages: pages.jsonl}
stages:
  - dedup: {method: [exact, semantic], workers: 1, embedder: m, semantic: {threshold: 0.95}}
"""


def place_for(tmp_path, recipe=RECIPE):
    static_model(tmp_path / "m", feline="cat")
    rows = ["the cat sat on the mat", "the feline sat on the mat", "red car"]
    (tmp_path / "pages.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in rows))
    (tmp_path / "recipe.yaml").write_text(recipe)
    return tmp_path


def test_meanings_are_compared_and_reused(tmp_path):
    place = place_for(tmp_path)
    body = run_in(place).to_json()
    assert body["removed"] == {"semantic_duplicate": 1}
    assert run_in(place).to_json()["reused"] == ["dedup"]


@pytest.mark.parametrize(
    "wrong",
    [
        RECIPE.replace("[exact, semantic]", "[exact]"),
        RECIPE.replace("{threshold: 0.95}", "{threshold: 7}"),
        RECIPE.replace("{threshold: 0.95}", "{embedder: other}"),
        RECIPE.replace("{threshold: 0.95}", "often"),
    ],
)
def test_settings_that_mean_nothing_are_refused_before_anything_runs(tmp_path, wrong):
    with pytest.raises(UsageError):
        run_in(place_for(tmp_path, wrong))
    assert not (tmp_path / "recipe.work").exists()


SECOND = """
inputs: {pages: pages.jsonl}
stages:
  - decontaminate: {benchmark: {b: b.jsonl}, workers: 1, embedder: m, semantic: {threshold: 0.95}}
"""


def with_item(tmp_path, recipe=SECOND):
    place = place_for(tmp_path, recipe)
    item = {"question": "the feline sat on the mat", "answer": "yes"}
    (place / "b.jsonl").write_text(json.dumps(item) + "\n")
    (place / "pages.jsonl").write_text('{"text": "the cat sat on the mat"}\n{"text": "red car"}\n')
    return place


def test_a_benchmark_is_looked_for_by_its_meaning_too(tmp_path):
    assert run_in(with_item(tmp_path)).to_json()["rows_out"] == 1
    plain = SECOND.replace(", embedder: m, semantic: {threshold: 0.95}", "")
    (tmp_path / "plain").mkdir()
    assert run_in(with_item(tmp_path / "plain", plain)).to_json()["rows_out"] == 2


@pytest.mark.parametrize(
    "wrong",
    [
        SECOND.replace(", semantic: {threshold: 0.95}", ""),
        SECOND.replace("{threshold: 0.95}", "yes"),
        SECOND.replace("{threshold: 0.95}", "{threshold: 7}"),
        SECOND.replace("workers: 1", "perplexity: 3"),
        SECOND.replace("workers: 1", "paraphrases: [3]"),
    ],
)
def test_questions_that_mean_nothing_are_refused_before_anything_runs(tmp_path, wrong):
    with pytest.raises(UsageError):
        run_in(with_item(tmp_path, wrong))
    assert not (tmp_path / "recipe.work").exists()
