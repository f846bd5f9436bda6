"""What an audit keeps of each preference pair: who is compared with whom under which prompt, lengths, margin, links."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lpt_data.batches import RecordBatch
from lpt_data.contracts import suspects
from lpt_data.contracts.survey import as_bytes
from lpt_data.folding import SPACED, spaced
from lpt_data.keys import NORMALISERS, key_hashes
from lpt_data.prompt_groups import Links, links
from manifests.canon import json_text

if TYPE_CHECKING:
    from lpt_data.plain import Plain

SIDES = ("chosen", "rejected")
# Columns beside a pair that hold what a judge gave to each side, first that is there; then the difference itself.
SCORE_COLUMNS = (
    ("score_chosen", "score_rejected"),
    ("chosen_score", "rejected_score"),
    ("chosen_rating", "rejected_rating"),
)
MARGIN_COLUMN = "margin"


class Facts(NamedTuple):
    """What is kept of a pair: who is compared with whom under which prompt, lengths, margin, and what joins it."""

    prompt: bytes
    chosen: bytes
    rejected: bytes
    lengths: tuple[int, int]  # characters of chosen and rejected
    margin: float | None  # score of chosen minus score of rejected
    links: Links


def said(side: Any) -> str:
    """Return the words of a side: its texts and tool calls, one space between them."""
    return " ".join(" ".join(spoken(side)).split())


def spoken(side: Any) -> Iterator[str]:
    """Yield the texts and tool calls of some messages."""
    for message in side:
        if message.get("content"):
            yield message["content"]
        if message.get("tool_calls"):
            yield json_text(message["tool_calls"])


def margin(extra: Mapping[str, Any]) -> float | None:
    """Return the score of chosen minus that of rejected, None where there are none that are numbers."""
    for chosen, rejected in SCORE_COLUMNS:
        one, other = _number(extra.get(chosen)), _number(extra.get(rejected))
        if one is not None and other is not None:
            return one - other
    return _number(extra.get(MARGIN_COLUMN))


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def look(batch: RecordBatch, key: str, keys: Sequence[bytes]) -> list[Facts]:
    """Return the facts of pairs whose canonical keys have the hashes given."""
    if batch.plain is not None and key in NORMALISERS:
        return _look(batch, batch.plain, key, keys)
    rows = list(zip(batch.records, batch.beside, keys, strict=True))
    joined = [links("preference", record, beside, key, hashed=hashed) for record, beside, hashed in rows]
    if key in NORMALISERS:
        prompts = [link.own for link in joined]
    else:
        prompts = key_hashes("preference", batch.records, batch.beside, "math")
    digests, lengths = [], []
    for side in SIDES:
        texts = [" ".join(spoken(record[side])) for record in batch.records]
        lengths.append([sum(map(len, spoken(record[side]))) for record in batch.records])
        digests.append([hashlib.sha256(words).digest()[:16] for words in spaced(texts)])
    margins = [margin(beside) if beside else None for beside in batch.beside]
    return list(map(Facts, prompts, *digests, zip(*lengths, strict=True), margins, joined))


def _look(batch: RecordBatch, plain: Plain, key: str, keys: Sequence[bytes]) -> list[Facts]:
    """The same of plain pairs: a question and two replies, so that nothing but the key joins them."""
    from lpt_data.plain_kernels import characters

    joined = [Links(hashed, (hashed,)) for hashed in keys]
    for place in np.flatnonzero(suspects.blank(plain)).tolist():
        record, beside = batch.records[place], batch.beside[place]
        joined[place] = links("preference", record, beside, key, hashed=keys[place])
    digests, lengths = [], []
    for side in SIDES:
        text = suspects.text_of(plain, side)
        taken = np.zeros(len(plain.starts), bool)
        taken[text] = True
        digests.append([digest[:16] for digest in as_bytes(plain.fold(taken, SPACED))])
        lengths.append(characters(plain.data, plain.starts[text], plain.ends[text]).tolist())
    margins = [margin(beside) if beside else None for beside in batch.beside]
    return list(map(Facts, [link.own for link in joined], *digests, zip(*lengths, strict=True), margins, joined))
