"""A recipe run: stage after stage, each done by `Work.run`, so that what stands is reused and a kill costs one stage.

Nothing is remembered here between runs. What a stage reads is looked up among what the stages before it wrote, its
identity is that of the bytes it reads and the options it has, and a gate (audit, admit) is asked again every time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lpt_data.io.sources import expand
from lpt_data.keys import NORMALISERS
from lpt_data.mix_spec import MADE_COLUMNS
from lpt_data.option_values import check_names, text
from lpt_data.progress import Progress, silent
from lpt_data.run.contamination import named_benchmarks
from lpt_data.run.gates import Gate, check_policy, gate
from lpt_data.run.recipe import Recipe, StageSpec
from lpt_data.run.standing import Standing, standing
from lpt_data.run.table import STAGES, Given, Tools
from lpt_data.run.totals import totals
from lpt_data.stage import StageReport, Work
from lpt_data.works import Source
from manifests.errors import BadInputError, RefusedError, UsageError
from manifests.files import make_folder

if TYPE_CHECKING:
    from manifests.catalog import Catalog

KEYED = ("split", "pairs", "drop", "audit", "admit")  # stages whose `key` is a canonical one


@dataclass(frozen=True)
class Ran:
    """One stage that was run: the report of a stage, or the outcome of a gate."""

    spec: StageSpec
    report: StageReport | None = None
    gate: Gate | None = None

    def to_json(self) -> dict[str, Any]:
        """Return what the command of this stage prints, under the stage's name."""
        body = self.report.to_json() if self.report is not None else self.gate.body if self.gate is not None else {}
        return {"as": self.spec.name, "stage": self.spec.kind, **body}


@dataclass(frozen=True)
class RecipeReport:
    """What a run of a recipe did."""

    recipe: Recipe
    ran: tuple[Ran, ...]
    not_run: tuple[str, ...]  # names of the stages after a gate that said no
    not_asked: tuple[str, ...] = ()  # gates before the first stage that was asked for

    @property
    def exit_code(self) -> int:
        """That of the worst gate; 0 without any."""
        return max((ran.gate.exit_code for ran in self.ran if ran.gate is not None), default=0)

    def to_json(self) -> dict[str, Any]:
        """Return the totals, and the stages under `stages`."""
        stages = [ran.to_json() for ran in self.ran]
        reports = {ran.spec.name: (ran.spec, ran.report) for ran in self.ran if ran.report is not None}
        more = {"not_run": list(self.not_run), "not_asked": list(self.not_asked), "stages": stages}
        return {"recipe": self.recipe.ref, **totals(reports), "exit_code": self.exit_code, **more}


def run(
    recipe: Recipe,
    catalog: Catalog,
    tools: Tools,
    *,
    first: str | None = None,
    last: str | None = None,
    progress: Progress | None = None,
    told: Callable[[Ran], None] = lambda ran: None,
) -> RecipeReport:
    """Run the stages from `first` until `last` (names; None: all) and return what each did; `told` hears of each.

    Everything is checked before the first stage. Raises UsageError for options that mean nothing, RefusedError when a
    stage before `first` does not stand as it was done, and what the stages raise.
    """
    flow = Flow(recipe, catalog, tools, progress or silent)
    chosen = flow.checked(first, last)
    ran: list[Ran] = []
    for spec in recipe.stages[: recipe.stages.index(chosen[-1]) + 1]:
        if spec not in chosen:
            flow.take(spec)
            continue
        ran.append(flow.run(spec))
        told(ran[-1])
        if (asked := ran[-1].gate) is not None and asked.exit_code in (4, 5):
            break
    after = chosen[len(ran) :]
    before = recipe.stages[: recipe.stages.index(chosen[0])]
    not_asked = tuple(spec.name for spec in before if STAGES[spec.kind].begin is None)
    return RecipeReport(recipe, tuple(ran), tuple(spec.name for spec in after), not_asked)


def planned(
    recipe: Recipe, catalog: Catalog, tools: Tools, *, first: str | None = None, last: str | None = None
) -> list[tuple[StageSpec, Standing]]:
    """Return where each stage stands, without doing any; raises what `run` raises before its first stage."""
    flow = Flow(recipe, catalog, tools, silent)
    found, chosen = [], flow.checked(first, last)
    for spec in recipe.stages[: recipe.stages.index(chosen[0])]:
        flow.take(spec)
    for spec in chosen:
        unknown = [ref for ref in flow.refers(spec) if flow.unknown(ref)]
        if STAGES[spec.kind].begin is None:
            found.append((spec, Standing(False, "a gate is asked every time")))
            continue
        if unknown:
            stands = Standing(False, f"it reads {unknown[0]}, which is done anew")
        else:
            given = flow.given(spec)
            work = flow.work(spec, given)
            stands = standing(work, catalog)
            if stands.body is not None:
                flow.made(spec, given, work, stands.body)
        if not stands.reused:
            flow.anew.add(spec.name)
        found.append((spec, stands))
    return found


