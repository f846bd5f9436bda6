"""The specification of a mixture: read from YAML, every key known, every number checked, frozen.

    domains:
      general: {inputs: chats.jsonl, weight: 5, replay: true}
      maths: {inputs: [gsm8k.jsonl, more/], weight: 3, max_epochs: 4}
    temperature: 1            # one over all domains; .inf makes them alike
    replay_share: 0.2         # what the replay domains get, exactly
    total: {rows: 10000}      # or {tokens: …} with a tokenizer, or {epochs: …} over all domains
    exhausted: repeat         # a domain that runs out: repeat | redistribute | stop
    schedule: {anneal: {from: lr_decay, weights: {maths: 1}}, learning_rate: {type: wsd, decay: 0.2}}

Paths are relative to the folder of the file. `lpt:NAME` is a recipe that comes with lpt; `--input` gives it data.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from lpt_data.config import NO_IDENTITY
from manifests.errors import BadInputError, UsageError
from manifests.policy_yaml import StrictLoader
from manifests.spec_values import (
    choice,
    did_you_mean,
    flag,
    mapping,
    number,
    optional_number,
    text_value,
    whole_number,
    wrong,
)

EXHAUSTED = ("repeat", "redistribute", "stop")
RATES = ("constant", "linear", "cosine", "wsd")
UNITS = ("rows", "tokens", "epochs")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
MADE_COLUMNS = ("domain", "copy")  # what a mixture adds beside the records
_MAX_BYTES = 1 << 20


@dataclass(frozen=True)
class Domain:
    """One named source of rows."""

    name: str
    inputs: tuple[str, ...] = field(default=(), metadata=NO_IDENTITY)  # files, globs, folders
    weight: float | None = None  # None: weights are sizes
    max_epochs: float | None = None  # passes over the domain at most; None: as many as are asked
    temperature: float | None = None  # under per_domain_exponents alone: weight^(1/temperature)
    replay: bool = False
    layout: str | None = None
    text_column: str = "text"


@dataclass(frozen=True)
class Phase:
    """A stretch of training, up to a fraction of all its steps; no weights: those of the domains."""

    until: float  # in (0, 1]
    weights: tuple[tuple[str, float], ...] | None = None


@dataclass(frozen=True)
class Curriculum:
    """Rows in the order of a numeric column."""

    column: str
    descending: bool = False
    domains: tuple[str, ...] = ()  # which domains have the column; none named: all of them
    together: bool = False  # one ramp over all these domains, not one in each


@dataclass(frozen=True)
class LearningRate:
    """The schedule that the phases are tied to; fractions of all steps."""

    type: str = "constant"
    warmup: float = 0.0
    decay: float = 0.0  # wsd: the last part, over which the rate falls to 0

    @property
    def decay_start(self) -> float:
        """The fraction of training at which the rate begins to fall; 1 where it never does."""
        return {"constant": 1.0, "wsd": 1 - self.decay}.get(self.type, self.warmup)


@dataclass(frozen=True)
class MixSpec:
    """What to mix, in which proportion, how much of it, in which order."""

    domains: tuple[Domain, ...]  # by name
    by_size: bool = False  # weights are the sizes of the domains
    inverse_temperature: float = 1.0  # 1/T; 0 when T is infinite
    per_domain_exponents: bool = False
    replay_share: float | None = None
    total: float = 1.0
    unit: str = "epochs"  # of UNITS
    exhausted: str = "repeat"  # of EXHAUSTED
    seed: int = 0
    kind: str | None = None  # text | sft | rlvr; None: as the columns say
    tokenizer: str | None = field(default=None, metadata=NO_IDENTITY)  # tokenizer.json or its folder
    tokenizer_sha256: str = ""  # of its file; filled when it is opened
    phases: tuple[Phase, ...] = (Phase(1.0),)
    scheduled: bool = False  # whether a schedule file is written
    curriculum: Curriculum | None = None
    learning_rate: LearningRate = LearningRate()
    rows_per_step: int | None = None  # rows of one optimizer step
    files: tuple[int, ...] = ()  # number of files of each domain; filled when they are opened


def recipes() -> list[str]:
    """Return the names of the recipes that come with lpt, such as `lpt:maths`."""
    return sorted(_shipped())


def load_spec(ref: str, inputs: Mapping[str, Sequence[str]] | None = None) -> MixSpec:
    """Return the specification in a YAML file or of a recipe `lpt:NAME`; `inputs` adds data to domains by name.

    Raises BadInputError for what is no such file, UsageError for a recipe or a domain that is unknown.
    """
    text, folder = _text(ref)
    try:
        body = yaml.load(text, Loader=StrictLoader)  # a SafeLoader that refuses repeated keys and aliases
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise BadInputError("the mixture is not YAML", seen=f"{ref}: {error}", next="correct that line") from error
    spec = parse_spec(body, folder)
    names = {domain.name for domain in spec.domains}
    for name in inputs or {}:
        if name not in names:
            raise UsageError(f"--input names no domain of {ref}", seen=name, next=did_you_mean(name, names))
    given = tuple(replace(d, inputs=(*d.inputs, *(inputs or {}).get(d.name, ()))) for d in spec.domains)
    for domain in given:
        if not domain.inputs:
            raise BadInputError(
                f"the domain {domain.name} has no input", seen=ref, next=f"--input {domain.name}=FILE, or `inputs:`"
            )
    return replace(spec, domains=given)


def parse_spec(body: Any, folder: Path = Path()) -> MixSpec:
    """Return the specification that a mapping is; BadInputError names the key that is wrong."""
    known = (
        "domains", "weights", "temperature", "per_domain_exponents", "replay_share", "total", "exhausted",
        "max_epochs", "seed", "kind", "tokenizer", "schedule", "description",
    )  # fmt: skip
    top = mapping(body, "the mixture", known)
    by_size = choice(top.get("weights", "given"), "weights", ("given", "size")) == "size"
    exponents = flag(top.get("per_domain_exponents", False), "per_domain_exponents")
    cap = optional_number(top, "max_epochs", "max_epochs")
    given = top.get("domains")
    if not isinstance(given, dict) or not given:
        raise wrong("domains", given, "a mapping of names to {inputs, weight}")
    domains = tuple(_domain(name, given[name], folder, by_size, exponents, cap) for name in sorted(given))
    temperature = number(top.get("temperature", 1), "temperature", infinite=True)
    total, unit = _total(top.get("total", {"epochs": 1}))
    tokenizer = text_value(top, "tokenizer")
    schedule = mapping(
        top.get("schedule", {}), "schedule", ("phases", "anneal", "curriculum", "learning_rate", "rows_per_step")
    )
    rates = _learning_rate(schedule.get("learning_rate", {}))
    spec = MixSpec(
        domains=domains,
        by_size=by_size,
        inverse_temperature=1 / temperature,
        per_domain_exponents=exponents,
        replay_share=_replay(top, domains),
        total=total,
        unit=unit,
        exhausted=choice(top.get("exhausted", "repeat"), "exhausted", EXHAUSTED),
        seed=whole_number(top.get("seed", 0), "seed", least=0),
        kind=choice(top["kind"], "kind", ("text", "sft", "rlvr")) if "kind" in top else None,
        tokenizer=None if tokenizer is None else str(folder / tokenizer),
        phases=_phases(schedule, domains, rates),
        scheduled="schedule" in top,
        curriculum=_curriculum(schedule["curriculum"], domains) if "curriculum" in schedule else None,
        learning_rate=rates,
        rows_per_step=whole_number(schedule["rows_per_step"], "rows_per_step") if "rows_per_step" in schedule else None,
    )
    if exponents and temperature != 1:
        raise wrong("temperature", temperature, "1 beside per_domain_exponents, which replace it")
    return spec


# -- parts


def _domain(name: str, body: Any, folder: Path, by_size: bool, exponents: bool, cap: float | None) -> Domain:
    if not _NAME.fullmatch(name):
        raise wrong("the name of a domain", name, "letters, digits, _ . - (64 at most)")
    where = f"domains.{name}"
    known = ("inputs", "weight", "max_epochs", "temperature", "replay", "layout", "text_column")
    values = mapping(body, where, known)
    if "temperature" in values and not exponents:
        raise wrong(
            f"{where}.temperature", values["temperature"], "absent: one temperature holds for all domains, "
            "unless `per_domain_exponents: true` says that you want another for each",
        )  # fmt: skip
    if by_size and "weight" in values:
        raise wrong(f"{where}.weight", values["weight"], "absent where `weights: size`")
    if not by_size and "weight" not in values:
        raise wrong(f"{where}.weight", None, "a number; or say `weights: size` once")
    inputs = values.get("inputs", [])
    inputs = [inputs] if isinstance(inputs, str) else inputs
    if not isinstance(inputs, list) or not all(isinstance(path, str) and path for path in inputs):
        raise wrong(f"{where}.inputs", inputs, "a path or a list of paths")
    return Domain(
        name=name,
        inputs=tuple(str(folder / path) for path in inputs),
        weight=None if by_size else number(values["weight"], f"{where}.weight", least=0, inclusive=True),
        max_epochs=optional_number(values, "max_epochs", f"{where}.max_epochs", cap),
        temperature=optional_number(values, "temperature", f"{where}.temperature", infinite=True),
        replay=flag(values.get("replay", False), f"{where}.replay"),
        layout=text_value(values, "layout", where),
        text_column=text_value(values, "text_column", where) or "text",
    )


def _replay(top: Mapping[str, Any], domains: Sequence[Domain]) -> float | None:
    marked = [domain.name for domain in domains if domain.replay]
    if "replay_share" not in top:
        if marked:
            raise wrong("replay_share", None, f"a number between 0 and 1, since {', '.join(marked)} is replay")
        return None
    share = number(top["replay_share"], "replay_share", least=0, most=1)
    if not marked:
        raise wrong("replay_share", share, "absent, or a domain marked `replay: true`")
    if len(marked) == len(domains):
        raise wrong("replay", marked, "false in at least one domain: all are replay")
    return share


def _total(value: Any) -> tuple[float, str]:
    body = mapping(value, "total", UNITS)
    if len(body) != 1:
        raise wrong("total", value, "one of {rows: N}, {tokens: N}, {epochs: N}")
    unit, amount = next(iter(body.items()))
    return (number(amount, "total.epochs") if unit == "epochs" else whole_number(amount, f"total.{unit}")), unit


def _learning_rate(value: Any) -> LearningRate:
    body = mapping(value, "schedule.learning_rate", ("type", "warmup", "decay"))
    kind = choice(body.get("type", "constant"), "schedule.learning_rate.type", RATES)
    where = "schedule.learning_rate."
    warmup = number(body.get("warmup", 0), f"{where}warmup", least=0, most=1, inclusive=True)
    decay = number(body.get("decay", 0), f"{where}decay", least=0, most=1, inclusive=True)
    if (kind == "wsd") != (decay > 0):
        raise wrong(f"{where}decay", decay, "a fraction above 0 for wsd, and absent for the others")
    if warmup + decay > 1 or warmup == 1:
        raise wrong(f"{where}warmup", warmup, "below 1, and with decay at most 1")
    return LearningRate(kind, warmup, decay)


def _phases(schedule: Mapping[str, Any], domains: Sequence[Domain], rates: LearningRate) -> tuple[Phase, ...]:
    if "phases" in schedule and "anneal" in schedule:
        raise wrong("schedule", ["phases", "anneal"], "one of the two")
    if "anneal" in schedule:
        body = mapping(schedule["anneal"], "schedule.anneal", ("from", "weights"))
        start = _moment(body.get("from"), "schedule.anneal.from", rates)
        if start >= 1:
            raise wrong("schedule.anneal.from", start, "below 1: nothing is left to anneal")
        return Phase(start), Phase(1.0, _phase_weights(body.get("weights"), "schedule.anneal.weights", domains))
    given = schedule.get("phases", [{"until": 1}])
    if not isinstance(given, list) or not given:
        raise wrong("schedule.phases", given, "a list of {until, weights}")
    phases, before = [], 0.0
    for place, entry in enumerate(given):
        where = f"schedule.phases[{place}]"
        body = mapping(entry, where, ("until", "weights"))
        until = _moment(body.get("until"), f"{where}.until", rates)
        if until <= before:
            raise wrong(f"{where}.until", until, f"above {before}, where the phase before it ends")
        weights = _phase_weights(body["weights"], f"{where}.weights", domains) if "weights" in body else None
        phases.append(Phase(until, weights))
        before = until
    if before != 1:
        raise wrong("schedule.phases", before, "phases up to 1, the end of training")
    return tuple(phases)


def _moment(value: Any, where: str, rates: LearningRate) -> float:
    """A fraction of training, or a point of the learning-rate schedule by name."""
    named = {"lr_warmup": rates.warmup, "lr_decay": rates.decay_start}
    if value in named:
        value = named[value]
    return number(value, where, least=0, most=1, closed_above=True)


def _phase_weights(value: Any, where: str, domains: Sequence[Domain]) -> tuple[tuple[str, float], ...]:
    names = {domain.name for domain in domains}
    body = mapping(value, where, sorted(names), what="domain")
    if not body:
        raise wrong(where, value, "weights of at least one domain")
    weights = tuple((n, number(body[n], f"{where}.{n}", least=0, inclusive=True)) for n in sorted(body))
    if not any(w > 0 for n, w in weights if not next(d for d in domains if d.name == n).replay):
        raise wrong(where, value, "weights that do not sum to 0 (replay domains have their own share)")
    return weights


def _curriculum(value: Any, domains: Sequence[Domain]) -> Curriculum:
    where = "schedule.curriculum"
    body = mapping(value, where, ("column", "order", "domains", "within"))
    column = text_value(body, "column", where)
    if column is None:
        raise wrong(f"{where}.column", None, "the name of a numeric column")
    names = {domain.name for domain in domains}
    chosen = body.get("domains", sorted(names))
    if not isinstance(chosen, list) or not chosen or len(set(map(str, chosen))) != len(chosen):
        raise wrong(f"{where}.domains", chosen, "a list of domains, each once")
    for name in chosen:
        if name not in names:
            raise wrong(f"{where}.domains", name, did_you_mean(str(name), names))
    order = choice(body.get("order", "ascending"), f"{where}.order", ("ascending", "descending"))
    within = choice(body.get("within", "domain"), f"{where}.within", ("domain", "all"))
    return Curriculum(column, order == "descending", tuple(sorted(chosen)), within == "all")


# -- where the text comes from


def _text(ref: str) -> tuple[str, Path]:
    if ref.startswith("lpt:"):
        found = _shipped()
        if ref not in found:
            raise UsageError("no such recipe", seen=ref, next=f"one of: {', '.join(sorted(found))}, or a path")
        return found[ref].read_text("utf-8"), Path()
    path = Path(ref)
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise BadInputError("a mixture of more than 1 MiB is no mixture", seen=ref, next="check the path")
        return path.read_text("utf-8"), path.parent
    except (OSError, UnicodeDecodeError) as error:
        known = ", ".join(recipes())
        raise BadInputError(
            "the mixture cannot be read", seen=f"{ref}: {error}", next=f"a YAML file, or one of: {known}"
        ) from error


def _shipped() -> dict[str, Any]:
    folder = files("lpt_data").joinpath("recipes")
    return {f"lpt:{p.name.removesuffix('.yaml')}": p for p in folder.iterdir() if p.name.endswith(".yaml")}
