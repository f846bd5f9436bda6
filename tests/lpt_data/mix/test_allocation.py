"""Shares, water level and rounding against numbers worked out by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lpt_data.allocation import fill, longest_without_repeat, shares, water_fill, whole
from manifests.errors import BadInputError
from manifests.rates import rate

INF = math.inf


def test_at_temperature_1_shares_are_the_weights():
    assert shares([5, 3, 2]).tolist() == pytest.approx([0.5, 0.3, 0.2])


def test_temperature_2_takes_square_roots():
    assert shares([4, 1], 1 / 2).tolist() == pytest.approx([2 / 3, 1 / 3])
    assert shares([100, 1], 1 / 2).tolist() == pytest.approx([10 / 11, 1 / 11])


def test_temperature_one_half_squares():
    assert shares([2, 1], 2).tolist() == pytest.approx([4 / 5, 1 / 5])


def test_at_infinite_temperature_domains_are_alike_and_a_weight_of_0_stays_0():
    assert shares([5, 3, 0, 2], 0).tolist() == pytest.approx([1 / 3, 1 / 3, 0, 1 / 3])
    assert shares([5, 3, 2], 1 / 1e9).tolist() == pytest.approx([1 / 3] * 3)


def test_a_small_temperature_stays_within_the_range_of_floats():
    assert shares([5, 3, 2], 1e6).tolist() == pytest.approx([1, 0, 0])
    assert shares([1e300, 1e300]).tolist() == pytest.approx([0.5, 0.5])


def test_exponents_per_domain_shrink_what_they_were_meant_to_raise():
    """web .5, code .2, maths .15, other .15 with T = 1, .7, .6, .8: powers .5, .100, .042, .093, together .736."""
    found = shares([0.5, 0.2, 0.15, 0.15], [1, 1 / 0.7, 1 / 0.6, 1 / 0.8])
    assert found.round(3).tolist() == [0.679, 0.136, 0.058, 0.127]
    scaled = shares([50, 20, 15, 15], [1, 1 / 0.7, 1 / 0.6, 1 / 0.8])
    assert scaled.tolist() == pytest.approx(found.tolist())  # the scale of the weights says nothing


@given(st.lists(st.floats(0.001, 1000), min_size=2, max_size=6), st.floats(0.01, 20))
def test_one_temperature_keeps_the_order_of_the_domains(weights, inverse):
    found = shares(weights, inverse)
    assert found.sum() == pytest.approx(1)
    order = np.argsort(weights, kind="stable")
    assert (np.diff(found[order]) >= -1e-12).all()


@pytest.mark.parametrize("weights", [[0, 0], [1, -1], [1, math.nan], [1, INF], []])
def test_weights_that_are_none(weights):
    with pytest.raises(BadInputError):
        shares(weights)


def test_what_a_full_domain_cannot_give_goes_to_the_others_in_proportion():
    """100 of .5/.3/.2, the first holds 20: 80 are left for .3 : .2."""
    wanted = np.array([0.5, 0.3, 0.2])
    assert water_fill(100, wanted, np.array([20, INF, INF])).tolist() == pytest.approx([20, 48, 32])
    # The 48 do not fit either: what is left goes to the third.
    assert water_fill(100, wanted, np.array([20, 40, INF])).tolist() == pytest.approx([20, 40, 40])
    assert water_fill(100, wanted, np.array([20, 20, 20])).tolist() == pytest.approx([20, 20, 20])
    assert water_fill(100, np.array([1.0, 0.0]), np.array([30, INF])).tolist() == [30, 0]  # no share, no excess


@given(
    st.lists(st.tuples(st.floats(0.01, 1), st.floats(0, 100)), min_size=1, max_size=8),
    st.floats(0.1, 500),
)
def test_one_water_level_fits_all(domains, total):
    wanted, capacity = (np.array(column) for column in zip(*domains, strict=True))
    given_ = water_fill(total, wanted, capacity)
    assert given_.sum() == pytest.approx(min(total, capacity.sum()), abs=1e-6)
    assert (given_ <= capacity + 1e-9).all()
    free = given_ < capacity - 1e-6
    if free.any():
        levels = given_[free] / wanted[free]
        assert levels == pytest.approx(levels[0])
        assert (capacity[~free] / wanted[~free] <= levels[0] + 1e-6).all()  # the full ones are those below the level


def test_replay_keeps_its_share_when_either_side_runs_out():
    asked, replay = np.array([0.2, 0.4, 0.4]), np.array([True, False, False])
    # The others hold 20 = 80 %, so replay gives 5.
    assert fill(100, asked, np.array([INF, 10, 10]), replay).tolist() == pytest.approx([5, 10, 10])
    # Replay holds 10 = 20 %, so the others give 40.
    assert fill(100, asked, np.array([10, INF, INF]), replay).tolist() == pytest.approx([10, 20, 20])
    # One of the others is full: the excess stays on its side.
    assert fill(100, asked, np.array([INF, 10, INF]), replay).tolist() == pytest.approx([20, 10, 70])


def test_stopping_at_the_first_domain_that_runs_out():
    assert longest_without_repeat(np.array([0.5, 0.5, 0]), np.array([10, 30, 0])) == 20


def test_rounding_by_largest_remainders():
    assert whole(np.array([3.3, 3.3, 3.4])).tolist() == [3, 3, 4]
    assert whole(np.array([2.5, 2.5])).tolist() == [3, 2]
    assert whole(np.array([0.0, 7.0])).tolist() == [0, 7]


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=9))
def test_rounding_keeps_the_sum_and_moves_nothing_by_one(amounts):
    rounded = whole(np.array(amounts))
    assert rounded.sum() == round(sum(amounts)) or abs(sum(amounts) % 1 - 0.5) < 1e-6
    assert (abs(rounded - amounts) < 1 + 1e-6).all()


def test_learning_rates_at_a_fraction_of_training():
    assert [rate("wsd", at, 0.1, 0.2) for at in (0, 0.05, 0.5, 0.8, 0.9, 1)] == pytest.approx([0, 0.5, 1, 1, 0.5, 0])
    assert [rate("linear", at, 0.2, 0) for at in (0.1, 0.2, 0.6, 1)] == pytest.approx([0.5, 1, 0.5, 0])
    assert [rate("cosine", at, 0, 0) for at in (0, 0.5, 1)] == pytest.approx([1, 0.5, 0])
    assert rate("constant", 0.7, 0, 0) == 1
