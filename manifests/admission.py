"""Admission manifests: find one, check the folder that it describes, compare two. What a trainer and the command
line call."""

from __future__ import annotations

from manifests.diff import ManifestDiff, SplitDiff, diff
from manifests.loaded import LoadedManifest, load_manifest, parse_split_ref
from manifests.verify import DifferingRow, VerifyReport, verify

__all__ = [
    "DifferingRow",
    "LoadedManifest",
    "ManifestDiff",
    "SplitDiff",
    "VerifyReport",
    "diff",
    "load_manifest",
    "parse_split_ref",
    "verify",
]
