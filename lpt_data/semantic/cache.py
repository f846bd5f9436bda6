"""Vectors kept by content: one folder for each embedder, one file for each flush, nothing ever rewritten.

    .lpt/embeddings/<digest>-<precision>/about.json     which model, for people
    .lpt/embeddings/<digest>-<precision>/<n>-<hash>.arrow

A file holds ``key`` (the first 16 bytes of the SHA-256 of the text), ``vector`` (float16) and ``truncated``, and says
in its header which embedder made it and what its bytes hash to. A file that is damaged, or that another embedder made,
is left out and a note says so; its texts are embedded again. Files appear whole, so a run that was killed goes on
behind the last one. Two runs may write at once: names are unique and a text that is there twice has equal vectors.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import orjson
import pyarrow as pa
import xxhash

from lpt_data.semantic.models import SCHEME
from manifests.files import atomic_path, make_folder, write_atomic

KEY = 16  # bytes
_HEADER = b"lpt.embeddings"
_FILES = "[0-9]*.arrow"  # what a kill leaves unfinished starts with a dot


def keys_of(texts: Iterable[bytes]) -> np.ndarray:
    """Return the keys of UTF-8 texts, uint8 [n, 16]."""
    digest = hashlib.sha256
    return np.frombuffer(b"".join(digest(text).digest()[:KEY] for text in texts), np.uint8).reshape(-1, KEY)


def as_words(keys: np.ndarray) -> np.ndarray:
    """Return keys as big-endian numbers, uint64 [n, 2], so that their order is that of the bytes."""
    return np.ascontiguousarray(keys).view(">u8").astype(np.uint64).reshape(-1, 2)


@dataclass
class Cache:
    """The vectors of one embedder; `notes` says what was not used and why."""

    folder: Path
    digest: str
    notes: list[str] = field(default_factory=list)

    def lookup(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return (vectors float16 [n, d], truncated bool [n], known bool [n]) for sorted distinct keys.

        Rows that are not known are zeros; d is 0 when nothing is.
        """
        known, truncated = np.zeros((2, len(keys)), bool)
        vectors = np.zeros((len(keys), 0), np.float16)
        wanted = as_words(keys)
        for path in sorted(self.folder.glob(_FILES)):
            table = self._read(path)
            if table is None:
                continue
            theirs = as_words(_bytes(table["key"], KEY, np.uint8))
            place = np.minimum(np.searchsorted(wanted[:, 0], theirs[:, 0]), max(len(wanted) - 1, 0))
            # Keys that share their first half are as good as impossible; then the later ones are not found here.
            hit = np.flatnonzero((wanted[place] == theirs).all(1)) if len(wanted) else np.zeros(0, np.int64)
            if not len(hit):
                continue
            found = _bytes(table["vector"], table["vector"].type.byte_width, np.float16)
            if not vectors.shape[1]:
                vectors = np.zeros((len(keys), found.shape[1]), np.float16)
            vectors[place[hit]] = found[hit]
            truncated[place[hit]] = table["truncated"].to_numpy()[hit]
            known[place[hit]] = True
        return vectors, truncated, known

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

    def _read(self, path: Path) -> pa.Table | None:
        """The table of one file, None with a note where it cannot be used."""
        try:
            with pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as reader:
                told = orjson.loads((reader.schema.metadata or {})[_HEADER])
                table = reader.read_all().combine_chunks()
            columns = [table[name].chunk(0) for name in ("key", "vector", "truncated")]
            if told["embedder"] != self.digest or told["scheme"] != SCHEME:
                self.notes.append(f"{path} holds vectors of another embedder and was left out")
                return None
            if _digest(columns) != told["sha"]:
                raise ValueError
        except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, pa.ArrowException):
            self.notes.append(f"{path} is damaged and was left out; delete it")
            return None
        return pa.table(dict(zip(("key", "vector", "truncated"), columns, strict=True)))


def _fixed(rows: np.ndarray, width: int) -> pa.Array:
    buffer = pa.py_buffer(np.ascontiguousarray(rows))
    return pa.Array.from_buffers(pa.binary(width), len(rows), [None, buffer])


def _bytes(column: pa.ChunkedArray, width: int, kind: type) -> np.ndarray:
    array = column.chunk(0) if isinstance(column, pa.ChunkedArray) else column
    size = np.dtype(kind).itemsize
    flat: np.ndarray = np.frombuffer(array.buffers()[1], kind, count=(len(array) + array.offset) * width // size)
    return flat.reshape(-1, width // size)[array.offset :]


def _digest(columns: list[pa.Array]) -> str:
    digest = xxhash.xxh3_128()
    for column in columns[:2]:
        digest.update(_bytes(column, column.type.byte_width, np.uint8).data)
    digest.update(np.packbits(columns[2].to_numpy(zero_copy_only=False)).data)
    return digest.hexdigest()
