"""Measures that compare rows of the same split, and splits with each other or with references."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from lpt_data.contracts.common import NO_BENCHMARK, NO_REFERENCE, Finding, Outcome, share, skipped
from lpt_data.contracts.near import near_share
from lpt_data.contracts.survey import Measure, Reference, SplitSurvey, Survey, all_differ, as_bytes


def _repeats(part: SplitSurvey, digests: np.ndarray, what: str) -> Iterator[Finding]:
    """Yield each row whose digest an earlier row of the split has."""
    if all_differ(digests):
        return
    first: dict[bytes, int] = {}
    for position, digest in enumerate(as_bytes(digests)):
        before = first.setdefault(digest, position)
        if before != position:
            yield part.finding(position, f"same {what} as row {int(part.rows[before])}")


def quarantined_share(survey: Survey) -> Outcome:
    """Share of input rows that the reader could not turn into a record, with the reasons counted."""
    rows_in = sum(s.rows_in for s in survey.splits)
    findings = tuple(
        Finding(s.name, q.row, "", f"{q.reason}: {q.detail}" if q.detail else q.reason, q.file, q.line)
        for s in survey.splits
        for q in s.quarantined
    )
    reasons = Counter(q.reason for s in survey.splits for q in s.quarantined)
    said = ", ".join(f"{reason} {n}" for reason, n in reasons.most_common())
    return Outcome(share(len(findings), rows_in), rows_in, findings, reason=said)


def empty_splits(survey: Survey) -> Outcome:
    """Number of splits without a single record: every share over nothing would look perfect."""
    empty = [s.name for s in survey.splits if len(s) == 0]
    return Outcome(len(empty), len(survey.splits), reason=", ".join(empty))


def exact_duplicates(survey: Survey) -> Outcome:
    """Share of rows that repeat an earlier record of their split exactly."""
    findings = tuple(f for s in survey.splits for f in _repeats(s, s.ids, "record"))
    return Outcome(share(len(findings), survey.n), survey.n, findings)


def duplicated_inputs(survey: Survey) -> Outcome:
    """Share of rows whose input (all but what is learned) an earlier row of their split has, byte for byte."""
    findings = tuple(f for s in survey.splits for f in _repeats(s, s.asked, "input"))
    return Outcome(share(len(findings), survey.n), survey.n, findings)


def conflicting_outputs(survey: Survey) -> Outcome:
    """Share of rows whose input also occurs in their split with another output."""
    findings: list[Finding] = []
    for part in survey.splits:
        if all_differ(part.asked):
            continue
        every = as_bytes(part.asked)
        again = {asked for asked, times in Counter(every).items() if times > 1}
        groups: dict[bytes, list[int]] = {}
        for position, asked in enumerate(every) if again else ():
            if asked in again:
                groups.setdefault(asked, []).append(position)
        learned = as_bytes(part.learned)
        for positions in groups.values():
            if len({learned[p] for p in positions}) < 2:
                continue
            first = positions[0]
            second = next(q for q in positions if learned[q] != learned[first])
            for p in positions:
                other = first if learned[p] != learned[first] else second  # the first row with another output
                findings.append(part.finding(p, f"same input as row {int(part.rows[other])}, another output"))
    findings.sort(key=lambda f: (f.split, f.row))
    return Outcome(share(len(findings), survey.n), survey.n, tuple(findings))


def rows_per_key(survey: Survey) -> Outcome:
    """Rows for each distinct canonical key, in the split where it is highest: 1.0 means that no prompt repeats."""
    findings = tuple(f for s in survey.splits for f in _repeats(s, s.keys, "key"))
    ratios = [len(s) / len(set(as_bytes(s.keys))) for s in survey.splits if len(s)]
    return Outcome(max(ratios), survey.n, findings) if ratios else skipped("no record in any split")


def _shared(survey: Survey, column: str, what: str) -> Outcome:
    """Count distinct digests that two splits share, over all pairs; the rows found are those of the earlier split."""
    if len(survey.splits) < 2:
        return skipped("one split alone has nothing to leak into", survey.n)
    findings, total = [], 0
    for index, left in enumerate(survey.splits):
        for right in survey.splits[index + 1 :]:
            there = {
                digest: position for position, digest in reversed(list(enumerate(as_bytes(getattr(right, column)))))
            }
            hits = [(p, d) for p, d in enumerate(as_bytes(getattr(left, column))) if d in there]
            total += len({d for _, d in hits})
            findings += [
                left.finding(p, f"same {what} as {right.name} row {int(right.rows[there[d]])}") for p, d in hits
            ]
    return Outcome(total, survey.n, tuple(findings))


def shared_records(survey: Survey) -> Outcome:
    """Number of distinct records that occur in more than one split, counted per pair of splits."""
    return _shared(survey, "ids", "record")


def shared_keys(survey: Survey) -> Outcome:
    """Number of distinct canonical keys that occur in more than one split, counted per pair of splits."""
    return _shared(survey, "keys", "key")


def _in_reference(survey: Survey, column: str, what: str) -> Outcome:
    reference = survey.lent.against
    if reference is None:
        return skipped(NO_REFERENCE, survey.n)
    if reference.error:
        return Outcome(None, survey.n, status="error", reason=reference.error)
    known = reference.records if column == "ids" else reference.keys
    findings = tuple(
        part.finding(p, f"same {what} as {reference.name} row {known[d]}")
        for part in survey.splits
        for p, d in enumerate(as_bytes(getattr(part, column)))
        if d in known
    )
    return Outcome(len(findings), survey.n, findings, reason=reference.extent)


def against_records(survey: Survey) -> Outcome:
    """Number of rows whose record is among the references."""
    return _in_reference(survey, "ids", "record")


def against_keys(survey: Survey) -> Outcome:
    """Number of rows whose canonical key is among the references."""
    return _in_reference(survey, "keys", "key")


def benchmark_hits(benchmark: Reference) -> Measure:
    """Return the measure for one benchmark: rows that contain one of its questions, whole, after normalisation."""

    def measure(survey: Survey) -> Outcome:
        if benchmark.error or not benchmark.items:
            return Outcome(None, survey.n, status="error", reason=benchmark.error or "the benchmark has no items")
        findings = tuple(
            part.finding(position, f"asks item {item} of {benchmark.name}")
            for part in survey.splits
            for position, item in part.hits.get(benchmark.name, ())
        )
        return Outcome(len(findings), survey.n, findings, reason=f"{benchmark.extent}; whole questions only")

    return measure


def all_benchmarks(survey: Survey) -> Outcome:
    """Number of rows that contain a question of any benchmark: the one value that a policy can name beforehand."""
    if not survey.lent.benchmarks:
        return skipped(NO_BENCHMARK, survey.n)
    each = [benchmark_hits(b)(survey) for b in survey.lent.benchmarks]
    if bad := [f"{b.name}: {o.reason}" for b, o in zip(survey.lent.benchmarks, each, strict=True) if o.status != "ok"]:
        return Outcome(None, survey.n, status="error", reason="; ".join(bad))
    findings = tuple(f for o in each for f in o.findings)
    rows = len({(f.split, f.row) for f in findings})
    return Outcome(rows, survey.n, findings, reason="; ".join(b.extent for b in survey.lent.benchmarks))


COMMON_MEASURES: dict[str, Measure] = {
    "schema.quarantined_share": quarantined_share,
    "rows.empty_splits": empty_splits,
    "duplicates.exact_share": exact_duplicates,
    "leakage.records": shared_records,
    "leakage.keys": shared_keys,
    "leakage.near": near_share,
    "against.records": against_records,
    "against.keys": against_keys,
    "contamination.rows": all_benchmarks,
}
