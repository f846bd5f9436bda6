"""The decisions of a deduplication as a table, with what a reader wants to know of each."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from lpt_data.config import DedupConfig
from lpt_data.dataset import Dataset
from lpt_data.dedup.report import DUPLICATED, EMPTY, REASONS, REFERENCE, Removals
from lpt_data.dedup.rows import Rows
from manifests import decisions


def decision_table(rows: Rows, found: Removals, config: DedupConfig, reference: Dataset | None) -> pa.Table:
    """Return a decision for every row that goes."""
    gone = np.flatnonzero(found.reason)
    reason, witnesses = found.reason[gone], np.maximum(found.witness[gone], 0)
    alone = (reason == EMPTY) | (reason == DUPLICATED)
    outside = reason == REFERENCE
    return decisions.table(
        {
            "row": rows.rows[gone],
            "record_id": rows.ids[gone],
            "action": _named(reason == EMPTY, ("remove", "quarantine")),
            "reason": _named(reason, REASONS),
            "witness_row": pa.array(rows.rows[witnesses], mask=alone | outside) if len(gone) else None,
            "witness_id": _masked_ids(rows.ids[witnesses], alone) if len(gone) else None,
            "score": pa.array(found.score[gone], mask=alone),
            "detail": pa.array(_details(rows, found, gone, reference), pa.string())
            if config.drop_all or reference
            else None,
        }
    )


def _named(codes: np.ndarray, names: tuple[str, ...]) -> pa.Array:
    """The name of each code, as strings."""
    return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int8)), pa.array(names)).cast(pa.string())


def _details(rows: Rows, found: Removals, gone: np.ndarray, reference: Dataset | None) -> list[str | None]:
    """Where a row of the reference is, and what became of a witness that went too."""
    if reference is not None:
        files = np.searchsorted(reference.first_rows, rows.rows[found.witness[gone]], side="right") - 1
    details: list[str | None] = []
    for i, position in enumerate(gone.tolist()):
        reason, kept = found.reason[position], found.witness[position]
        if reason == REFERENCE:
            assert reference is not None
            place = int(rows.rows[kept]) - reference.first_rows[files[i]] + 1
            details.append(f"{REASONS[found.match[position]]} of {reference.files[files[i]].path}, row {place}")
        elif reason == DUPLICATED:
            details.append("others repeat it, and no copy was to stay")
        elif kept >= 0 and found.reason[kept]:
            details.append("which went too: no copy was to stay")
        else:
            details.append(None)
    return details


def _masked_ids(ids: np.ndarray, without: np.ndarray) -> np.ndarray:
    ids[without] = 0  # the decision table shows an id of zeros as null
    return ids
