"""Plain text for continued pre-training: readable, not repeated, not in two splits.

What it does not do: language, quality heuristics, near-duplicates; those are stages, and change the rows.
"""

from __future__ import annotations

from lpt_data.contracts import suspects
from lpt_data.contracts.common import Marked, Record, Rule, is_blank
from lpt_data.contracts.survey import Contract


def empty(record: Record) -> str | None:
    """A document without visible text."""
    return "no visible text" if is_blank(record.get("text")) else None


def questions(record: Record) -> list[str]:
    """What a benchmark could hold: the whole document."""
    return [record["text"]]


RULES: dict[str, Rule] = {"text.empty_share": Marked(empty, suspects=suspects.blank)}
CONTRACT = Contract("text", default_key="text", parts=None, questions=questions, rules=RULES, measures={})
