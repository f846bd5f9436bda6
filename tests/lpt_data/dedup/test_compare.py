"""A component in pieces is decided as in one."""

from __future__ import annotations

import random

import numpy as np
import pytest

from lpt_data.dedup.compare import Batch, Outcome, cover_batch, cover_chain
from lpt_data.dedup.graph import deal
from lpt_data.dedup.lsh import BITMAP
from lpt_data.dedup.shingles import ShingleSets


def component(rng: random.Random, rows: int, references: int, groups: int) -> Batch:
    """Rows whose sets overlap a lot, in two bands of few buckets; references first in the declared order."""
    sets = [sorted(rng.sample(range(14), rng.randrange(5, 12))) for _ in range(rows)]
    sizes = np.array([len(one) for one in sets])
    ends = np.cumsum(sizes)
    place = np.concatenate([np.arange(references), references + np.array(rng.sample(range(rows), rows))])[:rows]
    place[references:] = references + np.argsort(np.argsort(place[references:]))
    return Batch(
        np.arange(rows),
        place.astype(np.int64),
        np.array(rng.sample(range(rows), rows)),
        np.array([rng.randrange(groups) for _ in range(rows)]),
        np.array([[rng.randrange(2), 7] for _ in range(rows)], np.uint64),
        np.zeros((rows, BITMAP), np.uint64),
        ShingleSets(ends - sizes, ends, np.array([value for one in sets for value in one], np.uint64)),
    )


@pytest.mark.parametrize("seed", range(25))
def test_a_chain_decides_as_one_batch(seed: int) -> None:
    rng = random.Random(seed)
    references, threshold = rng.choice([0, 3]), rng.choice([0.5, 0.7])
    whole = component(rng, 40, references, rng.choice([1, 3]))
    expected = cover_batch(whole, threshold, references)
    order = np.argsort(whole.place)
    cuts = sorted(rng.sample(range(1, 40), 4))
    parts = [np.sort(part) for part in np.split(order, cuts)]
    for room in (0, 1 << 30):  # the rows that stay are read again, or at hand
        found = cover_chain(range(10, 15), lambda number: whole.take(parts[number - 10]), threshold, references, room)
        joined = {name: np.empty_like(getattr(expected, name)) for name in ("witness", "score", "matched")}
        for part in found:
            for name, values in joined.items():
                values[part.names] = getattr(part, name)
        for name, values in joined.items():
            assert np.array_equal(values, getattr(expected, name)), name
        assert np.array_equal(sum(part.counts for part in found), expected.counts)
    assert (expected.witness >= 0).any()


def test_rows_of_a_batch_and_batches_joined_keep_their_sets() -> None:
    batch = component(random.Random(0), 9, 0, 2)
    some, rest = batch.take(np.array([1, 4, 8])), batch.take(np.array([0, 2]))
    both = some.joined(rest)
    for i, row in enumerate([1, 4, 8, 0, 2]):
        mine = both.sets.values[both.sets.starts[i] : both.sets.ends[i]]
        assert mine.tolist() == batch.sets.values[batch.sets.starts[row] : batch.sets.ends[row]].tolist()
        assert both.names[i] == row
    assert isinstance(cover_batch(both, 0.9), Outcome)


def test_components_are_dealt_whole_or_as_a_chain_in_order() -> None:
    # Four components of 30, 30, 30 and 120 bytes; 100 bytes a batch, so 50 fill one, and 25 a link of a chain.
    root = np.array([0, 0, 2, 3, 4, 4, 4, 4])
    weights = np.array([10, 20, 30, 30, 30, 30, 30, 30])
    place = np.array([0, 1, 2, 3, 7, 6, 5, 4])
    batches = deal(root, place, weights, 100)
    assert batches.of_row.tolist() == [0, 0, 0, 1, 5, 4, 3, 2]
    assert batches.chains == (range(0, 1), range(1, 2), range(2, 6))
    assert batches.count == 6
    together = deal(root, place, weights, 1000)
    assert (together.of_row.tolist(), together.count) == ([0] * 8, 1)
    nothing = deal(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64), 100)
    assert (nothing.count, nothing.chains) == (0, ())
