"""Canonical records, digests, the catalog of what happened to them, and verdicts: the ground both sides stand on."""
