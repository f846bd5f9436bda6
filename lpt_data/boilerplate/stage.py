"""The boilerplate stage: documents in, those that lost something rewritten, those that held nothing else removed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from lpt_data.boilerplate import documents as held
from lpt_data.boilerplate import passages, units
from lpt_data.boilerplate.cuts import Cuts
from lpt_data.boilerplate.documents import Documents
from lpt_data.clean.stage import hidden
from lpt_data.columns import dump
from lpt_data.config import BoilerplateConfig
from lpt_data.dataset import Dataset
from lpt_data.dedup.memory import parse_bytes
from lpt_data.progress import Progress
from lpt_data.stage import StageResult
from lpt_data.survivors import REWRITTEN
from manifests import decisions
from manifests.canon import text_ids
from manifests.errors import BadInputError, UsageError

REASONS = {"lines": "repeated_line", "paragraphs": "repeated_paragraph", "substring": "repeated_substring"}
NAMES = {"lines": ("line", "lines"), "paragraphs": ("paragraph", "paragraphs"), "substring": ("passage", "passages")}
LEAST_LENGTH = 20  # characters of a passage; below, words and phrases are passages
SHOWN = 10  # passages in the report


def decide(dataset: Dataset, config: BoilerplateConfig, progress: Progress) -> StageResult:
    """Find the text that documents share: `lpt_data.stage.run_stage` writes what is left of them.

    Raises UsageError for settings that make no sense, BadInputError for rows that are no documents or do not fit in
    the memory given.
    """
    check(config)
    if dataset.kind != "text":
        raise BadInputError(
            "repeated text is cut out of documents, and these rows are none",
            seen=f"layout {dataset.layout}",
            next="name a column of text with --text-column, or remove whole rows: lpt data dedup",
        )
    lines = config.method != "substring"
    documents = held.read(
        dataset,
        memory=parse_bytes(config.memory),
        beside=units.BYTES_A_BYTE if lines else passages.bytes_beside(config.length),
        progress=lambda done: progress(done, None, "rows read"),
    )
    if lines:
        cuts = units.find(
            documents,
            paragraphs=config.method == "paragraphs",
            least_documents=config.least_documents,
            least_words=config.least_words,
            fold_text=config.fold,
            drop_all=config.drop_all,
        )
    else:
        total = len(documents.rows)
        cuts = passages.find(documents, config.length, lambda done: progress(done, total, "rows compared"))
    return _result(dataset, documents, cuts, config)


def check(config: BoilerplateConfig) -> None:
    """Raise UsageError for settings that make no sense."""
    if config.method not in REASONS:
        raise UsageError("no such method", seen=config.method, next=f"--method {' | '.join(REASONS)}")
    if config.least_documents < 2:
        raise UsageError(
            "what one document holds repeats nothing", seen=config.least_documents, next="--min-documents 7"
        )
    parse_bytes(config.memory)
    if config.least_words < 0:
        raise UsageError("a number of words is not negative", seen=config.least_words, next="--min-words 5")
    if config.length < LEAST_LENGTH:
        raise UsageError(
            f"a passage has {LEAST_LENGTH} characters or more", seen=config.length, next="--length 200 (50 tokens)"
        )
    if config.drop_all and config.method == "substring":
        raise UsageError(
            "of a passage one copy always stays",
            seen="--drop-all with --method substring",
            next="--method lines --drop-all, or leave --drop-all out",
        )


@dataclass(frozen=True)
class _Losses:
    """What each document lost to each keeper, by document, the larger loss first; arrays int64 [n]."""

    document: np.ndarray
    keeper: np.ndarray  # -1 where no copy was to stay
    chars: np.ndarray
    cuts: np.ndarray

    @classmethod
    def of(cls, cuts: Cuts, order: np.ndarray) -> _Losses:
        """Add the cuts up; equal losses come in the order of their keepers."""
        rank = np.empty(len(order) + 1, np.int64)
        rank[order], rank[-1] = np.arange(len(order)), -1
        by = np.lexsort((cuts.keeper, cuts.document))
        document, keeper = cuts.document[by], cuts.keeper[by]
        first = np.flatnonzero(np.diff(document, prepend=-1) | np.diff(keeper, prepend=-1)) if len(by) else by
        chars = np.add.reduceat(cuts.chars[by], first) if len(by) else by
        counts = np.diff(first, append=len(by))
        document, keeper = document[first], keeper[first]
        by = np.lexsort((rank[keeper], -chars, document))
        return cls(document[by], keeper[by], chars[by], counts[by])

    def of_each(self, chosen: np.ndarray) -> _Losses:
        """Those where ``chosen`` (bool [n]) holds."""
        return _Losses(self.document[chosen], self.keeper[chosen], self.chars[chosen], self.cuts[chosen])


def _result(dataset: Dataset, documents: Documents, cuts: Cuts, config: BoilerplateConfig) -> StageResult:
    stays = {document: text for document, text in cuts.left.items() if text and not text.isspace()}
    new_ids = dict(zip(stays, text_ids(stays.values()), strict=True))
    record_ids = np.zeros((dataset.rows_in, 32), np.uint8)
    record_ids[documents.rows] = documents.ids
    for document, name in new_ids.items():
        record_ids[documents.rows[document]] = name
    return StageResult(
        _decisions(documents, cuts, new_ids, config),
        record_ids,
        _extra(documents, cuts, len(stays), config),
        rewritten=_rewritten(dataset, documents, stays, new_ids),
    )


def _decisions(documents: Documents, cuts: Cuts, new_ids: dict[int, np.ndarray], config: BoilerplateConfig) -> pa.Table:
    """One decision for each document and keeper of a rewrite; one for a document of which nothing is left."""
    stays = np.zeros(len(documents.rows), bool)
    stays[list(new_ids)] = True
    lost = _Losses.of(cuts, documents.order)
    lost = lost.of_each(stays[lost.document] | (np.diff(lost.document, prepend=-1) != 0))
    none = lost.keeper < 0
    ids, witness_ids = documents.ids[lost.document], documents.ids[lost.keeper]
    witness_ids[none] = 0  # the decision table shows an id of zeros as null
    details = []
    for document, chars, count in zip(lost.document.tolist(), lost.chars.tolist(), lost.cuts.tolist(), strict=True):
        what = f"{count:,} {NAMES[config.method][count > 1]}, {chars:,} characters"
        if (new := new_ids.get(document)) is None:
            details.append(f"{what}; nothing else was left")
        else:
            old = documents.ids[document].tobytes().hex()
            details.append(decisions.rewrite_detail(old, new.tobytes().hex(), what))
    return decisions.table(
        {
            "row": documents.rows[lost.document],
            "record_id": ids,
            "action": pa.array(np.where(stays[lost.document], "rewrite", "remove"), pa.string()),
            "reason": pa.array(np.full(len(ids), REASONS[config.method]), pa.string()),
            "witness_row": pa.array(documents.rows[lost.keeper], pa.int64(), mask=none),
            "witness_id": witness_ids,
            "score": np.minimum(1.0, lost.chars / documents.chars[lost.document]),
            "detail": pa.array(details, pa.string()),
        }
    )


def _rewritten(
    dataset: Dataset, documents: Documents, stays: dict[int, str], new_ids: dict[int, np.ndarray]
) -> pa.Table:
    """The rewritten rows, as `lpt_data.survivors.REWRITTEN`; a column `record_id` tells the new one."""
    rows = documents.rows[list(stays)].tolist()
    named: set[int] = set()
    if "record_id" in dataset.columns:
        wanted = set(rows)
        named = {row for row, raw, _ in dataset.as_written() if row in wanted and "record_id" in raw}
    columns = [
        dump({dataset.text_column: text} | ({"record_id": new_ids[document].tobytes().hex()} if row in named else {}))
        for row, (document, text) in zip(rows, stays.items(), strict=True)
    ]
    return pa.Table.from_arrays([pa.array(rows, pa.int64()), pa.array(columns, pa.large_binary())], schema=REWRITTEN)


def _extra(documents: Documents, cuts: Cuts, rewritten: int, config: BoilerplateConfig) -> dict[str, Any]:
    lost = np.bincount(cuts.passage, weights=cuts.chars, minlength=len(cuts.excerpts)).astype(np.int64)
    often = sorted(range(len(lost)), key=lambda p: (-int(cuts.documents[p]), -int(lost[p]), cuts.excerpts[p]))[:SHOWN]
    keeper = dict(zip(cuts.passage[::-1].tolist(), cuts.keeper[::-1].tolist(), strict=True))
    shown = [
        {
            "text": hidden(cuts.excerpts[p]),
            "documents": int(cuts.documents[p]),
            "characters_cut": int(lost[p]),
            "kept_row": int(documents.rows[keeper[p]]) if keeper.get(p, -1) >= 0 else None,
        }
        for p in often
    ]
    return {
        "method": config.method,
        "rows_rewritten": rewritten,
        "rows_emptied": len(cuts.left) - rewritten,
        "cuts": len(cuts.document),
        "characters": int(documents.chars.sum()),
        "characters_cut": {REASONS[config.method]: int(cuts.chars.sum())},
        "passages": len(cuts.excerpts),
        "most_repeated": shown,
        "rows_given_up": cuts.given_up,
    }
