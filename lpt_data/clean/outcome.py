"""What a rule says about a text, what it may look at, and what a row of the table of rules holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

import numpy as np

from lpt_data.clean import measure
from lpt_data.clean.marks import marks


@dataclass(frozen=True)
class Keep:
    """Nothing to say."""


@dataclass(frozen=True)
class Rewrite:
    """The text goes on in another form."""

    text: str
    reason: str


@dataclass(frozen=True)
class Drop:
    """The row goes; `score` is what was measured and `detail` what it was held against, never the text itself."""

    reason: str
    score: float
    detail: str = ""


Outcome: TypeAlias = Keep | Rewrite | Drop
KEEP = Keep()
Limits: TypeAlias = Mapping[str, float]


@dataclass
class Document:
    """One text with what is counted in it, each count made when it is first asked for."""

    text: str
    languages: tuple[str, ...] = ()  # wanted ones

    @cached_property
    def data(self) -> np.ndarray:
        """The UTF-8 bytes, uint8 [bytes]."""
        return measure.as_bytes(self.text)

    @cached_property
    def marks(self) -> int:
        """What the text may hold: bits of `lpt_data.clean.marks`."""
        return marks(self.data)

    @cached_property
    def _measured(self) -> tuple[measure.Facts, np.ndarray, np.ndarray]:
        return measure.measure(self.data)

    @property
    def facts(self) -> measure.Facts:
        """Words, lines, paragraphs and the like."""
        return self._measured[0]

    @cached_property
    def repeats(self) -> measure.Repeats:
        """Characters in repeated n-grams."""
        return measure.repeats(*self._measured[1:])

    @cached_property
    def language(self) -> tuple[str, float]:
        """The language (ISO 639-1, "und" where it cannot be told) and its probability."""
        from lpt_data.clean.language import identify

        return identify(self.text)


@dataclass(frozen=True)
class Rule:
    """A row of the table of rules."""

    name: str  # family.what
    apply: Callable[[Document, Limits], Outcome]
    limits: Mapping[str, float]  # thresholds and their defaults
    marks: int = 0  # the rule is asked only where the text has one of these marks; 0: always
    private: bool = False  # what it finds must not be shown, nor written down
    needs: Literal["", "languages", "english"] = ""  # runs only where the languages to keep are named

    @property
    def source(self) -> str:
        """The first paragraph of the rule's docstring: what it does and who proposed it."""
        return " ".join((self.apply.__doc__ or "").split("\n\n")[0].split())
