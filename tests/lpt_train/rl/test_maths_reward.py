from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import pytest

from lpt_train.rewards import integer, maths
from lpt_train.rewards.maths import Number, Parts, read, score

SOLUTIONS = Path(__file__).parents[4] / "shared/data/gsm8k/example_model_solutions.jsonl"

SAME = [
    (r"\boxed{1\frac{1}{2}}", "3/2"),
    (r"\boxed{1 1/2}", "1.5"),
    (r"\boxed{\frac12}", "0.5"),
    (r"\boxed{-\dfrac{3}{4}}", "-0.75"),
    (r"\boxed{2\sqrt{9}}", "6"),
    (r"\boxed{2^{10}}", "1024"),
    (r"\boxed{1.2 \times 10^5}", "120{,}000"),
    (r"\boxed{x = -3}", "-3"),
    (r"\boxed{\$18.00}", "18"),
    (r"\boxed{45^\circ}", "45"),
    (r"\boxed{5\text{ cm}^2}", "5"),
    ("#### 3 miles per hour", "3"),
    ("#### 1,072 apples", "1072"),
    ("<answer>50%</answer>", "1/2"),
    ("<answer>0.5</answer>", "50%"),
    (r"\boxed{50}", "50%"),
    (r"\boxed{[1, 2)}", "[1,2)"),
    (r"\boxed{(1, \frac{1}{2})}", "(1, 0.5)"),
    (r"\boxed{\{2, 1\}}", r"\{1, 2\}"),
    (r"\boxed{2, 1}", "1, 2"),
    (r"\boxed{x+1}", "x + 1"),
    (r"\boxed{\text{Evelyn}}", "evelyn"),
    (r"\boxed{\sqrt{2}}", r"\sqrt2"),
    ("The answer is (3, 4).", "(3,4)"),
    ("Answer: 7", "7"),
    ("so 3 * 4 = 12\nA: 12", "so 12\nA: 12"),
    ("It costs 72 dollars.", "72"),
    (r"first \boxed{1}, no: \boxed{2}", "2"),
    ("#### The total is 18", "18"),
    ("#### Step 2: add\nso " + r"\boxed{42}", "42"),
    (r"\boxed{3x}", "3 x"),
    ("#### 3 m", "3"),
    ("#### Answer\n42", "42"),
    ("#### Final Answer:\n\n**42**", "42"),
    ("so\n#### Answer: 42", "42"),
    ("#### **Answer:** 42 apples", "42"),
    ("#### The answer is\nSo there are 42 apples.", "42"),
    ("#### Solution\nx + 1", "x+1"),
    (r"\boxed{\text{The total is } 18}", "18"),
    ("#### 3 million", "3 million"),
    ("#### so the value of x = 42 apples", "42"),
    ("#### about 3 of them", "3"),
    ("#### It is 3!", "3"),
    ("#### The value of y is 3", "3"),
]
OTHER = [
    (r"\boxed{3x}", "3"),
    (r"\boxed{3 x}", "3"),
    (r"\boxed{x - 3}", "3"),
    (r"\boxed{3 - x}", "3"),
    (r"\boxed{\sqrt{x} = 3}", "3"),
    (r"\boxed{x^3}", "3"),
    (r"\boxed{\sqrt{3}}", "3"),
    (r"\boxed{3\pi}", "3"),
    (r"\boxed{3!}", "3"),
    (r"\boxed{x + 3}", "3"),
    (r"\boxed{f(3)}", "3"),
    (r"\boxed{x > 3}", "3"),
    (r"\boxed{\log 3}", "3"),
    ("#### 3 million", "3"),
    ("#### less than 3", "3"),
    ("#### Answer\n42 or 43", "43"),
    ("#### Answer\n41\n42", "42"),
    ("#### Answer\n3x", "3"),
    ("#### Answering 7 questions took 42 minutes", "42"),
    (r"\boxed{0.333}", "1/3"),
    (r"\boxed{5000\%}", "50%"),
    (r"\boxed{1\%}", "100%"),
    (r"\boxed{3y}", "3x"),
    (r"\boxed{6}", "6r^2"),
    (r"\boxed{2}", "2i"),
    (r"\boxed{5 or 6}", "6"),
    (r"\boxed{(1,2)}", "[1,2)"),
    (r"\boxed{(1,2)}", "(2,1)"),
    (r"\boxed{\{1, 1\}}", r"\{1, 2\}"),
    (r"\boxed{x+1}", "1+x"),  # algebra is left out, and says so
    (r"\boxed{3,14}", "3.14"),
    ("72 at first\n#### 71", "72"),
    ("72 at first, then 71", "72"),
    (r"\boxed{9^{9^{9}}}", "1"),
    (r"\boxed{1/0}", "0"),
    (r"\boxed{\sqrt{-4}}", "2"),
    (r"\boxed{}", "0"),
    ("I do not know.", "72"),
    ("", "72"),
    (r"\boxed{" + "(" * 5000, "1"),
    (r"\boxed{" + "{" * 3000 + "1" + "}" * 3000 + "}", "2"),
    ("9" * 100_000, "9"),
    (r"\boxed{" + "1+" * 900 + "1}", "5"),
    ("\x1b[31m####\x00", "1"),
]


@pytest.mark.parametrize(("completion", "gold"), SAME)
def test_equal_answers(completion, gold):
    assert score(completion, gold) == 1.0


@pytest.mark.parametrize(("completion", "gold"), OTHER, ids=lambda text: text[:30])
def test_other_answers(completion, gold):
    assert score(completion, gold) == 0.0


def test_what_is_read():
    assert read("1,234.50") == Number(Fraction("1234.5"))
    assert read("50%") == Number(Fraction(50), percent=True)
    assert read("(1, 2]") == Parts("(]", (Number(Fraction(1)), Number(Fraction(2))))
    assert read("1,000, 2") == Parts("{}", (Number(Fraction(1000)), Number(Fraction(2))))
    assert read("  ") is None
    assert read("x" * 3000) is None


def test_a_gold_that_says_nothing_is_unscorable_and_never_a_zero():
    assert score("#### 1", "") is None
    assert score("#### 1", "x" * 5000) is None


@pytest.mark.parametrize("gold", [g for _, g in SAME])
def test_the_self_test_bites_both_ways(gold):
    assert score(maths.gold_completion(gold), gold) == 1.0
    assert score(maths.wrong_completion(gold), gold) == 0.0


@pytest.mark.parametrize("number", ["0", "-7", "1072", "12.5", "-0.25"])
def test_it_agrees_with_the_verifier_of_integers_where_both_can_judge(number):
    for completion in (f"#### {number}", f"<answer>{number}</answer>", f"It is {number}.", "#### 3"):
        if integer.parse_gold(number):
            assert score(completion, number) == integer.score(completion, number)


def test_a_row_of_ten_megabytes_is_read_at_its_end():
    assert score("(1+" * 3_500_000 + "\n#### 5", "5") == 1.0
    assert score("#" * 10_000_000, "5") == 0.0


@pytest.mark.skipif(not SOLUTIONS.is_file(), reason="needs the data folder")
def test_agreement_with_the_marks_of_5276_solutions():
    agree = marks = 0
    for line in SOLUTIONS.read_text("utf-8").splitlines():
        row = json.loads(line)
        for answer in row.values():
            if isinstance(answer, dict):
                marks += 1
                agree += (score(answer["solution"], row["ground_truth"]) == 1.0) == answer["is_correct"]
    assert (agree, marks) == (5276, 5276)
