"""The packing plan: which rows lie side by side in a sequence of `max_length` tokens, counted as the trainer counts.

Rows are written bin by bin with two columns more: `pack`, the number of the bin, and `pack_tokens`, the row's length
with its chat template. A row that does not fit, or that cannot be rendered, is taken out under its reason, because the
trainer would drop it. Best-fit-decreasing (`manifests.bins`) is what a trainer with `packing=true` does with the same
rows, so it makes as many sequences of them; rows of one length may change places.

    fill = tokens / (bins * max_length)        padded_fill = tokens / (rows * longest row): a batch that is not packed
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from lpt_data.config import PackConfig
from lpt_data.dataset import Dataset
from lpt_data.ordered import Order
from lpt_data.progress import Progress
from lpt_data.stage import StageResult, Work
from manifests import decisions
from manifests.bins import best_fit_decreasing
from manifests.errors import BadInputError, RecordError, UsageError

TOO_LONG = "too_long"
KINDS = ("sft", "text")


def pack_work(dataset: Dataset, encode: Any, max_length: int, out: Path) -> Work:
    """Return the work of packing rows for a tokenizer: `contracts.common.Encoder`, for text with `encode_text`.

    Raises UsageError without a tokenizer or with a length that holds nothing, BadInputError for rows of another kind.
    """
    if encode is None:
        raise UsageError("a packing plan needs a tokenizer", seen="none", next="--tokenizer FOLDER")
    if max_length < 2:
        raise UsageError("a sequence has two tokens at least", seen=max_length, next="--max-length 2048")
    if dataset.kind not in KINDS:
        raise BadInputError(
            f"rows of the kind {dataset.kind} are not packed", seen=dataset.layout, next="pack chats or plain text"
        )
    config = PackConfig(max_length, encode.fingerprint, encode.template_sha256)
    return Work(
        "pack", dataset, config, lambda data, told, tell: _decide(data, told, encode, tell), (out,), output=str(out)
    )


def _decide(dataset: Dataset, config: PackConfig, encode: Any, progress: Progress) -> StageResult:
    rows: list[int] = []
    lengths: list[int] = []
    gone: list[tuple[int, str, str, float | None, str]] = []
    names: dict[int, bytes] = {}
    for row, record, _, name in dataset.identified():
        names[row] = name
        try:
            tokens = _tokens(dataset.kind, record, encode)
        except RecordError as error:
            gone.append((row, "quarantine", error.reason, None, error.what))
            continue
        if tokens > config.max_length:
            gone.append((row, "remove", TOO_LONG, float(tokens), f"{tokens} tokens > {config.max_length}"))
            continue
        rows.append(row)
        lengths.append(tokens)
        if not len(names) % 500:
            progress(row + 1, None, "counting tokens")
    if not rows:
        raise BadInputError(
            "no row fits into a sequence", seen=f"{len(gone)} rows: {gone[0][2] if gone else 'none'}",
            next=f"a larger --max-length than {config.max_length}",
        )  # fmt: skip
    bins = best_fit_decreasing(lengths, config.max_length)
    placed = np.array([place for members in bins for place in members])
    order = Order(
        np.array(rows, np.int64)[placed],
        pa.table(
            {
                "pack": pa.array(np.repeat(np.arange(len(bins)), [len(members) for members in bins]), pa.int64()),
                "pack_tokens": pa.array(np.array(lengths, np.int64)[placed]),
            }
        ),
    )
    record_ids = np.zeros((dataset.rows_in, 32), np.uint8)
    record_ids[list(names)] = np.frombuffer(b"".join(names.values()), np.uint8).reshape(-1, 32)
    return StageResult(_decisions(gone, record_ids), record_ids, _told(lengths, bins, config), order=order)


def _tokens(kind: str, record: Mapping[str, Any], encode: Any) -> int:
    if kind == "text":
        return len(encode.encode_text(record["text"]).ids)
    return len(encode.encode(record["messages"], record.get("tools")).ids)


def _told(lengths: list[int], bins: list[list[int]], config: PackConfig) -> dict[str, Any]:
    tokens, used = sum(lengths), [sum(lengths[i] for i in members) for members in bins]
    return {
        "bins": len(bins),
        "max_length": config.max_length,
        "tokens": tokens,
        "fill": round(tokens / (len(bins) * config.max_length), 6),
        "padded_fill": round(tokens / (len(lengths) * max(lengths)), 6),
        "rows_per_bin": round(len(lengths) / len(bins), 4),
        "emptiest_bin": min(used),
        "longest_row": max(lengths),
    }


def _decisions(gone: list[tuple[int, str, str, float | None, str]], record_ids: np.ndarray) -> pa.Table:
    rows = [row for row, *_ in gone]
    actions, reasons, scores, details = ([one[i] for one in gone] for i in range(1, 5))
    return decisions.table(
        {
            "row": pa.array(rows, pa.int64()),
            "record_id": decisions.hex_ids(record_ids[rows]),
            "action": pa.array(actions, pa.string()),
            "reason": pa.array(reasons, pa.string()),
            "score": pa.array(scores, pa.float64()),
            "detail": pa.array(details, pa.string()),
        }
    )
