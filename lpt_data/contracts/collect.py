"""One pass over a split: every rule asked, every fact kept.

Rows come in batches. A rule that can only find something where certain bytes stand (`Marked`) is asked of those rows
alone: one search in C over the canonical JSON of a whole batch spares nearly every row nearly every rule.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from lpt_data.contracts.common import Encoder, Marked, Record, Verifier, strings
from lpt_data.contracts.survey import Contract, Instruments, SplitSurvey, question_hash, row_key, short_hash
from lpt_data.dataset import Dataset, RecordBatch
from lpt_data.progress import Progress, silent
from manifests.canon import id_of
from manifests.errors import LptError

# An encoder refuses a row with a reason; these two have a check of their own, the others are failures to render.
GATE_OF_REASON = {"two_start_tokens": "bos", "no_stop_token": "stop"}


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

    def add(self, batch: RecordBatch) -> None:
        contract, start = self.contract, len(self.rows)
        self.rows += batch.rows
        self.ids += b"".join([id_of(contract.name, data) for data in batch.data])
        self.has_extra = self.has_extra or any(batch.beside)
        each = list(zip(batch.rows, batch.records, batch.beside, strict=True))
        keys = [row_key(contract.name, self.normaliser, row, record, beside) for row, record, beside in each]
        self.keys += b"".join(keys)
        if contract.twins or self.lent.benchmarks:
            self.compare(start, batch.records)
        if contract.look is not None:
            look, key = contract.look, self.normaliser
            self.facts += [
                look(record, beside, key, hashed) for (_, record, beside), hashed in zip(each, keys, strict=True)
            ]
        self.apply_rules(start, batch)
        if self.lent.encode is not None and contract.render is not None:
            for position, record in enumerate(batch.records, start):
                self.render(position, record, self.lent.encode)
        if self.lent.verifiers is not None and contract.judge is not None:
            for position, record in enumerate(batch.records, start):
                self.judge(position, record, self.lent.verifiers)

    def compare(self, start: int, records: Sequence[Record]) -> None:
        parts = [self.contract.parts(record) for record in records]
        if self.contract.twins:
            self.asked += b"".join([short_hash(part.asked) for part in parts])
            self.learned += b"".join([short_hash(part.learned) for part in parts])
        for position, part in enumerate(parts, start):
            self.look_up(position, part.questions)

    def fault(self, name: str, position: int, detail: str) -> None:
        self.faults.setdefault(name, []).append((position, detail))

    def apply_rules(self, start: int, batch: RecordBatch) -> None:
        everything = b"\n".join(batch.data)
        for name, rule in list(self.rules.items()):
            self.apply(name, rule, start, batch, everything, self.rules, lambda i: batch.records[i])
        texts: dict[int, list[str]] = {}  # of the rows that a rule on characters looks at, collected once

        def texts_of(i: int) -> list[str]:
            return texts[i] if i in texts else texts.setdefault(i, strings(batch.records[i]))

        for name, text_rule in list(self.text_rules.items()):
            self.apply(name, text_rule, start, batch, everything, self.text_rules, texts_of)

    def apply(
        self,
        name: str,
        rule: Callable[[Any], str | None],
        start: int,
        batch: RecordBatch,
        everything: bytes,
        table: dict[str, Any],
        value: Callable[[int], Any],
    ) -> None:
        for i in _candidates(rule, batch.data, everything):
            try:
                detail = rule(value(i))
            except Exception as error:  # a rule that breaks is an error in the report, never a pass
                self.broken[name] = f"row {batch.rows[i]}: {type(error).__name__}: {error}"
                del table[name]
                return
            if detail is not None:
                self.fault(name, start + i, detail)

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

    def judge(self, position: int, record: Record, verifiers: Mapping[str, Verifier]) -> None:
        if self.contract.judge is None:
            return
        judgement = self.contract.judge(record, verifiers)
        if judgement.missing is not None:
            self.missing[judgement.missing] += 1
        for name, detail in judgement.results.items():
            self.judged[name] += 1
            if detail is not None:
                self.fault(name, position, detail)


def _candidates(rule: Callable[[Any], str | None], data: Sequence[bytes], everything: bytes) -> Sequence[int]:
    """The places of the batch at which a rule can find something."""
    if not isinstance(rule, Marked):
        return range(len(data))
    here = [mark for mark in rule.marks if mark in everything]
    return [i for i, row in enumerate(data) if any(mark in row for mark in here)] if here else ()


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
    for batch in dataset.record_batches():
        seen.add(batch)
        report(len(seen.rows), None, f"audit {name}")
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
