"""The vectors of many texts: from the cache where they are known, else by the embedder, each distinct text once.

Texts are taken in the order of their keys, which are hashes of what they say. So what is embedded together, and in
which order vectors are compared, is a function of the set of texts and not of the order of the rows.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lpt_data.progress import Progress, silent
from lpt_data.semantic import embed
from lpt_data.semantic.cache import Cache, as_words, keys_of
from lpt_data.semantic.models import Model
from lpt_data.semantic.room import Matrix, Room, passes

# A cache file holds this many texts or bytes of vectors, or as many as this time brought.
_FLUSH_TEXTS, _FLUSH_BYTES, _FLUSH_SECONDS = 131_072, 16 << 20, 30.0


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

    vectors: Matrix  # float16 [m, d]
    truncated: np.ndarray  # bool [m]
    told: dict[str, Any]


def vectors_of(
    texts: Sequence[bytes],
    distinct: Distinct,
    source: Source,
    progress: Progress = silent,
    room: Room | None = None,
) -> Vectors:
    """Return the vectors of distinct texts; the model is loaded only when some are not in the cache.

    They lie in the spill file of ``room`` where half of what is free does not hold them. Raises BadInputError when the
    model does not fit.
    """
    room = room or Room()
    keys = distinct.keys
    cache = source.cache()
    started = time.perf_counter()
    vectors = Matrix(len(keys), room)
    truncated, known = cache.lookup(keys, vectors)
    unknown = np.flatnonzero(~known)
    if len(unknown):
        if room.left() < embed.footprint(source.model, source.device):
            vectors.evict()
        claim_embedder(room.claim, source)
        _embed(texts, distinct, unknown, source, cache, vectors, truncated, progress)
    told = {
        "embedder": {**source.model.told(), "precision": source.precision, "device": source.device},
        "distinct_texts": len(keys),
        "from_cache": int(known.sum()),
        "embedded": len(unknown),
        "truncated_texts": int(truncated.sum()),
        "without_a_known_token": sum(int((~some.any(axis=1)).sum()) for _, some in passes(vectors)),
        "vector_bytes": vectors.bytes,
        "vectors_spilled": vectors.spilled,
        "embedding_seconds": round(time.perf_counter() - started, 3),
        "cache": str(cache.folder),
        "cache_notes": cache.notes,
    }
    return Vectors(vectors, truncated, told)


def claim_embedder(claim: Callable[[int, str, str], None], source: Source) -> None:
    """Ask for the memory that loading and running the embedder takes."""
    size = embed.footprint(source.model, source.device)
    claim(size, f"the embedder {source.model.name}", "a smaller one: --embedder FOLDER")


def _embed(
    texts: Sequence[bytes],
    distinct: Distinct,
    unknown: np.ndarray,
    source: Source,
    cache: Cache,
    vectors: Matrix,
    truncated: np.ndarray,
    progress: Progress,
) -> None:
    """Embed the unknown texts chunk by chunk, and add them to the cache some chunks at a time."""
    progress(0, len(unknown), "loading the embedder")
    embedder = embed.open_embedder(source.model, source.device)
    cache.describe(embedder.told())
    held: list[tuple[np.ndarray, embed.Encoded]] = []
    done, last = 0, time.monotonic()
    places: deque[np.ndarray] = deque()

    def flush() -> None:
        at = np.concatenate([places for places, _ in held])
        found = np.concatenate([encoded.vectors for _, encoded in held])
        cache.append(distinct.keys[at], found, np.concatenate([encoded.truncated for _, encoded in held]))
        held.clear()

    for encoded in embedder.encode(_chunks(texts, distinct.first, unknown, embedder, places)):
        at = places.popleft()
        vectors.put(at, encoded.vectors)
        truncated[at] = encoded.truncated
        held.append((at, encoded))
        done += len(at)
        progress(done, len(unknown), "texts embedded")
        size = sum(encoded.vectors.nbytes for _, encoded in held)
        full = size >= _FLUSH_BYTES or sum(len(at) for at, _ in held) >= _FLUSH_TEXTS
        if full or time.monotonic() - last > _FLUSH_SECONDS:
            flush()
            last = time.monotonic()
    if held:
        flush()


def _chunks(
    texts: Sequence[bytes],
    first: np.ndarray,
    unknown: np.ndarray,
    embedder: embed.Embedder,
    places: deque[np.ndarray],
) -> Iterator[list[str]]:
    """The unknown texts, as far as they are read, as many at a time as the embedder takes; ``places`` are theirs."""
    said: list[str] = []
    start = size = 0
    for i, at in enumerate(unknown.tolist()):
        text = texts[int(first[at])][: embedder.text_bytes]
        if said and (len(said) >= embedder.chunk or size + len(text) > embedder.chunk_bytes):
            places.append(unknown[start:i])
            yield said
            said, start, size = [], i, 0
        said.append(text.decode("utf-8", "replace"))
        size += len(text)
    if said:
        places.append(unknown[start:])
        yield said
