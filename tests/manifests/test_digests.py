"""The laws of the digests, on ids of real records and on planted changes."""

from __future__ import annotations

import gzip
import hashlib
import struct

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from manifests.canon import record_ids, text_ids
from manifests.digests import (
    ContentRoot,
    bucket_of,
    bytes_sha256,
    content_root,
    differing_buckets,
    ids_from_hex,
    key_root,
    order_sha256,
    tokenized_id,
)
from manifests.errors import BadInputError, RecordError

TEXTS = [f"document {i} of the corpus" for i in range(3000)]
IDS = text_ids(TEXTS)


def test_root_by_hand():
    a, b, c = bytes(31) + b"\x01", bytes(31) + b"\x02", b"\xff" * 32
    zero = hashlib.sha256(b"\x00lpt-root/1\0content\0" + a + b).digest()
    last = hashlib.sha256(b"\x00lpt-root/1\0content\0" + c).digest()
    top = b"\x01lpt-root/1\0content\0" + struct.pack(">Q", 3)
    top += struct.pack(">HQ", 0, 2) + zero + struct.pack(">HQ", 4095, 1) + last
    root = content_root(np.frombuffer(c + b + a, np.uint8).reshape(3, 32))
    assert root == ContentRoot(hashlib.sha256(top).hexdigest(), 3, {0: (zero.hex(), 2), 4095: (last.hex(), 1)})


def test_order_changes_the_order_digest_alone():
    shuffled = np.random.default_rng(0).permutation(IDS)
    assert content_root(shuffled) == content_root(IDS)
    assert order_sha256(shuffled) != order_sha256(IDS)
    assert order_sha256(IDS) == hashlib.sha256(b"lpt-order/1\0" + IDS.tobytes()).hexdigest()


def test_sharding_format_and_compression_change_nothing(tmp_path):
    rows = [{"text": t, "line": i} for i, t in enumerate(TEXTS[:200])]
    pq.write_table(pa.Table.from_pylist(rows[:70]), tmp_path / "a.parquet", compression="zstd")
    pq.write_table(pa.Table.from_pylist(rows[70:]), tmp_path / "b.parquet", compression="none")
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress(b"\n".join(orjson.dumps(row) for row in reversed(rows))))
    parquet = [r for name in ("b", "a") for r in pq.read_table(tmp_path / f"{name}.parquet").to_pylist()]
    lines = [orjson.loads(line) for line in gzip.decompress((tmp_path / "c.jsonl.gz").read_bytes()).splitlines()]
    roots = {content_root(record_ids("text", r)).root for r in (rows, parquet, lines)}
    assert len(roots) == 1


@pytest.mark.parametrize("change", ["edited", "added", "removed", "doubled"])
def test_any_changed_row_changes_the_root_and_its_bucket(change):
    row = 1234
    other = text_ids(["another text"])
    seen = {
        "edited": np.concatenate([IDS[:row], other, IDS[row + 1 :]]),
        "added": np.concatenate([IDS[:row], other, IDS[row:]]),
        "removed": np.delete(IDS, row, axis=0),
        "doubled": np.concatenate([IDS, IDS[row : row + 1]]),
    }[change]
    before, after = content_root(IDS), content_root(seen)
    assert before.root != after.root
    touched = {"edited": [IDS[row], other[0]], "added": [other[0]]}.get(change, [IDS[row]])
    assert differing_buckets(before, after) == sorted({int(bucket_of(t[None])[0]) for t in touched})


def test_it_is_a_multiset():
    once, twice = IDS[:1], np.concatenate([IDS[:1], IDS[:1]])
    assert content_root(once).root != content_root(twice).root
    assert content_root(twice).root != content_root(np.concatenate([twice, twice])).root  # no cancelling in pairs


def test_ids_with_a_common_start_are_sorted_to_the_last_byte():
    ids = np.zeros((300, 32), np.uint8)
    ids[:, 31] = np.random.default_rng(1).integers(0, 256, 300)
    expected = b"".join(sorted(row.tobytes() for row in ids))
    leaf = hashlib.sha256(b"\x00lpt-root/1\0content\0" + expected).hexdigest()
    assert content_root(ids).buckets == {0: (leaf, 300)}


def test_keys_and_contents_are_different_domains():
    assert key_root(IDS).root != content_root(IDS).root
    assert key_root(IDS[::-1]) == key_root(IDS)


def test_no_rows_have_a_root():
    empty = content_root(np.empty((0, 32), np.uint8))
    assert (empty.count, empty.buckets) == (0, {})
    assert empty.root != content_root(IDS[:1]).root


def test_buckets_travel_as_json():
    root = content_root(IDS)
    assert ContentRoot.from_json(orjson.loads(orjson.dumps(root.to_json()))) == root
    assert root.recomputed() == root.root


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"root": "a", "count": 1, "buckets": {"zzz": ["00" * 32, 1]}},
        {"root": "a", "count": 1, "buckets": {"1000": ["00" * 32, 1]}},
        {"root": "a", "count": 1, "buckets": {"000": ["00", 1]}},
        {"root": "a", "count": 1, "buckets": {"000": ["00" * 32, -1]}},
        {"root": "a", "count": 1, "buckets": []},
    ],
)
def test_damaged_buckets_are_refused(body):
    with pytest.raises(BadInputError):
        ContentRoot.from_json(body)


def test_hex_ids_round_trip_and_bad_ones_are_refused():
    texts = [row.tobytes().hex() for row in IDS[:3]]
    assert np.array_equal(ids_from_hex(texts), IDS[:3])
    for bad in (["xy"], ["00"], [None]):
        with pytest.raises(BadInputError):
            ids_from_hex(bad)


def test_bytes_sha256_is_that_of_coreutils(tmp_path):
    (tmp_path / "f").write_bytes(b"abc")
    assert bytes_sha256(tmp_path / "f") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    with pytest.raises(BadInputError):
        bytes_sha256(tmp_path / "absent")


def test_tokenized_id_depends_on_every_field_and_takes_no_floats():
    recipe = {"content_root": "a", "tokenizer": "b", "max_length": 2048, "packing": True}
    ids = {tokenized_id(recipe)} | {tokenized_id({**recipe, name: "other"}) for name in recipe}
    assert len(ids) == 5
    assert tokenized_id(recipe) == tokenized_id(dict(reversed(recipe.items())))
    with pytest.raises(RecordError):
        tokenized_id({"rate": 0.5})
