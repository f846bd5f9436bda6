"""Which stages of a recipe come before others that should have come first, and what that costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lpt_data.run.recipe import Recipe, StageSpec
from lpt_data.run.table import STAGES
from manifests.errors import UsageError

# (stage that comes late, stage that it comes after) -> what is wrong with it; "" stands for every other one.
_WHY = {
    ("clean", "dedup"): "texts that cleaning makes alike were compared before they were alike, and stay as copies",
    ("clean", "decontaminate"): "the scan saw other texts than those that stay",
    ("clean", "split"): "texts that cleaning makes alike may lie on both sides, and the keys were those of other texts",
    ("clean", ""): "what came before saw other texts than those that stay",
    ("boilerplate", "dedup"): "texts that cutting makes alike were compared before they were alike, and stay as copies",
    ("dedup", "split"): "copies may lie on both sides of the split, and the sizes that were asked for change",
    ("dedup", "mix"): "the repeats that the mixture asked for are taken for copies, and its shares change",
    ("dedup", "decontaminate"): "copies were scanned one by one, and the hits count them",
    ("dedup", "dedup"): "the cheaper comparison leaves less for the dearer one, and should come first",
    ("dedup", "quality"): "the rules looked at every copy",
    ("quality", "decontaminate"): "rows were scanned that go anyway, and the hits count them",
    ("quality", "split"): "the sizes that were asked for change",
    ("decontaminate", "split"): "the sizes that were asked for change, and the test split may hold benchmark items",
    ("decontaminate", "mix"): "the shares that the mixture asked for change",
    ("split", "mix"): "the shares were those of all rows, and a repeat may be counted in two splits",
    ("mix", "pack"): "the sequences are of rows that the mixture puts into another order",
    ("drop", ""): "what came before counted rows that go",
    ("", "mix"): "the shares that the mixture asked for change",
    ("", ""): "what came before saw other rows than those that stay",
}


@dataclass(frozen=True)
class Wrong:
    """A stage that comes after one that it should precede."""

    late: str  # names of stages
    after: str
    why: str

    def __str__(self) -> str:
        return f"{self.late} should come before {self.after}: {self.why}"


def wrong_order(recipe: Recipe) -> list[Wrong]:
    """Return what is in a wrong order along the ways that rows take; raises UsageError where the recipe is strict."""
    specs = {spec.name: spec for spec in recipe.stages}
    found = []
    for spec in recipe.stages:
        last = STAGES[spec.kind].places(spec.options)[1]
        for before in ancestors(spec, specs):
            if last < STAGES[before.kind].places(before.options)[0]:
                found.append(Wrong(spec.name, before.name, _why(spec.kind, before.kind)))
    if found and recipe.strict:
        raise UsageError(
            "the stages are in a wrong order", seen="; ".join(map(str, found)),
            next="change their order, or say `order: warn`",
        )  # fmt: skip
    return found


def ancestors(spec: StageSpec, specs: dict[str, StageSpec]) -> Sequence[StageSpec]:
    """Return the stages that the rows of a stage went through, the oldest first."""
    found: dict[str, StageSpec] = {}
    for ref in spec.reads:
        before = specs.get(ref.partition(".")[0])
        if before is not None:
            found |= {older.name: older for older in ancestors(before, specs)}
            found[before.name] = before
    return list(found.values())


def _why(late: str, after: str) -> str:
    keys = ((late, after), (late, ""), ("", after), ("", ""))
    return next(_WHY[key] for key in keys if key in _WHY)
