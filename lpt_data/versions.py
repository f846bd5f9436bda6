"""What a result was made with: Python, the platform, and the packages that decide what is read and written."""

from __future__ import annotations

import platform
from functools import cache
from importlib import metadata
from typing import Any

PACKAGES = ("duckdb", "numpy", "orjson", "pyarrow")


def environment() -> dict[str, Any]:
    """Return python, platform and the versions of the packages that decide what is read and written."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "lpt": _version("lpt"),
        "packages": {name: _version(name) for name in PACKAGES},
    }


@cache
def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
