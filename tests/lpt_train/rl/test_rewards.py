from __future__ import annotations

import json
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lpt_train.rewards import REWARDS, countdown, integer, verifiers_for
from manifests.errors import BadInputError


def answer(nums, target):
    return json.dumps({"nums": nums, "target": target})


@pytest.mark.parametrize("name", list(REWARDS))
def test_canaries_have_their_known_scores(name):
    verifier = REWARDS[name]
    assert {c.score for c in verifier.canaries} == {0.0, 1.0, None}
    for canary in verifier.canaries:
        assert verifier.score(canary.completion, canary.answer) == canary.score, canary


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ("<answer>6*4</answer>", 1.0),
        ("<answer> ( 4 ) *\n6 </answer>", 1.0),
        ("<answer>1+1</answer> no, <answer>4*6</answer> done", 1.0),
        ("<answer>4*6</answer> no, <answer>4+6</answer>", 0.0),  # the last one counts
        ("<answer>4*6", 0.0),  # cut off
        ("4*6", 0.0),
        ("<answer></answer>", 0.0),
        ("<answer>4*6=24</answer>", 0.0),
        ("<answer>4*6*(6/6)</answer>", 0.0),  # a number used twice
        ("<answer>24</answer>", 0.0),
        ("<answer>4*-6</answer>", 0.0),
        ("<answer>-(4*6)</answer>", 0.0),
        ("<answer>4**6</answer>", 0.0),
        ("<answer>4//6</answer>", 0.0),
        ("<answer>4 6</answer>", 0.0),
        ("<answer>4*06</answer>", 0.0),
        ("<answer>(4*6</answer>", 0.0),
        ("<answer>4*6)</answer>", 0.0),
        ("<answer>4.0*6</answer>", 0.0),
        ("<answer>٤*6</answer>", 0.0),  # a digit, but none of ours
        ("<answer>__import__('os').abort()</answer>", 0.0),
        ("<answer>" + "(" * 5000 + "</answer>", 0.0),
        ("<answer>" + "(" * 40 + "4" + ")" * 40 + "*6</answer>", 0.0),
        ("<answer>9" + "0" * 100_000 + "</answer>", 0.0),
    ],
)
def test_countdown_scores(completion, expected):
    assert countdown.score(completion, answer([6, 4], 24)) == expected


def test_countdown_reads_either_name_of_the_numbers():
    for name in ("numbers", "nums"):
        assert countdown.score("<answer>6*4</answer>", json.dumps({name: [4, 6], "target": 24})) == 1.0


def test_countdown_is_exact_and_survives_division_by_zero():
    assert countdown.score("<answer>8/(3-8/3)</answer>", answer([3, 3, 8, 8], 24)) == 1.0
    assert countdown.score("<answer>5/(3-3)</answer>", answer([5, 3, 3], 1)) == 0.0
    assert countdown.score("<answer>1-3</answer>", answer([3, 1], -2)) == 1.0


@pytest.mark.parametrize(
    "text",
    ["", "24", "[]", "{", '{"nums": [], "target": 1}', '{"nums": [1.5], "target": 1}', '{"nums": [true], "target": 1}',
     '{"nums": [1], "target": "1"}', '{"nums": [-1], "target": 1}', '{"nums": [1,1,1,1,1,1,1,1,1], "target": 1}',
     "[" * 99_999],
)  # fmt: skip
def test_countdown_cannot_score_against_what_is_no_problem(text):
    assert countdown.score("<answer>1</answer>", text) is None
    assert not countdown.parse_gold(text)
    assert countdown.gold_completion(text) is None
    assert countdown.wrong_completion(text) is None


