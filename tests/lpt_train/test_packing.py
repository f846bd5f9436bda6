"""Packing: every row once, within the budget, and blind to its neighbours; what is dropped has a reason."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from train_cases import chat

from lpt_train.packing import best_fit_decreasing, cut_notes, fit, render_rows, units_at
from lpt_train.render import Encoded
from manifests.errors import LptError, RecordError, RefusedError


def test_best_fit_by_hand():
    # 7 opens a bin; 5 another; 4 fits beside 5 only (1 left); 3 fits beside 7 exactly; 1 fits beside 5 and 4.
    assert best_fit_decreasing([5, 1, 7, 4, 3], 10) == [[2, 4], [0, 3, 1]]


@given(st.lists(st.integers(1, 50), max_size=60))
def test_every_row_is_in_one_bin_within_the_budget(lengths):
    bins = best_fit_decreasing(lengths, 50)
    assert sorted(i for members in bins for i in members) == list(range(len(lengths)))
    assert all(sum(lengths[i] for i in members) <= 50 for members in bins)
    # No two bins could be one: best fit leaves at most one bin under half full.
    assert sum(sum(lengths[i] for i in members) * 2 <= 50 for members in bins) <= 1


def test_a_row_over_the_budget_is_an_error():
    with pytest.raises(LptError, match="does not fit"):
        best_fit_decreasing([11], 10)


def test_long_rows_are_dropped_with_a_count_by_default(renderer):
    records = [{"messages": chat("q", "a" * 500)}, {"messages": chat("q", "short")}]
    rendered = render_rows(records, renderer, max_length=100)
    assert [row.index for row in rendered.rows] == [1]
    assert rendered.dropped == {"too_long": 1}
    assert rendered.examples == {"too_long": [0]}


def test_keep_start_cuts_at_the_end_and_needs_a_target(renderer):
    records = [{"messages": chat("q", "a" * 500)}, {"messages": chat("q" * 500, "a")}]
    rendered = render_rows(records, renderer, max_length=100, truncation="keep_start")
    assert [(row.index, len(row.ids)) for row in rendered.rows] == [(0, 100)]
    assert rendered.rows[0].supervised > 0
    assert rendered.dropped == {"no_supervised_token": 1}
    whole = renderer.encode(records[0]["messages"])
    assert rendered.rows[0].ids.tolist() == whole.ids[:100]


def test_what_is_cut_is_counted_and_said():
    class Given:
        def encode(self, messages, tools):
            return Encoded(list(range(len(messages))), messages)

    def of(*masks):
        return render_rows([{"messages": mask} for mask in masks], Given(), max_length=4, truncation="keep_start")

    whole, amid, before_stop = [0, 0, 1, 1], [0, 1, 1, 1, 1, 1], [0, 1, 1, 1, 1]
    between, at_its_start = [0, 1, 1, 0, 0, 1, 1], [0, 1, 1, 0, 1, 1]
    rendered = of(whole, amid, before_stop, between, at_its_start)
    assert rendered.to_json()["cut"] == {"rows": 4, "without_stop": 2, "supervised_tokens": 2 + 1 + 2 + 2}
    assert rendered.to_json()["supervised_share"] == round((2 + 3 + 3 + 2 + 2) / 20, 4)
    assert cut_notes(rendered.rows, 4) == [
        "4 of 5 rows were cut to 4 tokens: 2 end in the middle of a reply, without its stop token; 7 supervised tokens "
        "were lost, 60% of what is left is supervised"
    ]
    assert cut_notes(of(whole).rows, 4) == []
    assert of(whole).to_json()["cut"] == {"rows": 0, "without_stop": 0, "supervised_tokens": 0}


def test_fit_leaves_a_row_of_exactly_the_length():
    exact = Encoded([1, 2, 3], [0, 1, 1])
    assert fit(exact, 3, "drop") is exact
    with pytest.raises(RecordError) as error:
        fit(exact, 2, "drop")
    assert error.value.reason == "too_long"


def test_every_reason_is_counted_and_nothing_left_is_refused(renderer):
    records = [{"messages": chat("q")}, {"messages": chat("<|im_end|>", "a")}, {"messages": chat("q", "a")}]
    rendered = render_rows(records, renderer, max_length=100)
    assert rendered.dropped == {"no_supervised_token": 1, "special_token_in_content": 1}
    with pytest.raises(RefusedError, match="no row"):
        render_rows(records[:2], renderer, max_length=100)


@given(st.integers(1, 9), st.integers(0, 30), st.integers(0, 3))
def test_the_stream_of_units_is_epochs_of_permutations(units, start, seed):
    whole = units_at(0, 5 * units, units=units, seed=seed)
    for epoch in range(5):
        assert sorted(whole[epoch * units : (epoch + 1) * units]) == list(range(units))
    part = units_at(start, 4, units=units, seed=seed)
    assert part == units_at(0, start + 4, units=units, seed=seed)[start:]
