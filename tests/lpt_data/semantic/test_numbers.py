"""Which numbers a text names."""

from __future__ import annotations

import time

import pytest

from lpt_data.semantic.numbers import numbers_in, overlap, signature


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("Pay him 1,250.50 dollars for 7 days.", {"1250.5", "7"}),
        ("twenty-five of fifty, twelve of them red", {"25", "50", "12"}),
        ("Twenty Five or 25.0 or 025", {"25"}),
        ("one of them, 1 apple, a one-way road", set()),
        ("no numbers: tone, often, tent, eighth, someone", set()),
        ("3.14, 3. and 4", {"3.14", "3", "4"}),
        ("\uff11\uff12 cats and \u0663 dogs", {"12", "3"}),
        ("\u00bd a cake", {"2"}),
        ("0 and 000 and zero", {"0"}),
        ("1.0 and 1.10", {"1.1"}),
        ("twenty eleven", {"20", "11"}),
        ("N\u0130NE, \u0130K\u0130, f\u0131ve and SIX", {"6"}),
        ("make 9 of [12,3] or 1,2345", {"9", "12", "3", "2345"}),
        ("", set()),
    ],
)
def test_numbers(text: str, numbers: set[str]) -> None:
    assert numbers_in(text) == numbers


def test_equal_sets_have_equal_signatures() -> None:
    assert signature("a raise by 5, after 50") == signature("50 then five")
    assert signature("a raise by 5") != signature("a raise by 50")
    assert signature("5, 50") != signature("550")


def test_overlap_is_a_share_of_all() -> None:
    assert overlap(frozenset("23"), frozenset("34")) == 1 / 3
    assert overlap(frozenset(), frozenset()) == 1.0
    assert overlap(frozenset("2"), frozenset()) == 0.0


def test_long_runs_of_digits_cost_no_more_than_their_length() -> None:
    started = time.process_time()
    numbers_in("1," * 500_000 + "." + "9" * 500_000 + "twenty " * 50_000)
    assert time.process_time() - started < 20  # a pattern that backtracks would take hours
