from __future__ import annotations

import hashlib
import random

import numpy as np
import pytest

from lpt_data import sha256_lanes, text_ids
from lpt_data.sha256_lanes import START, digests, pad, padded
from manifests import canon


def hashed(messages: list[bytes]) -> list[str]:
    data = np.empty(sum(padded(len(message)) for message in messages), np.uint8)
    cuts = [0]
    for message in messages:
        data[cuts[-1] : cuts[-1] + len(message)] = list(message)
        cuts.append(pad(data, cuts[-1], len(message)))
    assert cuts[-1] == len(data)
    return [bytes(digest).hex() for digest in digests(data, np.array(cuts), START)]


def test_the_vectors_of_the_standard() -> None:
    assert START.tolist()[0] == 0x6A09E667
    assert hashed([b"abc"]) == ["ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"]
    two = b"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"
    assert hashed([two]) == ["248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"]
    assert hashed([]) == []


def test_every_length_and_any_order_of_lengths() -> None:
    rng = random.Random(1)
    messages = [rng.randbytes(n) for n in range(260)] + [rng.randbytes(20_000), b"\xff" * 64]
    for _ in range(3):
        assert hashed(messages) == [hashlib.sha256(message).hexdigest() for message in messages]
        rng.shuffle(messages)


def test_hashlib_takes_over_where_lanes_are_not_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow as pa

    texts = ["one", 'two "2"', "\n" * 100, "é"]
    for worth in (True, False):
        monkeypatch.setattr(sha256_lanes, "worth_it", lambda worth=worth: worth)
        assert (text_ids.ids_of(pa.array(texts)) == canon.text_ids(texts)).all()
