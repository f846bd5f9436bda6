"""A recipe read from YAML: inputs and a list of stages, every name known and every option of its type, frozen.

    inputs: {chats: sft.jsonl, pages: [web/*.jsonl.zst]}   # or one path; a path may be {paths, layout, text_column}
    order: warn                   # strict: a wrong order is refused
    work: chats.work              # folder of what no `out` names; the recipe's own name when left out
    stages:
      - clean: {from: chats, preset: sft, as: tidy}
      - dedup: {threshold: 0.8}                            # reads the stage before it, unless `from` says otherwise
      - decontaminate: {benchmark: {gsm8k: test.jsonl}}
      - split: {key: text, test: 0.05}                     # its parts are split.train and split.test
      - admit: {contract: sft}

A stage is named by `as`, else by what it does. Options have the names of the command's own. A reference (`from`,
`against`, a domain's `from`) is the name of an input or of an earlier stage, or a path; paths are relative to the
folder of the recipe.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from lpt_data.option_values import check_names, plain_name, text, texts
from lpt_data.run.table import STAGES
from lpt_data.works import Source
from manifests.errors import BadInputError, UsageError
from manifests.policy_yaml import StrictLoader

ORDERS = ("warn", "strict")
SHARED = ("as", "from", "out", "layout", "text_column")  # options of every stage
_KEYS = ("description", "inputs", "stages", "work", "order")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_MAX_BYTES = 1 << 20


@dataclass(frozen=True)
class StageSpec:
    """One stage of a recipe."""

    kind: str  # a name in lpt_data.run.table.STAGES
    name: str
    reads: tuple[str, ...]  # references whose rows it reads
    options: Mapping[str, Any]  # those of its own, under the names of fields
    out: str | None = None
    layout: str | None = None
    text_column: str | None = None

    @property
    def where(self) -> str:
        """How an error names the stage."""
        return f"the stage {self.name}"


@dataclass(frozen=True)
class Recipe:
    """What a recipe file says."""

    ref: str
    folder: Path  # what its paths are relative to
    work: Path
    inputs: Mapping[str, Source]
    stages: tuple[StageSpec, ...]
    strict: bool = False
    description: str = ""
    made: tuple[str, ...] = field(default=())  # names of the stages, in order

    def path(self, given: str) -> str:
        """Return a path of the recipe as it is opened."""
        return str(self.folder / given)


def shipped() -> list[str]:
    """Return the names of the recipes that come with lpt, such as `lpt:sft`."""
    return sorted(_shipped())


def load_recipe(ref: str, inputs: Mapping[str, Sequence[str]] | None = None) -> Recipe:
    """Read the recipe in a file, or one that comes with lpt; `inputs` takes the place of its inputs, by name.

    Raises BadInputError for what is no such file, UsageError for keys, names and values that mean nothing.
    """
    written, folder, stem = _text(ref)
    try:
        body = yaml.load(written, Loader=StrictLoader)  # a SafeLoader that refuses repeated keys and aliases
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise BadInputError("the recipe is not YAML", seen=f"{ref}: {error}", next="correct that line") from error
    return parse_recipe(body, ref=ref, folder=folder, stem=stem, inputs=inputs)


def parse_recipe(
    body: Any,
    *,
    ref: str = "recipe",
    folder: Path = Path(),
    stem: str = "recipe",
    inputs: Mapping[str, Sequence[str]] | None = None,
) -> Recipe:
    """Return the recipe that a mapping is; raises UsageError that names what is wrong."""
    if not isinstance(body, dict):
        raise UsageError("a recipe is a mapping", seen=repr(body)[:80], next="inputs: FILE, and stages: [clean, …]")
    top = {plain_name(str(key)): value for key, value in body.items()}
    check_names(top, _KEYS, "the recipe", "key")
    order = top.get("order", "warn")
    if order not in ORDERS:
        raise UsageError("the recipe has a wrong order", seen=repr(order), next="order: warn, or order: strict")
    sources = _inputs(top.get("inputs"), folder) | _given(inputs, top.get("inputs"))
    work = folder / text(top.get("work", f"{stem}.work"), "the recipe: work")
    stages = _stages(top.get("stages"), sources)
    described = str(top.get("description") or "")
    names = tuple(stage.name for stage in stages)
    return Recipe(ref, folder, work, sources, stages, order == "strict", described, names)


# -- parts


def _inputs(value: Any, folder: Path) -> dict[str, Source]:
    if value is None:
        return {}
    named = value if isinstance(value, dict) and not _is_source(value) else {"input": value}
    return {_name(name, "an input"): _source(given, folder, f"the input {name}") for name, given in named.items()}


def _is_source(value: Mapping[str, Any]) -> bool:
    return "paths" in value


def _source(value: Any, folder: Path, where: str) -> Source:
    told = value if isinstance(value, dict) else {"paths": value}
    told = {plain_name(str(key)): item for key, item in told.items()}
    check_names(told, ("paths", "layout", "text_column"), where)
    paths = () if told.get("paths") is None else texts(told["paths"], f"{where}: paths")
    layout = None if told.get("layout") is None else text(told["layout"], f"{where}: layout")
    column = text(told.get("text_column", "text"), f"{where}: text_column")
    return Source(tuple(str(folder / path) for path in paths), layout, column)


def _given(inputs: Mapping[str, Sequence[str]] | None, written: Any) -> dict[str, Source]:
    """Inputs of the command line: relative to where it is typed, in the layout that the recipe names."""
    known = _inputs(written, Path())
    for name in inputs or {}:
        if known and name not in known:
            check_names([name], known, "the recipe", "input")
    return {
        _name(name, "an input"): Source(tuple(paths), known[name].layout, known[name].text_column)
        if name in known
        else Source(tuple(paths))
        for name, paths in (inputs or {}).items()
    }


def _name(name: Any, what: str) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UsageError(f"no name for {what}", seen=repr(name)[:80], next="letters, digits, _ and - (64 at most)")
    return name


def _stages(value: Any, inputs: Mapping[str, Source]) -> tuple[StageSpec, ...]:
    if not isinstance(value, list) or not value:
        raise UsageError("the recipe has no stages", seen=repr(value)[:80], next="stages: [clean, dedup]")
    stages: list[StageSpec] = []
    for place, entry in enumerate(value):
        kind, given = _entry(entry, place)
        options = {plain_name(str(key)): item for key, item in given.items()}
        known = STAGES[kind]
        check_names(options, (*SHARED, *known.options), f"the stage {kind}")
        name = _name(options.get("as", kind), "a stage")
        if name in inputs or any(stage.name == name for stage in stages):
            raise UsageError(f"two things are called {name}", seen=f"stage {place + 1}: {kind}", next="as: ANOTHER")
        own = {key: item for key, item in options.items() if key not in SHARED}
        before = stages[-1] if stages else None
        spec = StageSpec(
            kind=kind,
            name=name,
            reads=_reads(kind, name, options, own, inputs, before),
            options=own,
            out=None if options.get("out") is None else text(options["out"], f"the stage {name}: out"),
            layout=None if options.get("layout") is None else text(options["layout"], f"the stage {name}: layout"),
            text_column=None if "text_column" not in options else text(options["text_column"], "text_column"),
        )
        _check_references(spec, inputs, stages)
        stages.append(spec)
    return tuple(stages)


def _entry(entry: Any, place: int) -> tuple[str, dict[str, Any]]:
    """`dedup`, or `dedup: {options}`."""
    told = {entry: {}} if isinstance(entry, str) else entry
    if not isinstance(told, dict) or len(told) != 1:
        raise UsageError(
            f"stage {place + 1} is no stage", seen=repr(entry)[:80], next="- dedup, or - dedup: {threshold: 0.8}"
        )
    kind, options = next(iter(told.items()))
    check_names([kind], STAGES, "a recipe", "stage")
    if options is not None and not isinstance(options, dict):
        raise UsageError(f"the options of {kind} are no mapping", seen=repr(options)[:80], next="threshold: 0.8")
    return kind, options or {}


def _reads(
    kind: str,
    name: str,
    options: Mapping[str, Any],
    own: Mapping[str, Any],
    inputs: Mapping[str, Source],
    before: StageSpec | None,
) -> tuple[str, ...]:
    """The references whose rows a stage reads: what its options or `from` name, else the stage before it."""
    named = STAGES[kind].reads(own)
    if named and "from" in options:
        raise UsageError(
            f"the stage {name} says twice what it reads", seen=f"from, and {', '.join(named)}", next="leave out `from`"
        )
    if named:
        return named
    if "from" in options:
        return texts(options["from"], f"the stage {name}: from")
    if before is not None:
        return (before.name,)
    if len(inputs) == 1:
        return tuple(inputs)
    raise UsageError(
        f"nothing says what the stage {name} reads",
        seen=f"inputs: {', '.join(inputs) or 'none'}",
        next=f"from: {next(iter(inputs), 'FILE')}" if inputs else "inputs: FILE",
    )


def _check_references(spec: StageSpec, inputs: Mapping[str, Source], before: Sequence[StageSpec]) -> None:
    """Every reference is an input, an earlier stage that makes rows (or a part of it), or looks like a path."""
    rows = {stage.name: stage for stage in before}
    for ref in (*spec.reads, *STAGES[spec.kind].references(spec.options)):
        name, _, part = ref.partition(".")
        if ref in inputs:
            continue
        if name in rows:
            parts = STAGES[rows[name].kind].parts(rows[name].options)
            if rows[name].kind in ("audit", "admit"):
                raise UsageError(f"{spec.where} reads a stage that makes no rows", seen=ref, next="name another")
            if part and part not in parts:
                seen = f"{ref}; its parts: {', '.join(parts) or 'none'}"
                raise UsageError(f"{spec.where} reads a part that is not made", seen=seen, next=f"from: {name}")
            continue
        if not any(mark in ref for mark in "./*"):
            check_names([ref], [*inputs, *rows], spec.where, "input or earlier stage")


# -- where the text comes from


def _text(ref: str) -> tuple[str, Path, str]:
    """Return the text of a recipe, the folder of its paths, and what its work folder is called after."""
    if ref.startswith("lpt:"):
        found = _shipped()
        if ref not in found:
            raise UsageError("no such recipe", seen=ref, next=f"one of: {', '.join(sorted(found))}, or a path")
        return found[ref].read_text("utf-8"), Path(), ref.removeprefix("lpt:")
    path = Path(ref)
    try:
        if not path.is_file() and path.exists():
            raise BadInputError("a recipe is a file", seen=ref, next="name a YAML file")
        if path.stat().st_size > _MAX_BYTES:
            raise BadInputError("a recipe of more than 1 MiB is no recipe", seen=ref, next="check the path")
        return path.read_text("utf-8"), path.parent, path.stem
    except (OSError, UnicodeDecodeError) as error:
        raise BadInputError(
            "the recipe cannot be read", seen=f"{ref}: {error}", next=f"a YAML file, or: {', '.join(shipped())}"
        ) from error


def _shipped() -> dict[str, Any]:
    folder = files("lpt_data").joinpath("recipes").joinpath("run")
    return {f"lpt:{p.name.removesuffix('.yaml')}": p for p in folder.iterdir() if p.name.endswith(".yaml")}
