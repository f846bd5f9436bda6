"""Configs of the data stages: small, frozen, free to import (standard library only)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, is_dataclass
from typing import Any, Literal

# A field marked so never changes a result, hence never the identity of a stage: worker counts, memory budgets.
NO_IDENTITY = {"identity": False}


@dataclass(frozen=True)
class DedupConfig:
    """What counts as a duplicate, how it is looked for, and which copy stays."""

    method: tuple[str, ...] = ("exact", "minhash")
    threshold: float = 0.8  # Jaccard similarity of shingle sets, 0..1
    key: str = "text"  # text | prompt | response | row | a column
    keep: str = "content"  # content | first | longest
    ngram: int = 5  # words (or characters, in unspaced scripts) in a shingle
    num_perm: int | None = None  # None: chosen for recall at the threshold
    seed: int = 0
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
    return {name: _plain(getattr(config, name), settings) for name in config.__dataclass_fields__}


def identity(config: Any) -> dict[str, Any]:
    """The fields of a stage config that can change its result, as plain JSON values."""
    fields = config.__dataclass_fields__
    told = [name for name in fields if fields[name].metadata.get("identity", True)]
    return {name: _plain(getattr(config, name), identity) for name in told}


def _plain(value: Any, inner: Callable[[Any], dict[str, Any]]) -> Any:
    if isinstance(value, tuple):
        return [_plain(item, inner) for item in value]
    return inner(value) if is_dataclass(value) else value
