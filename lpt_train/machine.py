"""What a record says about where and when it was made."""

from __future__ import annotations

import platform
from datetime import UTC, datetime
from importlib import metadata
from typing import Any

import torch

_PACKAGES = ("torch", "transformers", "peft", "trl", "tokenizers", "safetensors", "numpy", "pyarrow", "duckdb")


def env() -> dict[str, Any]:
    """Versions and machine, as every record carries them."""
    packages = {}
    for name in _PACKAGES:
        try:
            packages[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    return {
        "python": platform.python_version(), "lpt": own_version(), "platform": platform.platform(),
        "device": device, "packages": packages,
    }  # fmt: skip


def now() -> str:
    """The time as records write it: ISO-8601, UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def own_version() -> str:
    """The version of this package that is installed."""
    try:
        return metadata.version("lpt")
    except metadata.PackageNotFoundError:
        return "unknown"
