"""What a record says about where and when it was made, and what to say when the machine has not enough memory."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import platform
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from manifests.errors import LptError

_PACKAGES = (
    "torch", "transformers", "peft", "trl", "tokenizers", "safetensors", "numpy", "pyarrow", "duckdb", "bitsandbytes",
)  # fmt: skip


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


@functools.cache
def sources_sha256(folder: Path = Path(__file__).parent) -> str:
    """The digest of the Python sources of this package, names included: a version lasts while they change."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        source = path.read_bytes()
        digest.update(f"{path.relative_to(folder).as_posix()}\0{len(source)}\0".encode() + source)
    return digest.hexdigest()


def ran_out(error: BaseException) -> bool:
    """Whether an error says that there is not enough memory, on the GPU or on the host."""
    on_host = isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)
    return on_host or isinstance(error, (torch.OutOfMemoryError, MemoryError))


@contextlib.contextmanager
def memory_answered(advice: str) -> Iterator[None]:
    """Turn an error of memory in the block into one with three parts, of which `advice` is the last."""
    try:
        yield
    except Exception as error:
        if not ran_out(error):
            raise
        raise LptError(
            "there is not enough memory for that", seen=(str(error) or "out of memory").splitlines()[0], next=advice
        ) from error
