"""What people who come from other tools type, and what to type here: errors say it, nothing is an alias.

To add a name: one line in one of the two tables. Free to import.
"""

from __future__ import annotations

# Value -> the choice of ours that is meant by it, wherever an option has that choice.
CHOICES = {
    "gpu": "cuda",
    "adamw": "adamw_torch",
    "adamw_torch_fused": "adamw_torch",
    "adamw_bnb_8bit": "adamw_8bit",
    "bf16": "bfloat16",
    "fp16": "float16",
    "fp32": "float32",
    "wsd": "warmup_stable_decay",
    "fsdp": "fsdp2",
    "dpo": "sigmoid",
}
