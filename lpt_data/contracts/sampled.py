"""Pass rates of a sample of the rows: which rows a model is asked about, and what came of it.

The model itself belongs to the caller. Rows are chosen by a seeded hash of their record ids, so that the sample is the
same however the rows are ordered; equal rows are asked once.
"""

from __future__ import annotations

import hashlib
import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from lpt_data.contracts.common import Record
from lpt_data.contracts.survey import Contract
from lpt_data.dataset import Dataset
from lpt_data.option_values import MOST_SEED
from manifests.canon import id_of
from manifests.errors import BadInputError, UsageError
from manifests.intervals import wilson


class Sampler(Protocol):
    """A model that attempts problems, and its verifiers."""

    @property
    def rows(self) -> int:
        """How many rows are asked about at most."""
        ...

    @property
    def seed(self) -> int:
        """Of the choice of rows."""
        ...

    def __call__(self, records: Sequence[Record]) -> tuple[list[float | None], dict[str, Any]]:
        """The share of right attempts at each record (None where none could be scored), and what to say of it."""
        ...


@dataclass(frozen=True)
class Sampled:
    """What the attempts at some rows were worth."""

    rates: Mapping[bytes, float]  # by record id
    told: Mapping[str, Any]  # model, digest, attempts, temperature; rows asked, of how many; mean with its interval

    def rate(self, name: bytes, key: bytes, record: Record) -> float:
        """The pass rate of a row, NaN for one outside the sample: what its columns say is of another model."""
        return self.rates.get(name, math.nan)

    def said(self, share: float) -> str:
        """How a share of the rated rows came to be; its interval counts rows that are there twice once."""
        told = self.told
        low, high = wilson(share * told["rated"], told["rated"])
        stopped = f", stopped after {told['stopped_after']:g} s" if told.get("stopped_after") else ""
        return (
            f"sampled: {told['rated']} of {told['of']} rows ({told['rows']} asked{stopped}), "
            f"{told['attempts']} attempts each at temperature {told['temperature']:g} by {told['model']} "
            f"({told['model_digest'][:12]}); 95 % interval of this share {low:.2f} to {high:.2f}, "
            f"of the mean {told['low']:.2f} to {told['high']:.2f}"
        )


def sample_rates(datasets: Mapping[str, Dataset], contract: Contract, sampler: Sampler) -> Sampled:
    """Let the sampler attempt some rows of the splits.

    Raises UsageError for a contract whose rows have no answer to verify, BadInputError where there is no row.
    """
    if contract.rate is None:
        raise UsageError(
            "pass rates are of problems with an answer to verify",
            seen=f"--contract {contract.name} with a model",
            next="--contract rlvr, or leave --model out",
        )
    if not 0 <= sampler.seed <= MOST_SEED:
        raise UsageError("a seed is out of range", seen=sampler.seed, next=f"one of 0 to {MOST_SEED}")
    chosen, of = _chosen(datasets, contract.kind, sampler.rows, sampler.seed)
    if not chosen:
        raise BadInputError("no row can be attempted", seen=", ".join(datasets), next="look at what was quarantined")
    rates, told = sampler([record for _, record in chosen])
    rated = {name: rate for (name, _), rate in zip(chosen, rates, strict=True) if rate is not None}
    asked = {"sample_rows": sampler.rows, "sample_seed": sampler.seed}
    return Sampled(rated, {**told, **asked, "rows": len(chosen), "rated": len(rated), "of": of})


def _chosen(datasets: Mapping[str, Dataset], kind: str, most: int, seed: int) -> tuple[list[tuple[bytes, Record]], int]:
    """The rows with the smallest hashes, each (record id, record), and of how many different ones."""
    seen: set[bytes] = set()
    kept: list[tuple[int, bytes, Record]] = []  # a heap, the largest hash on top
    for dataset in datasets.values():
        for batch in dataset.record_batches():
            for record, data in zip(batch.records, batch.data, strict=True):
                name = id_of(kind, data)
                if name in seen:
                    continue
                seen.add(name)
                place = -int.from_bytes(hashlib.sha256(seed.to_bytes(8, "big") + name).digest())
                if len(kept) < most:
                    heapq.heappush(kept, (place, name, record))
                elif place > kept[0][0]:
                    heapq.heapreplace(kept, (place, name, record))
    return [(name, record) for _, name, record in sorted(kept, key=lambda one: -one[0])], len(seen)
