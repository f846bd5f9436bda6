"""Rankings: completions once each, pairs by place, orders that exist or do not, margins, flipped labels."""

from __future__ import annotations

import pyarrow as pa
import pytest
from reward_cases import asked, planted, ranked, said
from train_cases import admit_by_hand, write_jsonl

from lpt_train.admitted import load_split, load_unadmitted
from lpt_train.config import from_mapping
from lpt_train.config_reward import RewardConfig
from lpt_train.rankings import is_flipped, render_rankings, total_order
from manifests.catalog import Catalog
from manifests.errors import BadInputError, RefusedError, UsageError


def rendered(tmp_path, renderer, rows, *, flip=False, **options):
    split = load_unadmitted(write_jsonl(tmp_path / "pairs.jsonl", rows), "preference")
    return render_rankings(split, renderer, from_mapping(RewardConfig, options), flip=flip)


def test_pairs_of_one_prompt_are_one_ranking_with_each_completion_once(tmp_path, renderer):
    found = rendered(tmp_path, renderer, ranked(2, answers=4), ranking="prompts")
    assert [len(ranking.rows) for ranking in found.rankings] == [4, 4]
    first = found.rankings[0]
    assert len(first.pairs) == 6
    texts = [renderer.tokenizer.decode(row.ids[row.loss_mask.astype(bool)]) for row in first.rows]
    assert all(texts[better].count("*") > texts[worse].count("*") for better, worse in first.pairs)
    assert first.records == tuple(range(6))
    assert found.to_json()["completions_a_prompt"] == {"4": 2}
    apart = rendered(tmp_path, renderer, ranked(2, answers=4))
    assert len(apart.rankings) == 12
    assert all(ranking.pairs == ((0, 1),) for ranking in apart.rankings)


@pytest.mark.parametrize(
    ("pairs", "order"),
    [
        ([(0, 1)], (0, 1)),
        ([(2, 0), (0, 1), (2, 1)], (2, 0, 1)),
        ([(2, 0), (0, 1)], (2, 0, 1)),  # the third follows
        ([(0, 1), (2, 1)], None),  # 0 and 2 were never compared
        ([(0, 1), (1, 2), (2, 0)], None),  # a circle
        ([(0, 1), (1, 0)], None),
        ([(0, 1), (0, 1)], (0, 1)),
    ],
)
def test_total_orders(pairs, order):
    assert total_order(1 + max(max(pair) for pair in pairs), pairs) == order


def test_prompts_without_one_order_are_dropped_under_their_reason(tmp_path, renderer):
    cut = [row for row in ranked(1) if row["chosen"] != said("***") or row["rejected"] != said("*")][:1]
    others = [{**row, "prompt": asked("other")} for row in (*cut, {**cut[0], "rejected": said("-")})]
    found = rendered(tmp_path, renderer, [*ranked(2), *others], ranking="plackett_luce")
    assert [len(ranking.order) for ranking in found.rankings] == [3, 3]
    assert found.dropped == {"no_total_order": 2}
    assert found.examples == {"no_total_order": [6, 7]}
    with pytest.raises(RefusedError, match="no pair"):
        rendered(tmp_path, renderer, others, ranking="plackett_luce")


def test_margins_are_the_column_of_the_split(tmp_path, renderer):
    rows = [{**row, "margin": margin} for row, margin in zip(planted(3), (0.5, 2, -1), strict=True)]
    found = rendered(tmp_path, renderer, rows)
    assert [ranking.margins for ranking in found.rankings] == [(0.5,), (2.0,), (-1.0,)]
    assert found.with_margins
    assert rendered(tmp_path, renderer, rows, margin="none").rankings[0].margins == (0.0,)
    assert not rendered(tmp_path, renderer, planted(3)).with_margins
    with pytest.raises(BadInputError, match="no column margin"):
        rendered(tmp_path, renderer, planted(3), margin="column")


@pytest.mark.parametrize("value", ["high", True, None, [1], {}])
def test_a_margin_that_is_no_number_costs_its_pair_and_is_counted(tmp_path, renderer, value):
    rows = [{**row, "margin": margin} for row, margin in zip(planted(2), (value, 1.5), strict=True)]
    found = rendered(tmp_path, renderer, rows)
    assert found.dropped == {"margin_not_a_number": 1}
    assert [ranking.records for ranking in found.rankings] == [(1,)]
    with pytest.raises(RefusedError, match="no pair") as error:
        rendered(tmp_path, renderer, [rows[0]])
    assert "margin" in error.value.next


