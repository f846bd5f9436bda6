"""The stage `decontaminate` of a recipe: benchmarks by name, a report, and what is asked beside n-grams.

decontaminate: {benchmark: {gsm8k: test.jsonl}, semantic: {threshold: 0.8}, embedder: minilm, perplexity: ./model}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lpt_data import works
from lpt_data.config import DecontaminateConfig, SemanticConfig
from lpt_data.option_values import config_of, named_files, text, texts
from lpt_data.progress import Progress
from lpt_data.run.meaning import semantics_of
from lpt_data.stage import StageReport, Work
from manifests.errors import UsageError

if TYPE_CHECKING:
    from lpt_data.contamination import Second
    from lpt_data.contamination.items import Benchmarks
    from lpt_data.run.table import Given

Options = Mapping[str, Any]
BESIDE = ("benchmark", "report", "embedder")  # options that are no fields of the config as they stand
_ASKED = ("semantic", "paraphrases", "perplexity")  # fields that say which files were asked, and not where they are
THRESHOLD = 0.8  # cosine of a row and an item; that of the command


def named_benchmarks(options: Options) -> dict[str, tuple[str, ...]]:
    """Benchmarks as a recipe names them: {NAME: PATH or [PATHS]}, or NAME=PATH and NAME as on the command line."""
    told = options.get("benchmark") or {}
    if isinstance(told, dict):
        return {str(name): texts(paths, f"benchmark {name}") for name, paths in told.items()}
    return named_files(texts(told, "benchmark"), "benchmark", advice="benchmark: {gsm8k: test.jsonl}", bare=True)


def settle(options: Options, where: str) -> DecontaminateConfig:
    """Return the settings without the identities of files; UsageError for values that mean nothing."""
    if not named_benchmarks(options):
        raise UsageError(f"{where} names no benchmark", seen="none", next="benchmark: {gsm8k: test.jsonl}")
    for name in ("report", "perplexity", "embedder"):
        if options.get(name) is not None:
            text(options[name], f"{where}: {name}")
    texts(options.get("paraphrases") or (), f"{where}: paraphrases")
    if _semantic(options, where) is None and (idle := [n for n in ("embedder", "semantic_numbers") if n in options]):
        raise UsageError(
            f"{where} has settings of a question that it does not ask", seen=", ".join(idle), next="semantic: {}"
        )
    told = {name: value for name, value in options.items() if name not in (*BESIDE, *_ASKED)}
    return config_of(DecontaminateConfig, told, where, benchmarks=())


def _semantic(options: Options, where: str) -> SemanticConfig | None:
    given = options.get("semantic")
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise UsageError(f"{where}: semantic is no mapping", seen=repr(given)[:80], next="semantic: {threshold: 0.8}")
    from lpt_data.semantic.alike import check

    config = config_of(SemanticConfig, {"threshold": THRESHOLD, **given}, f"{where}: semantic", embedder="")
    check(config)
    return config


def _second(given: Given, benchmarks: Benchmarks) -> tuple[Second, dict[str, Any]]:
    """What is asked beside n-grams, and the fields of the config that tell so."""
    from lpt_data.contamination import Second
    from lpt_data.contamination.paraphrases import load_paraphrases
    from lpt_data.contamination.perplexity import find_language_model

    options, semantics = given.options, None
    semantic = _semantic(options, given.where)
    if semantic is not None:
        semantic, semantics = semantics_of(semantic, options, given.where, given.path, given.catalog)
    named = texts(options.get("paraphrases") or (), f"{given.where}: paraphrases")
    read = load_paraphrases([Path(given.path(name)) for name in named], benchmarks) if named else None
    model = find_language_model(Path(given.path(options["perplexity"]))) if options.get("perplexity") else None
    config = {"paraphrases": read.sha256 if read else (), "perplexity": model.digest if model else ""}
    return Second(semantics, read, model), {"semantic": semantic, **config}


def _work(given: Given) -> tuple[Work, Benchmarks]:
    from lpt_data.contamination.report import check_paths

    config = settle(given.options, given.where)
    left = ("benchmarks", *_ASKED)
    chosen = {f.name: getattr(config, f.name) for f in fields(config) if f.name not in left}
    asked = partial(_second, given)
    work, read = works.decontaminate(given.source, given.benchmarks(), given.out, ask=asked, **chosen)
    check_paths(_report(given), given.out, work.dataset, read, dry_run=False)
    return work, read


def _report(given: Given) -> Path | None:
    told = given.options.get("report")
    return None if told is None else Path(given.path(told))


def decontaminate(given: Given) -> Work:
    """Remove rows that repeat benchmark items."""
    return _work(given)[0]


def write_report(given: Given, work: Work, ran: StageReport, progress: Progress) -> None:
    """Write the report of a run, where one is named."""
    from lpt_data.contamination import load_benchmarks
    from lpt_data.contamination.report import write_report

    if (path := _report(given)) is not None:
        write_report(path, work.dataset, load_benchmarks(given.benchmarks()), ran, progress)
