"""Texts that mean alike: vectors, then pairs, kept on the disk so that another threshold costs neither again.

    .lpt/pairs/<id>.parquet    a, b   places of two texts among the distinct texts, in the order of their keys
                               same   their vectors are equal; of such texts only the first is compared with others
                               score  cosine of the stored vectors, at or above the floor of the file

The id is a hash of the embedder and of all texts, so pairs of other data or of another model are never met. Pairs are
written as they are found and read a group of rows at a time: there may be more than memory holds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from lpt_data.config import SemanticConfig
from lpt_data.progress import Progress
from lpt_data.semantic import neighbours
from lpt_data.semantic.room import Matrix, Picked, Room, Rows, passes
from lpt_data.semantic.vectors import Distinct, Source, distinct_texts, vectors_of
from manifests.errors import RefusedError, UsageError
from manifests.files import atomic_path, make_folder

STEP_DOWN = 0.2  # the floor lies this far under the threshold unless told otherwise
LOWEST = 0.5  # and never lower: beyond it everything resembles everything
_HEADER = b"lpt.pairs"
_REUSED = {"pairs_reused": True, "embedded": 0, "embedding_seconds": 0.0, "vectors_spilled": False}
_SCHEMA = pa.schema([("a", pa.int32()), ("b", pa.int32()), ("same", pa.bool_()), ("score", pa.float64())])


@dataclass(frozen=True)
class Semantics:
    """What a run compares meanings with."""

    source: Source
    catalog: Path
    kept_only: bool = False  # use pairs that are kept, embed nothing and search nothing


class Pairs(NamedTuple):
    """Some pairs of distinct texts."""

    a: np.ndarray  # int32 [k], a < b
    b: np.ndarray  # int32 [k]
    same: np.ndarray  # bool [k]: of one vector
    score: np.ndarray  # float64 [k]

    def chosen(self, some: np.ndarray) -> Pairs:
        """Return some of them, by index or by mask."""
        return Pairs(*(column[some] for column in self))


@dataclass(frozen=True)
class Alike:
    """Pairs of distinct texts at or above the floor: of two vectors, in the order of a and b, then those of one."""

    texts: Distinct
    path: Path
    told: dict[str, Any]

    def parts(self) -> Iterator[Pairs]:
        """All pairs, a group of rows of the file at a time."""
        return _parts(self.path)

    def over(self, threshold: float) -> Pairs:
        """The pairs at or above a threshold and those of one vector, all at once."""
        none = Pairs(*(np.zeros(0, kind) for kind in (np.int32, np.int32, bool, np.float64)))
        parts = [none, *(part.chosen(part.same | (part.score >= threshold)) for part in self.parts())]
        return Pairs(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    def group(self) -> np.ndarray:
        """The first text of each text's vector, int64 [texts]."""
        first = np.arange(len(self.texts.keys))
        for part in self.parts():
            first[part.b[part.same]] = part.a[part.same]
        return first


def check(config: SemanticConfig) -> float:
    """Return the floor; UsageError for values that make no sense."""
    if not 0.0 < config.threshold <= 1.0:
        raise UsageError(
            "a cosine to decide by lies above 0 and not above 1", seen=config.threshold, next="--semantic-threshold 0.9"
        )
    floor = config.floor if config.floor is not None else max(LOWEST, round(config.threshold - STEP_DOWN, 6))
    floor = min(floor, config.threshold) if config.floor is None else floor
    if not 0.0 < floor <= config.threshold:
        raise UsageError(
            "the floor of kept pairs lies above 0 and not above the threshold",
            seen=f"--floor {floor:g}, threshold {config.threshold:g}",
            next=f"--floor {config.threshold / 2:g}",
        )
    if config.exact_limit is not None and config.exact_limit < 0:
        raise UsageError("a number of vectors is not negative", seen=config.exact_limit, next="--exact-limit 200000")
    return floor


def find_alike(
    texts: Sequence[bytes],
    outside: np.ndarray,
    config: SemanticConfig,
    semantics: Semantics,
    progress: Progress,
    room: Room | None = None,
) -> Alike:
    """Find the pairs of texts (UTF-8) that mean alike; those marked in ``outside`` are not compared with each other.

    Pairs that are kept from an earlier run are used where their floor is low enough. Raises RefusedError where only
    kept ones may be used and there are none, BadInputError for what does not fit in ``room``.
    """
    floor = check(config)
    room = room or Room()
    distinct = distinct_texts(texts, outside)
    exact_limit = neighbours.limit(config.exact_limit, semantics.source.device)  # beyond it pairs are approximate
    name = hashlib.sha256(f"lpt-pairs/1 {semantics.source.digest} {exact_limit} {distinct.inside}\0".encode())
    name.update(np.ascontiguousarray(distinct.keys).data)
    path = semantics.catalog / "pairs" / f"{name.hexdigest()[:16]}.parquet"
    kept = _kept(path, config.threshold if semantics.kept_only else floor)
    if isinstance(kept, dict):
        return Alike(distinct, path, {**kept, **_REUSED})
    if semantics.kept_only:
        raise _no_pairs(kept, config.threshold)
    vectors = vectors_of(texts, distinct, semantics.source, progress, room)
    found, told = _search(vectors.vectors, distinct.inside, floor, config, semantics, room, progress)
    told = {**vectors.told, "search": told, "pairs_file": str(path), "floor": floor, "pairs_reused": False}
    _keep(path, found, told)
    return Alike(distinct, path, told)


