"""From raw files to admitted splits: every decision on record."""
