"""Deduplication with a witness for every removal: exact, and near by the true Jaccard similarity of shingle sets.

Bands of MinHash signatures propose pairs, the shingle sets themselves decide, and a row goes only when a row that
stays, or one of a reference, is at or above the threshold. Not here: semantic similarity, repeated passages inside
documents.
"""

from __future__ import annotations

from lpt_data.dedup.stage import decide

__all__ = ["decide"]
