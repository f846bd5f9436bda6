"""Which files a list of paths, globs and folders means, and what each one is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class SourceFile:
    """One input file: path as given, format (jsonl, json, csv, tsv, parquet), compression ('', gz, zst), size in bytes."""

    path: str
    format: str
    compression: str
    bytes: int


def expand(inputs: Sequence[str]) -> list[SourceFile]:
    """Files meant by paths, globs and folders, in the order given, those of a glob or folder sorted by path."""
    return []
