"""Small embedders made on the spot: a static one whose vectors are chosen, and a transformer of two layers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

WORDS = [
    *("the", "a", "one", "two", "three", "five", "fifty", "raise", "pay", "him", "her", "by", "dollars", "not", "dog"),
    *("cat", "sat", "on", "mat", "ran", "away", "red", "blue", "green", "car", "house"),
]


def static_model(folder: Path, seed: int = 0, dimension: int = 16, **same: str) -> Path:
    """A model2vec folder: every word a random vector, or that of another word (``feline="cat"``)."""
    from safetensors.numpy import save_file
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    words = [*WORDS, *same]
    vocabulary = {word: n for n, word in enumerate(["[UNK]", *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    vectors = np.random.default_rng(seed).normal(size=(len(vocabulary), dimension)).astype(np.float32)
    for word, other in same.items():
        vectors[vocabulary[word]] = vectors[vocabulary[other]]
    folder.mkdir(parents=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    save_file({"embeddings": vectors}, folder / "model.safetensors")
    told = {"model_type": "model2vec", "architectures": ["StaticModel"], "normalize": True, "hidden_dim": dimension}
    (folder / "config.json").write_text(json.dumps(told))
    return folder


def transformer(folder: Path, *, pooling: str = "mean", normalise: bool = True, limit: int = 16) -> Path:
    """A sentence-transformers folder with a BERT of two layers and 32 dimensions, its weights random."""
    import torch
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import BertConfig, BertModel

    vocabulary = {word: n for n, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    folder.mkdir(parents=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    torch.manual_seed(0)
    shape = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=limit,
        initializer_range=0.5,
    )
    BertModel(shape).save_pretrained(folder, safe_serialization=True)
    types = ["Transformer", "Pooling", *(["Normalize"] if normalise else [])]
    modules = [
        {"idx": n, "name": str(n), "path": f"{n}_{name}" if n else "", "type": f"sentence_transformers.models.{name}"}
        for n, name in enumerate(types)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    modes = {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": pooling == "mean"}
    modes |= {"pooling_mode_cls_token": pooling == "cls"}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(modes))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": limit, "do_lower_case": False}))
    return folder
