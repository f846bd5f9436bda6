"""One pass over a split: every rule asked, every fact kept.

Rows come in batches. A rule that can only find something where certain bytes stand (`Marked`) is asked of those rows
alone: one search in C over the canonical JSON of a whole batch spares nearly every row nearly every rule.
"""

from __future__ import annotations

import contextlib
import gc
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lpt_data.batches import RecordBatch
from lpt_data.contracts.common import Encoder, Marked, Record, Verifier, strings
from lpt_data.contracts.sample import Sample
from lpt_data.contracts.survey import Contract, Instruments, SplitSurvey, as_bytes, question_hash, row_keys, short_hash
from lpt_data.dataset import Dataset
from lpt_data.keys import FOLDED
from lpt_data.progress import Progress, silent
from lpt_data.text_arrays import bools
from manifests.canon import id_of
from manifests.errors import LptError, RecordError

if TYPE_CHECKING:
    from lpt_data.literals import Matcher

# An encoder refuses a row with a reason; these two have a check of their own, the others are failures to render.
GATE_OF_REASON = {"two_start_tokens": "bos", "no_stop_token": "stop"}


class _Collector:
    """Growing columns of one split; `survey_split` drives it and nothing else does."""

    def __init__(self, contract: Contract, kind: str, normaliser: str, lent: Instruments) -> None:
        self.contract, self.kind, self.normaliser, self.lent = contract, kind, normaliser, lent
        self.rules, self.text_rules = dict(contract.rules), dict(contract.text_rules)
        self.n = 0
        self.rows: list[np.ndarray] = []
        self.lines: list[np.ndarray] = []
        self.files: list[np.ndarray] = []
        self.has_extra = False
        self.ids: list[np.ndarray] = []
        self.keys: list[np.ndarray] = []
        self.asked, self.learned = bytearray(), bytearray()
        self.tokens: list[tuple[int, int, int, int]] = []
        self.faults: dict[str, list[tuple[int, str]]] = {}
        self.broken: dict[str, str] = {}
        tables: list[Any] = [*contract.rules.values(), *contract.text_rules.values()]
        literals = dict.fromkeys(rule.literals for rule in tables if isinstance(rule, Marked) and rule.literals)
        self.literals = {group: number for number, group in enumerate(literals)}
        self.judged: Counter[str] = Counter()
        self.tried: dict[Any, Any] = {}  # the judge's own
        self.missing: Counter[str] = Counter()
        self.hits: dict[str, list[tuple[int, int]]] = {}
        self.facts: list[Any] = []
        self.rates: list[np.ndarray] = []
        self.sample = Sample(contract.sample) if contract.sample is not None and lent.languages else None

    def add(self, batch: RecordBatch) -> None:
        contract, start = self.contract, self.n
        self.n += len(batch.rows)
        self.rows.append(np.asarray(batch.rows, np.int64))
        self.lines.append(np.asarray(batch.lines, np.int64))
        self.files.append(np.full(len(batch.rows), batch.file, np.int64))
        self.has_extra = self.has_extra or any(batch.beside)
        names, hashes = self.identities(batch)
        self.ids.append(names)
        self.keys.append(hashes)
        rated = contract.rate is not None and self.lent.pass_rates is not None
        needed = contract.look is not None or rated or self.sample is not None
        ids, keys = (as_bytes(names), as_bytes(hashes)) if needed else ([], [])
        self.split_up(batch)
        if contract.look is not None:
            self.facts += contract.look(batch, self.normaliser, keys)
        if contract.rate is not None:
            self.rates.append(self.rated(batch, ids, keys))
        if self.sample is not None:
            self.sample.add(start, ids, batch.records)
        self.apply_rules(start, batch)
        if self.lent.benchmarks or (self.lent.encode is not None and contract.render is not None):
            for position, record in enumerate(batch.records, start):
                if self.lent.benchmarks:
                    self.look_up(position, contract.questions(record))
                if self.lent.encode is not None and contract.render is not None:
                    self.render(position, batch.rows[position - start], record, self.lent.encode)
        if self.lent.verifiers is not None:
            self.judge(start, batch, self.lent.verifiers)

    def identities(self, batch: RecordBatch) -> tuple[np.ndarray, np.ndarray]:
        """The record id and the key hash of each row, uint8 [n, 32]."""
        kind, normaliser, plain = self.kind, self.normaliser, batch.plain
        ids = plain.ids if plain is not None else _digests([id_of(kind, data) for data in batch.data])
        if plain is not None and normaliser in FOLDED:
            return ids, plain.keys(normaliser)
        return ids, _digests(row_keys(kind, normaliser, batch.rows, batch.records, batch.beside))

    def split_up(self, batch: RecordBatch) -> None:
        """Keep what stands for what each row asks and teaches."""
        if self.contract.parts is None:
            return
        if batch.plain is not None and self.contract.spans is not None:
            asked, learned = self.contract.spans(batch.plain)
            self.asked += asked[:, :16].tobytes()
            self.learned += learned[:, :16].tobytes()
            return
        parts = [self.contract.parts(*row) for row in zip(batch.records, batch.data, strict=True)]
        self.asked += b"".join([short_hash(part.asked) for part in parts])
        self.learned += b"".join([short_hash(part.learned) for part in parts])

    def rated(self, batch: RecordBatch, ids: Sequence[bytes], keys: Sequence[bytes]) -> np.ndarray:
        """The pass rate of each row: the lent one, else that of its own columns, else NaN."""
        own, lent = self.contract.rate, self.lent.pass_rates
        if own is None or (lent is None and not self.has_extra):
            return np.full(len(batch.rows), math.nan)
        rates = [own(beside) if beside else None for beside in batch.beside]
        if lent is not None:
            told = [lent(*row) for row in zip(ids, keys, batch.records, strict=True)]
            rates = [rate if given is None else given for rate, given in zip(rates, told, strict=True)]
        return np.array([math.nan if rate is None else rate for rate in rates], np.float64)

    def fault(self, name: str, position: int, detail: str) -> None:
        self.faults.setdefault(name, []).append((position, detail))

    def apply_rules(self, start: int, batch: RecordBatch) -> None:
        where = _Marks(batch, self.literals)
        for name, rule in list(self.rules.items()):
            self.apply(name, rule, start, batch, where, self.rules, batch.records.__getitem__)
        texts: dict[int, list[str]] = {}  # of the rows that a rule on characters looks at, collected once

        def texts_of(i: int) -> list[str]:
            return texts[i] if i in texts else texts.setdefault(i, strings(batch.records[i]))

        for name, text_rule in list(self.text_rules.items()):
            self.apply(name, text_rule, start, batch, where, self.text_rules, texts_of)

    def apply(
        self,
        name: str,
        rule: Callable[[Any], str | None],
        start: int,
        batch: RecordBatch,
        where: _Marks,
        table: dict[str, Any],
        value: Callable[[int], Any],
    ) -> None:
        for i in where.candidates(rule):
            try:
                detail = rule(value(i))
            except Exception as error:  # a rule that breaks is an error in the report, never a pass
                self.broken[name] = f"row {batch.rows[i]}: {type(error).__name__}: {error}"
                del table[name]
                return
            if detail is not None:
                self.fault(name, start + i, detail)

    def look_up(self, position: int, questions: list[str]) -> None:
        for hashed in {question_hash(q) for q in questions}:
            for benchmark in self.lent.benchmarks:
                if (item := benchmark.questions.get(hashed)) is not None:
                    self.hits.setdefault(benchmark.name, []).append((position, item))

    def render(self, position: int, row: int, record: Record, encode: Encoder) -> None:
        if self.contract.render is None or "render" in self.broken:
            return
        try:
            tokens = self.contract.render(record, encode, self.lent.max_length)
        except RecordError as error:  # what is wrong with this row
            gate = GATE_OF_REASON.get(getattr(error, "reason", ""), "render")
            self.fault(gate, position, f"{error.what}: {error.seen}" if error.seen else error.what)
            return
        except LptError:  # what is wrong with the tokenizer, and so with every row
            raise
        except Exception as error:  # the encoder itself broke: no number that rests on it can be trusted
            self.broken["render"] = f"row {row}: {type(error).__name__}: {error}"
            return
        self.tokens.append((position, tokens.length, tokens.supervised, tokens.kept))
        for gate, detail in tokens.faults.items():
            self.fault(gate, position, detail)

    def judge(self, start: int, batch: RecordBatch, verifiers: Mapping[str, Verifier]) -> None:
        """Ask the verifiers about the rows of a batch, all at once."""
        if self.contract.judge is None:
            return
        judgement = self.contract.judge(batch, verifiers, self.tried)
        self.judged.update(judgement.asked)
        self.missing.update(judgement.missing)
        for place, name, detail in sorted(judgement.faults, key=lambda fault: fault[0]):
            self.fault(name, start + place, detail)


