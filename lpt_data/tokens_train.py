"""A byte-level BPE tokenizer trained on one's own data with the tokenizers library: no text is unknown to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lpt_data.dataset import Dataset
from lpt_data.progress import Progress, silent
from lpt_data.record_text import text_of
from lpt_data.tokenizer_file import wrap
from manifests.errors import UsageError
from manifests.files import write_atomic

BYTES = 256  # every byte has an id, whatever the data


def train(
    dataset: Dataset,
    out: Path,
    *,
    vocab_size: int,
    special: Sequence[str] = (),
    min_frequency: int = 2,
    single_digits: bool = False,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Write a tokenizer.json with `vocab_size` ids at most, special tokens first, and return what was made.

    `single_digits` gives every digit a token of its own. The result follows the texts, not their order. Raises
    UsageError for a vocabulary too small to hold the bytes and the special tokens.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    least = BYTES + len(special)
    if vocab_size < least:
        raise UsageError(
            "the vocabulary cannot hold every byte and the special tokens",
            seen=f"--vocab-size {vocab_size}, {BYTES} bytes and {len(special)} special tokens",
            next=f"--vocab-size {least} or more",
        )
    if len(set(special)) != len(special) or not all(special):
        raise UsageError("special tokens are not blank and occur once", seen=list(special), next="--special NAME")
    if out.suffix != ".json":
        raise UsageError("a tokenizer is written as JSON", seen=str(out), next="--out tokenizer.json")
    backend = Tokenizer(models.BPE())
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    split = [pre_tokenizers.Digits(individual_digits=True)] if single_digits else []
    backend.pre_tokenizer = pre_tokenizers.Sequence([*split, byte_level])
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        special_tokens=[AddedToken(name, normalized=False, special=True) for name in special],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(_texts(dataset, progress or silent), trainer)
    write_atomic(out, (backend.to_str(pretty=True) + "\n").encode())
    made = wrap(str(out), backend)
    return {
        "output": str(out),
        "sha256": made.sha256,
        "vocabulary": made.vocabulary,
        "asked": vocab_size,
        "rows_in": dataset.rows_in,
        "quarantined": len(dataset.quarantined()),
        "special": list(special),
        "min_frequency": min_frequency,
        "single_digits": single_digits,
    }


def _texts(dataset: Dataset, progress: Progress) -> Iterator[str]:
    for row, record, _, _ in dataset.identified():
        if row % 1000 == 0:
            progress(row, None, "reading")
        yield text_of(dataset.kind, record, "text")
