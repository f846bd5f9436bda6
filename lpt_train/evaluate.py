"""`lpt eval`: what a split's records can show about a model, by their kind, and the difference to a second model.

rlvr         sampled answers, scored by their verifiers          (answers.py)
sft, text    loss, perplexity, bits per byte; with `match` also sampled replies that are the recorded ones
preference   which side is likelier, by how much                 (likelihood.py)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lpt_train.admitted import AdmittedSplit
from lpt_train.answers import Evaluation, answers, check_asked, choose
from lpt_train.compare import compare
from lpt_train.compare import paired_difference as paired_difference
from lpt_train.drift import drift
from lpt_train.estimates import PairedDifference
from lpt_train.likelihood import Likelihood, likelihood
from lpt_train.machine import memory_answered
from lpt_train.measured import Measure, Subject, load_subject, record_comparison, trained_on
from lpt_train.watch import Watch, unwatched
from manifests.catalog import Catalog
from manifests.errors import UsageError


@dataclass(frozen=True)
class EvalOptions:
    """How to measure. A kind of record ignores what it does not use; what none of the splits uses is refused."""

    reward: str = ""  # what scores answers; empty: each record's own verifier
    match: str | None = None  # normaliser of exact match on sft records
    n: int | None = None  # items to measure, drawn by seed; None: all
    temperature: float = 0.0  # 0: greedy
    k: int = 1  # samples an item
    pass_at: tuple[int, ...] = ()  # sizes of pass@k
    max_completion_length: int = 256  # tokens
    max_length: int = 4096  # tokens of a row whose likelihood is measured; longer ones are left out and counted
    domain_column: str | None = None  # of the rows; None: `domain`, else `source`, where there is one
    batch_size: int = 256  # completions sampled at the same time
    seed: int = 0  # of the choice of items and of sampling
    drift: bool = False  # KL to the baseline on sampled completions

    @property
    def sampling(self) -> dict[str, Any]:
        """What `answers` takes."""
        names = (
            "reward", "match", "n", "temperature", "k", "pass_at", "max_completion_length", "batch_size", "seed",
        )  # fmt: skip
        return {name: getattr(self, name) for name in names}


@dataclass
class SplitReport:
    """What was found on one split: evaluations by model, and what the second model of two gained on the first.

    A model has one evaluation a way of measuring: of an `sft` split with `match`, its likelihood and its replies.
    """

    split: str
    found: dict[str, list[Evaluation | Likelihood]] = field(default_factory=dict)
    paired: dict[str, PairedDifference] = field(default_factory=dict)
    together: list[Measure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # on what was measured of both together


def evaluate(
    model: str,
    split: AdmittedSplit,
    *,
    catalog: Catalog | None = None,
    device: str = "auto",
    dtype: str = "auto",
    folder: Path | None = None,
    **options: Any,
) -> Evaluation:
    """`answers` of a model that is loaded for it: a folder of weights or of a run, hub name, or `tiny`.

    Without `folder` the tiny model is made in a temporary one and leaves nothing behind.
    """
    asked = EvalOptions(**{name: value for name, value in options.items() if name != "max_prompt_length"})
    check_asked(split, match=asked.match, temperature=asked.temperature, k=asked.k, pass_at=asked.pass_at)
    subject = load_subject(model, merge=True, device=device, dtype=dtype, seed=asked.seed, folder=folder)
    return answers(subject, split, catalog=catalog, **options)


def evaluate_splits(
    models: Sequence[str],
    splits: Sequence[AdmittedSplit],
    options: EvalOptions,
    *,
    catalog: Catalog | None = None,
    device: str = "auto",
    dtype: str = "auto",
    watch: Watch = unwatched,
) -> list[SplitReport]:
    """Measure one model, or a baseline and a model, on each split; recorded in the catalog when one is given.

    Models are loaded one after the other (both at once only for the drift). Two models are compared item by item.
    """
    check_options(splits, options)
    if options.drift and len(models) < 2:
        raise UsageError("a drift is from a second model", seen="--drift without --baseline", next="--baseline MODEL")
    reports = [SplitReport(split.ref) for split in splits]
    merge = all(split.kind == "rlvr" for split in splits) and not options.drift
    kept: list[Subject] = []
    for model in dict.fromkeys(models):
        subject = load_subject(model, merge=merge, device=device, dtype=dtype, seed=options.seed)
        for report, split in zip(reports, splits, strict=True):
            with memory_answered("a smaller --batch-size, --max-tokens, --max-length or --k"):
                found = [_measure(way, subject, split, options, catalog, watch) for way in _ways(split, options)]
            found[0] = replace(found[0], notes=(*found[0].notes, *trained_on(subject, split, catalog)))
            report.found[model] = found
        if options.drift:
            kept.append(subject)
    for report, split in zip(reports, splits, strict=True) if len(models) > 1 else ():
        moved: list[Measure] = []
        if options.drift:
            with memory_answered("a smaller --batch-size, --max-tokens or --n"):
                moved, report.notes = _drift(kept[-1], kept[0], split, options)
        for before, after in zip(report.found[models[0]], report.found[models[1]], strict=True):
            paired, together = compare(before, after)
            report.paired |= paired
            report.together += [*together, *moved]
            record_comparison(catalog, before.object_id, after.object_id, paired, [*together, *moved])
            moved = []
    return reports


# Options by the way of measuring that reads them, as the command line names them.
_SAMPLED = {"temperature": "--temperature", "k": "--k", "pass_at": "--pass-at"}
_WRITTEN = {"max_completion_length": "--max-tokens", "batch_size": "--batch-size"}
_READ = {"max_length": "--max-length", "domain_column": "--domain-column"}


def check_options(splits: Sequence[AdmittedSplit], options: EvalOptions, *, block: str = "") -> None:
    """Raise `UsageError` for an option that no split reads or that cannot be, and for more items than a split has,
    before a model is read. Options of a `block` of a specification are named as they stand there."""
    ways = {way for split in splits for way in _ways(split, options)}
    unread: dict[str, dict[str, str]] = {}
    if answers not in ways:
        unread["answers are sampled of rlvr splits, and of sft splits with --match"] = _SAMPLED | (
            {} if options.drift else _WRITTEN
        )
    if not any(split.kind == "rlvr" for split in splits):
        unread["a reward scores the answers of rlvr splits"] = {"reward": "--reward"}
    if not any(split.kind == "sft" for split in splits):
        unread["replies are compared with those of sft splits"] = {"match": "--match"}
    if likelihood not in ways:
        unread["losses are measured on sft, text and preference splits"] = _READ
    for why, names in unread.items():
        given = [name for name in names if getattr(options, name) != getattr(EvalOptions, name)]
        typed = [f"{block}.{name}" if block else names[name] for name in given]
        if typed:
            raise UsageError(
                f"{typed[0]} does nothing here: {why}",
                seen=", ".join(f"{split.ref} ({split.kind})" for split in splits), next=f"leave out {' '.join(typed)}",
            )  # fmt: skip
    for split in splits:
        if _ways(split, options) == [likelihood]:
            choose(range(len(split)), options.n, options.seed)
        else:
            check_asked(
                split, match=options.match if split.kind != "rlvr" else None, temperature=options.temperature,
                k=options.k, pass_at=options.pass_at,
            )  # fmt: skip


def _drift(
    model: Subject, baseline: Subject, split: AdmittedSplit, options: EvalOptions
) -> tuple[list[Measure], list[str]]:
    return drift(
        model, baseline, split, n=options.n, max_completion_length=options.max_completion_length,
        batch_size=options.batch_size, seed=options.seed,
    )  # fmt: skip


def _ways(split: AdmittedSplit, options: EvalOptions) -> list[Any]:
    if split.kind == "rlvr":
        return [answers]
    return [likelihood, answers] if options.match is not None and split.kind == "sft" else [likelihood]


def _measure(
    way: Any, subject: Subject, split: AdmittedSplit, options: EvalOptions, catalog: Catalog | None, watch: Watch
) -> Evaluation | Likelihood:
    if way is likelihood:
        return likelihood(
            subject, split, n=options.n, seed=options.seed, max_length=options.max_length,
            domain_column=options.domain_column, catalog=catalog, watch=watch,
        )  # fmt: skip
    if split.kind == "rlvr":
        options = replace(options, match=None)
    return answers(subject, split, catalog=catalog, watch=watch, **options.sampling)