class _Marks:
    """Which rows of a batch a rule is asked of."""

    def __init__(self, batch: RecordBatch, literals: Mapping[tuple[bytes, ...], int]) -> None:
        self._batch, self._literals = batch, literals
        self._searched: dict[str | bytes, np.ndarray] = {}

    @cached_property
    def _column(self) -> pa.Array:
        """The canonical JSON of the rows, large_string [n]."""
        if self._batch.plain is not None:
            return self._batch.plain.column
        data = self._batch.data
        ends = np.cumsum([0, *map(len, data)], dtype=np.int64)
        buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(data))]
        return pa.Array.from_buffers(pa.large_string(), len(data), buffers)

    @cached_property
    def _ascii(self) -> bool:
        return pc.all(pc.string_is_ascii(self._column)).as_py()

    @cached_property
    def _found(self) -> np.ndarray:
        """Which groups of literals the texts of plain rows hold: uint64 [n]."""
        plain = self._batch.plain
        assert plain is not None
        return _matcher(tuple(self._literals)).find(plain.data, plain.starts, plain.ends, plain.first)

    def candidates(self, rule: Callable[[Any], str | None]) -> Sequence[int]:
        """The places of the batch at which a rule can find something, in order."""
        rows, plain = len(self._batch.rows), self._batch.plain
        if isinstance(rule, Marked) and plain is not None and rule.suspects is not None:
            return np.flatnonzero(rule.suspects(plain)).tolist()
        if isinstance(rule, Marked) and plain is not None and rule.literals:
            return np.flatnonzero(self._found & np.uint64(1 << self._literals[rule.literals])).tolist()
        if not isinstance(rule, Marked) or not (rule.patterns or rule.marks):
            return range(rows)
        found = np.zeros(rows, bool)
        sought: list[str | bytes] = [*rule.patterns, *(() if self._ascii else rule.marks)]
        for pattern in sought:
            if pattern not in self._searched:
                self._searched[pattern] = self._search(pattern)
            found |= self._searched[pattern]
        return np.flatnonzero(found).tolist()

    def _search(self, pattern: str | bytes) -> np.ndarray:
        if isinstance(pattern, bytes):
            return bools(pc.match_substring(self._column.cast(pa.large_binary()), pattern))
        return bools(pc.match_substring_regex(self._column, pattern))


