"""Planted preferences, hidden pairs and conversations for the findings. usage: planted.py WORK [QUESTIONS.jsonl]

The chosen reply works the question out and closes with a number; the rejected one talks around it. Both have about as
many words, so that length says nothing. Questions are made of the questions of a file (rows with `question`, GSM8K's
say) where one is given, else written by rule. `flipped.jsonl` is the same pairs with every second one the wrong way
round, drawn by seed: labels without information.
"""

import json
import random
import sys
from pathlib import Path

PAIRS, HIDDEN = 384, 128
NAMES = [
    "Ada",
    "Bo",
    "Cleo",
    "Dan",
    "Eve",
    "Finn",
    "Gus",
    "Hana",
    "Ivo",
    "Jo",
    "Kim",
    "Lea",
    "Max",
    "Nora",
    "Otto",
    "Pia",
]
THINGS = [
    "apples",
    "bolts",
    "cards",
    "drums",
    "eggs",
    "flags",
    "gears",
    "hats",
    "inks",
    "jars",
    "kites",
    "lamps",
    "maps",
]
PLACES = ["harbour", "market", "school", "station", "library", "garden", "workshop", "bakery", "theatre", "museum"]
VERBS = ["buys", "finds", "wins", "carries", "sells", "loses", "borrows", "trades"]
STEPS = ("First take {a} and {b}.", "Start from {a}, then use {b}.", "The two numbers are {a} and {b}.",
         "We have {a} at first and {b} after that.")  # fmt: skip
WORKED = (
    "{a} + {b} = {c}",
    "adding {a} and {b} gives {c}",
    "the sum of {a} and {b} is {c}",
    "{b} more than {a} is {c}",
)
EVASIVE = (
    "It is hard to say what is meant here.",
    "There are many ways to look at this.",
    "Some would not agree.",
    "One could think about it for a long time.",
    "It depends on what you want.",
    "Who can really know such things?",
)
CLOSING = ("Maybe ask somebody else about that.", "Let us leave it open for now.", "I would rather not commit to one.",
           "Anything could be right in the end.")  # fmt: skip


def question(rng: random.Random, known: list[str], at: int, a: int, b: int) -> str:
    """One question that holds both numbers."""
    if known:
        return f"{known[at]} (The two numbers to add are {a} and {b}.)"
    name, other = rng.sample(NAMES, 2)
    thing, place = rng.choice(THINGS), rng.choice(PLACES)
    return (
        f"At the {place}, {name} has {a} {thing} and {rng.choice(VERBS)} {b} with {other}. "
        f"Counting both lots of {thing}, what number does {other} write down at the {rng.choice(PLACES)}?"
    )


def pair(rng: random.Random, known: list[str], at: int) -> dict:
    """One pair whose better side is known."""
    a, b = rng.randint(2, 99), rng.randint(2, 99)
    numbers = {"a": a, "b": b, "c": a + b}
    check = rng.choice(("", f" Check: {a + b} - {b} = {a}."))
    worked = rng.choice(WORKED).format(**numbers)
    good = f"{rng.choice(STEPS).format(**numbers)} So {worked}.{check} The answer is {a + b}."
    bad = f"{' '.join(rng.sample(EVASIVE, rng.choice((1, 2))))} {rng.choice(CLOSING)}"
    return {
        "prompt": [{"role": "user", "content": question(rng, known, at, a, b)}],
        "chosen": [{"role": "assistant", "content": good}], "rejected": [{"role": "assistant", "content": bad}],
    }  # fmt: skip


def flipped(rng: random.Random, rows: list[dict]) -> list[dict]:
    """The same pairs, exactly half of them the wrong way round."""
    wrong = set(rng.sample(range(len(rows)), len(rows) // 2))
    return [
        {**row, "chosen": row["rejected"], "rejected": row["chosen"]} if at in wrong else row
        for at, row in enumerate(rows)
    ]


def write(path: Path, rows: list[dict]) -> None:
    """Rows as JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def main(work: Path, questions: Path | None) -> None:
    """Write pairs, their flipped copy, hidden pairs and conversations of both kinds of reply."""
    rng = random.Random(7)
    known: list[str] = []
    if questions is not None and questions.exists():
        known = [json.loads(line)["question"] for line in questions.read_text("utf-8").splitlines()]
        rng.shuffle(known)
    rows = [pair(rng, known, at) for at in range(PAIRS + HIDDEN)]
    train, hidden = rows[:PAIRS], rows[PAIRS:]
    write(work / "pairs.jsonl", train)
    write(work / "flipped.jsonl", flipped(rng, train))
    write(work / "hidden.jsonl", hidden)
    for name, part in (("chats", train), ("chats-held", hidden)):
        sides = ("chosen", "rejected")
        write(work / f"{name}.jsonl", [{"messages": row["prompt"] + row[sides[at % 2]]} for at, row in enumerate(part)])


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None)
