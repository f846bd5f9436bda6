"""A folder of chats and pages with planted copies, and the recipes that the tests run on it."""

import json
from pathlib import Path

from lpt_data.run import Tools, load_recipe, run
from manifests.catalog import Catalog

TOOLS = Tools(tokenizer=lambda name: None, encoder=lambda name: None, verifiers=dict)
CHATS = 40
PAGES = 30

LINE = """
inputs: {chats: chats.jsonl}
stages:
  - clean: {rules: "unicode,space,empty"}
  - dedup: {threshold: 0.8, workers: 1}
  - split: {key: text, test: 5}
  - admit: {contract: sft, name: chats}
"""


def chat(number: int, word: str = "plain") -> dict:
    asked = f"What does the {word} rule number {number} of the long list of house rules say about guests and keys?"
    return {"messages": [{"role": "user", "content": asked}, {"role": "assistant", "content": f"It says {number}."}]}


def folder(place: Path, recipe: str = LINE) -> Path:
    """40 chats, 3 of them with a copy that only white space tells apart; 30 pages; the recipe."""
    chats = [chat(n) for n in range(CHATS)]
    for n in range(3):
        copy = chat(n)
        copy["messages"][0]["content"] = copy["messages"][0]["content"].replace(" ", "  ") + " \n"
        chats.append(copy)
    pages = [{"text": f"Page {n} is about the {n * 7}th house and nothing else in the street."} for n in range(PAGES)]
    for name, rows in (("chats", chats), ("pages", pages)):
        (place / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (place / "recipe.yaml").write_text(recipe)
    return place


def run_in(place: Path, catalog: str = ".lpt", **more):
    return run(load_recipe(str(place / "recipe.yaml")), Catalog.open(place / catalog), TOOLS, **more)


def files(place: Path) -> dict[str, bytes]:
    """Every file that a recipe's stages wrote, by its path."""
    work = place / "recipe.work"
    return {str(path.relative_to(work)): path.read_bytes() for path in sorted(work.rglob("*")) if path.is_file()}
