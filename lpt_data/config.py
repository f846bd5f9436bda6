"""Configs of the data stages: small, frozen, free to import (standard library only)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

# A field marked so never changes a result, hence never the identity of a stage: worker counts, memory budgets.
NO_IDENTITY = {"identity": False}


@dataclass(frozen=True)
class DedupConfig:
    """What counts as a duplicate, how it is looked for, and which copy stays."""

    method: tuple[str, ...] = ("exact", "minhash")
    threshold: float = 0.8  # Jaccard similarity of shingle sets, 0..1
    key: str = "text"  # text | prompt | response | row | a column; after a "+", fields that must be equal as well
    keep: str = "content"  # content | first | longest | quality:COLUMN
    drop_all: bool = False  # the row that would have been kept goes too
    ngram: int = 5  # words (or characters, in unspaced scripts) in a shingle
    num_perm: int | None = None  # None: chosen for recall at the threshold
    seed: int = 0
    # Shingles that more than this share of the distinct rows hold are left out of the sets; 0: none, None: 0.05 for
    # conversations and other messages, none for plain text and columns.
    template_df: float | None = None
    alarm_share: float = 0.01  # of the rows of a file that one kept row may stand for before the report warns
    workers: int | None = field(default=None, metadata=NO_IDENTITY)
    memory: str | None = field(default=None, metadata=NO_IDENTITY)  # such as "4GB"


@dataclass(frozen=True)
class SplitConfig:
    """How many canonical keys are held out, and how they are chosen."""

    key: str = "text"  # text | math | code | countdown | a column
    test: int | float = 0.0  # int: number of keys; float below 1: share of the keys
    validation: int | float = 0.0  # same unit as test
    seed: int = 0
    method: Literal["hash", "draw"] = "hash"
    robustness_problems: int = 200  # countdown only: test problems of the order-robustness set
    robustness_orders: int = 8  # countdown only: orders per problem at most, the first one is the test row's own


def settings(config: Any) -> dict[str, Any]:
    """All fields of a stage config as plain JSON values."""
    values = {name: getattr(config, name) for name in config.__dataclass_fields__}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def identity(config: Any) -> dict[str, Any]:
    """The fields of a stage config that can change its result, as plain JSON values."""
    fields = config.__dataclass_fields__
    return {name: value for name, value in settings(config).items() if fields[name].metadata.get("identity", True)}
