"""What the benchmarks of training share: shapes with random weights, rows, and what a record says of the machine."""

from __future__ import annotations

import json
import os
import platform
import random
import sys
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
WORDS = ["alpha", "beta", "number", "solve", "because", "therefore", "value", "answer", "table", "river"]
SHAPES = {
    "tiny": {},
    "smollm2-135m": {
        "model_type": "llama", "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
        "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152, "tie_word_embeddings": True,
        "max_position_embeddings": 8192,
    },
    "qwen2.5-0.5b": {
        "model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
        "num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 151936, "tie_word_embeddings": True,
        "max_position_embeddings": 32768,
    },
}  # fmt: skip


def turn(rng, role, low, high):
    return [{"role": role, "content": " ".join(rng.choices(WORDS, k=rng.randint(low, high)))}]


def rows(algorithm, count, longest=600):
    """Prompts with a reply of up to `longest` words (sft), or with two of up to half of that (dpo)."""
    rng = random.Random(0)
    ask = max(1, longest // 60), max(2, longest * 2 // 15)
    reply = max(1, longest // 30), longest
    if algorithm == "sft":
        return [{"prompt": turn(rng, "user", *ask), "completion": turn(rng, "assistant", *reply)} for _ in range(count)]
    half = reply[0], max(2, longest // 2)
    return [
        {
            "prompt": turn(rng, "user", *ask), "chosen": turn(rng, "assistant", *half),
            "rejected": turn(rng, "assistant", *half),
        }
        for _ in range(count)
    ]  # fmt: skip


def write_rows(data, path):
    """As the layouts of this package: SFT rows are conversations."""
    lines = [{"messages": row["prompt"] + row["completion"]} if "completion" in row else row for row in data]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def random_model(shape, folder, tokenizer=None):
    """A model of a known shape with random weights, on which speed does not depend; its tokens are bytes by default."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    from lpt_train.tiny import byte_tokenizer, make_tiny

    if shape == "tiny":
        return str(make_tiny(folder, hidden=64, layers=2, heads=2))
    options = dict(SHAPES[shape])
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(options.pop("model_type"), **options))
    model.save_pretrained(folder)
    (AutoTokenizer.from_pretrained(tokenizer) if tokenizer else byte_tokenizer()).save_pretrained(folder)
    return str(folder)


def machine(device):
    """Device, system and versions."""
    import torch

    info = Path("/proc/cpuinfo")
    names = [line.split(":")[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else names[0] if names else platform.processor(),
        "cores": os.cpu_count(), "threads": torch.get_num_threads(), "load": os.getloadavg()[0],
        "system": platform.platform(), "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "transformers", "trl", "peft", "liger-kernel")},
    }  # fmt: skip


def version(name):
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "absent"
