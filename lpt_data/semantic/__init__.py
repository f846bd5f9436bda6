"""Texts by what they mean: an embedder with an identity, a cache by content, exact neighbours above a threshold.

Used by deduplication (`lpt_data.dedup`) and by the second opinion on contamination (`lpt_data.contamination`). What an
embedder calls alike is an opinion: two sentences that differ in one number or in a "not" are close to it. So scores
are kept with examples to read, and numbers have a guard of their own (`numbers`).

`models`, `embed` and `neighbours` need numpy, tokenizers, torch and transformers and nothing else of ours but errors,
so that the benchmark on a bare GPU machine runs the very code that production does.
"""
