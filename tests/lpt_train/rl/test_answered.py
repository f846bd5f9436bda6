"""pass@k, votes and exact match over sampled answers."""

from __future__ import annotations

import pytest
from rl_cases import split_of

from lpt_train.admitted import load_unadmitted
from lpt_train.answers import Evaluation, ItemScore, _passes, majority
from lpt_train.compare import compare
from lpt_train.evaluate import EvalOptions, evaluate, evaluate_splits
from lpt_train.matching import NORMALISERS, Matcher
from lpt_train.rewards import REWARDS
from lpt_train.rewards.pool import Item
from manifests.catalog import Catalog
from manifests.errors import BadInputError, RefusedError, UsageError


def test_votes():
    assert majority(["7", "7", "8"], [1.0, 1.0, 0.0]) == 1.0
    assert majority(["7", "8", "8"], [1.0, 0.0, 0.0]) == 0.0
    assert majority(["7", "8"], [1.0, 0.0]) == 0.5  # a tie is no win
    assert majority([None, None, "7"], [0.0, 0.0, 1.0]) == 1.0  # what says nothing has no vote
    assert majority([None, None], [0.0, 0.0]) == 0.0
    assert majority(["7", "8"], [None, None]) is None
    assert majority(["7", "7", "8"], [None, 1.0, 0.0]) == 0.5  # a sample without a score has no vote either


def test_equal_answers_are_equal_votes():
    committed = REWARDS["integer"].committed
    assert committed("#### 1,072") == committed("It costs $1072.00") == "1072"
    assert committed("no idea") is None
    maths = REWARDS["math"].committed
    assert maths(r"\boxed{\frac{2}{4}}") == maths("#### 0.5")
    assert maths(r"\boxed{\{2, 1\}}") == maths(r"\boxed{\{1,2\}}")
    assert maths(r"\boxed{(2, 1)}") != maths(r"\boxed{(1,2)}")
    assert maths(r"\boxed{50\%}") != maths(r"\boxed{50}")
    countdown = REWARDS["countdown"].committed
    assert countdown("<answer>6 * 4</answer>") == countdown("so <answer>6*4</answer>")
    assert countdown("<answer>six</answer>") is countdown("6*4") is None
    for name in ("integer", "math", "countdown"):  # whatever a verifier accepts is an answer that can vote
        for canary in REWARDS[name].canaries:
            if canary.score == 1.0:
                assert REWARDS[name].committed(canary.completion) is not None, (name, canary.completion)


def evaluation(*scores, k):
    items = tuple(ItemScore(f"{n:02d}", sum(s) / max(1, len(s)), "", tuple(s)) for n, s in enumerate(scores))
    return Evaluation(items, 0, 0, 0, len(items), 0, 0.0, {"k": k, "temperature": 1.0})


def test_pass_at_k_over_items():
    found = evaluation([1, 0, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0], [1, 0], k=4)
    one, two, four = _passes(found, (4, 1, 2), seed=0)
    assert (one.name, one.value, one.n) == ("pass@1", pytest.approx((0.25 + 1 + 0 + 0.5) / 4), 4)
    assert (two.name, two.value) == ("pass@2", pytest.approx((0.5 + 1 + 0 + 1) / 4))
    assert (four.value, four.n) == (pytest.approx(2 / 3), 3)  # the item with two scored samples says nothing of four
    assert one.low <= one.value <= one.high
    with pytest.raises(UsageError, match="right or wrong"):
        _passes(evaluation([0.3, 1], k=2), (1,), seed=0)
    with pytest.raises(BadInputError, match="pass@3"):
        _passes(evaluation([1, 0], k=3), (3,), seed=0)


def test_pass_at_k_compares_in_pairs():
    first, second = evaluation([1, 0], [0, 0], k=2), evaluation([1, 1], [1, 0], k=2)
    for found in (first, second):
        object.__setattr__(found, "measures", tuple(_passes(found, (1, 2), seed=0)))
    paired, _ = compare(first, second)
    assert paired["pass@1"].difference == pytest.approx(0.5)
    assert paired["pass@2"].difference == pytest.approx(0.5)
    assert paired["pass@2"].p_value == 1.0


