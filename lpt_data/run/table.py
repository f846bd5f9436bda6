"""The one table of what a recipe can say: each stage with its place in the order, its options, and its work.

The right order is clean, boilerplate → exact → near → semantic → quality → decontaminate → split → mix → pack → audit,
admit. To add a stage: a function that makes its work (`lpt_data.works` where a command does the same), and one line of
STAGES.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lpt_data import works
from lpt_data.config import BoilerplateConfig, CleanConfig, DecontaminateConfig, DedupConfig, PairsConfig, SplitConfig
from lpt_data.option_values import MOST_SEED, config_of, text, texts
from lpt_data.progress import Progress
from lpt_data.run.contamination import BESIDE, decontaminate, named_benchmarks, settle, write_report
from lpt_data.run.meaning import semantic_config, with_semantics
from lpt_data.stage import StageReport, Work
from lpt_data.works import Source
from manifests.errors import UsageError

if TYPE_CHECKING:
    from manifests.catalog import Catalog

Options = Mapping[str, Any]
CLEAN, EXACT, NEAR, SEMANTIC, QUALITY, DECONTAMINATE, SPLIT, MIX, PACK, GATE = range(1, 11)
QUALITY_RULES = ("gopher", "repetition", "c4", "fineweb")  # families that drop and never rewrite
_CLEAN_ONLY = ("language", "empty", *QUALITY_RULES)
_METHODS = {"exact": EXACT, "minhash": NEAR, "semantic": SEMANTIC}


@dataclass(frozen=True)
class Tools:
    """What the data side takes from the training side, opened when a stage asks for it: by the command line."""

    tokenizer: Callable[[str], Any]  # name -> lpt_data.tokenizer_file.TokenizerFile
    encoder: Callable[[str | None], Any]  # name -> lpt_data.contracts.common.Encoder
    verifiers: Callable[[], Mapping[str, Any]]
    sampler: Callable[..., Any] | None = None  # (model, attempts=…, …) -> lpt_data.contracts.sampled.Sampler


@dataclass(frozen=True)
class Given:
    """One stage about to begin: its rows, its options, where it writes, and how its references are found."""

    where: str  # how an error names it
    source: Source
    options: Options
    out: Path
    find: Callable[[str], Source]  # the rows that a reference names
    path: Callable[[str], str]  # a path of the recipe, as it is opened
    tools: Tools
    catalog: Catalog

    def paths(self, key: str) -> tuple[str, ...]:
        """The files that the references under an option name."""
        refs = texts(self.options[key], f"{self.where}: {key}") if self.options.get(key) else ()
        return tuple(path for ref in refs for path in self.find(ref).paths)

    def tokenizer(self, name: Any) -> str | None:
        """A tokenizer's name: a path of the recipe where there is such a file or folder, else as it is written."""
        if name is None:
            return None
        named = text(name, f"{self.where}: tokenizer")
        return self.path(named) if Path(self.path(named)).exists() else named

    def benchmarks(self) -> dict[str, list[str]]:
        """The files of each benchmark, by name: those named, else what the catalog has under the name."""
        from lpt_data.benchmarks import paths_of

        told = named_benchmarks(self.options).items()
        return {name: [self.path(p) for p in paths] if paths else paths_of(name, self.catalog) for name, paths in told}


@dataclass(frozen=True)
class Stage:
    """What a stage of a recipe is."""

    options: tuple[str, ...]
    places: Callable[[Options], tuple[int, int]]  # the first and the last place in the order where it is right
    check: Callable[[Options, str], object]  # raises UsageError for options that mean nothing, before anything runs
    begin: Callable[[Given], Work] | None  # None: a gate, which makes no rows
    reads: Callable[[Options], tuple[str, ...]] = lambda options: ()  # references among its options, of rows it reads
    references: Callable[[Options], tuple[str, ...]] = lambda options: ()  # … and of rows that it compares with
    parts: Callable[[Options], tuple[str, ...]] = lambda options: ()  # what its output folder holds, train first
    after: Callable[[Given, Work, StageReport, Progress], None] | None = None