expressions = st.recursive(
    st.integers(0, 99).map(str),
    lambda inner: st.tuples(inner, st.sampled_from("+-*/"), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
    max_leaves=8,
)


@given(expressions)
@settings(max_examples=150, deadline=None)
def test_countdown_parser_agrees_with_python_on_exact_fractions(text):
    import re

    try:
        expected = eval(re.sub(r"(\d+)", r"Fraction(\1)", text), {"Fraction": Fraction})
    except ZeroDivisionError:
        expected = None
    try:
        value = countdown.evaluate(countdown.tokens(text))
    except countdown._Malformed:
        value = None
    assert value == expected


@pytest.mark.parametrize(
    ("text", "value"), [("8-3-2", 3), ("8/4/2", 1), ("2+3*4", 14), ("2*(3+4)", 14), ("8-(3-2)", 7)]
)
def test_countdown_precedence_and_left_association(text, value):
    assert countdown.evaluate(countdown.tokens(text)) == value


@given(st.lists(st.integers(0, 30), min_size=1, max_size=4), st.integers(-50, 200))
@settings(max_examples=60, deadline=None)
def test_countdown_self_test_both_ways(nums, target):
    gold = answer(nums, target)
    solution, wrong = countdown.gold_completion(gold), countdown.wrong_completion(gold)
    assert solution is None or countdown.score(solution, gold) == 1.0
    assert countdown.score(wrong, gold) == 0.0


def test_countdown_solver_finds_what_exists_and_only_that():
    assert countdown.solve([3, 3, 8, 8], 24) is not None
    assert countdown.solve([1, 1], 5) is None
    assert countdown.solve([1, 2, 3, 4, 5, 6], 21) is None  # more numbers than it searches: says so instead of hanging


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ("2 + 70 = 72\n#### 72", 72),
        ("#### 72.", 72),
        ("#### $1,072.00", 1072),
        ("#### -72", -72),
        ("**#### $18**", 18),
        ("#### Step 1: add\nso it is 9", 9),  # a heading, not an answer
        ("#### 7\nLater text with 8", 7),
        ("<answer>it is 5 dollars</answer> and 6", 5),
        (r"\boxed{3} then \boxed{\text{4 km}} and 5", 4),
        (r"\boxed{1{,}000}", 1000),
        (r"\boxed{\frac{1}{2}}", Fraction(1, 2)),
        ("first 3, then 4.", 4),
        ("10-5", 5),
        ("x = -5", -5),
        ("−5", -5),
        ("-$5 or $-5", -5),
        ("72%", 72),
        ("72km", 72),
        ("1/2", Fraction(1, 2)),
        ("71.9", Fraction(719, 10)),
        ("h2o", None),
        ("1e3", None),
        ("1/0", None),
        ("", None),
        ("9" * 5000, None),
    ],
)
def test_integer_reads_the_number_in_the_declared_order(completion, expected):
    assert integer.read_number(completion) == expected


@pytest.mark.parametrize(
    ("text", "value"), [("72", 72), ("1,000", 1000), ("-3", -3), ("$5.", 5), ("72.0", 72), ("so\n#### 9", 9)]
)
def test_integer_gold(text, value):
    assert integer.gold(text) == value
    assert integer.parse_gold(text)
    assert integer.score(integer.gold_completion(text), text) == 1.0
    assert integer.score(integer.wrong_completion(text), text) == 0.0


@pytest.mark.parametrize("text", ["", "seventy", "71.5", "1/2", "3 apples", "5 6", "10-5", "#### none"])
def test_integer_gold_that_is_no_integer_is_unscorable_and_never_paid(text):
    assert not integer.parse_gold(text)
    assert integer.score(f"#### {text}", text) is None
    assert integer.gold_completion(text) is None
    assert integer.wrong_completion(text) is None


MADE_OF_NUMBERS = st.lists(
    st.sampled_from(
        ["7", "72", "1,072", "1072", "0.5", ".0", "72.0", "144/2", r"\frac{144}{2}", r"\boxed{1{,}072}", "h2o", "1e3",
         "-", "\u2212", "$", "%", ",", ".", "/", " ", " ", "\n", "\t", "####", "<answer>", "</answer>", "x" * 70, "٣"]
    ),
    max_size=24,
).map("".join)  # fmt: skip


@given(MADE_OF_NUMBERS)
@settings(max_examples=300, deadline=None)
def test_the_last_number_is_the_last_of_all_wherever_the_search_begins(text):
    every = [integer._value(text, match) for match in integer._NUMBER.finditer(text)]
    assert integer.last_number(text) == (every[-1] if every else None)


@given(MADE_OF_NUMBERS, st.sampled_from([0, 7, -7, 72, 1072, -1072, 2, 144, 5]))
@settings(max_examples=500, deadline=None)
def test_a_completion_that_cannot_say_the_gold_does_not_say_it(text, gold):
    assert integer.score(text, str(gold)) == float(integer.read_number(text) == gold)
    assert integer.may_pay(text, str(gold)) or integer.read_number(text) != gold


@given(st.integers(-(10**9), 10**9))
@settings(max_examples=100, deadline=None)
def test_integer_self_test_both_ways(n):
    for text in (str(n), f"{n:,}", f"{n}.0"):
        assert integer.score(integer.gold_completion(text), text) == 1.0
        assert integer.score(integer.wrong_completion(text), text) == 0.0


@given(st.text(max_size=300), st.text(max_size=40))
@settings(max_examples=200, deadline=None)
def test_verifiers_never_raise_and_stay_in_range(completion, gold):
    for verifier in REWARDS.values():
        assert verifier.score(completion, gold) in (None, 0.0, 1.0)
        assert verifier.score(completion, answer([6, 4], 24)) in (None, 0.0, 1.0)


def test_verifiers_stay_linear_on_adversarial_text():
    for text in (
        "#### " * 200_000,
        "<answer>" * 100_000,
        "\\boxed{" * 100_000,
        "1," * 300_000,
        "1" * 300_000,
        "$-" * 300_000,
    ):
        for verifier in REWARDS.values():
            verifier.score(text, "72")
            verifier.score(text, answer([6, 4], 24))


def test_a_verifier_that_does_not_exist_is_named():
    assert list(verifiers_for(["integer", "integer"])) == ["integer"]
    with pytest.raises(BadInputError) as caught:
        verifiers_for(["integer", "magic"])
    assert "magic" in caught.value.seen
