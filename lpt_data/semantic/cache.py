"""Vectors kept by content: one folder for each embedder, one file for each flush, nothing ever rewritten.

    .lpt/embeddings/<digest>-<precision>/about.json     which model, for people
    .lpt/embeddings/<digest>-<precision>/<n>-<hash>.arrow

A file holds ``key`` (the first 16 bytes of the SHA-256 of the text), ``vector`` (float16) and ``truncated``, and says
in its header which embedder made it and what its bytes hash to. A file that is damaged, or that another embedder made,
is left out and a note says so; its texts are embedded again. Files appear whole, so a run that was killed goes on
behind the last one. Two runs may write at once: names are unique and a text that is there twice has equal vectors.

Files are read a block at a time into the room that the vectors have; nothing of them stays mapped.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import orjson
import pyarrow as pa
import xxhash

from lpt_data.semantic.models import SCHEME
from lpt_data.semantic.room import Matrix
from manifests.files import atomic_path, make_folder, write_atomic

KEY = 16  # bytes
_HEADER = b"lpt.embeddings"
_FILES = "[0-9]*.arrow"  # what a kill leaves unfinished starts with a dot
_BLOCK = 4 << 20  # bytes of vectors read at once


def keys_of(texts: Iterable[bytes]) -> np.ndarray:
    """Return the keys of UTF-8 texts, uint8 [n, 16]."""
    digest = hashlib.sha256
    joined = bytearray()
    for text in texts:
        joined += digest(text).digest()[:KEY]
    return np.frombuffer(joined, np.uint8).reshape(-1, KEY)


def as_words(keys: np.ndarray) -> np.ndarray:
    """Return keys as big-endian numbers, uint64 [n, 2], so that their order is that of the bytes."""
    return np.ascontiguousarray(keys).view(">u8").astype(np.uint64).reshape(-1, 2)


@dataclass
class Cache:
    """The vectors of one embedder; `notes` says what was not used and why."""

    folder: Path
    digest: str
    notes: list[str] = field(default_factory=list)

    def known_files(self) -> bool:
        """Whether anything is kept."""
        return any(self.folder.glob(_FILES))

    def lookup(self, keys: np.ndarray, into: Matrix) -> tuple[np.ndarray, np.ndarray]:
        """Put the vectors of distinct keys that are kept; return which are truncated and which known, bool [n] each."""
        known, truncated = np.zeros((2, len(keys)), bool)
        wanted = as_words(keys)
        order = np.lexsort((wanted[:, 1], wanted[:, 0]))
        wanted = wanted[order]
        for path in sorted(self.folder.glob(_FILES)) if len(keys) else ():
            try:
                with _Kept(path) as kept:
                    if kept.told["embedder"] != self.digest or kept.told["scheme"] != SCHEME:
                        self.notes.append(f"{path} holds vectors of another embedder and was left out")
                        continue
                    theirs = as_words(kept.keys)
                    at = np.minimum(np.searchsorted(wanted[:, 0], theirs[:, 0]), len(wanted) - 1)
                    # Keys that share their first half are as good as impossible; then the later ones are not found.
                    place = order[at]
                    hit = np.flatnonzero((wanted[at] == theirs).all(1) & ~known[place])
                    # What a damaged file puts there is not known, so it is embedded and put again.
                    kept.copy(place, hit, into)
            except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, pa.ArrowException):
                self.notes.append(f"{path} is damaged and was left out; delete it")
                continue
            known[place[hit]] = True
            truncated[place[hit]] = kept.truncated[hit]
        return truncated, known

    def append(self, keys: np.ndarray, vectors: np.ndarray, truncated: np.ndarray) -> None:
        """Add the vectors of some texts, whole or not at all."""
        make_folder(self.folder)
        columns = [_fixed(keys, KEY), _fixed(vectors, 2 * vectors.shape[1]), pa.array(truncated)]
        told = {"scheme": SCHEME, "embedder": self.digest, "sha": _digest(columns)}
        schema = pa.schema(
            [pa.field(name, column.type) for name, column in zip(("key", "vector", "truncated"), columns, strict=True)],
            metadata={_HEADER: orjson.dumps(told)},
        )
        number = len(list(self.folder.glob(_FILES)))
        table = pa.Table.from_arrays(columns, schema=schema)
        with (
            atomic_path(self.folder / f"{number:06}-{told['sha'][:12]}.arrow") as path,
            pa.OSFile(str(path), "wb") as sink,
            pa.ipc.new_file(sink, schema) as writer,
        ):
            writer.write_table(table)

    def describe(self, told: dict[str, object]) -> None:
        """Write down, for people, which model the vectors of this folder are from."""
        make_folder(self.folder)
        write_atomic(self.folder / "about.json", orjson.dumps(told, option=orjson.OPT_INDENT_2))


class _Kept:
    """One file, its columns found by where Arrow says they lie and read from there: a mapped page would stay.

    Raises what a damaged file causes.
    """

    def __init__(self, path: Path) -> None:
        with pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as reader:
            self.told = orjson.loads((reader.schema.metadata or {})[_HEADER])
            if reader.num_record_batches != 1:
                raise ValueError("not one batch")
            source.seek(0)
            base = source.read_buffer(1).address
            batch = reader.get_batch(0)
            key, vector, cut = (batch.column(name) for name in ("key", "vector", "truncated"))
            if key.type.byte_width != KEY or any((key.offset, vector.offset, key.null_count, vector.null_count)):
                raise ValueError("other columns")
            self._rows, self.width = len(key), vector.type.byte_width // 2
            self._start = vector.buffers()[1].address - base
            self.truncated = np.array(cut.to_numpy(zero_copy_only=False), bool)
            keys = key.buffers()[1].address - base
        self._file = open(path, "rb", buffering=0)  # noqa: SIM115
        self.keys = self._bytes(keys, self._rows * KEY).reshape(-1, KEY)

    def __enter__(self) -> _Kept:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def copy(self, place: np.ndarray, hit: np.ndarray, into: Matrix) -> None:
        """Put the rows ``hit`` at their places (ascending); ValueError at the end where the file is damaged."""
        if into.shape[1] not in (0, self.width) and len(hit):
            raise ValueError("another width")
        digest = xxhash.xxh3_128(self.keys.data)
        chosen = np.sort(hit)
        count = max(1, _BLOCK // max(2 * self.width, 1))
        for at in range(0, self._rows, count):
            end = min(at + count, self._rows)
            block = self._bytes(self._start + 2 * self.width * at, 2 * self.width * (end - at))
            digest.update(block.data)
            here = chosen[slice(*np.searchsorted(chosen, [at, end]))]
            here = here[np.argsort(place[here], kind="stable")]
            if len(here):
                into.put(place[here], block.view(np.float16).reshape(end - at, self.width)[here - at])
        digest.update(np.packbits(self.truncated).data)
        if digest.hexdigest() != self.told["sha"]:
            raise ValueError("another digest")

    def _bytes(self, start: int, size: int) -> np.ndarray:
        found = np.empty(size, np.uint8)
        if size and os.preadv(self._file.fileno(), [found.data], start) != size:
            raise ValueError("too short")
        return found


def _fixed(rows: np.ndarray, width: int) -> pa.Array:
    buffer = pa.py_buffer(np.ascontiguousarray(rows))
    return pa.Array.from_buffers(pa.binary(width), len(rows), [None, buffer])


def _digest(columns: list[pa.Array]) -> str:
    digest = xxhash.xxh3_128()
    for column in columns[:2]:
        digest.update(column.buffers()[1])
    digest.update(np.packbits(columns[2].to_numpy(zero_copy_only=False)).data)
    return digest.hexdigest()
