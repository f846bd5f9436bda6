"""What each data command does to its files, as work that is ready to run: the commands and a recipe call the same.

A function here opens the files and settles the config, so it raises what they raise; it writes nothing and reads no
more than the first rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lpt_data.config import BoilerplateConfig, DedupConfig
from lpt_data.dataset import Dataset
from lpt_data.stage import Work

if TYPE_CHECKING:
    from lpt_data.contamination import Second
    from lpt_data.contamination.items import Benchmarks
    from lpt_data.semantic.alike import Semantics


@dataclass(frozen=True)
class Source:
    """Rows as a command names them: files, and how they are read where the columns do not say it."""

    paths: tuple[str, ...]
    layout: str | None = None
    text_column: str = "text"

    def open(self, kind: str | None = None) -> Dataset:
        """Open the files as one dataset."""
        return Dataset.open(self.paths, kind=kind, layout=self.layout, text_column=self.text_column)

    def beside(self, paths: Sequence[str]) -> Dataset:
        """Open other files in the same way."""
        return replace(self, paths=tuple(paths)).open()


def clean(source: Source, chosen: Mapping[str, Any], out: Path) -> Work:
    """Mend, mask or drop texts; `chosen` are fields of `CleanConfig`, the preset by the kind of rows when left out."""
    from lpt_data.clean import config_of, decide

    dataset = source.open()
    preset = {"preset": "web" if dataset.kind == "text" else "sft"}
    return Work("clean", dataset, config_of(preset | dict(chosen)), decide, (out,), output=str(out))


def boilerplate(source: Source, config: BoilerplateConfig, out: Path) -> Work:
    """Cut text that documents repeat among each other out of them."""
    from lpt_data.boilerplate import decide

    return Work("boilerplate", source.open(), config, decide, (out,), output=str(out))


def dedup(
    source: Source,
    config: DedupConfig,
    out: Path,
    against: Sequence[str] = (),
    benchmarks: Mapping[str, Sequence[str]] | None = None,
    semantics: Semantics | None = None,
) -> Work:
    """Remove duplicates, rows that repeat one of `against` and, in the same read, those that repeat benchmark items.

    The method `semantic` needs `semantics`, an embedder and where its vectors are kept.
    """
    from lpt_data.dedup import decide

    reference = source.beside(against) if against else None
    files = reference.files if reference is not None else ()
    dataset, decided = source.open(), partial(decide, reference=reference, output=out, semantics=semantics)
    if not benchmarks:
        return Work("dedup", dataset, config, decided, (out,), output=str(out), references=files)
    from lpt_data.contamination import config_for, load_benchmarks
    from lpt_data.contamination.fused import FusedConfig, fused
    from lpt_data.contamination.report import check_paths

    read = load_benchmarks(benchmarks)
    check_paths(None, out, dataset, read, dry_run=False)
    both = FusedConfig(config, config_for(read, workers=config.workers))
    return Work("dedup", dataset, both, fused(decided, read), (out,), output=str(out), references=files)


def decontaminate(
    source: Source,
    benchmarks: Mapping[str, Sequence[str]],
    out: Path,
    *,
    ask: Callable[[Benchmarks], tuple[Second, Mapping[str, Any]]] | None = None,
    **chosen: Any,
) -> tuple[Work, Benchmarks]:
    """Remove rows that repeat benchmark items; `chosen` are fields of `DecontaminateConfig`. Returns the items, too.

    ``ask`` says for the items what is asked beside n-grams, and the fields of the config that tell so.
    """
    from lpt_data.contamination import config_for, decider, load_benchmarks

    dataset, read = source.open(), load_benchmarks(benchmarks)
    second, more = ask(read) if ask is not None else (None, {})
    config = config_for(read, **chosen, **more)
    return Work("decontaminate", dataset, config, decider(read, second), (out,), output=str(out)), read
