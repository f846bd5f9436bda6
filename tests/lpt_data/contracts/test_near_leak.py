"""Near-duplicates between splits: planted copies with changed words, found with the row that they repeat."""

from __future__ import annotations

import random
from pathlib import Path

import orjson

from lpt_data.audit import AuditReport, audit
from lpt_data.dataset import Dataset

WORDS = [f"{a}{b}" for a in "bcdfghklmnprstvw" for b in ("ando", "eril", "imos", "ubat", "ota", "yx")]


def question(rng: random.Random, words: int = 40) -> str:
    return " ".join(rng.choices(WORDS, k=words)) + "?"


def edited(rng: random.Random, text: str, words: int) -> str:
    found = text.split()
    for at in rng.sample(range(len(found)), words):
        found[at] = "changed"
    return " ".join(found)


def report_of(tmp_path: Path, kind: str, splits: dict[str, list[dict]], **options) -> AuditReport:
    datasets = {}
    for name, rows in splits.items():
        path = tmp_path / f"{name}.jsonl"
        path.write_bytes(b"\n".join(map(orjson.dumps, rows)))
        datasets[name] = Dataset.open([str(path)], kind=kind)
    return audit(datasets, kind, **options)


def chat(asked: str, answer: str = "fine, thank you") -> dict:
    return {"messages": [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]}


def metric(report: AuditReport, name: str = "leakage.near"):
    return next(m for m in report.metrics if m.id == name)


def test_planted_near_duplicates_are_found_with_their_witness(tmp_path):
    rng = random.Random(5)
    train = [question(rng) for _ in range(300)]
    test = [question(rng) for _ in range(100)]
    planted = rng.sample(range(100), 20)
    for place, source in zip(planted, rng.sample(range(300), 20), strict=True):
        test[place] = edited(rng, train[source], 1)  # 40 words: Jaccard of 5-grams at least 31/41, or 34/38 at the ends
    rows = {"train": [chat(q) for q in train], "test": [chat(q, "other") for q in test]}
    report = report_of(tmp_path, "sft", rows)
    shares = {place: similarity(test[place], train) for place in range(100)}
    expected = sorted(place for place, (score, _) in shares.items() if score >= 0.8)
    assert 3 <= len(expected) <= 20
    found = report.rows("leakage.near")
    assert [r["row"] for r in found] == expected  # recall and precision 1 against the definition
    assert {r["split"] for r in found} == {"test"}
    for row in found:
        score, witness = shares[row["row"]]
        assert row["detail"] == f"{score:.2f} similar to train row {witness}"
    assert (metric(report).value, metric(report).n) == (len(expected) / 100, 100)
    assert next(m for m in report.metrics if m.id == "leakage.keys").value == 0  # which is why keys are not enough


def similarity(text: str, others: list[str]) -> tuple[float, int]:
    mine = shingles(text)
    scores = [len(mine & shingles(other)) / len(mine | shingles(other)) for other in others]
    best = max(range(len(scores)), key=scores.__getitem__)
    return scores[best], best


def shingles(text: str) -> set[tuple[str, ...]]:
    words = text.lower().replace("?", "").split()
    return {tuple(words[i : i + 5]) for i in range(len(words) - 4)}


def test_near_misses_are_none(tmp_path):
    rng = random.Random(6)
    train = [question(rng) for _ in range(60)]
    test = [edited(rng, q, 8) for q in train[:30]]  # the same question to nobody
    report = report_of(tmp_path, "sft", {"train": [chat(q) for q in train], "test": [chat(q) for q in test]})
    assert metric(report).value == 0.0
    alone = report_of(tmp_path, "sft", {"train": [chat(q) for q in train]})
    assert metric(alone).status == "skipped"


def test_a_shared_frame_is_no_leak(tmp_path):
    """A long instruction that every prompt carries says nothing about what is asked."""
    rng = random.Random(8)
    frame = question(rng, 120)
    rows = {
        "train": [chat(f"{frame} {question(rng, 12)}") for _ in range(200)],
        "test": [chat(f"{frame} {question(rng, 12)}") for _ in range(60)],
    }
    assert metric(report_of(tmp_path, "sft", rows)).value == 0.0


def test_numbers_under_an_exact_key_are_problems_of_their_own(tmp_path):
    rows = [{"nums": [n, n + 1, 3], "target": n + 4} for n in range(5, 40)]
    splits = {"train": rows[:20], "test": rows[20:]}
    report = report_of(tmp_path, "rlvr", splits, key="countdown")
    assert metric(report).status == "skipped"


def test_every_later_split_is_compared_with_all_before_it(tmp_path):
    rng = random.Random(9)
    texts = [question(rng) for _ in range(30)]
    splits = {
        "train": [{"text": t} for t in texts[:10]],
        "validation": [{"text": t} for t in texts[10:20]],
        "test": [{"text": texts[3]}, {"text": texts[13]}, {"text": texts[25]}],
    }
    report = report_of(tmp_path, "text", splits)
    assert [(r["row"], r["detail"]) for r in report.rows("leakage.near")] == [
        (0, "1.00 similar to train row 3"),
        (1, "1.00 similar to validation row 3"),
    ]
    assert (metric(report).value, metric(report).n) == (2 / 13, 13)