def _search(
    vectors: Matrix,
    inside: int,
    floor: float,
    config: SemanticConfig,
    semantics: Semantics,
    room: Room,
    progress: Progress,
) -> tuple[Iterator[Pairs], dict[str, Any]]:
    """Compare one text of each distinct vector; a vector of zeros resembles nothing."""
    leads, full = _leads(vectors)
    lead = np.flatnonzero(full & (leads == np.arange(len(leads))))
    follow = np.flatnonzero(full & (leads != np.arange(len(leads))))
    rows: Rows = vectors if len(lead) == len(vectors) else Picked(vectors, lead)
    found = neighbours.all_pairs(
        rows,
        floor,
        queries=int(np.count_nonzero(lead < inside)),
        device=semantics.source.device,
        exact_limit=config.exact_limit,
        room=room,
        tell=lambda done, total: progress(done, total, "vectors compared"),
    )

    def pairs() -> Iterator[Pairs]:
        for part in found.parts():
            a, b = (lead[side].astype(np.int32) for side in (part.a, part.b))
            yield Pairs(a, b, np.zeros(len(a), bool), part.score)
        one = np.ones(len(follow), bool)
        yield Pairs(leads[follow].astype(np.int32), follow.astype(np.int32), one, one.astype(np.float64))

    return pairs(), {**found.how, "distinct_vectors": len(lead)}


def _leads(vectors: Matrix) -> tuple[np.ndarray, np.ndarray]:
    """The first row with the vector of each row, int64 [n], and whether it is no vector of zeros, bool [n]."""
    names = np.zeros((len(vectors), 2), np.uint64)  # hashes of 128 bits
    full = np.zeros(len(vectors), bool)
    digest = xxhash.xxh3_128_digest
    for here, some in passes(vectors):
        full[here] = some.any(axis=1)
        names[here] = np.frombuffer(b"".join(map(digest, some)), np.uint64).reshape(-1, 2)
    order = np.lexsort((names[:, 1], names[:, 0]))
    new = np.ones(len(order), bool)
    new[1:] = (names[order[1:]] != names[order[:-1]]).any(1)
    leads = np.empty(len(order), np.int64)
    leads[order] = order[new][np.cumsum(new) - 1]
    return leads, full


def _keep(path: Path, found: Iterator[Pairs], told: dict[str, Any]) -> None:
    make_folder(path.parent)
    with atomic_path(path) as temporary, pq.ParquetWriter(temporary, _SCHEMA, compression="zstd") as writer:
        for part in found:
            writer.write_table(pa.table(list(part), schema=_SCHEMA))
        writer.add_key_value_metadata({_HEADER: orjson.dumps({**told, "cache_notes": []})})


def _parts(path: Path) -> Iterator[Pairs]:
    with pq.ParquetFile(path) as file:
        for number in range(file.num_row_groups):
            table = file.read_row_group(number)
            yield Pairs(*(table[field.name].to_numpy() for field in _SCHEMA))


def _kept(path: Path, least: float) -> dict[str, Any] | float | None:
    """What was told of the pairs of a file; only its floor where that is above ``least``, None for no usable file."""
    try:
        with pq.ParquetFile(path) as file:
            told: dict[str, Any] = orjson.loads(file.metadata.metadata[_HEADER])
        if told["floor"] > least + 1e-12:
            return float(told["floor"])
        for _ in _parts(path):  # read now: later it would be too late
            pass
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException):
        return None
    return told


def _no_pairs(floor: float | None, threshold: float) -> RefusedError:
    if floor is None:
        return RefusedError(
            "no pairs are kept for these texts and this embedder, so there is nothing to decide anew",
            seen="another input, key, embedder or catalog than before, or --method semantic has not run yet",
            next=f"the same command with --semantic-threshold {threshold:g} instead of --rethreshold",
        )
    return RefusedError(
        "pairs were kept from a higher floor on, so those at the new threshold are not known",
        seen=f"floor {floor:g}, --rethreshold {threshold:g}",
        next=f"--semantic-threshold {threshold:g} instead of --rethreshold: vectors are kept, only the search is new",
    )
