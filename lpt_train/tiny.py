"""A small Qwen2-shaped model with random weights and a byte-level tokenizer, made on the spot.

It needs no download, takes any text (each UTF-8 byte is a token) and is the same bytes for the same arguments. It knows
nothing before training; it exists for the demo, for tests, and to try a configuration in seconds.
"""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from transformers.utils import logging as transformers_logging

transformers_logging.disable_progress_bar()
PAD, START, STOP = "<|endoftext|>", "<|im_start|>", "<|im_end|>"

CHAT_TEMPLATE = (
    "{%- if tools %}{{- '<|im_start|>tools\n' }}{%- for tool in tools %}{{- (tool | tojson) + '\n' }}{%- endfor %}"
    "{{- '<|im_end|>\n' }}{%- endif %}"
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message['role'] + '\n' }}"
    "{%- if message['role'] == 'assistant' %}"
    "{%- generation %}{{- message['content'] or '' }}"
    "{%- for call in message['tool_calls'] or [] %}{{- '<tool_call>' + (call['function'] | tojson) + '</tool_call>' }}"
    "{%- endfor %}{{- '<|im_end|>' }}{%- endgeneration %}{{- '\n' }}"
    "{%- else %}{{- message['content'] + '<|im_end|>\n' }}{%- endif %}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer whose 256 first ids are the bytes and whose last three are `PAD`, `START` and `STOP`."""
    # The byte-level alphabet writes each byte as one printable character; sorting by the byte makes id == byte value.
    alphabet = _byte_alphabet()
    backend = Tokenizer(models.BPE(vocab={character: byte for byte, character in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in (PAD, START, STOP)])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token=STOP, pad_token=PAD, additional_special_tokens=[START],
        chat_template=CHAT_TEMPLATE, model_max_length=1 << 20, clean_up_tokenization_spaces=False,
    )  # fmt: skip


def make_tiny(
    directory: str | Path,
    *,
    hidden: int = 128,
    layers: int = 4,
    heads: int = 4,
    seed: int = 0,
    positions: int = 4096,
    initializer_range: float = 0.02,
) -> Path:
    """Write model, tokenizer and generation config into `directory` and return it.

    `hidden` and `heads` are the width and the attention heads, `positions` the context in tokens, `initializer_range`
    the standard deviation of the first weights.
    """
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = byte_tokenizer()
    config = Qwen2Config(
        vocab_size=len(tokenizer), hidden_size=hidden, intermediate_size=3 * hidden, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=max(1, heads // 2), max_position_embeddings=positions,
        tie_word_embeddings=True, use_sliding_window=False, initializer_range=initializer_range, bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen2ForCausalLM(config)
    model.generation_config = GenerationConfig(eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def _byte_alphabet() -> list[str]:
    """The character that the byte-level pre-tokenizer writes for each byte 0…255 (GPT-2's table)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    spare = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(spare)) for byte in range(256)]
