"""The specification of a matrix of runs: read from YAML, every key known, every cell's options checked, frozen.

    algorithm: sft
    model: ./model                    # or --set in a variant: model: …
    admitted: chats:train             # or unadmitted: chats.jsonl
    eval: chats:validation            # where the metric is measured
    base: {max_steps: 60, learning_rate: 2e-4}            # of every cell, as --set takes them
    variants: {rank-4: {lora_r: 4}, rank-8: {lora_r: 8}}  # what differs
    seeds: [1, 2, 3]                  # each variant runs with each of them
    metric: eval_loss                 # default: the algorithm's own
    better: lower                     # lower | higher; default: the algorithm's own
    band: {relative: 0.01}            # or absolute: how much worse than the best is as good as the best
    gates: {eval_loss: "<= 3.0", peak_memory_bytes: "<= 8e9", probe.format_rate: ">= 0.9", largest_batch: ">= 8"}
    cheapest: [trainable_parameters, peak_memory_bytes, seconds]   # which resource counts first
    probe: {admitted: facts:test, match: words, n: 64, max_completion_length: 32}    # lpt eval of each cell, + latency
    largest_batch: {most: 64, memory: 16e9}               # CUDA: the largest power of two that trains, in so many bytes

Free to import (no torch).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from lpt_train.algorithms import ALGORITHMS, config_of
from lpt_train.config_unread import check_read
from lpt_train.matrix_names import check_names
from manifests.errors import NOT_GIVEN, BadInputError, UsageError
from manifests.policy import Policy, parse_policy
from manifests.policy_yaml import StrictLoader
from manifests.spec_values import choice, mapping, number, text_value, whole_number, wrong

RESOURCES = ("trainable_parameters", "peak_memory_bytes", "seconds")
# What `cheapest` may name: of all of these less is better, and every run has them; one that is probed the last, too.
_RESOURCES = (*RESOURCES, "steps", "step_seconds")
_OF_A_PROBE = ("probe.latency_seconds",)
_KEYS = (
    "name", "algorithm", "model", "admitted", "unadmitted", "eval", "base", "variants", "seeds", "metric", "better",
    "band", "gates", "cheapest", "probe", "largest_batch",
)  # fmt: skip
_PROBE = (
    "admitted", "match", "reward", "n", "temperature", "k", "max_completion_length", "max_length", "batch_size", "seed",
)  # fmt: skip
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_MOST_CELLS = 1000
_MAX_BYTES = 1 << 20


@dataclass(frozen=True)
class Band:
    """How much worse than the best is as good as the best: `size`, of the best's mean when `relative`."""

    size: float
    relative: bool

    def width(self, best: float) -> float:
        """In units of the metric."""
        return self.size * abs(best) if self.relative else self.size

    def __str__(self) -> str:
        return f"{self.size:.3%} of the best" if self.relative else f"{self.size:g}"


@dataclass(frozen=True)
class LargestBatch:
    """Batches to try: powers of two up to `most` rows, in `memory` bytes of the device (None: all of it)."""

    most: int
    memory: float | None = None


@dataclass(frozen=True)
class Cell:
    """One run of the matrix: a variant under a seed, with all its options."""

    variant: str
    seed: int
    options: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The name of its folder."""
        return f"{self.variant}-seed{self.seed}"


@dataclass(frozen=True)
class MatrixSpec:
    """A checked specification; `source` is its YAML."""

    name: str
    algorithm: str
    admitted: str | None
    unadmitted: str | None
    eval: str | None
    cells: tuple[Cell, ...]
    variants: Mapping[str, Mapping[str, Any]]
    seeds: tuple[int, ...]
    metric: str
    more: bool
    band: Band
    gates: Policy
    cheapest: tuple[str, ...]
    probe: Mapping[str, Any] = field(default_factory=dict)
    largest_batch: LargestBatch | None = None
    source: str = ""


def read_spec(path: Path) -> MatrixSpec:
    """Read and check a specification; raises `BadInputError` and `UsageError` that name the key."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise BadInputError(
                "a matrix of more than 1 MiB is no specification", seen=str(path), next="check the path"
            )
        source = path.read_text("utf-8")
        body = yaml.load(source, Loader=StrictLoader)  # a safe loader
    except (OSError, UnicodeDecodeError) as error:
        raise BadInputError("the matrix cannot be read", seen=f"{path}: {error}", next="check the path") from error
    except (yaml.YAMLError, ValueError) as error:  # of the second kind: a date that is none
        raise BadInputError("the matrix is no YAML", seen=f"{path}: {error}", next="correct it") from error
    return parse_spec(body, path.stem, source)