def test_sampled_answers_have_measures(tiny, split, tmp_path):
    catalog = Catalog.open(tmp_path / "catalog")
    options = {"temperature": 1.0, "k": 4, "max_completion_length": 4, "pass_at": (1, 4)}
    found = evaluate(str(tiny), split, catalog=catalog, **options)
    assert [measure.name for measure in found.measures] == ["accuracy", "format_rate", "maj@4", "pass@1", "pass@4"]
    assert {measure.value for measure in found.measures} == {0.0}
    assert found.measure("pass@4").high > 0  # 12 failures do not prove that it cannot be solved
    assert catalog.get(found.object_id)["measures"][3]["name"] == "pass@1"
    with pytest.raises(UsageError, match="at least k samples"):
        evaluate(str(tiny), split, temperature=1.0, k=2, pass_at=(4,))


def test_normalisers():
    words = NORMALISERS["words"]
    assert words("The  Eiffel Tower!") == words("eiffel tower") == "eiffel tower"
    assert words("ﬁve") == "five"
    assert words("theory") == "theory"  # an article is a word, not a prefix
    assert NORMALISERS["number"]("about $1,072.50") == "2145/2"
    assert NORMALISERS["first_line"]("\n Paris \nbecause") == "Paris"
    matcher = Matcher("words")
    scores = matcher.score([Item("Paris.", "paris"), Item("London", "paris"), Item("x", "!!!")])
    assert [score.total for score in scores] == [1.0, 0.0, None]
    assert matcher.failures == {"empty_answer": 1}
    with pytest.raises(UsageError, match="normaliser"):
        Matcher("fuzzy")


def test_exact_match_on_conversations(tiny, tmp_path):
    """What a model was taught word for word it says word for word; prompts and answers that do not fit are counted."""
    from train_cases import chat, write_jsonl

    from lpt_train.config import SFTConfig, from_mapping
    from lpt_train.sft import train

    rows = [{"messages": chat("capital?", "Oslo")}, {"messages": chat("river?", "Oslo")}]
    more = [{"messages": chat("x?", "a long answer that nobody can give in so few tokens")}, {"messages": chat("hi")}]
    path = write_jsonl(tmp_path / "facts.jsonl", rows)
    config = from_mapping(SFTConfig, {
        "model": str(tiny), "max_steps": 30, "learning_rate": 0.02, "use_peft": False, "logging_steps": 100,
    })  # fmt: skip
    train(config, split=load_unadmitted(path, "sft"), out=tmp_path / "run", catalog=Catalog.open(tmp_path / "c"))
    split = load_unadmitted(write_jsonl(tmp_path / "all.jsonl", rows + more), "sft")
    asked = EvalOptions(match="words", max_completion_length=8)
    (report,) = evaluate_splits([str(tiny), str(tmp_path / "run")], [split], asked)
    _, replies = report.found[str(tmp_path / "run")]
    assert replies.measure("accuracy").value == 1.0
    assert replies.measure("format_rate").value == 1.0
    assert "answer_too_long 1, no_answer_at_the_end 1" in replies.notes[0] or "2 of 4 rows" in replies.notes[0]
    assert report.paired["accuracy"].gained == 2
    assert (report.paired["loss"].gained, report.paired["loss"].lost) == (2, 1)  # the row it was not taught


def test_the_kind_of_split_is_checked_before_a_model_is_loaded(split, tmp_path):
    with pytest.raises(RefusedError, match="not for"):
        evaluate("no/such/model", split, match="exact")
    with pytest.raises(UsageError, match="second model"):
        evaluate_splits(["no/such/model"], [split], EvalOptions(drift=True))
    integer = split_of(tmp_path / "i.jsonl", [{"prompt": [{"role": "user", "content": "?"}], "answer": "4",
                                                "verifier": "integer"}])  # fmt: skip
    with pytest.raises(UsageError, match="greedy"):
        evaluate_splits(["no/such/model"], [integer], EvalOptions(k=2))
