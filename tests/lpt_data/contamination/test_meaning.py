"""The second opinion: paraphrases that n-grams do not see, numbers that must be there, canaries of the sixth kind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from tiny_embedder import static_model

from lpt_data.config import SemanticConfig
from lpt_data.conservation import check_conservation
from lpt_data.contamination import Second, config_for, decider, load_benchmarks
from lpt_data.contamination.meaning import _members
from lpt_data.contamination.paraphrases import load_paraphrases
from lpt_data.dataset import Dataset
from lpt_data.progress import silent
from lpt_data.report.contamination import write_contamination
from lpt_data.semantic.alike import Semantics
from lpt_data.semantic.models import find_model
from lpt_data.semantic.vectors import source_of
from lpt_data.stage import run_stage
from manifests.catalog import Catalog
from manifests.errors import BadInputError, UsageError

SAME = {"feline": "cat", "hound": "dog", "crimson": "red", "azure": "blue", "residence": "house", "auto": "car"}
ITEMS = [
    {"question": "the red cat ran away by the blue house with 12 dollars on 7 green mat", "answer": "#### 19"},
    {"question": "not one dog sat on the green car by the house for 30 dollars", "answer": "#### 30"},
    {"question": "pay her the blue mat and two fifty dollars", "answer": "#### 52"},
]
PARAPHRASES = [
    "the crimson feline ran away by the azure residence with 12 dollars on 7 green mat",
    "not one hound sat on the green auto by the residence for 30 dollars",
]


@pytest.fixture(scope="module")
def semantics(tmp_path_factory: pytest.TempPathFactory) -> Semantics:
    folder = tmp_path_factory.mktemp("embedder")
    model = find_model(str(static_model(folder / "m", dimension=64, **SAME)))
    return Semantics(source_of(model, folder / "catalog"), folder / "catalog")


def put(path: Path, rows: list[dict]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def run(
    tmp_path: Path,
    semantics: Semantics | None,
    rows: list[dict],
    numbers: float = 0.66,
    canaries: list[dict] | None = None,
) -> tuple[dict[int, dict], dict[str, Any]]:
    dataset = Dataset.open([put(tmp_path / "rows.jsonl", rows)])
    benchmarks = load_benchmarks({"b": [put(tmp_path / "bench.jsonl", ITEMS)]})
    read = load_paraphrases([Path(put(tmp_path / "p.jsonl", canaries))], benchmarks) if canaries else None
    semantic = SemanticConfig(semantics.source.digest, 0.95) if semantics else None
    config = config_for(benchmarks, semantic=semantic, semantic_numbers=numbers, workers=1)
    result = decider(benchmarks, Second(semantics, read))(dataset, config, silent)
    check_conservation(dataset.rows_in, result, dataset.quarantined())
    return {row["row"]: row for row in result.decisions.to_pylist()}, result.extra


def test_a_paraphrase_goes_and_names_its_item(tmp_path: Path, semantics: Semantics) -> None:
    rows = [{"text": text} for text in [*PARAPHRASES, "run away dog", ITEMS[2]["question"] + " and more of it"]]
    gone, extra = run(tmp_path, semantics, rows)
    assert {row: d["reason"] for row, d in gone.items()} == {
        0: "benchmark_semantic",
        1: "benchmark_semantic",
        3: "benchmark_overlap",  # a copy is told as a copy
    }
    items = load_benchmarks({"b": [str(tmp_path / "bench.jsonl")]}).items
    for row in (0, 1):
        told = orjson.loads(gone[row]["detail"])
        assert (told["benchmark"], told["item"], told["criterion"]) == ("b", row, "meaning")
        assert gone[row]["witness_id"] == items[row].record_id.hex()
        assert gone[row]["score"] > 0.99
    assert extra["semantic"]["rows_by_meaning_alone"] == 2
    assert extra["benchmarks"][0]["semantic"]["items_hit"] in (2, 3)
    assert "paraphrases inside longer rows" in extra["not_checked"]
    assert set(run(tmp_path, None, rows)[0]) == {3}


def test_other_numbers_are_another_problem(tmp_path: Path, semantics: Semantics) -> None:
    other = PARAPHRASES[0].replace("12", "13").replace("7 ", "9 ")
    half = PARAPHRASES[0].replace("12", "13")
    rows = [{"text": text} for text in (PARAPHRASES[0], half, other)]
    assert set(run(tmp_path, semantics, rows)[0]) == {0}
    assert set(run(tmp_path, semantics, rows, numbers=0.5)[0]) == {0, 1}
    gone, extra = run(tmp_path, semantics, rows, numbers=0.0)
    assert set(gone) == {0, 1, 2}
    (at,) = [one for one in extra["semantic"]["by_threshold"] if one["threshold"] == 0.95]
    assert at["rows_by_meaning_alone"] == 3


def test_like_is_compared_with_like(tmp_path: Path, semantics: Semantics) -> None:
    """What a chat asks is compared with the question, whatever it answers; its answer alone is no evidence."""
    asked = [{"role": "user", "content": PARAPHRASES[1]}, {"role": "assistant", "content": "cat " * 40}]
    answered = [{"role": "user", "content": "ran " * 40}, {"role": "assistant", "content": PARAPHRASES[1]}]
    gone, _ = run(tmp_path, semantics, [{"messages": asked}, {"messages": answered}])
    assert set(gone) == {0}


def test_equal_texts_are_found_too(tmp_path: Path, semantics: Semantics) -> None:
    short = "pay her dollars"  # three words: n-grams see it only in a row that says nothing else
    ITEMS.append({"question": short, "answer": "#### 0"})
    try:
        gone, extra = run(tmp_path, semantics, [{"text": short.upper()}, {"text": "dollars pay her"}])
    finally:
        ITEMS.pop()
    assert {row: d["reason"] for row, d in gone.items()} == {0: "benchmark_overlap", 1: "benchmark_semantic"}
    assert extra["semantic"]["rows_hit"] == 2


def test_recall_and_precision_of_paraphrases(tmp_path: Path, semantics: Semantics) -> None:
    canaries = [
        {"item": 0, "paraphrase": PARAPHRASES[0]},
        {"item": 1, "text": PARAPHRASES[0]},  # of another item than it says: found for item 0 alone
        {"item": 2, "question": "mat mat car"},
        {"item": 1, "paraphrase": PARAPHRASES[1]},
    ]
    _, extra = run(tmp_path, semantics, [{"text": "red"}], canaries=canaries)
    told = extra["benchmarks"][0]["canaries"]["paraphrase"]
    assert (told["planted"], told["found"], told["recall"]) == (4, 2, 0.5)
    assert told["by_ngrams"]["found"] == 0
    assert told["by_meaning"]["found_for_another_item_alone"] == 1
    assert told["precision"] == round(2 / 3, 6)
    assert 0.15 < told["low"] < 0.5 < told["high"] < 0.85
    _, alone = run(tmp_path, None, [{"text": "red"}], canaries=canaries)
    assert alone["benchmarks"][0]["canaries"]["paraphrase"]["found"] == 0


def test_lines_without_an_item_are_in_the_order_of_the_items(tmp_path: Path) -> None:
    benchmarks = load_benchmarks({"b": [put(tmp_path / "bench.jsonl", ITEMS)]})
    path = tmp_path / "p.jsonl"
    path.write_text('{"text": "one"}\n\n{"text": "three"}\n{"text": " ", "item": 0}\n')
    read = load_paraphrases([path], benchmarks)
    assert (read.texts, read.items) == (("one", "three"), (0, 2))


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("{", "no JSON"),
        ("[1]", "no text"),
        ('{"item": 1}', "no text"),
        ('{"text": 3}', "no text"),
        ('{"text": "a", "item": 99}', "has not"),
        ('{"text": "a", "item": true}', "has not"),
        ('{"text": "a", "benchmark": "c"}', "names none"),
        ("", "no paraphrase was found"),
    ],
)
def test_paraphrases_that_cannot_be_used(tmp_path: Path, line: str, what: str) -> None:
    benchmarks = load_benchmarks({"b": [put(tmp_path / "bench.jsonl", ITEMS)]})
    (tmp_path / "p.jsonl").write_text(line + "\n")
    with pytest.raises(BadInputError, match=what):
        load_paraphrases([tmp_path / "p.jsonl"], benchmarks)
    with pytest.raises(BadInputError, match="cannot be read"):
        load_paraphrases([tmp_path / "absent.jsonl"], benchmarks)


def test_a_share_of_numbers_is_a_share(tmp_path: Path) -> None:
    benchmarks = load_benchmarks({"b": [put(tmp_path / "bench.jsonl", ITEMS)]})
    with pytest.raises(UsageError):
        config_for(benchmarks, semantic_numbers=1.5)


@pytest.mark.parametrize("form", ["r.md", "r.html", "r.json"])
def test_the_report_shows_row_beside_item(tmp_path: Path, semantics: Semantics, form: str) -> None:
    rows = [{"text": PARAPHRASES[0] + " <script>alert(1)\x1b[31m"}, {"text": "dog"}]
    dataset = Dataset.open([put(tmp_path / "rows.jsonl", rows)])
    benchmarks = load_benchmarks({"b": [put(tmp_path / "bench.jsonl", ITEMS)]})
    config = config_for(benchmarks, semantic=SemanticConfig(semantics.source.digest, 0.9), workers=1)
    catalog = Catalog.open(tmp_path / "c")
    ran = run_stage(
        "decontaminate", dataset, config, decider(benchmarks, Second(semantics)), output=tmp_path / "o.jsonl",
        catalog=catalog,
    )  # fmt: skip
    assert ran.body["removed"] == {"benchmark_semantic": 1}
    write_contamination(tmp_path / form, dataset, benchmarks, ran, catalog, silent)
    said = (tmp_path / form).read_text()
    assert "meaning, cosine " in said or form == "r.json"
    assert "by meaning alone" in said or form == "r.json"
    assert "\x1b" not in said
    assert "<script>alert(1)" not in said or form != "r.html"


def test_members_of_groups() -> None:
    asked, member = _members(np.array([5, 7, 5, 9]), np.array([7, 5, 5, 1]))
    assert list(zip(asked.tolist(), member.tolist(), strict=True)) == [(0, 1), (0, 2), (1, 0), (2, 1), (2, 2)]
