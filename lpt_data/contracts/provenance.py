"""Where a synthetic row comes from: the columns that say so, and the measures on what they say.

| column | says |
|---|---|
| `generator`, `generator_revision` | the model, and its revision, digest or date; `human` for a row that people wrote |
| `prompt_id` or `seed_id` | the template (its id or digest), the seed that it started from |
| `verifier`, `answer` | who judged it, and what it was judged by (the gold, the tests, the schema) |
| `sampling` | temperature and the like, as an object or JSON text |
| `source` | where its prompt comes from; pass rates are counted by it |
| `attempts`, `passes` | of its prompt: answers sampled, answers that passed |
| `source_attempts`, `source_passes` | of its source, prompts without any pass included |
| `depth` | 0: written by people; n: generated from, or by a model trained on, rows of depth n - 1 |
| `licence` (or `license`), `terms` | of the generator's output; `terms` is `allowed`, `denied`, or a name in `TERMS` |

Nothing here judges a licence: `terms` is what the user declares, and a name stands for the reading in the table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from lpt_data.contracts.common import Outcome, share, skipped
from lpt_data.contracts.survey import Measure, SplitSurvey, Survey, as_bytes
from manifests.intervals import wilson

PEOPLE = frozenset({"human", "humans", "people"})
FLOATING = frozenset({"main", "master", "head", "latest", "default", "current"})  # revisions that name no state
# May the output train another model? As the published terms read; who knows better declares `allowed` or `denied`.
TERMS: dict[str, str] = {
    "allowed": "allowed",
    "denied": "denied",
    **dict.fromkeys(("apache-2.0", "mit", "bsd-3-clause", "cc0-1.0", "cc-by-4.0", "public-domain"), "allowed"),
    # Not for models that compete with the provider's.
    **dict.fromkeys(("openai-terms", "anthropic-terms", "google-terms"), "denied"),
    # Not for improving any other large language model.
    **dict.fromkeys(("llama-2", "llama-3"), "denied"),
    # With conditions (a name to carry, uses that are excluded, no commerce): somebody has to read them.
    **dict.fromkeys(("llama-3.1", "llama-3.2", "llama-3.3", "gemma", "cc-by-sa-4.0", "cc-by-nc-4.0"), "conditional"),
}


class Origin(NamedTuple):
    """What the columns of one row say; "" or None where they say nothing."""

    generator: str
    revision: str
    prompt: str
    seed: str
    verifier: str
    sampling: str
    source: str
    depth: int | None
    licence: str
    terms: str
    attempts: int | None
    passes: int | None
    of_source: tuple[int, int] | None  # attempts, passes

    @property
    def real(self) -> bool:
        """Whether people wrote the row; one that names a model is generated, whatever it says of its depth."""
        return self.generator.casefold() in PEOPLE or (self.depth == 0 and not self.generator)


def origin(extra: Mapping[str, Any]) -> Origin:
    """Read the columns of provenance of one row."""
    generator, revision = extra.get("generator"), extra.get("generator_revision")
    if isinstance(generator, Mapping):
        revision = revision or generator.get("revision") or generator.get("digest")
        generator = generator.get("name") or generator.get("model")
    attempts, passes = _count(extra.get("source_attempts")), _count(extra.get("source_passes"))
    return Origin(
        _said(generator),
        _said(revision),
        _said(extra.get("prompt_id")),
        _said(extra.get("seed_id")),
        _said(extra.get("verifier")),
        _said(extra.get("sampling")),
        _said(extra.get("source")),
        _count(extra.get("depth")),
        _said(extra.get("licence") or extra.get("license")),
        _said(extra.get("terms")),
        _count(extra.get("attempts")),
        _count(extra.get("passes")),
        (attempts, passes) if attempts is not None and passes is not None else None,
    )


def _said(value: Any) -> str:
    return "" if value is None or value in ({}, []) else str(value).strip()


def _count(value: Any) -> int | None:
    """A whole number that is not negative, as a number or (in CSV) as text."""
    if isinstance(value, str) and value.strip().isascii() and value.strip().isdigit():
        return int(value.strip()[:18])
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def origins(survey: Survey) -> Iterator[tuple[SplitSurvey, int, Origin]]:
    """Yield (split, position, origin) of every row."""
    for part in survey.splits:
        for position, fact in enumerate(part.facts):
            yield part, position, fact.origin


def generated(survey: Survey) -> list[tuple[SplitSurvey, int, Origin]]:
    """The rows that no people wrote."""
    return [row for row in origins(survey) if not row[2].real]


def _lacking(fault: Callable[[Origin], str | None]) -> Measure:
    """Return the share of generated rows of which `fault` says what is wrong."""

    def measure(survey: Survey) -> Outcome:
        rows = generated(survey)
        if not rows:
            return skipped("no row is generated", survey.n)
        said = ((part, position, fault(facts)) for part, position, facts in rows)
        findings = tuple(part.finding(position, detail) for part, position, detail in said if detail)
        return Outcome(share(len(findings), len(rows)), len(rows), findings)

    return measure


def _unpinned(row: Origin) -> str | None:
    if row.revision and row.revision.casefold() not in FLOATING:
        return None
    return f"generator {row.generator or '(none)'}: revision {row.revision or '(none)'} names no state of it"


def denied(survey: Survey) -> Outcome:
    """Share of the generated rows with terms that are known here whose terms forbid to train on them."""
    known = [row for row in generated(survey) if standing(row[2]) != "unknown"]
    if not known:
        return skipped("no row declares terms that are known here", survey.n)
    findings = tuple(
        part.finding(position, f"terms {facts.terms!r}: outputs may not train other models")
        for part, position, facts in known
        if standing(facts) == "denied"
    )
    return Outcome(share(len(findings), len(known)), len(known), findings)


def _unsettled(row: Origin) -> str | None:
    told = {"unknown": "are not known here", "conditional": "set conditions"}.get(standing(row))
    return f"terms {row.terms or '(none declared)'} {told}" if told else None


def standing(row: Origin) -> str:
    """What the terms of a row say: allowed, denied, conditional or unknown."""
    return TERMS.get(row.terms.casefold(), "unknown")


def deepest(survey: Survey) -> Outcome:
    """The largest depth; the rows found are those of it, where it is a second generation or later."""
    rows = [row for row in origins(survey) if row[2].depth is not None]
    if not rows:
        return skipped("no row says its depth", survey.n)
    most = max(facts.depth or 0 for _, _, facts in rows)
    findings = tuple(p.finding(i, f"depth {f.depth}") for p, i, f in rows if most > 1 and f.depth == most)
    counts = Counter(facts.depth for _, _, facts in rows)
    return Outcome(most, len(rows), findings, reason=", ".join(f"{n} of depth {d}" for d, n in sorted(counts.items())))


def real_share(survey: Survey) -> Outcome:
    """Share of rows that people wrote, in a set that holds a second generation (alone, a first one needs none)."""
    rows = list(origins(survey))
    known = [facts.depth for _, _, facts in rows if facts.depth is not None]
    if not known:
        return skipped("no row says its depth", len(rows))
    real = sum(facts.real for _, _, facts in rows)
    told = f"{real} of {len(rows)} rows are of people"
    if max(known) < 2:
        return skipped(f"no row is of a second generation; {told}", len(rows))
    return Outcome(share(real, len(rows)), len(rows), reason=told)


# -- pass rates


@dataclass(frozen=True)
class Rate:
    """How often answers to the prompts of one source passed."""

    source: str
    attempts: int
    passes: int
    basis: str

    @property
    def value(self) -> float:
        """Passes by attempts."""
        return self.passes / self.attempts

    def __str__(self) -> str:
        low, high = wilson(self.passes, self.attempts)
        spread = f"{low:.1%} to {high:.1%}"
        return f"{self.source}: {self.value:.1%} of {self.attempts:,} {self.basis} passed (95 %: {spread})"


def rates(survey: Survey, failed: str) -> list[Rate] | str:
    """The pass rate of each source, or why it is not known; `failed` is the check of rows that failed again.

    From the totals of the source where its rows have them; else from the counts of its prompts, which leave out the
    prompts without a pass, so that the rate is an upper bound; else, where rows that failed are in the file, from the
    rows.
    """
    rows: dict[str, list[tuple[SplitSurvey, int, Origin]]] = {}
    for part, position, facts in generated(survey):
        rows.setdefault(facts.source or "(no source)", []).append((part, position, facts))
    bad = {(part.name, position) for part in survey.splits for position, _ in part.faults.get(failed, ())}
    asked = {part.name: as_bytes(part.asked) for part in survey.splits}
    found = []
    for source, mine in sorted(rows.items()):
        totals = {facts.of_source for _, _, facts in mine}
        prompts = {asked[part.name][position]: (facts.attempts, facts.passes) for part, position, facts in mine}
        if None not in totals:
            pairs, basis = [pair for pair in totals if pair is not None], "attempts"
        elif all(a is not None and p is not None for a, p in prompts.values()):
            pairs = [(a or 0, p or 0) for a, p in prompts.values()]
            basis = "attempts at prompts that have a pass"
        elif any((part.name, position) in bad for part, position, _ in mine):
            passed = sum((part.name, position) not in bad for part, position, _ in mine)
            pairs, basis = [(len(mine), passed)], "rows"
        else:
            return f"source {source} has neither attempts and passes nor rows that failed"
        attempts, passes = sum(a for a, _ in pairs), sum(p for _, p in pairs)
        if not attempts or passes > attempts:
            return f"source {source}: {passes} passes of {attempts} attempts"
        found.append(Rate(source, attempts, passes, basis))
    return found or "no row is generated"


def pass_rate(failed: str, *, highest: bool, line: float) -> Measure:
    """Return the highest (or lowest) pass rate of a source; the rows found are those of sources beyond `line`."""

    def measure(survey: Survey) -> Outcome:
        known = rates(survey, failed)
        if isinstance(known, str):
            return skipped(known, survey.n)
        beyond = {rate.source: str(rate) for rate in known if (rate.value > line if highest else rate.value < line)}
        findings = [
            part.finding(position, beyond[facts.source or "(no source)"])
            for part, position, facts in generated(survey)
            if (facts.source or "(no source)") in beyond
        ]
        worst = sorted(known, key=lambda rate: (-rate.value if highest else rate.value, rate.source))
        told = "; ".join(map(str, worst[:5])) + (f"; and {len(worst) - 5} more sources" if len(worst) > 5 else "")
        return Outcome(worst[0].value, sum(rate.attempts for rate in known), tuple(findings), reason=told)

    return measure


def _counts_wrong(row: Origin) -> str | None:
    pairs = [(row.attempts, row.passes), row.of_source or (None, None)]
    for attempts, passes in pairs:
        if attempts is not None and passes is not None and not passes <= attempts:
            return f"{passes} passes of {attempts} attempts"
    return None


MEASURES: dict[str, Measure] = {
    "synthetic.generator.missing_share": _lacking(lambda o: None if o.generator else "no column names the generator"),
    "synthetic.generator.unpinned_share": _lacking(_unpinned),
    "synthetic.prompt.missing_share": _lacking(lambda o: None if o.prompt or o.seed else "no prompt_id and no seed_id"),
    "synthetic.verifier.missing_share": _lacking(lambda o: None if o.verifier else "no column names the verifier"),
    "synthetic.sampling.missing_share": _lacking(lambda o: None if o.sampling else "no sampling settings"),
    "synthetic.licence.missing_share": _lacking(lambda o: None if o.licence else "no licence"),
    "synthetic.terms.denied_share": denied,
    "synthetic.terms.unsettled_share": _lacking(_unsettled),
    "synthetic.depth.missing_share": _lacking(lambda o: None if o.depth is not None else "no depth"),
    "synthetic.counts.impossible_share": _lacking(_counts_wrong),
    "synthetic.depth.deepest": deepest,
    "synthetic.real.share": real_share,
}