# -- clean, quality


def _clean_config(options: Options, where: str) -> CleanConfig:
    from lpt_data.clean import config_of as clean_config
    from lpt_data.clean import make_plan

    config = clean_config(options)
    make_plan(config)
    return config


def _clean_places(options: Options) -> tuple[int, int]:
    rules = [rule for rule in _listed(options.get("rules")) if not rule.startswith("-")]
    drops_only = rules and all(rule.partition(".")[0] in _CLEAN_ONLY for rule in rules)
    return CLEAN, QUALITY if drops_only else CLEAN


def _clean(given: Given) -> Work:
    return works.clean(given.source, given.options, given.out)


def _quality_options(options: Options, where: str) -> dict[str, Any]:
    rules = _listed(options.get("rules")) or QUALITY_RULES
    rewriting = [rule for rule in rules if rule.removeprefix("-").partition(".")[0] not in _CLEAN_ONLY]
    if rewriting:
        families = ", ".join(_CLEAN_ONLY)
        raise UsageError(f"{where}: quality drops, it does not mend", seen=", ".join(rewriting), next=families)
    chosen = {**options, "rules": ",".join(rules), "pii": "keep", "secrets": "keep"}
    _clean_config(chosen, where)
    return chosen


def _quality(given: Given) -> Work:
    return works.clean(given.source, _quality_options(given.options, given.where), given.out)


# -- boilerplate, dedup


def _boilerplate_config(options: Options, where: str) -> BoilerplateConfig:
    from lpt_data.boilerplate.stage import check

    config = config_of(BoilerplateConfig, options, where)
    check(config)
    return config


def _boilerplate(given: Given) -> Work:
    return works.boilerplate(given.source, _boilerplate_config(given.options, given.where), given.out)


def _dedup_config(options: Options, where: str) -> DedupConfig:
    from lpt_data.dedup.stage import check

    config = config_of(DedupConfig, _without(options, "against", "benchmark", "semantic", "embedder"), where)
    named_benchmarks(options)
    check(config)
    return replace(config, semantic=semantic_config(options, config.method, where))


def _dedup_places(options: Options) -> tuple[int, int]:
    methods = [_METHODS.get(name, NEAR) for name in _listed(options.get("method")) or ("exact", "minhash")]
    return min(methods), DECONTAMINATE if options.get("benchmark") else max(methods)


def _dedup(given: Given) -> Work:
    config = _dedup_config(given.options, given.where)
    config, semantics = with_semantics(config, given.options, given.where, given.path, given.catalog)
    return works.dedup(given.source, config, given.out, given.paths("against"), given.benchmarks(), semantics)


# -- split, pairs, mix, drop


def _split_config(options: Options, where: str) -> SplitConfig:
    from lpt_data.split import count_or_share

    config = config_of(SplitConfig, options, where)
    return replace(config, test=count_or_share(config.test), validation=count_or_share(config.validation))


def _split(given: Given) -> Work:
    from lpt_data.split import split_work

    return split_work(given.source.open(), _split_config(given.options, given.where), given.out)


def _split_parts(options: Options) -> tuple[str, ...]:
    return ("train", *(name for name in ("validation", "test") if options.get(name)))


def _pairs_config(options: Options, where: str) -> PairsConfig:
    from lpt_data.split import count_or_share

    config = config_of(PairsConfig, _without(options, "against"), where, against=())
    sizes = {name: count_or_share(getattr(config, name)) for name in ("calibration", "hidden_test")}
    return replace(config, **sizes)  # type: ignore[arg-type]


def _pairs(given: Given) -> Work:
    from lpt_data.pairs import pairs_work

    dataset = given.source.open(kind="preference")
    return pairs_work(dataset, _pairs_config(given.options, given.where), given.out, given.paths("against"))


def _pairs_parts(options: Options) -> tuple[str, ...]:
    return ("train", *(name for name in ("calibration", "hidden_test") if options.get(name)))


