"""Texts that mean alike: vectors, then pairs, kept on the disk so that another threshold costs neither again.

    .lpt/pairs/<id>.parquet    a, b   places of two texts among the distinct texts, in the order of their keys
                               same   their vectors are equal; of such texts only the first is compared with others
                               score  cosine of the stored vectors, at or above the floor of the file

The id is a hash of the embedder and of all texts, so pairs of other data or of another model are never met.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from lpt_data.config import SemanticConfig
from lpt_data.progress import Progress
from lpt_data.semantic import neighbours
from lpt_data.semantic.vectors import Distinct, Source, distinct_texts, vectors_of
from manifests.errors import RefusedError, UsageError
from manifests.files import atomic_path, make_folder

STEP_DOWN = 0.2  # the floor lies this far under the threshold unless told otherwise
LOWEST = 0.5  # and never lower: beyond it everything resembles everything
_HEADER = b"lpt.pairs"
_SCHEMA = pa.schema([("a", pa.int32()), ("b", pa.int32()), ("same", pa.bool_()), ("score", pa.float64())])


@dataclass(frozen=True)
class Semantics:
    """What a run compares meanings with."""

    source: Source
    catalog: Path
    kept_only: bool = False  # use pairs that are kept, embed nothing and search nothing


@dataclass(frozen=True)
class Alike:
    """Pairs of distinct texts at or above the floor."""

    texts: Distinct
    a: np.ndarray  # int32 [k], a < b
    b: np.ndarray  # int32 [k]
    same: np.ndarray  # bool [k]: of one vector
    score: np.ndarray  # float64 [k]
    told: dict[str, Any]

    def group(self) -> np.ndarray:
        """The first text of each text's vector, int64 [texts]."""
        first = np.arange(len(self.texts.keys))
        first[self.b[self.same]] = self.a[self.same]
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
    texts: Sequence[bytes], outside: np.ndarray, config: SemanticConfig, semantics: Semantics, progress: Progress
) -> Alike:
    """Find the pairs of texts (UTF-8) that mean alike; those marked in ``outside`` are not compared with each other.

    Pairs that are kept from an earlier run are used where their floor is low enough. Raises RefusedError where only
    kept ones may be used and there are none.
    """
    floor = check(config)
    distinct = distinct_texts(texts, outside)
    exact_limit = neighbours.limit(config.exact_limit, semantics.source.device)  # beyond it pairs are approximate
    name = hashlib.sha256(f"lpt-pairs/1 {semantics.source.digest} {exact_limit} {distinct.inside}\0".encode())
    name.update(np.ascontiguousarray(distinct.keys).data)
    path = semantics.catalog / "pairs" / f"{name.hexdigest()[:16]}.parquet"
    kept = _load(path, config.threshold if semantics.kept_only else floor)
    if isinstance(kept, Alike):
        again = {"pairs_reused": True, "embedded": 0, "embedding_seconds": 0.0}
        return Alike(distinct, kept.a, kept.b, kept.same, kept.score, {**kept.told, **again})
    if semantics.kept_only:
        raise _no_pairs(kept, config.threshold)
    vectors = vectors_of(texts, distinct, semantics.source, progress)
    a, b, same, score, how = _search(vectors.vectors, distinct.inside, floor, config, semantics, progress)
    told = {**vectors.told, "search": how, "pairs_file": str(path), "floor": floor, "pairs_reused": False}
    found = Alike(distinct, a, b, same, score, told)
    _save(path, found)
    return found


def _search(
    vectors: np.ndarray, inside: int, floor: float, config: SemanticConfig, semantics: Semantics, progress: Progress
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
    """Compare one text of each distinct vector; a vector of zeros resembles nothing."""
    if not vectors.shape[1]:  # no texts
        vectors = np.zeros((0, 1), np.float16)
    rows = np.ascontiguousarray(vectors).view(np.dtype((np.void, 2 * vectors.shape[1]))).ravel()
    _, first, of_text = np.unique(rows, return_index=True, return_inverse=True)
    leads = first[of_text]
    full = vectors.any(axis=1)
    lead = np.flatnonzero(full & (leads == np.arange(len(leads))))
    follow = np.flatnonzero(full & (leads != np.arange(len(leads))))
    found = neighbours.all_pairs(
        vectors[lead],
        floor,
        queries=int(np.count_nonzero(lead < inside)),
        device=semantics.source.device,
        exact_limit=config.exact_limit,
        tell=lambda done, total: progress(done, total, "vectors compared"),
    )
    a = np.concatenate([lead[found.a], leads[follow]]).astype(np.int32)
    b = np.concatenate([lead[found.b], follow]).astype(np.int32)
    same = np.arange(len(a)) >= len(found.a)
    score = np.concatenate([found.score, np.ones(len(follow))])
    return a, b, same, score, {**found.how, "distinct_vectors": len(lead)}


def _save(path: Path, found: Alike) -> None:
    make_folder(path.parent)
    header = {_HEADER: orjson.dumps({**found.told, "cache_notes": []})}
    table = pa.table([found.a, found.b, found.same, found.score], schema=_SCHEMA.with_metadata(header))
    with atomic_path(path) as temporary:
        pq.write_table(table, temporary, compression="zstd")


def _load(path: Path, least: float) -> Alike | float | None:
    """The pairs of a file; only its floor where that lies above ``least``, None without a file that can be read."""
    try:
        with pq.ParquetFile(path) as file:
            told = orjson.loads(file.schema_arrow.metadata[_HEADER])
            if told["floor"] > least + 1e-12:
                return float(told["floor"])
            table = file.read()
        a, b, same, score = (table[field.name].to_numpy() for field in _SCHEMA)
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException):
        return None
    texts = Distinct(np.zeros((0, 0), np.uint8), np.zeros(0, np.int64), np.zeros(0, np.int64), 0)
    return Alike(texts, a, b, same, score, told)


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
