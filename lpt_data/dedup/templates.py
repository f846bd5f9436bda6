"""Shingles that a great share of all rows holds: the frame of a chat template, a system prompt, a licence header.

They say how rows are wrapped, not what is in them. Left out of the sets before anything is compared, so that rows of
one template are duplicates by their own words only; the similarity is then that of the rest. What is counted are
distinct texts (by their words), so that a million copies of one row make no template. A family of near-duplicates that
is as large as the asked share is taken for one, which leaves rows in rather than taking them out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numba import njit

from lpt_data.dedup.minhash import Scheme
from lpt_data.dedup.rows import Rows, Run
from lpt_data.dedup.shingles import NOTHING, combine, hash_table, multipliers, shift_of, slot_of
from lpt_data.record_text import KEYS
from lpt_data.text import NEEDS_LOWER, buffers, tables, tokens_of
from manifests.errors import UsageError

SHARE = 0.05  # of the distinct rows, where templates are looked for unasked
LEAST = 50  # distinct rows that a template has at least: fewer rows alike are duplicates worth a look
_EXPECTED = 400  # times that a template is expected in the sample; a half of that is ten standard deviations away


@dataclass(frozen=True)
class Templates:
    """The template shingles of a data set."""

    table: np.ndarray  # as `hash_table` makes it; empty for none
    shingles: int
    rows: int  # distinct rows that were counted
    least: int  # rows from which a shingle is a template


def share_for(template_df: float | None, kind: str, key: str) -> float:
    """The share of rows from which a shingle is a template; 0: none is. Unasked, only for texts made of messages."""
    if template_df is None:
        return SHARE if kind != "text" and key in KEYS else 0.0
    if not 0.0 <= template_df <= 1.0:
        raise UsageError(
            "the share of rows that makes a template lies within 0..1", seen=template_df, next="--template-df 0.05"
        )
    return template_df


def find(rows: Rows, share: float, scheme: Scheme, run: Run) -> Templates:
    """Find the shingles that at least ``share`` of the distinct rows hold, and LEAST of them; exact, in any order.

    Candidates come from a sample chosen by content, the counts from all rows.
    """
    has = np.flatnonzero(rows.shingles > 0)
    _, first = np.unique(rows.sequence[has], return_index=True)  # sorted by a hash: the first are a sample
    distinct = has[first]
    least = max(LEAST, math.ceil(share * len(distinct)))
    none = Templates(NOTHING, 0, len(distinct), least)
    if share <= 0 or least > len(distinct):
        return none
    size = min(len(distinct), math.ceil(_EXPECTED * len(distinct) / least))
    sets = rows.shingle_sets(np.sort(distinct[:size]), scheme.ngram, run)
    held = [sets.values[a:b] for a, b in zip(sets.starts.tolist(), sets.ends.tolist(), strict=True)]
    hashes, counts = np.unique(np.concatenate(held), return_counts=True)
    often = hashes[(counts >= least * size / len(distinct) / 2) & (hashes != 0)]
    if size < len(distinct) and len(often):
        table = hash_table(often)
        counts = _count(rows, np.sort(distinct), scheme.ngram, table, run)
        often = table[counts >= least]
    else:
        often = hashes[(counts >= least) & (hashes != 0)]
    return Templates(hash_table(often), len(often), len(distinct), least) if len(often) else none


def _count(rows: Rows, positions: np.ndarray, ngram: int, table: np.ndarray, run: Run) -> np.ndarray:
    """In how many of the rows each hash of the table is, int64 by slot."""
    weights, lookup = multipliers(ngram), tables()

    def of_piece(piece: slice) -> np.ndarray:
        offsets, data = rows.texts.gather(positions[piece])
        here = np.arange(len(offsets) - 1)
        counts, lower = _count_batch(offsets, data, here, weights, lookup.ascii, lookup.unicode, table)
        for row in here[lower]:  # a capital sigma
            text = data[offsets[row] : offsets[row + 1]].tobytes().decode("utf-8", "replace").lower()
            again = buffers(pa.array([text], pa.large_string()))
            counts += _count_batch(*again, np.zeros(1, np.int64), weights, lookup.ascii, lookup.unicode, table)[0]
        return counts

    total = np.zeros(len(table), np.int64)
    for counts in run(of_piece, rows.texts.pieces(positions)):
        total += counts
    return total


@njit(nogil=True, cache=True)
def _count_batch(
    offsets: np.ndarray,
    data: np.ndarray,
    rows: np.ndarray,
    weights: np.ndarray,
    small: np.ndarray,
    unicode: np.ndarray,
    table: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    longest = 0
    for row in rows:
        longest = max(longest, offsets[row + 1] - offsets[row])
    tokens = np.empty(longest // 2 + 1, np.uint64)
    hashes = np.empty(longest // 2 + 1, np.uint64)
    counts = np.zeros(len(table), np.int64)
    last = np.full(len(table), -1, np.int64)
    lower = np.zeros(len(rows), np.bool_)
    shift = shift_of(table)
    for i in range(len(rows)):
        row = rows[i]
        count, _ = tokens_of(data, offsets[row], offsets[row + 1], small, unicode, tokens)
        lower[i] = count == NEEDS_LOWER
        total = combine(tokens, count, weights, hashes) if count > 0 else 0
        for k in range(total):
            slot = slot_of(table, shift, hashes[k])
            if slot >= 0 and last[slot] != i:
                last[slot] = i
                counts[slot] += 1
    return counts, lower
