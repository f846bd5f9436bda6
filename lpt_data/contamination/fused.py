"""Deduplication and decontamination in one read: while a batch of rows is sketched, it is scanned as well.

What comes out is what the two stages one after the other give: rows that deduplication removes are not judged, so they
count in no template and in no hit. Left out are the 50-character strings, which decide nothing and would take half of
the time: `any_50_characters` is null. Where deduplication compares something else than all that a row says, the rows
are read a second time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from lpt_data.config import DecontaminateConfig, DedupConfig
from lpt_data.contamination.index import Index, build_index
from lpt_data.contamination.items import Benchmarks
from lpt_data.contamination.scan import Finds, joined, scan
from lpt_data.contamination.stage import decided, read
from lpt_data.dataset import Dataset, TextBatch
from lpt_data.progress import Progress
from lpt_data.stage import StageResult
from manifests import decisions

Decide = Callable[[Dataset, DedupConfig, Progress], StageResult]


@dataclass(frozen=True)
class FusedConfig:
    """Both stages' settings."""

    dedup: DedupConfig
    decontaminate: DecontaminateConfig


def fused(dedup: Decide, benchmarks: Benchmarks) -> Callable[[Dataset, FusedConfig, Progress], StageResult]:
    """Return the stage function that does both; `dedup` is the stage function of deduplication alone."""

    def decide(dataset: Dataset, config: FusedConfig, progress: Progress) -> StageResult:
        index = build_index(benchmarks, config.decontaminate.stop_items, chars=False)
        scanned = _Scanned(dataset, index, config.dedup.workers)
        try:
            first = dedup(cast(Dataset, scanned), config.dedup, progress)
            found = scanned.found()
        finally:
            scanned.close()
        rows, ids, finds = found or read(dataset, index, config.decontaminate, progress)
        stays = ~np.isin(rows, first.decisions["row"].to_numpy())
        left = rows[stays], ids[stays], finds.of(stays)
        second = decided(dataset, benchmarks, index, config.decontaminate, left, progress)
        every = decisions.concat([first.decisions, second.decisions])
        return StageResult(every, first.record_ids, {**first.extra, "decontamination": second.extra})

    return decide


class _Scanned:
    """A dataset whose first pass over all texts is scanned on the way; everything else is the dataset's own."""

    def __init__(self, dataset: Dataset, index: Index, workers: int | None) -> None:
        self._dataset, self._index = dataset, index
        self._pool = None if workers == 1 else ThreadPoolExecutor(workers)
        self._ahead = 2 * (workers or 4)
        self._rows: list[np.ndarray] = []
        self._ids: list[np.ndarray] = []
        self._finds: list[Finds] = []
        self._waiting: deque[Future[Finds]] = deque()
        self._whole = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dataset, name)

    def texts(self, key: str = "text") -> Iterator[TextBatch]:
        if key != "text" or self._rows:
            yield from self._dataset.texts(key)
            return
        for batch in self._dataset.texts(key):
            self._rows.append(batch.rows)
            self._ids.append(batch.ids)
            if self._pool is None:
                self._finds.append(scan(batch.texts, self._index))
            else:
                self._waiting.append(self._pool.submit(scan, batch.texts, self._index))
                while len(self._waiting) > self._ahead:
                    self._finds.append(self._waiting.popleft().result())
            yield batch
        self._whole = True

    def found(self) -> tuple[np.ndarray, np.ndarray, Finds] | None:
        """Rows, record ids and finds of the pass; None where there was none."""
        if not self._whole:
            return None
        self._finds += [waiting.result() for waiting in self._waiting]
        self._waiting.clear()
        return np.concatenate(self._rows), np.concatenate(self._ids), joined(self._finds)

    def close(self) -> None:
        """Let the threads go."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
