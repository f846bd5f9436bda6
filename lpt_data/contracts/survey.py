"""One pass over each split: fixed-size facts per row, and what the rules of the contract found.

All that the measures need later is here, so that a million conversations are read and parsed once. Per row it holds two
32-byte digests (record, canonical key), two 16-byte digests (what is asked, what is learned), and three integers when a
tokenizer is given; the text itself is not kept.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import orjson

from lpt_data.contracts.common import (
    CHARACTER_RULES,
    Encoder,
    Finding,
    Outcome,
    Record,
    Rule,
    TextRule,
    Verifier,
    printable,
    strings,
)
from lpt_data.dataset import Dataset, Quarantine
from lpt_data.keys import NORMALISERS, canonical_key, key_hash
from lpt_data.progress import Progress, silent
from manifests.canon import kind_of
from manifests.errors import BadInputError, LptError, RecordError

REPORT_EVERY = 1024  # records between two reports of progress
JUDGED_AT_ONCE = 256  # records whose verifiers are asked together
# An encoder refuses a row with a reason; these two have a check of their own, the others are failures to render.
GATE_OF_REASON = {"two_start_tokens": "bos", "no_stop_token": "stop"}


@dataclass(frozen=True)
class Parts:
    """A record seen as a task: `asked` and `learned` are any JSON values, `questions` what a benchmark could hold."""

    asked: Any
    learned: Any
    questions: list[str]


@dataclass(frozen=True)
class RowTokens:
    """Token counts of one rendered row; `faults` maps a gate ("bos", "stop") to what is wrong."""

    length: int
    supervised: int
    kept: int  # supervised tokens inside the first max_length tokens
    faults: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Judgement:
    """What the verifier said of one row: check id -> fault or None. `missing` names a verifier that was not given."""

    results: Mapping[str, str | None] = field(default_factory=dict)
    missing: str | None = None


# (record, other columns) of some rows, the verifiers by name -> a judgement of each
Judge: TypeAlias = Callable[[Sequence[tuple[Record, Mapping[str, Any]]], Mapping[str, Verifier]], list[Judgement]]


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


@dataclass
class SplitSurvey:
    """The facts of one split. Position p is the p-th record; `rows[p]` its row in the input."""

    name: str
    dataset: Dataset
    rows: np.ndarray  # int64 [n]
    ids: np.ndarray  # uint8 [n, 32]
    keys: np.ndarray  # uint8 [n, 32]
    asked: np.ndarray  # uint8 [n, 16]
    learned: np.ndarray  # uint8 [n, 16]
    tokens: np.ndarray  # int64 [m, 4]: position, length, supervised, kept
    faults: dict[str, list[tuple[int, str]]]  # rule id or gate -> (position, detail)
    broken: dict[str, str]  # rule id or gate -> the exception that stopped it
    judged: Counter[str]  # check id -> rows the verifier was asked about
    missing: Counter[str]  # verifier name -> rows that name it
    hits: dict[str, list[tuple[int, int]]]  # benchmark -> (position, item)
    facts: list[Any]  # what the contract's own `look` keeps of each row, [] without one
    quarantined: list[Quarantine]
    rows_in: int
    has_extra: bool  # whether any row has columns beside its record

    def __len__(self) -> int:
        return len(self.rows)

    def finding(self, position: int, detail: str) -> Finding:
        """Return the finding of one record."""
        return Finding(self.name, int(self.rows[position]), self.ids[position].tobytes().hex(), printable(detail))


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

    def faults(self, name: str) -> Iterator[Finding]:
        """Yield the findings of one rule or gate over all splits."""
        for part in self.splits:
            for position, detail in part.faults.get(name, ()):
                yield part.finding(position, detail)

    def broken(self, name: str) -> str:
        """Return why a rule or gate could not finish, "" when it did."""
        return next((s.broken[name] for s in self.splits if name in s.broken), "")


Measure: TypeAlias = Callable[[Survey], Outcome]


@dataclass(frozen=True)
class Contract:
    """What a kind of data has to keep: rules for each row, measures over all rows, and how a row is read as a task."""

    name: str
    default_key: str
    parts: Callable[[Record], Parts]
    rules: Mapping[str, Rule]
    measures: Mapping[str, Measure]
    text_rules: Mapping[str, TextRule] = field(default_factory=lambda: CHARACTER_RULES)
    render: Callable[[Record, Encoder, int | None], RowTokens] | None = None
    judge: Judge | None = None
    # (record, other columns, normaliser, key hash) -> the facts of a row that measures of this contract alone need
    look: Callable[[Record, Mapping[str, Any], str, bytes], Any] | None = None
    sees: tuple[str, ...] = ()  # of `audit.UNSEEN`, what this contract does look for

    @property
    def kind(self) -> str:
        """Kind of its canonical records."""
        return kind_of(self.name)


def short_hash(value: Any) -> bytes:
    """Return 16 bytes that identify a JSON value; key order does not matter."""
    return hashlib.sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).digest()[:16]


def question_hash(text: str) -> bytes:
    """Return the hash of a question as benchmarks are compared: whole, normalised, numbers and operators kept."""
    return key_hash(canonical_key("text", {"text": text}, {}, "math"), "math")


def row_key(kind: str, normaliser: str, row: int, record: Record, extra: Mapping[str, Any]) -> bytes:
    """Return the key hash of a row; BadInputError where it has none, because it could then be on both sides unseen."""
    try:
        return key_hash(canonical_key(kind, record, extra, normaliser), normaliser)
    except RecordError as error:
        raise BadInputError(
            f"a row has no canonical key {normaliser!r}",
            seen=f"row {row}: {error.what}",
            next=f"choose another --key: {', '.join(NORMALISERS)} or a column that every row has",
        ) from error


class _Collector:
    """Growing columns of one split; `survey_split` drives it and nothing else does."""

    def __init__(self, contract: Contract, normaliser: str, lent: Instruments) -> None:
        self.contract, self.normaliser, self.lent = contract, normaliser, lent
        self.rules, self.text_rules = dict(contract.rules), dict(contract.text_rules)
        self.rows: list[int] = []
        self.has_extra = False
        self.ids, self.keys, self.asked, self.learned = bytearray(), bytearray(), bytearray(), bytearray()
        self.tokens: list[tuple[int, int, int, int]] = []
        self.faults: dict[str, list[tuple[int, str]]] = {}
        self.broken: dict[str, str] = {}
        self.judged: Counter[str] = Counter()
        self.missing: Counter[str] = Counter()
        self.hits: dict[str, list[tuple[int, int]]] = {}
        self.facts: list[Any] = []
        self.waiting: list[tuple[int, Record, Mapping[str, Any]]] = []  # for their verifiers

    def add(self, row: int, record: Record, extra: Mapping[str, Any], name: bytes) -> None:
        position = len(self.rows)
        self.rows.append(row)
        self.ids += name
        self.has_extra = self.has_extra or bool(extra)
        key = row_key(self.contract.kind, self.normaliser, row, record, extra)
        self.keys += key
        parts = self.contract.parts(record)
        self.asked += short_hash(parts.asked)
        self.learned += short_hash(parts.learned)
        if self.contract.look is not None:
            self.facts.append(self.contract.look(record, extra, self.normaliser, key))
        self.apply_rules(position, record)
        self.look_up(position, parts.questions)
        if self.lent.encode is not None and self.contract.render is not None:
            self.render(position, record, self.lent.encode)
        if self.lent.verifiers is not None and self.contract.judge is not None:
            self.waiting.append((position, record, extra))
            if len(self.waiting) == JUDGED_AT_ONCE:
                self.judge()

    def fault(self, name: str, position: int, detail: str) -> None:
        self.faults.setdefault(name, []).append((position, detail))

    def apply_rules(self, position: int, record: Record) -> None:
        for name, rule in list(self.rules.items()):
            self.apply(name, rule, record, position, self.rules)
        texts = strings(record)
        for name, text_rule in list(self.text_rules.items()):
            self.apply(name, text_rule, texts, position, self.text_rules)

    def apply(
        self, name: str, rule: Callable[[Any], str | None], value: Any, position: int, table: dict[str, Any]
    ) -> None:
        try:
            detail = rule(value)
        except Exception as error:  # a rule that breaks is an error in the report, never a pass
            self.broken[name] = f"row {self.rows[position]}: {type(error).__name__}: {error}"
            del table[name]
            return
        if detail is not None:
            self.fault(name, position, detail)

    def look_up(self, position: int, questions: list[str]) -> None:
        if not self.lent.benchmarks:
            return
        for hashed in {question_hash(q) for q in questions}:
            for benchmark in self.lent.benchmarks:
                if (item := benchmark.questions.get(hashed)) is not None:
                    self.hits.setdefault(benchmark.name, []).append((position, item))

    def render(self, position: int, record: Record, encode: Encoder) -> None:
        if self.contract.render is None or "render" in self.broken:
            return
        try:
            tokens = self.contract.render(record, encode, self.lent.max_length)
        except LptError as error:
            gate = GATE_OF_REASON.get(getattr(error, "reason", ""), "render")
            self.fault(gate, position, f"{error.what}: {error.seen}" if error.seen else error.what)
            return
        except Exception as error:  # the encoder itself broke: no number that rests on it can be trusted
            self.broken["render"] = f"row {self.rows[position]}: {type(error).__name__}: {error}"
            return
        self.tokens.append((position, tokens.length, tokens.supervised, tokens.kept))
        for gate, detail in tokens.faults.items():
            self.fault(gate, position, detail)

    def judge(self) -> None:
        """Ask the verifiers about the rows that wait."""
        waiting, self.waiting = self.waiting, []
        if not waiting or self.contract.judge is None or self.lent.verifiers is None:
            return
        judgements = self.contract.judge([(record, extra) for _, record, extra in waiting], self.lent.verifiers)
        for (position, _, _), judgement in zip(waiting, judgements, strict=True):
            if judgement.missing is not None:
                self.missing[judgement.missing] += 1
            for name, detail in judgement.results.items():
                self.judged[name] += 1
                if detail is not None:
                    self.fault(name, position, detail)


def _columns(data: bytearray, width: int) -> np.ndarray:
    return np.frombuffer(bytes(data), np.uint8).reshape(-1, width)


def survey_split(
    name: str,
    dataset: Dataset,
    contract: Contract,
    normaliser: str,
    lent: Instruments,
    progress: Progress | None = None,
) -> SplitSurvey:
    """Read one split once and return its facts. Raises what the reader raises for files that cannot be read at all."""
    report = progress or silent
    seen = _Collector(contract, normaliser, lent)
    for count, (row, record, extra, record_id) in enumerate(dataset.identified(), 1):
        seen.add(row, record, extra, record_id)
        if count % REPORT_EVERY == 0:
            report(count, None, f"audit {name}")
    seen.judge()
    report(len(seen.rows), len(seen.rows), f"audit {name}")
    return SplitSurvey(
        name=name,
        dataset=dataset,
        rows=np.asarray(seen.rows, np.int64),
        ids=_columns(seen.ids, 32),
        keys=_columns(seen.keys, 32),
        asked=_columns(seen.asked, 16),
        learned=_columns(seen.learned, 16),
        tokens=np.asarray(seen.tokens, np.int64).reshape(-1, 4),
        faults=seen.faults,
        broken=seen.broken,
        judged=seen.judged,
        missing=seen.missing,
        hits=seen.hits,
        facts=seen.facts,
        quarantined=dataset.quarantined(),
        rows_in=dataset.rows_in,
        has_extra=seen.has_extra,
    )
