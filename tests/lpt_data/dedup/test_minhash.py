from __future__ import annotations

import datasketch
import numpy as np
import pyarrow as pa
import pytest

from lpt_data.dedup.minhash import Scheme, Signatures, signatures
from lpt_data.dedup.shingles import ShingleSets, shingle_sets
from manifests.errors import UsageError


def planted(similarity: float, size: int, rng: np.random.Generator) -> tuple[list[np.ndarray], float]:
    """Two sets of ``size`` random hashes whose true similarity is as near to the asked one as whole numbers allow."""
    common = round(2 * size * similarity / (1 + similarity))
    values = rng.integers(0, 2**64, 2 * size - common, dtype=np.uint64)
    pair = [np.sort(values[:size]), np.sort(values[size - common :])]
    return pair, common / (2 * size - common)


def as_sets(sets: list[np.ndarray]) -> ShingleSets:
    ends = np.cumsum([*map(len, sets)])
    return ShingleSets(ends - [*map(len, sets)], ends, np.concatenate(sets))


@pytest.mark.parametrize(("similarity", "size"), [(0.2, 300), (0.5, 20), (0.5, 300), (0.8, 300), (0.95, 3000)])
def test_the_estimate_is_unbiased(similarity: float, size: int) -> None:
    rng = np.random.default_rng(int(similarity * 100) + size)
    pairs, scheme = 300, Scheme(5, 64, 3)
    sets, truth = [], 0.0
    for _ in range(pairs):
        pair, truth = planted(similarity, size, rng)
        sets += pair
    signed = signatures(as_sets(sets), scheme)
    errors = np.array([signed.estimate(2 * i, signed, 2 * i + 1) - truth for i in range(pairs)])
    assert abs(errors.mean()) < 3 * errors.std(ddof=1) / np.sqrt(pairs)
    assert errors.std() == pytest.approx(np.sqrt(truth * (1 - truth) / 64), rel=0.2)  # as of independent hashes


def test_signatures_equal_datasketch() -> None:
    sets = shingle_sets(pa.array([" ".join(f"w{i}" for i in range(80)), "one two three four five six"]), 5)
    ours = signatures(sets, Scheme(5, 108, 7)).values
    for row in range(2):
        theirs = datasketch.MinHash(num_perm=108, seed=7, scheme="affine64", hashfunc=int)
        theirs.update_batch(sets.values[sets.starts[row] : sets.ends[row]].tolist())
        assert np.array_equal(ours[row], theirs.hashvalues)


def test_a_permutation_is_a_bijection() -> None:
    a, _ = Scheme(5, 128, 0).permutations()
    assert (a % 2 == 1).all()


@pytest.mark.parametrize("other", [Scheme(5, 16, 1), Scheme(4, 16, 0), Scheme(5, 32, 0)])
def test_signatures_of_different_schemes_do_not_mix(other: Scheme) -> None:
    sets = shingle_sets(pa.array(["a b c d e f"]), 5)
    ours, theirs = signatures(sets, Scheme(5, 16, 0)), signatures(sets, other)
    assert ours.estimate(0, ours, 0) == 1.0
    with pytest.raises(UsageError, match="different schemes"):
        ours.estimate(0, theirs, 0)


def test_empty_sets_resemble_nothing() -> None:
    signed = signatures(
        ShingleSets(np.zeros(2, np.int64), np.zeros(2, np.int64), np.zeros(0, np.uint64)), Scheme(5, 16, 0)
    )
    assert isinstance(signed, Signatures)
    assert signed.estimate(0, signed, 1) == 0.0
