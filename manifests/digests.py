"""The digests of a split: bytes of a file, content, order, keys, tokens.

`content_root` answers "are these the same rows?" for any order, sharding, format or compression, and two machines
find the rows that differ from 4,096 bucket hashes. N is the number of rows; an id is 32 bytes, so `ids` is uint8
[N, 32].

    bucket b      = the ids whose first 12 bits are b, sorted, repeated as often as they occur
    leaf(b)       = sha256(0x00 "lpt-root/1" 0x00 domain 0x00 ids of b)
    root          = sha256(0x01 "lpt-root/1" 0x00 domain 0x00 N:u64be node(b)…)   b ascending, empty ones left out
    node(b)       = b:u16be count:u64be leaf(b)

The leading byte keeps a leaf from being taken for a root (RFC 6962, section 2.1), the counts make it a multiset,
and the domain keeps the root of keys from being taken for a root of records.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from manifests.canon import canonical_json
from manifests.errors import BadInputError

BUCKETS = 4096
_VERSION = b"lpt-root/1\0"


@dataclass(frozen=True)
class ContentRoot:
    """The root of a multiset of ids, its size, and the (sha256, count) of each bucket that is not empty."""

    root: str
    count: int
    buckets: dict[int, tuple[str, int]]

    def to_json(self) -> dict[str, Any]:
        """Return the form kept in `buckets.json`: bucket numbers as three hex digits."""
        return {
            "root": self.root,
            "count": self.count,
            "buckets": {f"{bucket:03x}": [digest, count] for bucket, (digest, count) in sorted(self.buckets.items())},
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> ContentRoot:
        """Read what `to_json` wrote; raise BadInputError when it has another shape."""
        try:
            buckets = {int(name, 16): (str(digest), int(n)) for name, (digest, n) in body["buckets"].items()}
            for bucket, (digest, n) in buckets.items():
                if not (0 <= bucket < BUCKETS and 0 < n < 2**48 and len(bytes.fromhex(digest)) == 32):
                    raise ValueError(f"bucket {bucket:03x}")
            return cls(str(body["root"]), int(body["count"]), buckets)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise BadInputError(
                "the bucket hashes of a split cannot be read",
                seen=repr(error),
                next="copy the admitted folder again from where it was made",
            ) from error

    def recomputed(self) -> str:
        """Return the root of records that the bucket hashes add up to: equal to `root` unless they were tampered
        with."""
        return _top(b"content\0", self.buckets)


def bytes_sha256(path: Path | str) -> str:
    """Return the sha256 of the bytes of a file, as `sha256sum` prints it."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise BadInputError("a file cannot be read", seen=f"{path}: {error.strerror}", next="check the path") from error


def content_root(ids: np.ndarray) -> ContentRoot:
    """Return the order-free root of record ids (uint8 [N, 32])."""
    return _root(ids, b"content\0")


def key_root(keys: np.ndarray) -> ContentRoot:
    """Return the order-free root of canonical key hashes (uint8 [N, 32])."""
    return _root(keys, b"key\0")


def order_sha256(ids: np.ndarray) -> str:
    """Return the sha256 of the ids in the order they have: it changes when rows are shuffled."""
    digest = hashlib.sha256(b"lpt-order/1\0")
    digest.update(np.ascontiguousarray(_checked(ids)).data)
    return digest.hexdigest()


def tokenized_id(recipe: Mapping[str, Any]) -> str:
    """Return the id of what the accelerator sees: content, order, tokenizer contents, template, length, packing."""
    return hashlib.sha256(b"lpt-tokenized/1\0" + canonical_json(recipe)).hexdigest()


def differing_buckets(a: ContentRoot, b: ContentRoot) -> list[int]:
    """Return the numbers of the buckets whose hash or count differ, ascending."""
    return sorted(
        bucket for bucket in a.buckets.keys() | b.buckets.keys() if a.buckets.get(bucket) != b.buckets.get(bucket)
    )


def distinct(ids: np.ndarray) -> np.ndarray:
    """Return each different id once, in the order of their bytes: uint8 [m, 32]."""
    ordered = np.ascontiguousarray(_checked(ids)[_sorted_order(ids)])
    words = _words(ordered)
    return ordered[np.concatenate([[True], (words[1:] != words[:-1]).any(axis=1)])] if len(ordered) else ordered


def bucket_of(ids: np.ndarray) -> np.ndarray:
    """Return the bucket number of each id: its first 12 bits."""
    return (ids[:, 0].astype(np.int64) << 4) | (ids[:, 1] >> 4)


def ids_from_hex(texts: list[str]) -> np.ndarray:
    """Return ids written as 64 hex digits as uint8 [N, 32]; raise BadInputError at the first that is not one."""
    try:
        raw = [bytes.fromhex(text) for text in texts]
    except (TypeError, ValueError) as error:
        raise BadInputError(
            "a record id is not hexadecimal", seen=error, next="verify the file it came from"
        ) from error
    bad = next((text for text, item in zip(texts, raw, strict=True) if len(item) != 32), None)
    if bad is not None:
        raise BadInputError("a record id does not have 64 hex digits", seen=bad, next="verify the file it came from")
    return np.frombuffer(b"".join(raw), np.uint8).reshape(-1, 32).copy()


def _root(ids: np.ndarray, domain: bytes) -> ContentRoot:
    ids = _checked(ids)
    ordered = np.ascontiguousarray(ids[_sorted_order(ids)])
    counts = np.bincount(bucket_of(ordered), minlength=BUCKETS) if len(ordered) else np.zeros(BUCKETS, np.int64)
    ends = np.cumsum(counts)
    data = ordered.data.cast("B") if len(ordered) else memoryview(b"")
    buckets: dict[int, tuple[str, int]] = {}
    for bucket in np.flatnonzero(counts).tolist():
        end, count = int(ends[bucket]), int(counts[bucket])
        leaf = hashlib.sha256(b"\x00" + _VERSION + domain)
        leaf.update(data[(end - count) * 32 : end * 32])
        buckets[bucket] = (leaf.hexdigest(), count)
    return ContentRoot(_top(domain, buckets), len(ids), buckets)


def _top(domain: bytes, buckets: Mapping[int, tuple[str, int]]) -> str:
    total = sum(count for _, count in buckets.values())
    top = hashlib.sha256(b"\x01" + _VERSION + domain + struct.pack(">Q", total))
    for bucket, (leaf, count) in sorted(buckets.items()):
        top.update(struct.pack(">HQ", bucket, count) + bytes.fromhex(leaf))
    return top.hexdigest()


def _checked(ids: np.ndarray) -> np.ndarray:
    if ids.dtype != np.uint8 or ids.ndim != 2 or ids.shape[1] != 32:
        raise TypeError(f"ids must be uint8 [N, 32], not {ids.dtype} {ids.shape}")
    return ids


def _words(ids: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(ids).view(">u8").astype(np.uint64).reshape(-1, 4)


def _sorted_order(ids: np.ndarray) -> np.ndarray:
    """Stable order of ids by their bytes: by the first eight, then the rare ties among those by all thirty-two."""
    words = _words(ids)
    order = np.argsort(words[:, 0], kind="stable")
    first = words[order, 0]
    same = first[1:] == first[:-1]
    if same.any():
        tied = np.concatenate([same, [False]]) | np.concatenate([[False], same])
        rows = np.sort(order[tied])
        order[tied] = rows[np.lexsort(words[rows].T[::-1])]
    return order