def _mix_spec(options: Options, where: str) -> Any:
    """The specification, its domains with the references as inputs."""
    from lpt_data.mix_spec import load_spec, parse_spec

    if "spec" in options:
        given = {name: list(texts(refs, f"{where}: input")) for name, refs in (options.get("input") or {}).items()}
        more = [name for name in options if name not in ("spec", "input", "tokenizer")]
        if more:
            raise UsageError(f"{where}: {more[0]} belongs in the specification", seen=options["spec"], next="move it")
        return load_spec(text(options["spec"], f"{where}: spec"), given)
    body = _without(options, "input")
    domains = {
        name: {"inputs": [], **{k: v for k, v in told.items() if k != "from"}, **_from(told, where)}
        if isinstance(told, dict)
        else told
        for name, told in (options.get("domains") or {}).items()
    }
    return parse_spec({**body, "domains": domains})


def _from(told: Mapping[str, Any], where: str) -> dict[str, Any]:
    return {"inputs": list(texts(told["from"], f"{where}: from"))} if "from" in told else {}


def _mix_reads(options: Options) -> tuple[str, ...]:
    what = "input" if "spec" in options else "domains"
    told = options.get(what) or {}
    if not isinstance(told, dict):
        raise UsageError(f"{what} of mix is no mapping", seen=repr(told)[:80], next=f"{what}: {{NAME: …}}")
    named = list(told.values())
    if what == "domains":
        named = [domain.get("from", domain.get("inputs")) for domain in named if isinstance(domain, dict)]
    return tuple(ref for refs in named for ref in texts(refs or (), f"{what} of mix"))


def _mix(given: Given) -> Work:
    from lpt_data.mix import mix_work

    options = dict(given.options)
    if isinstance(options.get("spec"), str) and not options["spec"].startswith("lpt:"):
        options["spec"] = given.path(options["spec"])
    spec = _mix_spec(options, given.where)
    settled = []
    for domain in spec.domains:
        found = [given.find(ref) for ref in domain.inputs]
        paths = tuple(path for source in found for path in source.paths)
        told = found[0] if found else Source(())
        column = domain.text_column if domain.text_column != "text" else told.text_column
        settled.append(replace(domain, inputs=paths, layout=domain.layout or told.layout, text_column=column))
    name = given.tokenizer(spec.tokenizer)
    tokenizer = given.tools.tokenizer(name) if name is not None else None
    return mix_work(replace(spec, domains=tuple(settled)), out=given.out, tokenizer=tokenizer)


def _drop_options(options: Options, where: str) -> None:
    from lpt_data.audit import contract_of

    contract_of(text(options.get("contract"), f"{where}: contract"))
    texts(options.get("check"), f"{where}: check")


def _drop(given: Given) -> Work:
    from lpt_data.audit import contract_of
    from lpt_data.drop import drop_work

    options = given.options
    return drop_work(
        given.source.open(kind=contract_of(options["contract"]).kind),
        options["contract"],
        texts(options["check"], f"{given.where}: check"),
        out=given.out,
        key=options.get("key"),
        encode=given.tools.encoder(given.tokenizer(options.get("tokenizer"))),
        max_length=options.get("max_length"),
        verifiers=given.tools.verifiers(),
        against=given.paths("against"),
        benchmarks=given.benchmarks(),
    )


def _pack_options(options: Options, where: str) -> int:
    text(options.get("tokenizer"), f"{where}: tokenizer")
    return _max_length(options, where)


def _max_length(options: Options, where: str) -> int:
    length = options.get("max_length")
    if not isinstance(length, int) or isinstance(length, bool):
        raise UsageError(f"{where}: max_length is no whole number", seen=repr(length), next="max_length: 2048")
    return length


def _pack(given: Given) -> Work:
    from lpt_data.pack import pack_work

    encode = given.tools.encoder(given.tokenizer(given.options["tokenizer"]))
    return pack_work(given.source.open(), encode, _pack_options(given.options, given.where), given.out)


# -- gates


def _gate_options(options: Options, where: str) -> None:
    from lpt_data.audit import contract_of

    contract_of(text(options.get("contract"), f"{where}: contract"))
    named_benchmarks(options)
    if options.get("max_length") is not None:
        _max_length(options, where)
    _sample_options(options, where)


