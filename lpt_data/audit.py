"""Check rows against a contract: metrics with the rows behind them, judged by a policy.

    report = audit({"train": Dataset.open(["train.jsonl"], kind="sft")}, "sft")
    report.verdict, report.rows("sft.roles.bad_share")

Nothing is changed or dropped. A check that cannot run is `skipped` with its reason, one that breaks is `error`; neither
counts as a pass. `not_checked` also names what no check here looks for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from lpt_data.contracts import CONTRACTS
from lpt_data.contracts.answers import read_rates
from lpt_data.contracts.collect import survey_split, uncollected
from lpt_data.contracts.common import (
    Encoder,
    Finding,
    Outcome,
    PassRates,
    Verifier,
    share,
)
from lpt_data.contracts.groups import COMMON_MEASURES, benchmark_hits
from lpt_data.contracts.reference import read_against, read_benchmark, read_other
from lpt_data.contracts.sampled import Sampler, sample_rates
from lpt_data.contracts.survey import Contract, Instruments, Measure, Survey
from lpt_data.dataset import Dataset
from lpt_data.next_command import Typed, dressed
from lpt_data.places import check_marks, mark
from lpt_data.progress import Progress
from manifests.digests import content_root, distinct, key_root, order_sha256
from manifests.errors import UsageError
from manifests.policy import Check, Metric, Policy, evaluate, exit_code, load_policy, verdict_of

EXAMPLES = 5  # rows shown with a metric; `rows(check)` has all of them
# The order in which a benchmark's layout is tried: prompts with answers, chats, plain text.
BENCHMARK_READERS = tuple(CONTRACTS[name] for name in ("rlvr", "sft", "preference", "text"))
# What no check looks for yet. A reader of a green report must not believe otherwise.
UNSEEN = (
    "contamination by n-grams or by meaning (whole questions only)",
    "personal data and secrets",
    "language",
    "pass rate of the prompts under a model",
)


@dataclass(frozen=True)
class AuditReport:
    """What an audit measured. `outcomes` holds every finding; `metrics` and `checks` are what manifests keep."""

    survey: Survey
    policy: Policy
    outcomes: Mapping[str, Outcome]
    metrics: tuple[Metric, ...]
    checks: tuple[Check, ...]
    verdict: str
    not_checked: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        """0 accept, 3 tune, 4 reject, 5 a required check did not run."""
        return exit_code(self.verdict, self.checks)

    def rows(self, check_id: str) -> list[dict[str, Any]]:
        """Return every row behind a check, in the order of the input: split, row, file, line, record_id, detail."""
        outcome = self.outcomes.get(check_id)
        if outcome is None:
            raise UsageError("no such check", seen=check_id, next=f"one of: {', '.join(sorted(self.outcomes))}")
        return [as_row(f) for f in outcome.findings]

    def to_json(self) -> dict[str, Any]:
        """Return the report as one JSON object."""
        return {
            "verdict": self.verdict,
            "contract": self.survey.contract.name,
            "key": self.survey.normaliser,
            "checks": [asdict(c) for c in self.checks],
            "metrics": [asdict(m) for m in self.metrics],
            "splits": {
                s.name: {
                    "rows_in": s.rows_in,
                    "rows": len(s),
                    "quarantined": len(s.quarantined),
                    "content_root": content_root(s.ids).root,
                    "order_sha256": order_sha256(s.ids),
                    "key_root": key_root(distinct(s.keys)).root,  # of distinct keys, as in a manifest
                }
                for s in self.survey.splits
            },
            "policy": {"name": self.policy.name, "digest": self.policy.digest},
            **({"sampled": dict(sampled.told)} if (sampled := self.survey.lent.sampled) else {}),
            "not_checked": list(self.not_checked),
        }


def audit(
    datasets: Mapping[str, Dataset],
    contract: str,
    *,
    encode: Encoder | None = None,
    max_length: int | None = None,
    verifiers: Mapping[str, Verifier] | None = None,
    against: Sequence[str] | None = None,
    benchmarks: Mapping[str, Sequence[str]] | None = None,
    seeds: Sequence[str] | None = None,
    previous: Sequence[str] | None = None,
    key: str | None = None,
    policy: str | Path | None = None,
    languages: Sequence[str] = (),
    pass_rates: PassRates | Sequence[str] | None = None,
    sampler: Sampler | None = None,
    progress: Progress | None = None,
    admitting: str = "",
) -> AuditReport:
    """Measure every check of `contract` on the splits and judge them by `policy` (the contract's own when None).

    `key` names the normaliser or the column of the canonical key; None takes the contract's. `max_length` is in tokens.
    `seeds` are what generated rows started from, `previous` earlier rounds of them, the oldest first, one file each.
    `languages` are those that the replies may be in, as ISO 639-1 codes; `pass_rates` are scored files, or a function
    that knows the share of a model's samples that were right; a `sampler` is such a model, asked about some of the rows
    in their place. `admitting` is the name under which the splits are being
    admitted; next commands then repeat the admission.
    Raises what the readers raise for files that cannot be read at all or change meanwhile, as the splits are read more
    than once, and UsageError for an unknown contract.
    """
    chosen = contract_of(contract)
    if not datasets:
        raise UsageError("there is nothing to audit", seen="no split was given", next="name at least one file")
    marks = {source.path: mark(source.path) for data in datasets.values() for source in data.files}
    judged_by = load_policy(policy, chosen.name)  # before the rows: a typing error in it should not cost a pass
    normaliser = key or chosen.default_key
    if languages:
        from lpt_data.clean.language import check_known  # loads the model of languages

        check_known(languages)
    scored = () if pass_rates is None or callable(pass_rates) else tuple(pass_rates)
    rates = pass_rates if pass_rates is None or callable(pass_rates) else read_rates(scored, chosen.kind, normaliser)
    sampled = sample_rates(datasets, chosen, sampler) if sampler is not None else None
    lent = Instruments(
        languages=tuple(languages),
        pass_rates=rates if sampled is None else sampled.rate,
        sampled=sampled,
        scored=scored,
        encode=encode,
        max_length=max_length,
        verifiers=verifiers,
        against=read_against(against, chosen, normaliser) if against else None,
        benchmarks=tuple(read_benchmark(name, paths, BENCHMARK_READERS) for name, paths in (benchmarks or {}).items()),
        seeds=read_other("the seeds", seeds) if seeds else None,
        previous=tuple(read_other(f"round {n}", [path]) for n, path in enumerate(previous or (), 1)),
    )
    splits = tuple(survey_split(name, data, chosen, normaliser, lent, progress) for name, data in datasets.items())
    survey = Survey(chosen, normaliser, splits, lent)
    typed = Typed(survey, admitting, str(policy) if policy is not None else "")
    report = _report(survey, judged_by, typed)
    check_marks(marks)
    return report


def contract_of(name: str) -> Contract:
    """Return the contract of that name or raise UsageError."""
    if name not in CONTRACTS:
        raise UsageError("no such contract", seen=name, next=f"--contract {' | '.join(CONTRACTS)}")
    return CONTRACTS[name]


def _report(survey: Survey, policy: Policy, typed: Typed) -> AuditReport:
    with uncollected():
        outcomes = {name: _run(measure, survey) for name, measure in _measures(survey).items()}
    metrics = tuple(_metric(name, outcome) for name, outcome in outcomes.items())
    checks, _ = evaluate(policy, metrics)
    # What broke was meant to run, whether the policy insists on it or not.
    judged = tuple(
        replace(c, next=dressed(c, typed, outcomes), required=c.required or c.status == "error") for c in checks
    )
    unseen = tuple(what for what in UNSEEN if what not in survey.contract.sees)
    skipped = tuple(f"{m.id}: {m.reason}" for m in metrics if m.status != "ok")
    return AuditReport(survey, policy, outcomes, metrics, judged, verdict_of(judged), skipped + unseen)


def _measures(survey: Survey) -> dict[str, Measure]:
    rules = {name: _rule_share(name) for name in (*survey.contract.rules, *survey.contract.text_rules)}
    named = {f"contamination.{b.name}.key_hits": benchmark_hits(b) for b in survey.lent.benchmarks}
    return {**COMMON_MEASURES, **named, **rules, **survey.contract.measures}


def _rule_share(name: str) -> Measure:
    def measure(survey: Survey) -> Outcome:
        if reason := survey.broken(name):
            return Outcome(None, survey.n, status="error", reason=reason)
        findings = survey.faults(name)
        return Outcome(share(len(findings), survey.n), survey.n, findings)

    return measure


def _run(measure: Measure, survey: Survey) -> Outcome:
    try:
        return measure(survey)
    except Exception as error:  # a measure that breaks is an error in the report, never a pass and never a lost report
        return Outcome(None, survey.n, status="error", reason=f"{type(error).__name__}: {error}")


def _metric(name: str, outcome: Outcome) -> Metric:
    examples = [as_row(f) for f in outcome.findings[:EXAMPLES]]
    return Metric(
        id=name, value=outcome.value, n=outcome.n, status=outcome.status, reason=outcome.reason, rows=examples
    )


def as_row(finding: Finding) -> dict[str, Any]:
    """Return a finding as the columns of `failing_rows.parquet`, its check left out."""
    return asdict(finding)