def test_margins_of_an_admitted_split_pass_through(tmp_path, renderer):
    catalog = Catalog.open(tmp_path / ".lpt")
    rows = [{**row, "margin": 0.25 * n} for n, row in enumerate(planted(3))]
    split = load_split(f"{admit_by_hand(catalog, 'preference', {'train': rows}, name='pairs')}:train", catalog=catalog)
    assert split.beside("margin") == [0.0, 0.25, 0.5]
    assert split.beside("weight") is None
    assert "margin" not in next(split.rows())
    found = render_rankings(split, renderer, RewardConfig())
    assert [ranking.margins[0] for ranking in found.rankings] == [0.0, 0.25, 0.5]


def test_margins_are_not_taken_for_those_of_other_rows(tmp_path, renderer):
    """A row that is dropped takes its margin along."""
    rows = [{**row, "margin": float(n)} for n, row in enumerate(planted(4))]
    rows[1]["rejected"] = rows[1]["chosen"]
    found = rendered(tmp_path, renderer, rows)
    assert found.dropped == {"identical_after_truncation": 1}
    assert [(ranking.records[0], ranking.margins[0]) for ranking in found.rankings] == [(0, 0.0), (2, 2.0), (3, 3.0)]


def test_flipped_labels_are_chosen_by_id_and_seed_and_not_by_order(tmp_path, renderer):
    rows = planted(40)
    straight = rendered(tmp_path, renderer, rows, flip_labels=0.5)  # for evaluation: never flipped
    flipped = rendered(tmp_path, renderer, rows, flip=True, flip_labels=0.5)
    turned = [a.rows[0] is not b.rows[0] and (a.rows[0].ids.tolist() != b.rows[0].ids.tolist())
              for a, b in zip(straight.rankings, flipped.rankings, strict=True)]  # fmt: skip
    assert straight.flipped == 0
    assert flipped.flipped == sum(turned)
    assert 10 <= flipped.flipped <= 30
    backwards = rendered(tmp_path, renderer, rows[::-1], flip=True, flip_labels=0.5)
    for one, other in zip(flipped.rankings, backwards.rankings[::-1], strict=True):
        assert one.rows[0].ids.tolist() == other.rows[0].ids.tolist()
    assert rendered(tmp_path, renderer, rows, flip=True, flip_labels=1.0).flipped == 40
    assert rendered(tmp_path, renderer, rows, flip=True).flipped == 0


def test_the_share_of_flipped_records_is_what_was_asked():
    names = [f"{n:064x}" for n in range(4000)]
    for share in (0.1, 0.5):
        assert sum(is_flipped(name, 7, share) for name in names) / 4000 == pytest.approx(share, abs=0.03)
    assert {is_flipped(names[0], seed, 0.5) for seed in range(20)} == {True, False}
    once = {name for name in names if is_flipped(name, 7, 0.1)}
    assert once < {name for name in names if is_flipped(name, 7, 0.5)}


def test_a_record_without_a_prompt_is_dropped_and_no_traceback(tmp_path, renderer):
    bare = {"chosen": said("a"), "rejected": said("b")}
    assert rendered(tmp_path, renderer, [*planted(1), bare]).dropped == {"no_prompt": 1}


def test_columns_beside_records_that_differ_in_type_are_text(tmp_path):
    rows = [{**row, "margin": margin} for row, margin in zip(planted(2), ("high", 1.5), strict=True)]
    split = load_unadmitted(write_jsonl(tmp_path / "pairs.jsonl", rows), "preference")
    assert split.beside("margin") == ["high", "1.5"]
    assert pa.types.is_string(split.table.column("margin").type)


@pytest.mark.parametrize(
    "options",
    [
        {"ranking": "tournament"}, {"margin": "big"}, {"flip_labels": 1.5}, {"flip_labels": -0.1},
        {"center_rewards_coefficient": -1}, {"calibration_bins": 1}, {"ranking": "plackett_luce", "flip_labels": 0.5},
        {"ranking": "plackett_luce", "margin": "column"}, {"flip_labels": float("nan")},
    ],
)  # fmt: skip
def test_options_that_make_no_sense_are_refused(options):
    with pytest.raises(UsageError):
        from_mapping(RewardConfig, options)