def parse_spec(body: Any, name: str, source: str = "") -> MatrixSpec:
    """Check a specification that was read; `name` is its name when it gives none."""
    body = mapping(body, "the matrix", _KEYS)
    _check_needed(body)
    algorithm = choice(body.get("algorithm"), "algorithm", tuple(ALGORITHMS))
    known = ALGORITHMS[algorithm]
    metric = text_value(body, "metric") or known.metric
    own = metric == known.metric
    better = choice(body.get("better", ("higher" if known.more else "lower") if own else None), "better",
                    ("lower", "higher"))  # fmt: skip
    admitted, unadmitted = text_value(body, "admitted"), text_value(body, "unadmitted")
    if (admitted is None) == (unadmitted is None):
        raise wrong("admitted", admitted, "given, or unadmitted in its place")
    evaluated = text_value(body, "eval")
    if metric.startswith("eval_") and evaluated is None:
        raise wrong("eval", None, f"the split on which {metric} is measured")
    variants, seeds = _variants(body.get("variants")), _seeds(body.get("seeds"))
    probe = _probe(body.get("probe"))
    if metric.startswith("probe.") and not probe:
        raise wrong("probe", None, f"given, since the metric is {metric}")
    gates = _gates(body.get("gates"))
    there = {"evaluated": evaluated is not None, "probed": bool(probe), "largest": bool(body.get("largest_batch"))}
    check_names([rule.id for rule in gates.rules], "gates", algorithm, **there)
    check_names([metric], "metric", algorithm, **there)
    return MatrixSpec(
        name=_named(text_value(body, "name") or name, "name"), algorithm=algorithm, admitted=admitted,
        unadmitted=unadmitted, eval=evaluated, cells=_cells(algorithm, body, variants, seeds), variants=variants,
        seeds=seeds, metric=metric, more=better == "higher", band=_band(body.get("band")),
        gates=gates, cheapest=_cheapest(body.get("cheapest"), probe), probe=probe,
        largest_batch=_largest(body.get("largest_batch"), algorithm), source=source,
    )  # fmt: skip


# What every matrix says, each with an example.
_NEEDED = {
    "algorithm": "sft", "admitted": "chats:train", "variants": "{rank-4: {lora_r: 4}, rank-8: {lora_r: 8}}",
    "seeds": "[1, 2, 3]", "band": "{relative: 0.02}",
}  # fmt: skip


def _check_needed(body: Mapping[str, Any]) -> None:
    """Raise `BadInputError` that names every key that is missing."""
    missing = [name for name in _NEEDED if name not in body and not (name == "admitted" and "unadmitted" in body)]
    if missing:
        raise BadInputError(
            f"the matrix lacks {', '.join(missing)}", seen=", ".join(body) or "nothing",
            next=f"e.g. {'; '.join(f'{name}: {_NEEDED[name]}' for name in missing)}. "
            "lpt train matrix --example prints a whole one",
        )  # fmt: skip


def _cells(
    algorithm: str, body: Mapping[str, Any], variants: Mapping[str, Any], seeds: tuple[int, ...]
) -> tuple[Cell, ...]:
    """Every cell, seed by seed, so that a matrix that is cut short has whole seeds. Each one's options are checked."""
    base = body.get("base", {})
    if not isinstance(base, dict):
        raise wrong("base", base, "a mapping of settings")
    if "seed" in base or any("seed" in options for options in variants.values()):
        raise wrong("base", "seed", "without a seed: `seeds` gives them")
    if len(variants) * len(seeds) > _MOST_CELLS:
        raise wrong("variants", f"{len(variants)} variants and {len(seeds)} seeds", f"at most {_MOST_CELLS} cells")
    start = {"model": model} if (model := text_value(body, "model")) else {}
    cells = []
    for seed in seeds:
        for name, options in variants.items():
            cell = Cell(name, seed, {**start, **base, **options, "seed": seed})
            try:
                config = config_of(algorithm, cell.options)
                check_read(config, _bare(options), _bare(base), evaluated=body.get("eval") is not None)
            except UsageError as error:
                raise UsageError(
                    f"variant {name}: {error.what}", seen=error.seen or NOT_GIVEN, next=error.next
                ) from error
            cells.append(cell)
    return tuple(cells)


