"""The one runner of data operations: rows in, survivors and decisions out, nothing lost, nothing half-written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from lpt_data.dataset import Dataset
from lpt_data.progress import Progress

if TYPE_CHECKING:
    from manifests.catalog import Catalog


@dataclass(frozen=True)
class StageResult:
    """What a stage decided: one decision per row that is not kept as it is (the reader's quarantine excluded)."""

    decisions: pa.Table  # manifests.decisions.SCHEMA
    record_ids: np.ndarray  # uint8 [rows_in, 32], zeros where quarantined
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class StageReport:
    """The recorded outcome of a stage."""

    body: dict[str, Any]  # lpt.stage/1
    object_id: str
    reused: bool = False
    dry_run: bool = False

    def to_json(self) -> dict[str, Any]:
        """The keys that every data command prints with --json."""
        return {}


Decide = Callable[[Dataset, Any, Progress], StageResult]


def run_stage(
    name: str,
    dataset: Dataset,
    config: Any,
    decide: Decide,
    *,
    output: Path,
    catalog: Catalog,
    progress: Progress | None = None,
    dry_run: bool = False,
) -> StageReport:
    """Decide, write the survivors and the decisions, check that no row is lost, record."""
    return StageReport({}, "")
