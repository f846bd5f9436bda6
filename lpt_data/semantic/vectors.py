"""The vectors of many texts: from the cache where they are known, else by the embedder, each distinct text once.

Texts are taken in the order of their keys, which are hashes of what they say. So what is embedded together, and in
which order vectors are compared, is a function of the set of texts and not of the order of the rows.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lpt_data.progress import Progress, silent
from lpt_data.semantic import embed
from lpt_data.semantic.cache import Cache, as_words, keys_of
from lpt_data.semantic.models import Model

_FLUSH_TEXTS, _FLUSH_SECONDS = 131_072, 30.0  # a cache file holds this many texts, or as many as this time brought


@dataclass(frozen=True)
class Source:
    """An embedder that is chosen but not loaded yet, and where its vectors are kept."""

    model: Model
    device: str
    precision: str
    folder: Path  # of all caches

    @property
    def digest(self) -> str:
        """Identity of the vectors, as that of the loaded embedder."""
        return f"{self.model.digest}-{self.precision}"

    def cache(self) -> Cache:
        """Return the cache of this embedder."""
        return Cache(self.folder / f"{self.model.digest[:16]}-{self.precision}", self.digest)


def source_of(model: Model, catalog: Path, device: str | None = None) -> Source:
    """Choose device and precision for a model whose vectors are kept under the folder of a catalog."""
    device, precision = embed.place_for(model, device)
    return Source(model, device, precision, catalog / "embeddings")


@dataclass(frozen=True)
class Distinct:
    """Distinct texts: those inside first, each part in the order of its keys."""

    keys: np.ndarray  # uint8 [m, 16]
    first: np.ndarray  # int64 [m], a position that has the text
    of_position: np.ndarray  # int64 [n]
    inside: int  # texts that some position which is not `outside` has


def distinct_texts(texts: Sequence[bytes], outside: np.ndarray | None = None) -> Distinct:
    """Return the distinct ones of UTF-8 texts; ``outside`` (bool [n]) marks the positions of other data."""
    keys = keys_of(texts)
    words = as_words(keys)
    apart = np.zeros(len(keys), bool) if outside is None else outside
    order = np.lexsort((apart, words[:, 1], words[:, 0]))
    new = np.ones(len(order), bool)
    new[1:] = (words[order[1:]] != words[order[:-1]]).any(1)
    first = order[new]
    number = np.argsort(np.argsort(apart[first], kind="stable"), kind="stable")
    of_position = np.empty(len(order), np.int64)
    of_position[order] = number[np.cumsum(new) - 1]
    first = first[np.argsort(number)]
    return Distinct(keys[first], first, of_position, int(np.count_nonzero(~apart[first])))


@dataclass(frozen=True)
class Vectors:
    """The vectors of distinct texts."""

    vectors: np.ndarray  # float16 [m, d]
    truncated: np.ndarray  # bool [m]
    told: dict[str, Any]


def vectors_of(texts: Sequence[bytes], distinct: Distinct, source: Source, progress: Progress = silent) -> Vectors:
    """Return the vectors of distinct texts; the model is loaded only when some are not in the cache."""
    words = as_words(distinct.keys)
    order = np.lexsort((words[:, 1], words[:, 0]))
    keys, first = distinct.keys[order], distinct.first[order]
    cache = source.cache()
    started = time.perf_counter()
    vectors, truncated, known = cache.lookup(keys)
    unknown = np.flatnonzero(~known)
    if len(unknown):
        progress(0, len(unknown), "loading the embedder")
        embedder = embed.open_embedder(source.model, source.device)
        cache.describe(embedder.told())
        for at, encoded in _embedded(texts, first, unknown, embedder, cache, keys, progress):
            if not vectors.shape[1]:
                vectors = np.zeros((len(keys), encoded.vectors.shape[1]), np.float16)
            vectors[at], truncated[at] = encoded.vectors, encoded.truncated
    told = {
        "embedder": {**source.model.told(), "precision": source.precision, "device": source.device},
        "distinct_texts": len(keys),
        "from_cache": int(known.sum()),
        "embedded": len(unknown),
        "truncated_texts": int(truncated.sum()),
        "without_a_known_token": int((~vectors.any(axis=1)).sum()),
        "embedding_seconds": round(time.perf_counter() - started, 3),
        "cache": str(cache.folder),
        "cache_notes": cache.notes,
    }
    back = np.argsort(order)
    return Vectors(vectors[back], truncated[back], told)


def _embedded(
    texts: Sequence[bytes],
    first: np.ndarray,
    unknown: np.ndarray,
    embedder: embed.Embedder,
    cache: Cache,
    keys: np.ndarray,
    progress: Progress,
) -> Iterator[tuple[np.ndarray, embed.Encoded]]:
    """Embed the unknown texts chunk by chunk, and add them to the cache some chunks at a time."""
    chunks = [unknown[at : at + embedder.chunk] for at in range(0, len(unknown), embedder.chunk)]
    said = ([texts[first[i]].decode("utf-8", "replace") for i in chunk] for chunk in chunks)
    held: list[tuple[np.ndarray, embed.Encoded]] = []
    done, last = 0, time.monotonic()

    def flush() -> None:
        at = np.concatenate([places for places, _ in held])
        vectors = np.concatenate([encoded.vectors for _, encoded in held])
        cache.append(keys[at], vectors, np.concatenate([encoded.truncated for _, encoded in held]))
        held.clear()

    for chunk, encoded in zip(chunks, embedder.encode(said), strict=True):
        held.append((chunk, encoded))
        done += len(chunk)
        progress(done, len(unknown), "texts embedded")
        yield chunk, encoded
        if sum(len(places) for places, _ in held) >= _FLUSH_TEXTS or time.monotonic() - last > _FLUSH_SECONDS:
            flush()
            last = time.monotonic()
    if held:
        flush()
