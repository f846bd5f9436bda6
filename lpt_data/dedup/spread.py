"""Deduplication over a cluster: the same kernels on its workers, the shuffle by band key in its memory.

    driver   reads rows, keeps texts (in memory or in its spill file) and the numbers of every row
    workers  sketch parts of the texts; band keys, one array a band, and bitmaps stay in the cluster
    driver   finds rows that are equal
    workers  each takes one band (or, by key bits, a part of it) of all parts, and says which rows may be duplicates
    driver   joins them to components and deals those into batches
    workers  each decides one batch out of its texts; a component too large for one is decided by the driver

Every number is that of one machine: partitions only propose, components are independent of each other, and the cover
follows the declared order.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from lpt_data.dedup.compare import ROW, Batch, Outcome, Standing, cover_batch, cover_chain, gathered
from lpt_data.dedup.graph import Batches, Graph, deal, unite
from lpt_data.dedup.lsh import BITMAP, Bands, Sketch, links, sketch
from lpt_data.dedup.minhash import Scheme
from lpt_data.dedup.rows import Rows
from lpt_data.dedup.shingles import ShingleSets, fill
from lpt_data.dedup.store import Text
from lpt_data.engines.ray import Cluster, fetch
from lpt_data.progress import Progress
from lpt_data.spill import Queues, Spill

PART = 8 << 20  # bytes of text in one task of sketching
BATCH = 32 << 20  # bytes of one batch of components at most
KEYS = 1 << 22  # rows of one task of linking at most, on average


@dataclass(frozen=True)
class Part:
    """Rows that were sketched together; the arrays of their signatures are references into the cluster."""

    first: int  # position of the first row
    rows: int
    text: Any  # what the signatures are made of again when the node that holds them is lost
    bitmaps: Any  # uint64 [rows, BITMAP]
    keys: list[Any]  # of each band: uint64 [rows]


class Spread:
    """One deduplication over a cluster."""

    def __init__(self, cluster: Cluster, scheme: Scheme, bands: Bands | None, progress: Progress) -> None:
        self.cluster = cluster
        self._scheme = scheme
        self._bands = bands
        self._progress = progress
        self._parts: list[Part] = []

    def sketches(self, texts: Iterable[Text], left_out: np.ndarray, *, sign: bool) -> Iterator[Sketch]:
        """The counts and hashes of the rows of texts, in order; with ``sign`` their signatures stay in the cluster."""
        bands = self._bands if sign else None
        width = bands.bands if bands else 0
        self._parts = []
        waiting: deque[tuple[Any, list[Any]]] = deque()
        for text in _joined(texts):
            held = self.cluster.put(text)
            more = self.cluster.submit(sketch_part, held, self._scheme, bands, left_out, returns=2 + width)
            waiting.append((held, more))
            if len(waiting) >= self.cluster.ahead:
                yield self._taken(*waiting.popleft())
        while waiting:
            yield self._taken(*waiting.popleft())

    def _taken(self, held: Any, more: list[Any]) -> Sketch:
        found: Sketch = self.cluster.get(more[0])
        if len(more) > 2:
            first = self._parts[-1].first + self._parts[-1].rows if self._parts else 0
            self._parts.append(Part(first, len(found.tokens), held, more[1], more[2:]))
        return found

    def components(self, rows: Rows, leads: np.ndarray, threshold: float) -> Graph:
        """Join the rows at ``leads`` (ascending positions), a task for each band, or a part of one by key."""
        assert self._bands is not None
        put = self.cluster.put
        width, count = self._bands.bands, len(leads)
        wanted = max(count / KEYS, 2 * self.cluster.cpus / width, 1)
        parts = 1 << math.ceil(math.log2(wanted))
        told = put((leads, rows.shingles[leads], rows.salt))
        firsts = [part.first for part in self._parts]
        bitmaps = [part.bitmaps for part in self._parts]
        tasks = (
            ([part.keys[band] for part in self._parts], bitmaps, firsts, told, number, parts, threshold)
            for band, number in product(range(width), range(parts))
        )
        parent, shares = np.arange(count, dtype=np.int32), np.zeros(count, bool)
        largest = huge = 0
        found = self.cluster.map(link_part, tasks)
        for done, (ours, theirs, meets, most, many) in enumerate(found, 1):
            unite(parent, ours, theirs)
            shares[meets] = True
            largest, huge = max(largest, most), huge + many
            self._progress(done, width * parts, "partitions of bands joined")
        unite(parent, np.arange(count), parent)
        return Graph(parent, shares, largest, huge)

    def outcomes(
        self, rows: Rows, standing: Standing, root: np.ndarray, threshold: float, spill: Spill, room: int
    ) -> tuple[int, Iterator[Outcome]]:
        """The number of batches that components (``root``, int [m]) are dealt into, and what is found about each."""
        assert self._bands is not None
        positions = standing.positions
        weights = 8 * rows.shingles[positions].astype(np.int64) + 12 * self._bands.bands + 8 * BITMAP + ROW
        batches = deal(root, standing.place, weights, min(BATCH, max(room // 2, 1)))
        load = _text_loader(rows, positions, batches, spill, room // 8)
        signs = (self._scheme, self._bands, rows.left_out)

        def part(number: int) -> tuple[Any, ...]:
            mine, text = load(number)
            names = positions[mine]
            group = np.zeros(len(names), np.int64) if rows.group is None else rows.group[names]
            salt = None if rows.salt is None else rows.salt[names]
            return text, names, standing.place[mine], standing.ranks[mine], group, salt, *signs

        def of_each() -> Iterator[Outcome]:
            alone = [chain[0] for chain in batches.chains if len(chain) == 1]
            tasks = ((*part(number), threshold, rows.references) for number in alone)
            for done, outcome in enumerate(self.cluster.map(cover_part, tasks), 1):
                self._progress(done, batches.count, "batches compared")
                yield outcome
            for chain in batches.chains:
                if len(chain) > 1:
                    yield from cover_chain(
                        chain, lambda number: batch_of(*part(number)), threshold, rows.references, room
                    )

        return batches.count, of_each()


# -- on the workers


def sketch_part(text: Text, scheme: Scheme, bands: Bands | None, left_out: np.ndarray) -> tuple[Any, ...]:
    """(what the driver needs of each row, the bitmaps, the keys of each band)."""
    made = sketch(*text, scheme, bands, left_out)
    none = np.zeros((len(made.tokens), 0), np.uint64)
    numbers = Sketch(made.sequence, made.tokens, made.shingles, made.chars, none, none)
    return numbers, made.bitmaps, *(np.ascontiguousarray(made.keys[:, band]) for band in range(made.keys.shape[1]))


def link_part(
    keys_of: list[Any],
    bitmaps_of: list[Any],
    firsts: list[int],
    told: tuple[np.ndarray, np.ndarray, np.ndarray | None],
    number: int,
    parts: int,
    threshold: float,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, int, int]:
    """Which rows of one partition of a band may be duplicates: pairs, rows that share a key, largest bucket, huge ones.

    One part of the rows after the other is fetched, the bitmaps of rows that share a key alone are kept.
    """
    leads, shingles, salt = told
    held, who = [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)]
    for first, reference in zip(firsts, keys_of, strict=True):
        keys = fetch(reference)
        a, b = np.searchsorted(leads, [first, first + len(keys)])
        mine = keys[leads[a:b] - first]
        if salt is not None:
            mine = mine ^ salt[leads[a:b]]
        chosen = np.flatnonzero((mine & np.uint64(parts - 1)) == number)
        held.append(mine[chosen])
        who.append(chosen + a)
    keys, index = np.concatenate(held), np.concatenate(who)
    order = np.argsort(keys, kind="stable")
    same = keys[order[1:]] == keys[order[:-1]]
    meets = np.sort(order[np.append(same, False) | np.append(False, same)]) if len(order) else order
    keys, index, single = keys[meets], index[meets], int(len(order) > 0)
    bitmaps = np.empty((len(index), BITMAP), np.uint64)
    cuts = np.searchsorted(leads[index], [*firsts, np.iinfo(np.int64).max])
    for place, reference in enumerate(bitmaps_of):
        here = slice(cuts[place], cuts[place + 1])
        if here.start < here.stop:
            bitmaps[here] = fetch(reference)[leads[index[here]] - firsts[place]]
    found = links(keys, np.arange(len(index)), bitmaps, shingles[index], threshold)
    moved = np.flatnonzero(found.joined != np.arange(len(index)))
    return index[moved], index[found.joined[moved]], index[found.shares], max(found.largest, single), found.huge


def batch_of(
    text: Text,
    names: np.ndarray,
    place: np.ndarray,
    ranks: np.ndarray,
    group: np.ndarray,
    salt: np.ndarray | None,
    scheme: Scheme,
    bands: Bands,
    left_out: np.ndarray,
) -> Batch:
    """Rows to be decided together, out of their texts."""
    made = sketch(*text, scheme, bands, left_out)
    values = np.empty(int(made.shingles.sum(dtype=np.int64)), np.uint64)
    starts, ends = fill(*text, np.arange(len(names)), scheme.ngram, values, left_out)
    keys = made.keys if salt is None else made.keys ^ salt[:, None]
    return Batch(names, place, ranks, group, keys, made.bitmaps, ShingleSets(starts, ends, values))


def cover_part(*told: Any) -> Outcome:
    """`compare.cover_batch` for the arguments of `batch_of`, a threshold and the number of rows of a reference."""
    *rows, threshold, references = told
    return cover_batch(batch_of(*rows), threshold, references)


# -- texts


def _joined(texts: Iterable[Text]) -> Iterator[Text]:
    """Texts put together to PART bytes or more."""
    held: list[Text] = []
    for text in texts:
        held.append(text)
        if sum(len(data) for _, data in held) >= PART:
            yield _one(held)
            held = []
    if held:
        yield _one(held)


def _one(texts: list[Text]) -> Text:
    sizes = np.concatenate([np.diff(offsets) for offsets, _ in texts])
    return np.concatenate([[0], np.cumsum(sizes)]), np.concatenate([data for _, data in texts])


def _text_loader(
    rows: Rows, positions: np.ndarray, batches: Batches, spill: Spill, room: int
) -> Callable[[int], tuple[np.ndarray, Text]]:
    """A function that gives the rows of batch ``i`` (indices into ``positions``) and their texts, read in one pass."""
    of_row = batches.of_row
    members = np.argsort(of_row, kind="stable")
    cuts = np.searchsorted(of_row[members], np.arange(batches.count + 1))
    queues = Queues(batches.count, np.uint8, spill, room)
    sizes = np.empty(len(positions), np.int64)
    edges = np.searchsorted(positions, rows.texts.firsts)
    for number in np.flatnonzero(np.diff(edges)).tolist():
        here = np.arange(edges[number], edges[number + 1])
        offsets, data = rows.texts.load(number)
        at = positions[here] - rows.texts.firsts[number]
        sizes[here] = offsets[at + 1] - offsets[at]
        for batch in np.unique(of_row[here]).tolist():
            chosen = at[of_row[here] == batch]
            queues.add(batch, gathered(data, offsets[chosen], offsets[chosen + 1]))

    def load(number: int) -> tuple[np.ndarray, Text]:
        mine = members[cuts[number] : cuts[number + 1]]
        return mine, (np.concatenate([[0], np.cumsum(sizes[mine])]), queues.read(number))

    return load