@cache
def _matcher(groups: tuple[tuple[bytes, ...], ...]) -> Matcher:
    from lpt_data.literals import Matcher  # numba, which small inputs do without

    return Matcher.of(groups)


def _digests(names: Sequence[bytes]) -> np.ndarray:
    return np.frombuffer(b"".join(names), np.uint8).reshape(-1, 32)


def _stacked(parts: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.zeros((0, 32), np.uint8), *parts])


def _joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.zeros(0, np.int64), *parts])


def _columns(data: bytearray, width: int) -> np.ndarray:
    return np.frombuffer(bytes(data), np.uint8).reshape(-1, width)


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Keep the collector of cycles away: rows are trees, and it would look through all facts again and again."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


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
    seen = _Collector(contract, dataset.kind, normaliser, lent)
    with uncollected():
        for batch in dataset.record_batches(plain=True):
            seen.add(batch)
            report(seen.n, None, f"audit {name}")
    report(seen.n, seen.n, f"audit {name}")
    return SplitSurvey(
        name=name,
        dataset=dataset,
        rows=_joined(seen.rows),
        lines=_joined(seen.lines),
        files=_joined(seen.files),
        ids=_stacked(seen.ids),
        keys=_stacked(seen.keys),
        asked=_columns(seen.asked, 16),
        learned=_columns(seen.learned, 16),
        tokens=np.asarray(seen.tokens, np.int64).reshape(-1, 4),
        faults=seen.faults,
        broken=seen.broken,
        judged=seen.judged,
        missing=seen.missing,
        hits=seen.hits,
        facts=seen.facts,
        rates=np.concatenate([np.zeros(0), *seen.rates]),
        sample=seen.sample.texts() if seen.sample is not None else [],
        quarantined=dataset.quarantined(),
        rows_in=dataset.rows_in,
        has_extra=seen.has_extra,
    )
