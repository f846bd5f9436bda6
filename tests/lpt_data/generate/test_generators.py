"""Made data is what it says: solvable, distinct, seeded; real text in a fixed order."""

import ast
import operator
from fractions import Fraction
from itertools import islice

import pytest

from lpt_data.generate.countdown import problems
from lpt_data.generate.package_docs import documents
from manifests.errors import UsageError

OPERATIONS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: Fraction}


def value_of(node, used, steps):
    """Exact value of an expression; every number in it and every value on the way is noted."""
    if isinstance(node, ast.Constant):
        used.append(node.value)
        return node.value
    left, right = value_of(node.left, used, steps), value_of(node.right, used, steps)
    steps.append(OPERATIONS[type(node.op)](left, right))
    return steps[-1]


@pytest.mark.parametrize("numbers", [2, 3, 4, 6])
def test_each_solution_uses_each_number_once_and_stays_whole_and_positive(numbers):
    for row in problems(300, numbers=numbers, seed=numbers, low=1, high=60):
        used, steps = [], []
        assert value_of(ast.parse(row["solution"], mode="eval").body, used, steps) == row["target"]
        assert sorted(used) == sorted(row["nums"])
        assert all(step > 0 and step == int(step) for step in steps)
        assert 1 <= row["target"] <= 120
        assert all(1 <= number <= 60 for number in row["nums"])


def test_problems_are_seeded_distinct_and_use_every_operation():
    rows = list(problems(1000, numbers=3, seed=7))
    assert rows == list(problems(1000, numbers=3, seed=7))
    assert rows != list(problems(1000, numbers=3, seed=8))
    assert rows[:100] == list(problems(100, numbers=3, seed=7))
    assert len({(row["target"], *sorted(row["nums"])) for row in rows}) == 1000
    assert all(any(sign in row["solution"] for row in rows) for sign in "+-*/")
    assert set(next(problems(1, solution=False))) == {"nums", "target"}


def test_what_cannot_be_made():
    with pytest.raises(UsageError, match="too few"):
        list(problems(1000, numbers=2, low=1, high=4))
    assert len(list(problems(1000, numbers=2, low=1, high=4, distinct=False))) == 1000
    for wrong in ({"numbers": 1}, {"low": 0}, {"low": 9, "high": 3}):
        with pytest.raises(UsageError):
            next(problems(1, **wrong))


def test_package_docs_are_real_text_in_a_fixed_order_and_bounded():
    rows = list(islice(documents(), 60))
    assert rows == list(islice(documents(), 60))
    assert [row["package"] for row in rows] == sorted(row["package"] for row in rows)
    assert len({row["id"] for row in rows}) == 60
    assert all(len(row["text"]) >= 200 for row in rows)
    small = list(documents(max_bytes=50_000))
    assert 0 < sum(len(row["text"].encode()) for row in small) <= 50_000
