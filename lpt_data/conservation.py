"""The law that no stage may break: every row that came in went out, was removed for a reason, or is in quarantine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lpt_data.dataset import Dataset, Quarantine
from lpt_data.survivors import REWRITTEN
from manifests import decisions as decision_rows
from manifests.errors import LptError

if TYPE_CHECKING:
    from lpt_data.stage import StageResult


def check_conservation(rows_in: int, result: StageResult, quarantined: Sequence[Quarantine], outputs: int = 1) -> None:
    """Raise LptError unless every row is kept, removed or quarantined, exactly once, and every witness is kept.

    A rewritten row is a kept one; it has a decision for each reason, and other values to be written.
    """
    removed = gone_rows(result.decisions)
    aside = np.array([q.row for q in quarantined], np.int64)
    gone = np.concatenate([removed, aside])
    broken = ""
    if result.record_ids.shape != (rows_in, 32):
        broken = f"{rows_in} rows came in, record ids are {result.record_ids.shape}"
    elif len(gone) and (gone.min() < 0 or gone.max() >= rows_in):
        broken = f"a decision names row {gone.max()} of {rows_in}"
    elif len(np.unique(gone)) != len(gone):
        broken = "a row has two decisions"
    elif set(result.decisions["action"].unique().to_pylist()) - set(decision_rows.ACTIONS):
        broken = f"an action is none of {', '.join(decision_rows.ACTIONS)}"
    else:
        kept = np.ones(rows_in, bool)
        kept[gone] = False
        broken = _broken_rewrite(result, kept)
        may_witness = kept.copy()  # the row that others went for may go after them, by a reason of its own
        after = pc.is_in(result.decisions["reason"], pa.array(decision_rows.GOES_AFTER))
        may_witness[result.decisions.filter(after)["row"].to_numpy()] = True
    if not broken:
        witnesses = result.decisions["witness_row"].drop_null().to_numpy()
        if len(witnesses) and not may_witness[witnesses].all():
            broken = f"row {witnesses[~may_witness[witnesses]][0]} is a witness and was not kept"
        elif not result.record_ids[kept].any(axis=1).all():
            broken = "a kept row has no record id"
        elif result.part is not None and (len(result.part) != rows_in or (result.part[kept] >= outputs).any()):
            broken = "a kept row has no output to go to"
        elif result.order is not None and not np.array_equal(np.unique(result.order.rows), np.flatnonzero(kept)):
            broken = "the rows to be written are not those that are kept"
        elif result.order is not None and (outputs != 1 or result.order.added.num_rows != len(result.order.rows)):
            broken = "an order is for one output, with the added columns of every row"
        elif (
            result.order is not None
            and result.order.ids is not None
            and len(result.order.ids) != len(result.order.rows)
        ):
            broken = "a row to be written has no record id"
    if broken:
        raise LptError(
            "a stage broke row conservation; nothing was written", seen=broken, next="this is a defect: report it"
        )


def gone_rows(decided: pa.Table) -> np.ndarray:
    """Return the rows that decisions take out of the data, int64: all but the rewritten ones."""
    return decided["row"].filter(pc.not_equal(decided["action"], "rewrite")).to_numpy()


def _broken_rewrite(result: StageResult, kept: np.ndarray) -> str:
    """What is wrong with the rewritten rows, "" where nothing is."""
    told = result.decisions.filter(pc.equal(result.decisions["action"], "rewrite"))
    rows = np.unique(told["row"].to_numpy())
    written = (result.rewritten or REWRITTEN.empty_table())["row"].to_numpy()
    if not np.array_equal(rows, np.sort(written)):
        return "the rows with a decision to rewrite are not the rows with new values"
    if len(rows) and (rows[0] < 0 or rows[-1] >= len(kept) or not kept[rows].all()):
        return "a rewritten row is not kept"
    for row, detail in zip(told["row"].to_pylist(), told["detail"].to_pylist(), strict=True):
        if decision_rows.rewritten_to(detail) != result.record_ids[row].tobytes().hex():
            return f"the decision about row {row} does not lead to its new record id"
    return ""


def kept_mask(result: StageResult, quarantined: Sequence[Quarantine]) -> np.ndarray:
    """Return which rows are kept: bool [rows_in]."""
    keep = np.ones(len(result.record_ids), bool)
    keep[gone_rows(result.decisions)] = False
    keep[[q.row for q in quarantined]] = False
    return keep


def stage_quarantine(result: StageResult, dataset: Dataset) -> list[Quarantine]:
    """Return the rows that the stage itself put aside (nothing left to compare, say); their lines are not known yet."""
    chosen = result.decisions.filter(pc.equal(result.decisions["action"], "quarantine")).to_pylist()
    files = np.searchsorted(dataset.first_rows, [d["row"] for d in chosen], side="right") - 1
    return [
        Quarantine(d["row"], dataset.files[file].path, 0, d["reason"], d["detail"] or "")
        for d, file in zip(chosen, files.tolist(), strict=True)
    ]


def quarantine_table(quarantined: Sequence[Quarantine]) -> pa.Table:
    """Return quarantined rows as decisions; the detail starts with file and line."""
    return decision_rows.table(
        {
            "row": pa.array([q.row for q in quarantined], pa.int64()),
            "action": pa.array(["quarantine"] * len(quarantined), pa.string()),
            "reason": pa.array([q.reason for q in quarantined], pa.string()),
            "detail": pa.array([f"{q.file}:{q.line}: {q.detail}" for q in quarantined], pa.string()),
        }
    )
