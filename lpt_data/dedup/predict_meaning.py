"""What the method semantic will take: a few texts are embedded and a few vectors multiplied, the rest is arithmetic.

Every row counts as a text of its own that is not in the cache yet, so time and disk are the most it can be.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lpt_data.config import SemanticConfig
from lpt_data.dedup import memory
from lpt_data.semantic import embed, neighbours
from lpt_data.semantic.alike import Semantics
from lpt_data.semantic.alike import check as check_settings

EMBEDDED = 128  # texts that go through the embedder
_TRIED = 2048  # vectors whose products are timed


@dataclass(frozen=True)
class Meaning:
    """What vectors are expected to take, should every row have a text of its own that was never embedded."""

    vectors: int
    vector_bytes: int
    embedding_seconds: float
    search: str  # exact | ivf
    search_seconds: float
    peak_memory_bytes: int
    spilled_bytes: int
    needed_bytes: int  # the smallest cap that works


def foretell(
    texts: Sequence[str], rows: int, beside: int, config: SemanticConfig, semantics: Semantics, cap: memory.Budget
) -> Meaning:
    """Foretell the vectors of ``rows`` rows and as many of a reference as are ``beside`` them.

    Raises BadInputError for an embedder that cannot be loaded.
    """
    check_settings(config)
    source, every = semantics.source, rows + beside
    embedder = embed.open_embedder(source.model, source.device)
    said = [text[: embedder.text_bytes] for text in texts]
    list(embedder.encode([said[:4]]))  # warms what the others use
    began, width = time.perf_counter(), embedder.width
    for part in embedder.encode(said[at : at + embedder.chunk] for at in range(0, len(said), embedder.chunk)):
        width = part.vectors.shape[1]
    a_text = (time.perf_counter() - began) / max(len(texts), 1)
    size = 2 * width * every
    exact = every <= neighbours.limit(config.exact_limit, source.device)
    a_pair = _seconds_a_pair(width, source.device)
    pairs = rows * (rows / 2 + beside)
    if not exact:
        lists, probes = neighbours.lists_for(every)
        pairs = 2.0 * rows * every * probes / lists  # centres and the lists behind them
    program = cap.resident + embed.footprint(source.model, source.device) + every * cap.a_row
    index = 0 if exact else neighbours.index_bytes(every, width)
    left = max(cap.cap - memory.KERNELS - program, 0)
    spills = size > left // 2
    held = (0 if spills else size) + index
    block = min(left // 2, 4 * width * every) if exact else 0
    return Meaning(
        every,
        size,
        round(a_text * every, 2),
        "exact" if exact else "ivf",
        round(a_pair * pairs, 2),
        min(program + held + block, cap.cap),
        size if spills else 0,
        program + index + memory.KERNELS + memory.LEAST_WORK,
    )


def _seconds_a_pair(width: int, device: str) -> float:
    """The time of one product of two vectors among many: random ones are searched."""
    some = max(32, min(_TRIED, (16 << 20) // max(4 * width, 1)))
    wide = np.random.default_rng(0).standard_normal((some, max(width, 1)), np.float32)
    vectors = (wide / np.linalg.norm(wide, axis=1, keepdims=True)).astype(np.float16)
    neighbours.all_pairs(vectors[:64], 0.99, device=device)
    began = time.perf_counter()
    neighbours.all_pairs(vectors, 0.99, device=device)
    return (time.perf_counter() - began) / (some * some / 2)
