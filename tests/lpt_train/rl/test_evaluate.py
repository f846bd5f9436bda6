from __future__ import annotations

import itertools
import math

import pytest

from lpt_train.answers import Evaluation, ItemScore
from lpt_train.compare import paired_difference
from lpt_train.estimates import interval, mcnemar, paired_interval
from lpt_train.evaluate import evaluate
from manifests.catalog import Catalog
from manifests.errors import BadInputError, UsageError
from manifests.intervals import newcombe, wilson


def test_wilson_by_hand():
    # Newcombe 1998, table I: 81 of 263, and 0 of 20
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson(0, 20) == pytest.approx((0.0, 0.1611), abs=5e-5)
    assert all(wilson(0, n)[0] == 0.0 and wilson(n, n)[1] == 1.0 for n in range(1, 200))
    assert wilson(0, 0) == (0.0, 1.0)


def test_newcombe_by_hand():
    # Newcombe 1998, paired data, method 10: 36, 12, 2, 0 of 50, and 54 items that all succeed twice
    assert newcombe(36, 2, 12, 0) == pytest.approx((0.0569, 0.3404), abs=5e-5)
    assert newcombe(36, 12, 2, 0) == pytest.approx((-0.3404, -0.0569), abs=5e-5)
    assert newcombe(54, 0, 0, 0) == pytest.approx((-0.0664, 0.0664), abs=5e-5)
    for counts in itertools.product(range(5), repeat=4):
        if n := sum(counts):
            low, high = newcombe(*counts)
            assert -1 <= low <= (counts[2] - counts[1]) / n <= high <= 1
            assert high - low > 0.05


def test_paired_interval_of_right_and_wrong_by_hand():
    # 3 right twice, 1 lost, 3 gained, 1 wrong twice: no correlation (3 * 1 - 1 * 3), Wilson's intervals of 4 and 6 of 8
    found = paired_interval([0, 0, 1, 1, 0, 1, 1, 0], [1, 1, 1, 0, 0, 1, 1, 1])
    assert wilson(4, 8) == pytest.approx((0.2152, 0.7848), abs=5e-5)
    assert wilson(6, 8) == pytest.approx((0.4093, 0.9285), abs=5e-5)
    low = 0.25 - math.hypot(0.75 - 0.4093, 0.7848 - 0.5)
    high = 0.25 + math.hypot(0.9285 - 0.75, 0.5 - 0.2152)
    assert (found.difference, found.low, found.high) == pytest.approx((0.25, low, high), abs=1e-4)
    assert (found.gained, found.lost, found.n) == (3, 1, 8)
    assert found.p_value == pytest.approx(2 * (1 + 4) / 16)


def test_paired_interval_of_continuous_scores_is_students():
    # differences 1, 2, 3: mean 2, standard deviation 1, 4.3027 of t with two degrees of freedom
    found = paired_interval([0.5, 0.5, 0.5], [1.5, 2.5, 3.5])
    half = 4.3027 / math.sqrt(3)
    assert (found.low, found.high, found.p_value) == (pytest.approx(2 - half), pytest.approx(2 + half), None)
    assert not found.significant
    assert paired_interval([0.5, 0.5], [1.5, 1.6]).significant


def test_three_items_that_all_gained_are_no_proof():
    # Wilson's intervals of 0 and 3 of 3 end at 0.5615 and 0.4385
    found = paired_interval([0, 0, 0], [1, 1, 1])
    assert (found.low, found.high) == (pytest.approx(1 - math.sqrt(2) * 0.5615, abs=1e-4), 1.0)
    assert (found.p_value, found.significant) == (0.25, False)
    assert paired_interval([0] * 6, [1] * 6).significant  # 2 / 64
    assert paired_interval([1] * 6, [0] * 6).significant


def test_pairing_is_worth_something():
    """The same rates, once with the same items right and once not: only the paired items tell them apart."""
    before = [1.0] * 50 + [0.0] * 50
    nested = paired_interval(before, [1.0] * 60 + [0.0] * 40)
    crossed = paired_interval(before, [0.0] * 40 + [1.0] * 60)
    assert nested.difference == pytest.approx(crossed.difference)
    assert nested.low > 0 > crossed.low


@pytest.mark.parametrize(
    ("gained", "lost", "p"), [(0, 0, 1.0), (5, 5, 1.0), (10, 0, 2 / 1024), (0, 10, 2 / 1024), (3, 1, 0.625)]
)
def test_mcnemar(gained, lost, p):
    assert mcnemar(gained, lost) == pytest.approx(p)


def test_interval_of_scores_that_are_no_counts():
    low, high = interval([0.25, 0.75])
    assert low < 0.5 < high
    assert interval([0.0, 1.0]) == wilson(1, 2)


def evaluation(scores):
    items = tuple(ItemScore(f"{i:02d}", score, "") for i, score in enumerate(scores))
    return Evaluation(items, 0, 0, 0, len(scores), 0, 0.0, {})


def test_items_that_could_not_be_scored_are_no_pairs_and_other_items_are_refused():
    found = paired_difference(evaluation([0, None, 0, 1]), evaluation([1, 1, None, 1]))
    assert (found.n, found.difference, found.p_value) == (2, 0.5, 1.0)
    with pytest.raises(UsageError, match="same items"):
        paired_difference(evaluation([0, 1]), evaluation([0, 1, 1]))


def test_evaluate_records_items_by_id_and_repeats(tiny, split, tmp_path):
    catalog = Catalog.open(tmp_path / "catalog")
    options = {"n": 5, "max_completion_length": 4, "seed": 3}
    found = evaluate(str(tiny), split, catalog=catalog, **options)
    assert (found.n, found.accuracy, found.unscorable, found.truncated_share) == (5, 0.0, 0, 1.0)
    body = catalog.get(found.object_id)
    assert body["type"] == "lpt.eval/1"
    assert body["tainted"] is True
    assert [item["record_id"] for item in body["items"]] == [item.record_id for item in found.items]
    assert {item.record_id for item in found.items} < set(split.record_ids)
    again = evaluate(str(tiny), split, **options)
    assert again.items == found.items
    assert paired_difference(found, again).difference == 0.0


def test_the_tiny_model_leaves_nothing_behind_and_is_no_folder_of_that_name(split, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "model.safetensors").write_text("another model, which happens to lie here")
    catalog = Catalog.open(tmp_path / "catalog")
    found = evaluate("tiny", split, catalog=catalog, n=2, max_completion_length=2)
    assert catalog.get(found.object_id)["model"]["name"] == "tiny"
    assert [path.name for path in (tmp_path / "tiny").iterdir()] == ["model.safetensors"]


def test_evaluate_with_samples(tiny, split):
    options = {"temperature": 1.0, "k": 3, "max_completion_length": 6, "reward": "reward_functions:likes_small_bytes"}
    found = evaluate(str(tiny), split, **options)
    assert 0 < found.accuracy < 1
    assert len({item.score for item in found.items}) > 3
    assert evaluate(str(tiny), split, **options).items == found.items


def test_evaluate_refuses_what_makes_no_sense(tiny, split):
    with pytest.raises(UsageError, match="greedy"):
        evaluate(str(tiny), split, k=2)
    with pytest.raises(UsageError, match="so many"):
        evaluate(str(tiny), split, n=13)
    with pytest.raises(BadInputError):
        evaluate(str(tiny), split, reward="reward_functions:always_raises")
