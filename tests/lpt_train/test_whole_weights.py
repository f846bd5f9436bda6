"""What older files hold beside the parameters, and what no file may."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoConfig,
    GPTNeoForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
)

from lpt_train.whole_weights import read_whole
from manifests.errors import BadInputError


def gpt2():
    return GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=16, n_embd=8, n_layer=1, n_head=2))


def gpt_neo():
    config = GPTNeoConfig(
        vocab_size=32, max_position_embeddings=16, hidden_size=8, num_layers=1, num_heads=2,
        attention_types=[[["global"], 1]],
    )  # fmt: skip
    return GPTNeoForCausalLM(config)


def llama():
    config = LlamaConfig(
        vocab_size=32, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2
    )  # fmt: skip
    return LlamaForCausalLM(config)


@pytest.mark.parametrize(
    ("make", "old"),
    [
        (gpt2, ["transformer.h.0.attn.masked_bias", "transformer.h.0.attn.bias"]),
        (gpt_neo, ["transformer.h.0.attn.attention.masked_bias", "transformer.h.0.attn.attention.bias"]),
        (llama, ["model.layers.0.self_attn.rotary_emb.inv_freq"]),
    ],
)
def test_masks_and_frequencies_of_older_files_are_no_surplus(make, old, tmp_path):
    make().save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    save_file(tensors | {name: torch.ones(1, 1, 16, 16) for name in old}, file, {"format": "pt"})
    assert read_whole(AutoModelForCausalLM, str(tmp_path), torch.float32, {}) is not None
    base = old[0].split(".")[0]
    for surplus in (f"{base}.extra.weight", f"{base}.extra.bias"):
        save_file(tensors | {surplus: torch.ones(2)}, file, {"format": "pt"})
        with pytest.raises(BadInputError, match="not those that its configuration describes"):
            read_whole(AutoModelForCausalLM, str(tmp_path), torch.float32, {})
