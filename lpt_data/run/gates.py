"""The end of a recipe: an audit or an admission of what the stages made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lpt_data.admit import admit
from lpt_data.audit import audit, contract_of
from lpt_data.contracts.sampled import Sampler
from lpt_data.progress import Progress
from lpt_data.run.recipe import StageSpec
from lpt_data.run.table import Given
from lpt_data.works import Source
from manifests.errors import UsageError
from manifests.policy import load_policy


@dataclass(frozen=True)
class Gate:
    """What a gate said: `verdict`, `checks` (manifests.policy.Check), what its command prints, and its exit code."""

    verdict: str
    checks: tuple[Any, ...]
    body: dict[str, Any]
    exit_code: int


def gate(spec: StageSpec, given: Given, splits: Mapping[str, Sequence[str]], progress: Progress) -> Gate:
    """Audit the splits, or admit them: the name of the set is the option `name`, else that of the stage."""
    options, source = given.options, given.source
    shared: dict[str, Any] = {
        "policy": _policy(options.get("policy"), given.path),
        "benchmarks": given.benchmarks(),
        "against": list(given.paths("against")) or None,
        "key": options.get("key"),
        "encode": given.tools.encoder(given.tokenizer(options.get("tokenizer"))),
        "max_length": options.get("max_length"),
        "verifiers": given.tools.verifiers(),
        "sampler": _sampler(options.get("sample"), given),
        "progress": progress,
    }
    if spec.kind == "audit":
        kind = contract_of(options["contract"]).kind
        datasets = {
            name: Source(tuple(paths), source.layout, source.text_column).open(kind=kind)
            for name, paths in splits.items()
        }
        report = audit(datasets, options["contract"], **shared)
        return Gate(report.verdict, report.checks, report.to_json(), report.exit_code)
    admission = admit(
        options.get("name") or spec.name, options["contract"], splits, catalog=given.catalog, layout=source.layout,
        text_column=source.text_column, out=None if spec.out is None else Path(given.path(spec.out)), **shared,
    )  # fmt: skip
    return Gate(admission.verdict, admission.checks, admission.to_json(), admission.exit_code)


def check_policy(spec: StageSpec, path: Callable[[str], str]) -> None:
    """Raise what `gate` would for a policy that cannot be used, before any stage is done."""
    load_policy(_policy(spec.options.get("policy"), path), contract_of(spec.options["contract"]).name)


def _sampler(sample: Mapping[str, Any] | None, given: Given) -> Sampler | None:
    """The model of the option `sample`, loaded: a path of the recipe where there is such a folder, else a name."""
    if sample is None:
        return None
    if given.tools.sampler is None:
        raise UsageError("nothing here can sample a model", seen=f"{given.where}: sample", next="lpt data run")
    named = given.path(sample["model"])
    model = named if Path(named).is_dir() else sample["model"]
    sampler: Sampler = given.tools.sampler(model, **{name: value for name, value in sample.items() if name != "model"})
    return sampler


def _policy(value: Any, path: Callable[[str], str]) -> str | None:
    if value is None:
        return None
    return str(value) if str(value).startswith("lpt:") else path(str(value))
