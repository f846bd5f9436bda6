"""What an audit knows of each split: fixed-size facts per row, and what the rules of the contract found.

All that the measures need later is here (`lpt_data.contracts.collect` fills it in), so that a million conversations are
read and parsed once. Per row it holds its place, two 32-byte digests (record, canonical key), two 16-byte digests (what
is asked, what is learned), and three integers when a tokenizer is given; the text itself is not kept.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from lpt_data.batches import Quarantine, RecordBatch
from lpt_data.contracts.common import (
    CHARACTER_RULES,
    Encoder,
    Finding,
    Found,
    Outcome,
    PassRates,
    Record,
    Rule,
    TextRule,
    Verifier,
    printable,
)
from lpt_data.dataset import Dataset
from lpt_data.keys import NORMALISERS, canonical_key, key_hash, key_hashes, key_of
from manifests.canon import kind_of
from manifests.errors import BadInputError, RecordError

if TYPE_CHECKING:
    from lpt_data.contracts.sampled import Sampled
    from lpt_data.plain import Plain


class Parts(NamedTuple):
    """A record seen as a task: bytes that two records share where they ask, or teach, the same."""

    asked: bytes
    learned: bytes


@dataclass(frozen=True)
class RowTokens:
    """Token counts of one rendered row; `faults` maps a gate ("bos", "stop") to what is wrong."""

    length: int
    supervised: int
    kept: int  # supervised tokens inside the first max_length tokens
    faults: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Judgement:
    """What the verifiers said of the rows of a batch."""

    asked: Counter[str] = field(default_factory=Counter)  # check id -> rows that the verifier was asked about
    faults: list[tuple[int, str, str]] = field(default_factory=list)  # place in the batch, check id, detail
    missing: Counter[str] = field(default_factory=Counter)  # name of a verifier that was not given -> rows

    def note(self, place: int, results: Mapping[str, str | None]) -> None:
        """Enter the faults among the results of a row, by check id; None is no fault."""
        self.faults += [(place, check, detail) for check, detail in results.items() if detail is not None]


# (batch, verifiers, what earlier batches of the split taught it) -> what they say of its rows
Judge: TypeAlias = Callable[[RecordBatch, Mapping[str, Verifier], dict[Any, Any]], Judgement]


@dataclass(frozen=True)
class Reference:
    """Rows that the audited splits must not repeat: other splits, or the questions of a benchmark."""

    name: str
    items: int  # rows read
    unread: int  # rows that could not be: nothing was compared with them
    sources: tuple[dict[str, Any], ...]  # path, bytes, sha256 of each file
    records: Mapping[bytes, int] = field(default_factory=dict)  # record id -> row
    keys: Mapping[bytes, int] = field(default_factory=dict)  # canonical key hash -> row
    questions: Mapping[bytes, int] = field(default_factory=dict)  # normalised question hash -> row
    datasets: tuple[Dataset, ...] = ()  # where its rows can be read again, for what needs their texts
    error: str = ""  # why it could not be read; its checks are then errors

    @property
    def extent(self) -> str:
        """How many rows were compared with, and how many could not be."""
        return f"{self.items} rows of {self.name}" + (f", {self.unread} more could not be read" if self.unread else "")


@dataclass(frozen=True)
class Instruments:
    """What the caller lends for the checks that need more than the rows."""

    encode: Encoder | None = None
    max_length: int | None = None  # tokens
    verifiers: Mapping[str, Verifier] | None = None
    against: Reference | None = None
    benchmarks: tuple[Reference, ...] = ()
    seeds: Reference | None = None  # what the rows were generated from
    previous: tuple[Reference, ...] = ()  # earlier rounds of the same data, the oldest first
    languages: tuple[str, ...] = ()  # declared ones, ISO 639-1
    pass_rates: PassRates | None = None
    scored: tuple[str, ...] = ()  # the files behind them
    sampled: Sampled | None = None  # the attempts of a model behind them


@dataclass
class SplitSurvey:
    """The facts of one split. Position p is the p-th record; `rows[p]` its row in the input."""

    name: str
    dataset: Dataset
    rows: np.ndarray  # int64 [n]
    lines: np.ndarray  # int64 [n], 1-based place in the file
    files: np.ndarray  # int64 [n], index into dataset.files
    ids: np.ndarray  # uint8 [n, 32]
    keys: np.ndarray  # uint8 [n, 32]
    asked: np.ndarray  # uint8 [n, 16], [0, 16] where the contract has no `parts`
    learned: np.ndarray  # uint8 [n, 16], likewise
    tokens: np.ndarray  # int64 [m, 4]: position, length, supervised, kept
    faults: dict[str, list[tuple[int, str]]]  # rule id or gate -> (position, detail)
    broken: dict[str, str]  # rule id or gate -> the exception that stopped it
    judged: Counter[str]  # check id -> rows the verifier was asked about
    missing: Counter[str]  # verifier name -> rows that name it
    hits: dict[str, list[tuple[int, int]]]  # benchmark -> (position, item)
    facts: list[Any]  # what the contract's own `look` keeps of each row, [] without one
    rates: np.ndarray  # float64 [n], pass rate under a model, NaN where it is not known; [0] where nobody asks
    sample: list[tuple[int, str]]  # position and text of a sample that depends on content alone
    quarantined: list[Quarantine]
    rows_in: int
    has_extra: bool  # whether any row has columns beside its record

    def __len__(self) -> int:
        return len(self.rows)

    def finding(self, position: int, detail: str) -> Finding:
        """Return the finding of one record."""
        return Finding(
            self.name,
            int(self.rows[position]),
            self.ids[position].tobytes().hex(),
            printable(detail),
            str(self.dataset.files[self.files[position]].path),
            int(self.lines[position]),
        )


@dataclass(frozen=True)
class Survey:
    """The facts of all splits of one audit."""

    contract: Contract
    normaliser: str
    splits: tuple[SplitSurvey, ...]
    lent: Instruments

    @property
    def n(self) -> int:
        """Records over all splits."""
        return sum(len(s) for s in self.splits)

    def faults(self, name: str) -> Found:
        """Return the findings of one rule or gate over all splits."""
        places = [(part, *fault) for part in self.splits for fault in part.faults.get(name, ())]
        return Found(places, lambda place: place[0].finding(place[1], place[2]))

    def broken(self, name: str) -> str:
        """Return why a rule or gate could not finish, "" when it did."""
        return next((s.broken[name] for s in self.splits if name in s.broken), "")


Measure: TypeAlias = Callable[[Survey], Outcome]


@dataclass(frozen=True)
class Contract:
    """What a kind of data has to keep: rules for each row, measures over all rows, and how a row is read as a task."""

    name: str
    default_key: str
    parts: (
        Callable[[Record, bytes], Parts] | None
    )  # of a record and its canonical JSON; None: no measure compares what is asked with what is learned
    questions: Callable[[Record], list[str]]  # what a benchmark could hold
    rules: Mapping[str, Rule]
    measures: Mapping[str, Measure]
    # of plain records: SHA-256 of the two parts of each, of which the first half is kept; uint8 [n, 32]
    spans: Callable[[Plain], tuple[np.ndarray, np.ndarray]] | None = None
    text_rules: Mapping[str, TextRule] = field(default_factory=lambda: CHARACTER_RULES)
    render: Callable[[Record, Encoder, int | None], RowTokens] | None = None
    judge: Judge | None = None
    # (batch, normaliser, key hashes) -> the facts of each row that measures of this contract alone need
    look: Callable[[RecordBatch, str, Sequence[bytes]], Sequence[Any]] | None = None
    rate: Callable[[Mapping[str, Any]], float | None] | None = None  # other columns of a row -> its pass rate
    sample: Callable[[Record], str] | None = None  # the text of a row whose language is told
    sees: tuple[str, ...] = ()  # of `audit.UNSEEN`, what this contract does look for

    @property
    def kind(self) -> str:
        """Kind of its canonical records."""
        return kind_of(self.name)


def as_bytes(digests: np.ndarray) -> list[bytes]:
    """Return the rows of uint8 [n, w] as n byte strings."""
    data, width = np.ascontiguousarray(digests).tobytes(), digests.shape[1]
    return [data[i : i + width] for i in range(0, len(data), width)]


def all_differ(digests: np.ndarray) -> bool:
    """Return whether no two rows of uint8 [n, w], hashes all, are equal; told by their first eight bytes."""
    first = np.sort(np.ascontiguousarray(digests[:, :8]).view(np.uint64).reshape(-1))
    return not (first[1:] == first[:-1]).any()


def short_hash(data: bytes) -> bytes:
    """Return 16 bytes that stand for the bytes given."""
    return hashlib.sha256(data).digest()[:16]


def question_hash(text: str) -> bytes:
    """Return the hash of a question as benchmarks are compared: whole, normalised, numbers and operators kept."""
    return key_hash(canonical_key("text", {"text": text}, {}, "math"), "math")


def row_keys(
    kind: str,
    normaliser: str,
    rows: Sequence[int] | np.ndarray,
    records: Sequence[Record],
    beside: Sequence[Mapping[str, Any]],
) -> list[bytes]:
    """Return the key hash of each row; BadInputError where one has none: it could then be on both sides unseen."""
    try:
        return key_hashes(kind, records, beside, normaliser)
    except RecordError:
        for row, record, extra in zip(rows, records, beside, strict=True):
            try:
                key_of(kind, record, extra, normaliser)
            except RecordError as error:
                raise BadInputError(
                    f"a row has no canonical key {normaliser!r}",
                    seen=f"row {row}: {error.what}",
                    next=f"choose another --key: {', '.join(NORMALISERS)} or a column that every row has",
                ) from error
        raise