_SAMPLE = {
    "attempts": int, "rows": int, "seed": int, "max_tokens": int, "temperature": float, "seconds": float,
}  # fmt: skip


def _sample_options(options: Options, where: str) -> None:
    """The model that a gate lets attempt some rows, and how."""
    given = options.get("sample")
    if given is None:
        return
    if not isinstance(given, Mapping) or not isinstance(given.get("model"), str):
        raise UsageError(f"{where}: sample names no model", seen=repr(given)[:80], next="sample: {model: ./model}")
    for name, value in given.items():
        kind = _SAMPLE.get(name)
        fits = kind and type(value) in (int, kind) and value >= (name not in ("temperature", "seed", "seconds"))
        if name == "model" or (fits and (name != "seed" or value <= MOST_SEED)):
            continue
        known = ", ".join(("model", *_SAMPLE))
        raise UsageError(f"{where}: sample has no such setting", seen=f"{name}: {value!r}"[:80], next=f"one of {known}")


def _gate_reads(options: Options) -> tuple[str, ...]:
    named = [options[name] for name in ("train", "validation", "test") if options.get(name)]
    return tuple(ref for refs in named for ref in texts(refs, "what a gate judges"))


def _listed(value: Any) -> tuple[str, ...]:
    parts = value.split(",") if isinstance(value, str) else texts(value or (), "the rules or methods")
    return tuple(part.strip() for part in parts if part.strip())


def _without(options: Options, *names: str) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name not in names}


def _against(options: Options) -> tuple[str, ...]:
    return texts(options.get("against") or (), "the option against")


def _fields(config: Any, *without: str) -> tuple[str, ...]:
    return tuple(field.name for field in fields(config) if field.name not in without)


_MIX_KEYS = (
    "domains", "weights", "temperature", "per_domain_exponents", "replay_share", "total", "exhausted", "max_epochs",
    "seed", "kind", "tokenizer", "schedule", "description", "spec", "input",
)  # fmt: skip
_AUDIT = (
    *("contract", "train", "validation", "test", "benchmark", "against", "policy", "key", "tokenizer", "max_length"),
    "sample",
)
_DROP = ("contract", "check", "key", "tokenizer", "max_length", "against", "benchmark")


def _at(place: int, last: int | None = None) -> Callable[[Options], tuple[int, int]]:
    return lambda options: (place, place if last is None else last)


STAGES: dict[str, Stage] = {
    "clean": Stage(_fields(CleanConfig), _clean_places, _clean_config, _clean),
    "dedup": Stage(
        (*_fields(DedupConfig), "embedder", "against", "benchmark"),
        _dedup_places, _dedup_config, _dedup, references=_against,
    ),
    "boilerplate": Stage(_fields(BoilerplateConfig), _at(CLEAN, EXACT), _boilerplate_config, _boilerplate),
    "quality": Stage(("rules", "languages", "limits"), _at(QUALITY), _quality_options, _quality),
    "drop": Stage(_DROP, _at(CLEAN, MIX), _drop_options, _drop, references=_against),
    "decontaminate": Stage(
        (*_fields(DecontaminateConfig, "benchmarks"), *BESIDE),
        _at(DECONTAMINATE), settle, decontaminate, after=write_report,
    ),
    "split": Stage(_fields(SplitConfig), _at(SPLIT), _split_config, _split, parts=_split_parts),
    "pairs": Stage(
        _fields(PairsConfig), _at(SPLIT), _pairs_config, _pairs, references=_against, parts=_pairs_parts
    ),
    "mix": Stage(_MIX_KEYS, _at(MIX), _mix_spec, _mix, reads=_mix_reads),
    "pack": Stage(("tokenizer", "max_length"), _at(PACK), _pack_options, _pack),
    "audit": Stage(_AUDIT, _at(GATE), _gate_options, None, reads=_gate_reads, references=_against),
    "admit": Stage((*_AUDIT, "name"), _at(GATE), _gate_options, None, reads=_gate_reads, references=_against),
}  # fmt: skip
