"""A model that is measured on a split, what a measurement is, and its record in the catalog (`lpt.eval/1`)."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch

from lpt_train.admitted import AdmittedSplit, check_tokenizer
from lpt_train.checkpoint import checkpoint_sha256, read_provenance
from lpt_train.checkpoint_folders import STATE
from lpt_train.estimates import Estimate, PairedDifference
from lpt_train.models import (
    Placement,
    check_vocabulary,
    load_model,
    load_tokenizer,
    model_digest,
    placement,
    resolve,
)
from lpt_train.render import Renderer
from lpt_train.runs import env, now
from manifests.catalog import Catalog
from manifests.errors import UsageError

DOMAIN_COLUMNS = ("domain", "source")  # what rows say of where they are from, looked for in this order
MOST_DOMAINS = 64  # values of a column that are told apart; a column with more (an address, say) names no domains


@dataclass(frozen=True)
class Measure:
    """One number about a model on a split, or on one domain of it."""

    name: str
    value: float
    low: float
    high: float
    n: int  # items
    domain: str = ""

    @classmethod
    def of(cls, name: str, found: Estimate, domain: str = "") -> Measure:
        """An estimate under its name."""
        return cls(name, found.value, found.low, found.high, found.n, domain)

    def to_json(self) -> dict[str, Any]:
        """As plain values; a bound that is not known is null."""
        return {name: None if value in (math.inf, -math.inf) else value for name, value in asdict(self).items()}


@dataclass(frozen=True)
class Subject:
    """The model that is measured: weights on their device, its renderer, where it came from."""

    name: str
    digest: str
    made_from: dict[str, Any] | None
    model: torch.nn.Module
    renderer: Renderer
    place: Placement
    checkpoint: str | None = None  # the digest of the checkpoint that the weights are


def load_subject(
    model: str,
    *,
    merge: bool,
    device: str = "auto",
    dtype: str = "auto",
    seed: int = 0,
    folder: Path | None = None,
) -> Subject:
    """Load a folder of weights or of a run, a hub name, or `tiny`, which is made under `folder` (else leaves nothing).

    `merge` folds an adapter into the weights, which is what samples fast; without it the model computes what it trained
    as: a merge rounds small changes away in bfloat16.
    """
    place = placement(device, dtype)
    with tempfile.TemporaryDirectory(prefix="lpt-eval-") as spare:
        source = resolve(model, folder or Path(spare), seed=seed)
        renderer = Renderer(load_tokenizer(source))
        loaded = load_model(source, dtype=place.dtype, device=place.device, merge=merge)
        check_vocabulary(loaded, renderer.tokenizer)
        name = model if model == "tiny" else source
        checkpoint = checkpoint_sha256(Path(source)) if (Path(source) / STATE).is_file() else None
        return Subject(name, model_digest(source), read_provenance(source), loaded, renderer, place, checkpoint)


def check_subject(subject: Subject, split: AdmittedSplit) -> None:
    """Raise `RefusedError` when the split was admitted with another tokenizer than the model's."""
    check_tokenizer(split, subject.renderer.fingerprint, subject.renderer.name)


def trained_on(subject: Subject, split: AdmittedSplit, catalog: Catalog | None) -> list[str]:
    """A note where the run that made the model, or one that it began from, trained on these very rows."""
    made_from = subject.made_from
    while made_from:
        if made_from.get("content_root") == split.content_root:
            return [f"{split.ref} is what the run {made_from['run_id']} trained on: this says what the model remembers"]
        before = next((b for _, b in catalog.find("lpt.run/1", run_id=made_from["run_id"])), None) if catalog else None
        made_from = before["model"].get("made_from") if before else None
    return []


def domains_of(split: AdmittedSplit, column: str | None = None) -> tuple[list[str], list[str]]:
    """The domain of each row ("" where it has none), and notes.

    They are read from `column`, else from the first of `DOMAIN_COLUMNS` that rows carry beside their record. Raises
    `UsageError` for a column that is not there.
    """
    there = split.table.column_names
    if column is not None and column not in there:
        raise UsageError("rows have no such column", seen=column, next=f"one of {', '.join(there)}")
    name = column or next((name for name in DOMAIN_COLUMNS if name in there), None)
    if name is None:
        return [""] * len(split), []
    if pa.types.is_nested(split.table[name].type):
        if column is not None:
            raise UsageError(
                "a domain is a word or a number", seen=f"{column}: {split.table[name].type}"[:200],
                next="give a column that names the domain of each row",
            )  # fmt: skip
        return [""] * len(split), [f"the values of the column {name} are no words: they are not told apart"]
    values = ["" if value is None else str(value) for value in split.table[name].to_pylist()]
    if (count := len(set(values))) > MOST_DOMAINS:
        if column is not None:
            raise UsageError(
                "the column has too many values to be domains", seen=f"{column}: {count:,} values",
                next=f"give a column with at most {MOST_DOMAINS}",
            )  # fmt: skip
        return [""] * len(split), [f"the column {name} has {count:,} values: they are not told apart"]
    return values, []


def by_domain(items: Sequence[Any], measures: Callable[[Sequence[Any], str], Iterable[Measure]]) -> tuple[Measure, ...]:
    """The measures of all items, then of the items of each domain where there are several domains."""
    domains = sorted({item.domain for item in items})
    found = list(measures(items, ""))
    for domain in domains if len(domains) > 1 else ():
        found += measures([item for item in items if item.domain == domain], domain or "(none)")
    return tuple(found)


def record(catalog: Catalog | None, subject: Subject, split: AdmittedSplit, body: Mapping[str, Any]) -> str | None:
    """Put an evaluation into the catalog; its parents are the split's manifest and the run that made the model."""
    if catalog is None:
        return None
    made_from = subject.made_from
    model = {"name": subject.name, "digest": subject.digest, "checkpoint_sha256": subject.checkpoint}
    parents = [split.manifest_id] if split.manifest_id else []
    if made_from:
        parents += [name for name, _ in catalog.find("lpt.run/1", run_id=made_from["run_id"])][:1]
    return catalog.put({
        "type": "lpt.eval/1", "model": {**model, "made_from": made_from},
        "manifest": split.manifest_id, "split": split.ref, "content_root": split.content_root,
        "verified": split.verified, "tainted": split.tainted or bool(made_from and made_from.get("tainted")),
        **body, "created": now(), "env": env(), "parents": parents,
    })  # fmt: skip


def record_comparison(
    catalog: Catalog | None,
    before: str | None,
    after: str | None,
    paired: Mapping[str, PairedDifference],
    together: Sequence[Measure] = (),
) -> str | None:
    """Put what two recorded evaluations say together into the catalog (`lpt.comparison/1`)."""
    if catalog is None or before is None or after is None:
        return None
    return catalog.put({
        "type": "lpt.comparison/1", "before": before, "after": after,
        "paired": [{"name": name, **found.to_json()} for name, found in paired.items()],
        "measures": [measure.to_json() for measure in together], "created": now(), "env": env(),
        "parents": [before, after],
    })  # fmt: skip
