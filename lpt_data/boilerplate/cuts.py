"""What a search for repeated text hands over: the cuts, the passages they repeat, and what is left of the documents."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Cuts:
    """One entry a cut; ``left`` has the new text of every document that was cut."""

    document: np.ndarray  # int64 [cuts]: who lost it
    keeper: np.ndarray  # int64 [cuts]: the document that keeps it, -1 where none was to
    chars: np.ndarray  # int64 [cuts]: characters
    passage: np.ndarray  # int64 [cuts]: index of what was cut, among the passages
    excerpts: list[str]  # [passages]: the beginning of each
    documents: np.ndarray  # int64 [passages]: how many documents held it
    left: dict[int, str]
    given_up: int = 0  # documents in which the search for passages stopped at its budget
