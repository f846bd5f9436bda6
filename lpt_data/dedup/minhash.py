"""MinHash signatures: k permutations of 64-bit shingle hashes, and their agreement as an estimate of Jaccard
similarity.

Permutation p of a shingle hash x is ``fmix64(x) * a[p] + b[p] mod 2**64`` with odd a[p]: a bijection, so two different
shingles never tie, and the share of equal minima is an unbiased estimate of the Jaccard similarity (Broder 1997).
Parameters and signature equal datasketch 2's ``MinHash(scheme="affine64")`` over the same shingle hashes, so
signatures interoperate. A signature says by which scheme, seed and shingles it was made; `estimate` refuses to compare
across them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numba import njit

from lpt_data.dedup.shingles import ShingleSets
from lpt_data.text import TOKENS, fmix64
from manifests.errors import UsageError

SIGNATURE = "lpt-minhash/1 affine64"
EMPTY = np.uint64(2**64 - 1)  # every entry of the signature of an empty set


@dataclass(frozen=True)
class Scheme:
    """What has to agree before two signatures may be compared."""

    ngram: int
    num_perm: int
    seed: int

    @property
    def id(self) -> str:
        """The scheme, its tokens and its parameters as one line, for manifests."""
        return f"{SIGNATURE} num_perm={self.num_perm} seed={self.seed}; shingles of {self.ngram}; {TOKENS}"

    def permutations(self) -> tuple[np.ndarray, np.ndarray]:
        """The multipliers (odd) and the addends, each uint64 [num_perm]."""
        return _permutations(self.num_perm, self.seed)


@dataclass(frozen=True)
class Signatures:
    """Signatures of some rows under one scheme."""

    scheme: Scheme
    values: np.ndarray  # uint64 [n, num_perm]

    def estimate(self, i: int, other: Signatures, j: int) -> float:
        """The estimated similarity of row i and row j of ``other``; UsageError when their schemes differ."""
        if other.scheme != self.scheme:
            raise UsageError(
                "signatures of different schemes cannot be compared",
                seen=f"{self.scheme.id} | {other.scheme.id}",
                next="make both with the same ngram, num_perm and seed",
            )
        a, b = self.values[i], other.values[j]
        return float(np.mean((a == b) & (a != EMPTY)))


def signatures(sets: ShingleSets, scheme: Scheme) -> Signatures:
    """Sign each set. 8 bytes for each row and permutation."""
    a, b = scheme.permutations()
    return Signatures(scheme, _sign_all(sets.starts, sets.ends, sets.values, a, b))


@cache
def _permutations(num_perm: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    # The legacy generator, because its stream is frozen by NumPy's policy and is the one that datasketch publishes.
    draw = np.random.RandomState(seed)
    a = draw.randint(0, 1 << 63, num_perm, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    b = draw.randint(0, 1 << 64, num_perm, dtype=np.uint64)
    return a, b


@njit(nogil=True, cache=True)
def sign(mixed: np.ndarray, count: int, a: np.ndarray, b: np.ndarray, out: np.ndarray) -> None:
    """Write the minimum of each permutation over ``mixed[:count]``, hashes after `fmix64`; LLVM vectorises it."""
    for p in range(len(a)):
        multiplier = a[p]
        addend = b[p]
        least = EMPTY
        for i in range(count):
            least = min(least, mixed[i] * multiplier + addend)
        out[p] = least


@njit(nogil=True, cache=True)
def mix(values: np.ndarray, count: int) -> None:
    """Apply `fmix64` in place to the first ``count`` values."""
    for i in range(count):
        values[i] = fmix64(values[i])


@njit(nogil=True, cache=True)
def _sign_all(starts: np.ndarray, ends: np.ndarray, values: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    rows = len(starts)
    out = np.empty((rows, len(a)), np.uint64)
    for row in range(rows):
        mixed = values[starts[row] : ends[row]].copy()
        mix(mixed, len(mixed))
        sign(mixed, len(mixed), a, b, out[row])
    return out
