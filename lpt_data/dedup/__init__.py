"""Deduplication with a witness for every removal: exact, and near by the true Jaccard similarity of shingle sets.

Bands of MinHash signatures propose pairs, the shingle sets themselves decide, and a row goes only when a row that
stays, or one of a reference, is at or above the threshold. Not here: semantic similarity, repeated passages inside
documents.

One machine or many, the work is a chain of pure functions over parts of the rows; `stage` calls them within a cap on
memory (`memory`, `store`, `spill`), and an engine may call them wherever the parts are:

    lsh.sketch(texts of a batch)            -> signatures, bitmap, counts      any part of the rows
    exact.classes(hashes, texts of rows)    -> leader of each row              rows that share a token sequence
    lsh.links(keys of one partition, …)     -> pairs that may be duplicates    one band, or a part of it by key
    graph.unite, graph.deal                 -> components, dealt into batches  integers of all rows
    shingles.fill(texts, rows of a batch)   -> sorted sets of hashes           any part of the rows
    compare.cover_batch / cover_chain       -> witness and score of each row   whole components, in any grouping

Results are those of all rows at once whatever the parts: partitions only propose, components are independent, and the
cover follows a declared order of the rows.
"""

from __future__ import annotations

from lpt_data.dedup.stage import decide

__all__ = ["decide"]
