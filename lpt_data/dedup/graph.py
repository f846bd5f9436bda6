"""Which rows may be near duplicates of one another: the components of the pairs that share a band, and their batches.

Two rows of different components are never duplicates, so components can be decided in any grouping, on any machine: the
outcome is that of all rows at once. Pairs that share a band and whose bitmaps rule the threshold out join nothing, or
else the chance matches of a large corpus would make one component of most of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np
from numba import njit

from lpt_data.dedup.lsh import BITMAP, find_root, join, links, repeated
from lpt_data.dedup.rows import Rows, Run

_A_ROW = 64  # bytes of a row while its partition is linked: key, tables of the kernel, result


@dataclass(frozen=True)
class Graph:
    """The components of some rows, by index into them."""

    root: np.ndarray  # int32 [k]: the smallest index of the component
    shares: np.ndarray  # bool [k]: the row shares a band with another one
    largest_bucket: int
    huge_buckets: int


@dataclass(frozen=True)
class Batches:
    """How the rows of several components are dealt out; a component is whole in one batch, or a chain of batches."""

    of_row: np.ndarray  # int32 [m]
    chains: tuple[range, ...]  # numbers of the batches that belong together, one for most

    @property
    def count(self) -> int:
        """The number of batches."""
        return self.chains[-1].stop if self.chains else 0

    def members(self) -> list[np.ndarray]:
        """The rows of each batch, ascending: int64."""
        order = np.argsort(self.of_row, kind="stable")
        return np.split(order, np.searchsorted(self.of_row[order], np.arange(1, self.count)))


def components(rows: Rows, leads: np.ndarray, threshold: float, room: int, workers: int, run: Run) -> Graph:
    """Join the rows at ``leads`` (ascending positions), one partition of one band at a time in ``room`` bytes."""
    count = len(leads)
    every = rows.bitmaps.take(leads) if 8 * BITMAP * count <= room // 2 else None
    a_row = _A_ROW + (8 * BITMAP if every is None else 0)
    parts = 1
    while parts < 1 << 16 and workers * a_row * count / parts > room // 2:
        parts *= 2
    shingles = rows.shingles[leads]

    def of_part(task: tuple[int, int]) -> tuple[np.ndarray, np.ndarray, np.ndarray, int, int]:
        keys, who = partition(rows.band(task[0]), leads, task[1], parts)
        if every is not None:
            found = links(keys, who, every, shingles, threshold)
        else:  # the bitmaps of rows that share a key here, and of no others
            meet = repeated(keys)
            keys, who = keys[meet], who[meet]
            marks = rows.bitmaps.take(leads[who])
            found = links(keys, np.arange(len(who)), marks, shingles[who], threshold)
        moved = np.flatnonzero(found.joined != np.arange(len(who)))
        return who[moved], who[found.joined[moved]], who[found.shares], found.largest, found.huge

    parent = np.arange(count, dtype=np.int32)
    shares = np.zeros(count, bool)
    largest = huge = 0
    for ours, theirs, meets, most, many in run(of_part, product(range(rows.keys.width), range(parts))):
        unite(parent, ours, theirs)
        shares[meets] = True
        largest, huge = max(largest, most), huge + many
    unite(parent, np.arange(count), parent)
    return Graph(parent, shares, largest, huge)


def partition(
    keys: Iterator[tuple[int, np.ndarray]], leads: np.ndarray, part: int, parts: int
) -> tuple[np.ndarray, np.ndarray]:
    """The keys of one band, uint64, whose last bits name this part, and the index of each among ``leads``."""
    found, who = [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)]
    for first, block in keys:
        a, b = np.searchsorted(leads, [first, first + len(block)])
        mine = block[leads[a:b] - first]
        index = np.arange(a, b)
        if parts > 1:
            chosen = (mine & np.uint64(parts - 1)) == part
            mine, index = mine[chosen], index[chosen]
        found.append(mine)
        who.append(index)
    return np.concatenate(found), np.concatenate(who)


@njit(nogil=True, cache=True)
def unite(parent: np.ndarray, ours: np.ndarray, theirs: np.ndarray) -> None:
    """Join pairs in a union-find forest, int32 [k]; afterwards each of them points to its root."""
    for i in range(len(ours)):
        join(parent, ours[i], theirs[i])
    for i in range(len(ours)):
        parent[ours[i]] = find_root(parent, ours[i])


def deal(root: np.ndarray, place: np.ndarray, weights: np.ndarray, capacity: int, usual: int | None = None) -> Batches:
    """Deal components (``root``, int [m]) into batches of at most ``capacity`` bytes (``weights``, int64 [m]), and of
    about ``usual`` (None: half of that) where no component alone has more.

    A component of more than half of that becomes a chain of batches of a quarter each, in the declared order
    (``place``, int64 [m]), so that two of them and their joint arrays fit.
    """
    _, component = np.unique(root, return_inverse=True)
    sizes = np.bincount(component, weights=weights)
    large = sizes > capacity // 2
    before = np.cumsum(np.where(large, 0, sizes)) - np.where(large, 0, sizes)
    number = (before // max(min(usual or capacity, capacity // 2), 1)).astype(np.int64)
    _, number = np.unique(np.where(large, -1, number), return_inverse=True)
    number -= large.any()  # the large ones have no number yet
    of_row = number[component].astype(np.int32)
    chains = [range(i, i + 1) for i in range(int(number.max(initial=-1)) + 1)]
    order = np.lexsort((place, component))
    order = order[large[component[order]]]
    for one in np.split(order, np.flatnonzero(np.diff(component[order])) + 1) if len(order) else ():
        first = chains[-1].stop if chains else 0
        links_of = (np.cumsum(weights[one]) - weights[one]) // max(capacity // 4, 1)
        _, link = np.unique(links_of, return_inverse=True)
        of_row[one] = first + link
        chains.append(range(first, first + int(link[-1]) + 1))
    return Batches(of_row, tuple(chains))
