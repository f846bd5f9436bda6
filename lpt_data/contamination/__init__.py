"""Decontamination: which rows repeat a benchmark item, measured by n-grams of words, with canaries in every run.

N-grams do not see paraphrases; an embedder, as a second opinion, sees most (`meaning`). Whole questions compared by
canonical key are in `lpt_data.contracts`.
"""

from __future__ import annotations

from lpt_data.contamination.items import load_benchmarks
from lpt_data.contamination.stage import Second, config_for, decider

__all__ = ["Second", "config_for", "decider", "load_benchmarks"]
