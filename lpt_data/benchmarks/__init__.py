"""Benchmarks by name: the layouts in which they are published, pinned revisions, and the copies in a catalog.

`layouts` reads files as they are published, `known` is the table of names, `store` keeps what was added, `hub` fetches.
"""

from lpt_data.benchmarks.known import KNOWN, Known
from lpt_data.benchmarks.layouts import Entry, Published, read_published
from lpt_data.benchmarks.store import Added, add, added, paths_of, stored, verify

__all__ = [
    "KNOWN", "Added", "Entry", "Known", "Published", "add", "added", "paths_of", "read_published", "stored", "verify",
]  # fmt: skip
