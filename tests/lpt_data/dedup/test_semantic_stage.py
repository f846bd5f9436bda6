"""Semantic duplicates: the witness rule over words and meaning together, held against a plain loop."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reference import jaccard

from lpt_data.config import DedupConfig, SemanticConfig
from lpt_data.conservation import check_conservation
from lpt_data.dataset import Dataset
from lpt_data.dedup import decide
from lpt_data.progress import silent
from lpt_data.semantic import alike, vectors
from lpt_data.semantic.alike import Semantics
from lpt_data.semantic.models import find_model
from lpt_data.semantic.numbers import numbers_in
from lpt_data.semantic.vectors import distinct_texts, source_of, vectors_of
from manifests.errors import RefusedError, UsageError

VOCABULARY = [
    *("the", "cat", "dog", "sat", "ran", "mat", "car", "red", "blue", "green", "house", "feline", "hound", "not"),
]


@pytest.fixture(scope="module")
def semantics(tmp_path_factory: pytest.TempPathFactory) -> Semantics:
    from tiny_embedder import static_model

    folder = tmp_path_factory.mktemp("embedder")
    same = {"feline": "cat", "hound": "dog", "banana": "mat", "tomato": "car"}
    model = find_model(str(static_model(folder / "m", **same)))
    return Semantics(source_of(model, folder / "catalog"), folder / "catalog")


def open_rows(path: Path, rows: list[Any]) -> Dataset:
    shaped = [row if isinstance(row, dict) else {"text": row} for row in rows]
    path.write_text("".join(json.dumps(row) + "\n" for row in shaped), encoding="utf-8")
    return Dataset.open([str(path)])


def run(
    tmp_path: Path,
    semantics: Semantics,
    rows: list[Any],
    reference: list[Any] | None = None,
    at: float = 0.9,
    same_numbers: bool = True,
    floor: float | None = None,
    **changes: Any,
) -> tuple[dict, dict]:
    dataset = open_rows(tmp_path / "in.jsonl", rows)
    other = None if reference is None else open_rows(tmp_path / "ref.jsonl", reference)
    semantic = SemanticConfig(semantics.source.digest, at, floor, same_numbers)
    config = DedupConfig(**{"method": ("semantic",), "ngram": 1, "workers": 1, "semantic": semantic, **changes})
    result = decide(dataset, config, silent, reference=other, semantics=semantics)
    check_conservation(dataset.rows_in, result, dataset.quarantined())
    return {row["row"]: row for row in result.decisions.to_pylist()}, result.extra


def cosines(texts: list[str], semantics: Semantics) -> np.ndarray:
    said = [text.encode() for text in texts]
    distinct = distinct_texts(said)
    found = vectors_of(said, distinct, semantics.source).vectors[distinct.of_position].astype(np.float64)
    lengths = np.linalg.norm(found, axis=1)
    return (found @ found.T) / np.outer(lengths, lengths)


def sentences(count: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    made: list[str] = []
    while len(made) < count:
        text = " ".join(rng.choices(VOCABULARY, k=rng.randrange(3, 9)))
        if text not in made:
            made.append(text)
    return made


def plainly(texts: list[str], cosine: np.ndarray, at: float, words: float | None) -> dict[int, tuple]:
    """Row: (it went by its words, score). Words first, then meaning; what had gone for a row that went comes last."""

    def near(i: int, k: int) -> bool:
        return words is not None and jaccard(texts[i], texts[k], 1) >= words

    def same(i: int, k: int) -> bool:
        return cosine[i, k] >= at and numbers_in(texts[i]) == numbers_in(texts[k])

    stay: list[int] = []
    gone: dict[int, tuple] = {}
    todo = list(range(len(texts)))
    while todo:
        by_words: list[int] = []
        for i in todo:
            if not any(near(i, k) for k in [*stay, *by_words]):
                by_words.append(i)
        standing = [*stay, *by_words]
        went = []
        for i in by_words:
            if any(same(i, k) for k in stay):
                went.append(i)
            else:
                stay.append(i)
        again = []
        for i in set(todo) - set(by_words):
            best = max((jaccard(texts[i], texts[k], 1), k) for k in standing if near(i, k))[0]
            witnesses = [k for k in standing if near(i, k) and jaccard(texts[i], texts[k], 1) == best]
            gone[i] = (True, best)
            if all(k in went for k in witnesses):
                again.append(i)
            elif any(k in went for k in witnesses):
                again.append(i)  # which of equals was the witness depends on record ids; either way it goes again
        for i in went:
            gone[i] = (False, 0.0)
        todo = sorted(again)
    for i in [i for i, (by_words_, _) in gone.items() if not by_words_]:
        gone[i] = (False, max(cosine[i, k] for k in stay if same(i, k)))
    return {i: told for i, told in gone.items() if i not in stay}


@pytest.mark.parametrize("methods", [("semantic",), ("exact", "minhash", "semantic")])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_rows_go_as_a_plain_loop_over_all_pairs_says(
    tmp_path: Path, semantics: Semantics, methods: tuple[str, ...], seed: int
) -> None:
    texts = sentences(120, seed)
    cosine = cosines(texts, semantics)
    gone, extra = run(tmp_path, semantics, texts, at=0.9, method=methods, keep="first", threshold=0.8)
    expected = plainly(texts, cosine, 0.9, 0.8 if "minhash" in methods else None)
    assert set(gone) == set(expected)
    assert len(gone) > 20
    for row, (by_words, score) in expected.items():
        assert gone[row]["reason"] == ("near_duplicate" if by_words else "semantic_duplicate")
        assert gone[row]["score"] == pytest.approx(score, abs=1e-9)
        witness = gone[row]["witness_row"]
        assert witness not in gone
    assert (extra["semantic"]["rounds"] > 1) == ("minhash" in methods and seed < 2)  # some had gone for rows that went
    assert extra["methods"]["semantic"] == sum(not words for words, _ in expected.values())
    assert ("near_duplicate" in {row["reason"] for row in gone.values()}) == ("minhash" in methods)


def test_a_chain_takes_nothing_with_it(tmp_path: Path, semantics: Semantics) -> None:
    """Of A ~ B ~ C only B goes where A and C are apart: what the closure and the walk over neighbours get wrong."""
    texts = sentences(200, 5)
    cosine = cosines(texts, semantics)
    gone, _ = run(tmp_path, semantics, texts, at=0.85, keep="first")
    for row, decision in gone.items():
        assert cosine[row, decision["witness_row"]] >= 0.85
    chains = [
        (a, b, c)
        for b in gone
        for a in [gone[b]["witness_row"]]
        for c in range(b, 200)
        if c not in gone and cosine[b, c] >= 0.85 > cosine[a, c]
    ]
    assert chains


@pytest.mark.parametrize("keep", ["content", "longest"])
def test_results_do_not_depend_on_the_order_of_rows(tmp_path: Path, semantics: Semantics, keep: str) -> None:
    texts = [*sentences(150, 9), *sentences(20, 9), *(t.upper() for t in sentences(10, 9))]
    methods = ("exact", "minhash", "semantic")
    gone, extra = run(tmp_path, semantics, texts, method=methods, keep=keep)
    order = list(range(len(texts)))
    random.Random(4).shuffle(order)
    moved, other = run(tmp_path, semantics, [texts[i] for i in order], method=methods, keep=keep)

    def told(decisions: dict) -> set:
        return {(d["record_id"], d["reason"], d["witness_id"], d["score"]) for d in decisions.values()}

    assert told(gone) == told(moved)
    for part in ("histogram", "bands", "pairs", "kept_apart_by_numbers"):
        assert extra["semantic"][part] == other["semantic"][part], part


def test_a_raise_by_fifty_is_no_raise_by_five(tmp_path: Path, semantics: Semantics) -> None:
    rows = ["pay him a raise by 5 dollars", "pay her a raise by 50 dollars", "pay him a raise by five dollars"]
    gone, extra = run(tmp_path, semantics, rows, at=0.6)
    assert len(gone) == 1
    assert set(gone) < {0, 2}
    assert extra["semantic"]["kept_apart_by_numbers"] >= 1
    shown = [pair for band in extra["semantic"]["bands"] for pair in band["shown"]]
    assert {pair["same_numbers"] for pair in shown} == {True, False}
    assert len(run(tmp_path, semantics, rows, at=0.6, same_numbers=False)[0]) == 2


def test_texts_of_one_vector_are_one_and_those_without_one_are_apart(tmp_path: Path, semantics: Semantics) -> None:
    rows = ["the cat sat", "the feline sat", "sat the cat", "zzz yyy", "qqq www", "the cat sat 7", "sat the cat 7"]
    gone, extra = run(tmp_path, semantics, rows, at=1.0, floor=0.5, keep="first")
    assert {row: (d["witness_row"], d["score"]) for row, d in gone.items()} == {1: (0, 1.0), 2: (0, 1.0), 6: (5, 1.0)}
    assert extra["semantic"]["without_a_known_token"] == 2


def test_a_reference_takes_its_own_and_stays(tmp_path: Path, semantics: Semantics) -> None:
    rows = ["the feline sat", "red car house", "blue tomato house", "blue car house"]
    gone, extra = run(tmp_path, semantics, rows, ["the cat sat", "cat the sat", "blue mat"], at=0.99, keep="first")
    assert {row: d["reason"] for row, d in gone.items()} == {0: "duplicate_of_reference", 3: "semantic_duplicate"}
    assert gone[0]["detail"].startswith("semantic_duplicate of ")
    assert gone[0]["witness_row"] is None
    assert gone[3]["witness_row"] == 2


def test_no_copy_stays(tmp_path: Path, semantics: Semantics) -> None:
    texts = sentences(80, 11)
    cosine = cosines(texts, semantics)
    np.fill_diagonal(cosine, 0)
    for keep in ("content", "first"):
        gone, _ = run(tmp_path, semantics, texts, drop_all=True, keep=keep)
        assert set(gone) == set(np.flatnonzero((cosine >= 0.9).any(1)).tolist())


def test_the_same_question_with_another_answer_stays(tmp_path: Path, semantics: Semantics) -> None:
    rows = [
        {"prompt": "the cat sat", "completion": "red"},
        {"prompt": "the feline sat", "completion": "blue"},
        {"prompt": "the feline sat", "completion": "red"},
    ]
    gone, _ = run(tmp_path, semantics, rows, key="prompt+response", keep="first", at=0.99)
    assert set(gone) == {2}
    assert set(run(tmp_path, semantics, rows, key="prompt", keep="first", at=0.99)[0]) == {1, 2}


def test_another_threshold_embeds_nothing_and_equals_a_run_of_its_own(
    tmp_path: Path, semantics: Semantics, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = sentences(100, 21)
    run(tmp_path, semantics, texts, at=0.9)
    apart = replace(semantics, catalog=tmp_path / "other")
    expected = run(tmp_path, apart, texts, at=0.8)
    monkeypatch.setattr(vectors.embed, "open_embedder", None)
    monkeypatch.setattr(alike, "vectors_of", None)
    again = run(tmp_path, replace(semantics, kept_only=True), texts, at=0.8)
    assert again[0] == expected[0]
    assert again[1]["semantic"]["pairs_reused"]
    with pytest.raises(RefusedError, match="higher floor") as error:
        run(tmp_path, replace(semantics, kept_only=True), texts, at=0.6)
    assert "--semantic-threshold 0.6" in error.value.next
    with pytest.raises(RefusedError, match="no pairs are kept"):
        run(tmp_path, replace(semantics, kept_only=True), texts[1:], at=0.8)


def test_damaged_pairs_are_made_again(tmp_path: Path, semantics: Semantics) -> None:
    texts = sentences(40, 31)
    gone, extra = run(tmp_path, semantics, texts)
    Path(extra["semantic"]["pairs_file"]).write_bytes(b"PAR1 no")
    again, told = run(tmp_path, semantics, texts)
    assert again == gone
    assert not told["semantic"]["pairs_reused"]


def test_histogram_and_borderline_pairs(tmp_path: Path, semantics: Semantics) -> None:
    texts = sentences(100, 41)
    cosine = cosines(texts, semantics)
    scores = np.minimum(cosine[np.triu_indices(100, 1)], 1.0)
    at = float(np.sort(scores)[-50])
    _, extra = run(tmp_path, semantics, texts, at=at, floor=0.7)
    told = extra["semantic"]
    one = [i for i in range(100) if not (cosine[i, :i] > 1 - 1e-12).any()]  # a text of each vector
    among = np.minimum(cosine[np.ix_(one, one)][np.triu_indices(len(one), 1)], 1.0)
    assert told["search"]["distinct_vectors"] == len(one) < 100
    assert told["pairs"] == int((among >= 0.7).sum()) + 100 - len(one)
    assert sum(n for _, n in told["histogram"]) == told["pairs"]
    assert told["borderline"]["pairs"] >= 1
    assert abs(told["borderline"]["shown"][0]["score"] - at) < 1e-3
    assert sum(band["pairs"] for band in told["bands"]) == told["pairs"]


@pytest.mark.parametrize(
    "wrong", [{"threshold": 0.0}, {"threshold": 1.5}, {"floor": 0.95}, {"floor": 0.0}, {"exact_limit": -1}]
)
def test_values_that_make_no_sense_are_refused(tmp_path: Path, semantics: Semantics, wrong: dict) -> None:
    config = DedupConfig(method=("semantic",), semantic=SemanticConfig(**wrong))
    with pytest.raises(UsageError):
        decide(open_rows(tmp_path / "in.jsonl", ["a"]), config, silent, semantics=semantics)


def test_the_method_needs_its_settings_and_the_settings_their_method(tmp_path: Path, semantics: Semantics) -> None:
    rows = open_rows(tmp_path / "in.jsonl", ["a"])
    for config in (DedupConfig(method=("semantic",)), DedupConfig(semantic=SemanticConfig())):
        with pytest.raises(UsageError, match="comes with"):
            decide(rows, config, silent, semantics=semantics)


@pytest.mark.parametrize("rows", [["the cat sat"], ["zzz", "zzz yyy"], ["the cat"] * 500])
def test_corpora_with_nothing_to_compare(tmp_path: Path, semantics: Semantics, rows: list[str]) -> None:
    gone, extra = run(tmp_path, semantics, rows, at=0.9)
    assert len(gone) == len(rows) - len(set(rows))
    assert extra["semantic"]["pairs"] == 0
    assert extra["semantic"]["distinct_texts"] == len(set(rows))


def test_no_texts_at_all(semantics: Semantics) -> None:
    found = alike.find_alike([], np.zeros(0, bool), SemanticConfig(semantics.source.digest), semantics, silent)
    assert (len(found.over(0.0).a), found.told["distinct_texts"]) == (0, 0)
