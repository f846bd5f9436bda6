"""The tokens of one epoch over an admitted split: as its admission counted them, else counted here.

An admission that was given a tokenizer has counted the rows of its conversations and of `kto`, cut at its max_length.
Documents are not rendered there, and of a pair only the longer side counts; those are rendered as training does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from lpt_train.admitted import AdmittedSplit, check_tokenizer
from manifests.errors import RefusedError, UsageError

if TYPE_CHECKING:
    from lpt_train.render import Renderer
    from lpt_train.steps import Renderings


@dataclass(frozen=True)
class SplitTokens:
    """Tokens of one epoch, in so many rows (a pair is two), by a tokenizer of that name."""

    ref: str
    tokens: int
    rows: int
    tokenizer: str
    notes: tuple[str, ...] = ()
    squares: int | None = None  # sum of the squared lengths of the rows; None where only their sum was kept

    @property
    def context(self) -> int:
        """Tokens of the row that a token is in, in the mean and rounded up: what attention costs, sum l² / sum l. The
        mean length of a row, which is never more, where no lengths are at hand."""
        if self.squares is None:
            return -(-self.tokens // self.rows) or 1
        return -(-self.squares // self.tokens) or 1

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self) | {"context_of": "row" if self.squares is None else "token"}


def split_tokens(split: AdmittedSplit, renderer: Callable[[], Renderer]) -> SplitTokens:
    """The tokens of a split; `renderer` is asked for only where they have to be counted.

    Raises `UsageError` for prompts, whose run trains on what it samples, `RefusedError` where no row can be rendered,
    the tokenizer is not the one of the admission, or rows were cut at a length that the manifest does not name.
    """
    if split.kind == "rlvr":
        raise UsageError(
            "tokens of a run on prompts are those that it samples", seen=f"{split.ref} is of the contract rlvr",
            next="lpt plan rollouts, or --tokens",
        )  # fmt: skip
    told = split.tokenized
    if told and told["rows"] and split.tokenizer and split.kind in ("sft", "kto"):
        cut = told["truncated_rows"]
        if cut and type(split.max_length) is not int:
            raise RefusedError(
                "the manifest has rows cut at a length that it does not name",
                seen=f"{split.ref}: truncated_rows {cut:,}, tokenizer.max_length {split.max_length}",
                next="admit it again with --tokenizer and --max-length; or --tokens",
            )
        notes = (f"{cut:,} rows are longer than {split.max_length:,} tokens and count as cut",) if cut else ()
        return SplitTokens(split.ref, told["tokens"], told["rows"], str(split.tokenizer.get("name")), notes)
    return _counted(split, renderer())


def _counted(split: AdmittedSplit, renderer: Renderer) -> SplitTokens:
    from lpt_train.packing import render_rows
    from lpt_train.render_pairs import render_completions, render_pairs
    from lpt_train.steps import dropped_notes

    check_tokenizer(split, renderer.fingerprint, renderer.name)
    longest: dict[str, Any] = {"max_length": split.max_length or sys.maxsize, "truncation": "keep_start"}
    renders: dict[str, Callable[..., Renderings]] = {"preference": render_pairs, "kto": render_completions}
    rendered = renders.get(split.kind, render_rows)(split.rows(), renderer, **longest)
    lengths = [len(row.ids) for row in rendered.rows]
    notes = tuple(dropped_notes(rendered.dropped, len(lengths)))
    return SplitTokens(
        split.ref, sum(lengths), len(lengths), renderer.name, notes, squares=sum(length**2 for length in lengths)
    )
