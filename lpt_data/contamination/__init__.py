"""Decontamination: which rows repeat a benchmark item, measured by n-grams of words, with canaries in every run.

Not here: paraphrases. N-grams do not see them, and a report says so; whole questions compared by canonical key are in
`lpt_data.contracts`.
"""

from __future__ import annotations

from lpt_data.contamination.items import load_benchmarks
from lpt_data.contamination.stage import config_for, decider

__all__ = ["config_for", "decider", "load_benchmarks"]