def _bare(options: Mapping[str, Any]) -> set[str]:
    return {name.rpartition(".")[2] for name in options if isinstance(name, str)}


def _variants(value: Any) -> dict[str, dict[str, Any]]:
    if not isinstance(value, dict) or not value:
        raise wrong("variants", value, "a mapping from a name to the settings that it changes")
    for name, options in value.items():
        _named(name, "variants")
        if not isinstance(options, dict | None):
            raise wrong(f"variants.{name}", options, "a mapping of settings")
    found = {name: dict(options or {}) for name, options in value.items()}
    for name, options in found.items():
        if twin := next((other for other in found if other != name and found[other] == options), None):
            raise wrong("variants", f"{name} and {twin}", "settings that differ")
    return found


def _seeds(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or not value:
        raise wrong("seeds", value, "a list of whole numbers, such as [1, 2, 3]")
    seeds = tuple(whole_number(seed, "seeds", least=0) for seed in value)
    if len(set(seeds)) < len(seeds):
        raise wrong("seeds", value, "different numbers")
    return seeds


def _band(value: Any) -> Band:
    body = mapping(value, "band", ("relative", "absolute"))
    if len(body) != 1:
        raise wrong("band", value, "one of relative: 0.01 and absolute: 0.02")
    ((kind, size),) = body.items()
    return Band(number(size, f"band.{kind}", inclusive=True), kind == "relative")


def _gates(value: Any) -> Policy:
    """Gates as a policy of the same shape as an admission's: each one rejects, and one that could not run does too."""
    if not isinstance(value, dict | None):
        raise wrong("gates", value, "a mapping from a value to a bound, such as eval_loss: '<= 3.0'")
    checks = [{"id": name, "reject": bound, "required": True} for name, bound in (value or {}).items()]
    text = yaml.safe_dump({"name": "gates", "contract": "matrix", "checks": checks})
    return parse_policy(text, "the gates of the matrix")


def _cheapest(value: Any, probe: Mapping[str, Any]) -> tuple[str, ...]:
    """Resources by name: one that is misspelt, or of which more is better, would choose by nothing or the wrong one."""
    names = list(RESOURCES) if value is None else value
    if not isinstance(names, list) or not names or any(not isinstance(name, str) for name in names):
        raise wrong("cheapest", value, "a list of values of which less is better, the first one counting first")
    known = (*_RESOURCES, *(_OF_A_PROBE if probe else ()))
    for name in names:
        if name not in known:
            raise UsageError(
                "cheapest names no resource of which less is better" + (
                    "; that one needs a probe" if name in _OF_A_PROBE else ""
                ),
                seen=name, next=f"name some of: {', '.join(known)}",
            )  # fmt: skip
    return tuple(names)


def _probe(value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    body = mapping(value, "probe", _PROBE)
    if text_value(body, "admitted", "probe") is None:
        raise wrong("probe.admitted", None, "the split that is probed")
    for name in ("n", "k", "max_completion_length", "max_length", "batch_size"):
        if body.get(name) is not None:
            whole_number(body[name], f"probe.{name}")
    return dict(body)


def _largest(value: Any, algorithm: str) -> LargestBatch | None:
    if value is None:
        return None
    if algorithm == "grpo":
        raise wrong("largest_batch", value, "left out for grpo, whose batches are samples of its own")
    body = mapping(value, "largest_batch", ("most", "memory"))
    memory = number(body["memory"], "largest_batch.memory") if "memory" in body else None
    return LargestBatch(whole_number(body.get("most", 64), "largest_batch.most"), memory)


def _named(name: Any, where: str) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise wrong(where, name, "a name of letters, digits, '.', '_' and '-', at most 64")
    return name
