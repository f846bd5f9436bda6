"""Writers by extension, and the canonical Parquet of an admitted split."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np


def write_canonical(
    path: Path,
    kind: str,
    records: Iterable[Mapping[str, Any]],
    ids: np.ndarray,
    extra_columns: Sequence[Mapping[str, Any]] | None = None,
) -> list[str]:
    """Write canonical records with their record_id (hex) as Parquet; returns the columns turned into JSON text."""
    return []