class Flow:
    """Where the rows of each reference are by now."""

    def __init__(self, recipe: Recipe, catalog: Catalog, tools: Tools, progress: Progress) -> None:
        self.recipe, self.catalog, self.tools, self.progress = recipe, catalog, tools, progress
        self.rows: dict[str, Source] = dict(recipe.inputs)
        self.parts: dict[str, dict[str, Source]] = {}  # of the stages that make several outputs
        self.anew: set[str] = set()  # stages that a plan would do anew

    # -- before anything is done

    def checked(self, first: str | None, last: str | None) -> list[StageSpec]:
        """Return the stages asked for, when every option makes sense and every input is there."""
        stages = self.recipe.stages
        for option, name in (("--from", first), ("--until", last)):
            if name is not None:
                check_names([name], self.recipe.made, f"{option}: the recipe", "stage")
        start = self.recipe.made.index(first) if first is not None else 0
        end = self.recipe.made.index(last) + 1 if last is not None else len(stages)
        if start >= end:
            seen = f"--from {first} --until {last}"
            raise UsageError("the stages asked for are none", seen=seen, next="--from an earlier one")
        for spec in stages[:end]:
            STAGES[spec.kind].check(spec.options, spec.where)
            if STAGES[spec.kind].begin is None:
                check_policy(spec, self.recipe.path)
            for ref in self.refers(spec):
                if ref.partition(".")[0] not in self.recipe.made:
                    self._check_there(ref, spec)
            self._check_key(spec)
        self._check_outputs(stages[:end])
        return list(stages[start:end])

    def _check_key(self, spec: StageSpec) -> None:
        """Refuse a canonical key that is neither a normaliser nor a column that comes in or that a mixture adds."""
        key = spec.options.get("key")
        if spec.kind not in KEYED or key is None or text(key, f"{spec.where}: key") in NORMALISERS:
            return
        columns = {name for source in self.recipe.inputs.values() if source.paths for name in source.open().columns}
        if key not in columns | set(MADE_COLUMNS):
            raise UsageError(
                f"{spec.where}: no normaliser and no column has the name of its key",
                seen=f"{key}; columns: {', '.join(sorted(columns))}",
                next=f"key: {', '.join(NORMALISERS)} or a column",
            )

    def refers(self, spec: StageSpec) -> tuple[str, ...]:
        """Return the references of a stage, of rows that it reads and of rows that it compares with."""
        return (*spec.reads, *STAGES[spec.kind].references(spec.options))

    def unknown(self, ref: str) -> bool:
        """Tell whether what a reference names would be made anew."""
        return ref not in self.recipe.inputs and ref.partition(".")[0] in self.anew

    def _check_there(self, ref: str, spec: StageSpec) -> None:
        source = self.find(ref)
        if not source.paths:
            raise BadInputError(
                f"the input {ref} has no file", seen=f"read by {spec.where}", next=f"--input {ref}=FILE"
            )
        expand(source.paths)

    def _check_outputs(self, stages: Sequence[StageSpec]) -> None:
        """Refuse two stages that write to one place, where each would undo the other at every run, and one that writes
        over a file that comes from outside.
        """
        outside = [
            os.path.realpath(file.path) for spec in stages for ref in self.refers(spec)
            if ref.partition(".")[0] not in self.recipe.made for file in expand(self.find(ref).paths)
        ]  # fmt: skip
        told = [paths for spec in stages for paths in named_benchmarks(spec.options).values()]
        outside += [os.path.realpath(self.recipe.path(path)) for paths in told for path in paths]
        taken: dict[str, str] = {}
        for spec in stages:
            place, parts = os.path.realpath(self._out(spec, "jsonl")), STAGES[spec.kind].parts(spec.options)
            over = [p for p in outside if p == place or (os.path.dirname(p) == place and Path(p).stem in parts)]
            if over:
                raise UsageError(f"{spec.where} would write over an input", seen=over[0], next="another `out`")
            if place in taken:
                raise UsageError(
                    f"the stages {taken[place]} and {spec.name} write to the same place", seen=str(spec.out),
                    next="give each an `out` of its own, or leave it out",
                )  # fmt: skip
            taken[place] = spec.name

    # -- one stage

    def find(self, ref: str) -> Source:
        """Return the rows that a reference names: an input, what a stage wrote, or a path."""
        name, _, part = ref.partition(".")
        if ref in self.rows:
            return self.rows[ref]
        if part in self.parts.get(name, {}):
            return self.parts[name][part]
        return Source((self.recipe.path(ref),))

    def given(self, spec: StageSpec) -> Given:
        """Return what a stage needs to begin."""
        return Given(
            where=spec.where, source=self._source(spec), options=spec.options, out=self._out(spec), find=self.find,
            path=self.recipe.path, tools=self.tools, catalog=self.catalog,
        )  # fmt: skip

    def run(self, spec: StageSpec) -> Ran:
        """Do one stage, or take over what stands."""
        given, kind = self.given(spec), STAGES[spec.kind]

        def tell(done: int, total: int | None, label: str) -> None:
            self.progress(done, total, f"{spec.name}: {label}")

        if kind.begin is None:
            return Ran(spec, gate=gate(spec, given, self._splits(spec), tell))
        work = self.work(spec, given)
        for path in work.outputs:
            make_folder(path.parent)
        report = work.run(self.catalog, tell, dry_run=False, wait=5.0)
        if kind.after is not None:
            kind.after(given, work, report, tell)
        self.made(spec, given, work, report.body)
        return Ran(spec, report)

    def work(self, spec: StageSpec, given: Given) -> Work:
        """Return the work of a stage, under the stage's own kind."""
        begin = STAGES[spec.kind].begin
        assert begin is not None
        return replace(begin(given), name=spec.kind)

    def take(self, spec: StageSpec) -> None:
        """Take over a stage that is not to be run; raises RefusedError where it does not stand."""
        if STAGES[spec.kind].begin is None:
            return
        given = self.given(spec)
        work = self.work(spec, given)
        stands = standing(work, self.catalog)
        if stands.body is None:
            raise RefusedError(
                f"the stage {spec.name} does not stand, so what comes after it cannot be run alone",
                seen=stands.why, next=f"lpt data run {self.recipe.ref} --until {spec.name}, or leave out --from",
            )  # fmt: skip
        self.made(spec, given, work, stands.body)

    def made(self, spec: StageSpec, given: Given, work: Work, body: Mapping[str, Any]) -> None:
        """Note what a stage wrote."""
        one = work.dataset.one_layout
        layout, column = given.source.layout if one else None, given.source.text_column if one else "text"
        named = STAGES[spec.kind].parts(spec.options)
        if not named:
            self.rows[spec.name] = Source((str(given.out),), layout, column)
            return
        files = {Path(file["path"]).stem: file["path"] for file in body["outputs"]}
        self.parts[spec.name] = {part: Source((files[part],), layout, column) for part in named}
        self.rows[spec.name] = self.parts[spec.name]["train"]

    def _splits(self, spec: StageSpec) -> dict[str, Sequence[str]]:
        """The files that a gate judges, by the name of the split."""
        told = {name: spec.options[name] for name in ("train", "validation", "test") if spec.options.get(name)}
        if not told and len(spec.reads) == 1 and spec.reads[0] in self.parts:
            return {part: source.paths for part, source in self.parts[spec.reads[0]].items()}
        refs = {name: [given] if isinstance(given, str) else given for name, given in told.items()}
        return {
            name: [path for ref in named for path in self.find(ref).paths]
            for name, named in (refs or {"train": list(spec.reads)}).items()
        }

    def _source(self, spec: StageSpec) -> Source:
        found = [self.find(ref) for ref in spec.reads]
        paths = tuple(path for source in found for path in source.paths)
        read_as = {(source.layout, source.text_column) for source in found}
        if len(read_as) > 1 and not STAGES[spec.kind].reads(spec.options):
            raise UsageError(
                f"{spec.where} reads rows of several layouts as one", seen=", ".join(spec.reads),
                next="`mix` joins them, or clean each on its own",
            )  # fmt: skip
        layout, column = next(iter(read_as)) if len(read_as) == 1 else (None, "text")
        return Source(paths, spec.layout or layout, spec.text_column or column)

    def _out(self, spec: StageSpec, extension: str | None = None) -> Path:
        """Where a stage writes: what `out` says, else a file (or a folder) of its name in the work folder.

        The file's format is that of what it reads, where that is Parquet or JSON lines.
        """
        if spec.out is not None:
            return Path(self.recipe.path(spec.out))
        if STAGES[spec.kind].parts(spec.options) or STAGES[spec.kind].begin is None:
            return self.recipe.work / spec.name
        if extension is None:
            formats = {source.format for source in expand(self.find(spec.reads[0]).paths)}
            extension = "parquet" if formats == {"parquet"} else "jsonl"
        return self.recipe.work / f"{spec.name}.{extension}"
