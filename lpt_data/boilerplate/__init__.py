"""Text that documents repeat among each other, cut out: lines, paragraphs, or exact passages of a least length.

Whole rows are the business of `lpt_data.dedup`, which removes them; here rows are rewritten. Repetition inside one
document is none of this package: the rules of `lpt_data.clean` look at it.
"""

from __future__ import annotations

from lpt_data.boilerplate.stage import decide

__all__ = ["decide"]
