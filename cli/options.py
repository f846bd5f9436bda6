"""Options that several commands share, each spelled once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lpt_data.option_values import MOST_SEED
from manifests.errors import UsageError

if TYPE_CHECKING:
    from manifests.catalog import Catalog

Inputs = Annotated[
    list[str],
    typer.Argument(
        help="Files, globs or folders: .jsonl[.gz|.zst], .json, .csv, .tsv, .parquet.",
        metavar="IN…",
        show_default=False,
    ),
]
CatalogDir = Annotated[
    Path | None,
    typer.Option("--catalog", help="Folder of the catalog. Default: $LPT_CATALOG, else .lpt here.", show_default=False),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", help="YAML file of settings, `name: value` a line.", show_default=False)
]
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="One setting on top of the file; repeatable.")
]
Seed = Annotated[int, typer.Option(min=0, max=MOST_SEED, help="Seed of what is drawn: items, token ids, samples.")]
Layout = Annotated[
    str | None,
    typer.Option(
        help="Layout of the rows: text, messages, sharegpt, alpaca, gsm8k, prompt_completion, synthetic, "
        "prompt_answer, countdown, preference, chosen_rejected, ultrafeedback or kto; found by the columns when left "
        "out."
    ),
]
TextColumn = Annotated[str, typer.Option(help="Name of the column that holds the text of a `text` row.")]
Contract = Annotated[
    str,
    typer.Option(
        help="text, sft (chats), preference, kto (labelled completions), rlvr (prompts with an answer to verify) or "
        "synthetic (generated chats).",
        show_default=False,
    ),
]
Languages = Annotated[
    str | None,
    typer.Option(help="Languages that replies may be in, such as en,zh; needs lpt[clean].", show_default=False),
]
Scored = Annotated[
    list[str] | None,
    typer.Option(help="Rows with their pass rate, or what `lpt eval --scores` wrote; repeatable.", show_default=False),
]
Key = Annotated[
    str | None,
    typer.Option(
        help="What must not straddle splits: text, math, code, countdown, or a column. Default: math for rlvr, "
        "else text.",
        show_default=False,
    ),
]
Policy = Annotated[
    str | None,
    typer.Option(
        help="Policy file, or a shipped one: lpt:text, lpt:sft, lpt:rlvr, lpt:preference, lpt:kto, lpt:synthetic. "
        "Default: the contract's own.",
        show_default=False,
    ),
]
Tokenizer = Annotated[
    str | None,
    typer.Option(help="Folder, hub name, or `tiny`: adds the checks that need tokens.", show_default=False),
]
MaxLength = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Tokens a row may have: the max_length of SFT, the max_prompt_length of GRPO. Needs --tokenizer.",
        show_default=False,
    ),
]
Benchmarks = Annotated[
    list[str] | None,
    typer.Option(
        "--benchmark",
        help="NAME=PATH, or NAME once added, of a benchmark whose questions must not be in the data; repeatable.",
    ),
]

Seeds = Annotated[
    list[str] | None,
    typer.Option("--seeds", help="What the rows were generated from (synthetic); repeatable.", show_default=False),
]
Previous = Annotated[
    list[str] | None,
    typer.Option(
        "--previous", help="An earlier round of the data (synthetic), the oldest first; repeatable.", show_default=False
    ),
]
Against = Annotated[
    list[str] | None,
    typer.Option("--against", help="Reference files whose rows and keys must not be in the data; repeatable."),
]


def catalog_of(directory: Path | None, *refs: str | None) -> Catalog:
    """The catalog of a command that works on these splits. It is made where it is not there, but not when a split is
    named that only a catalog can hold: who stands in the wrong folder is told so, with nothing left behind."""
    from manifests.catalog import Catalog
    from manifests.loaded import is_path

    if any(ref is not None and not is_path(ref.rpartition(":")[0] or ref) for ref in refs):
        Catalog.open(directory, create=False)
    return Catalog.open(directory)


HELP_WIDTH = 76  # columns of a line of an example, so that it fits a terminal of 80


def examples(*lines: str) -> str:
    """The epilog of a command: its examples, one a paragraph, broken before an option so that each can be pasted."""
    return "Examples:\n\n" + "\n\n".join(f"\b\n{_pasted(line)}" for line in lines)


def _pasted(line: str) -> str:
    """A command over as many lines as it takes, each but the last ended by a backslash; a comment comes before it."""
    command, hash_, comment = line.partition("   # ")
    found = [f"  # {comment}"] if hash_ else []
    now = " "
    for part in re.split(r" (?=--)(?=(?:[^\"']|\"[^\"]*\"|'[^']*')*$)", command):
        if len(now) + 1 + len(part) + 2 > HELP_WIDTH and now.strip():
            found.append(f"{now} \\")
            now = "     "
        now += " " + part
    return "\n".join([*found, now])


def named_paths(pairs: Sequence[str] | None, *, option: str) -> dict[str, list[str]]:
    """``["gsm8k=a.jsonl", "gsm8k=b.jsonl"]`` as ``{"gsm8k": ["a.jsonl", "b.jsonl"]}``."""
    from lpt_data.option_values import named_files

    return {name: list(paths) for name, paths in named_files(pairs or (), option).items()}


def benchmark_paths(pairs: Sequence[str] | None, catalog: Path | None) -> dict[str, list[str]]:
    """``--benchmark NAME=PATH`` as `named_paths` does; ``--benchmark NAME`` is what the catalog has under that name."""
    bare = [pair for pair in pairs or () if "=" not in pair]
    if not bare:
        return named_paths(pairs, option="--benchmark")
    from lpt_data.benchmarks import paths_of, stored
    from lpt_data.option_values import named_files
    from manifests.catalog import Catalog

    opened = Catalog.open(catalog)
    there = stored(opened)
    files = [name for name in bare if name not in there and (Path(name).suffix or Path(name).exists())]
    named_files(files, "--benchmark")  # a file whose name was left out
    found = named_files(pairs or (), "--benchmark", bare=True)
    return {name: list(paths) if paths else paths_of(name, opened) for name, paths in found.items()}


def settings(pairs: Sequence[str] | None, file: Path | None) -> dict[str, object]:
    """The values of ``--config F.yaml`` and of ``--set key=value``, the latter on top; the config reads the text."""
    values: dict[str, object] = {} if file is None else _yaml_mapping(file)
    for pair in pairs or ():
        key, equals, text = pair.partition("=")
        if not (key and equals):
            raise UsageError("--set takes key=value", seen=pair, next="--set learning_rate=1e-4")
        values[key] = text
    return values


@dataclass(frozen=True)
class Typed:
    """The settings of a run as they were typed; `by_hand` names those that are from no file."""

    values: dict[str, object]
    by_hand: frozenset[str]


def typed_settings(set_: Sequence[str] | None, file: Path | None, **options: object) -> Typed:
    """--config, over it --set, over it the options that were typed; of the last two none contradicts the other."""
    typed, given = settings(set_, None), {name: value for name, value in options.items() if value is not None}
    for name, value in given.items():
        if name in typed and typed[name] != value:
            raise UsageError(
                f"{name} is given twice", seen=f"{typed[name]} by --set, {value} by its option", next="leave out one"
            )
    names = frozenset(name.rpartition(".")[2] for name in typed | given)
    return Typed(settings(None, file) | typed | given, names)


def _yaml_mapping(file: Path) -> dict[str, object]:
    import yaml

    from manifests.policy_yaml import StrictLoader

    try:
        loaded = yaml.load(file.read_text("utf-8"), Loader=StrictLoader)  # a SafeLoader without repeated keys
    except OSError as problem:
        raise UsageError(
            "the configuration file cannot be read", seen=f"{file}: {problem.strerror}", next="--config FILE.yaml"
        ) from problem
    except (yaml.YAMLError, ValueError) as problem:
        raise UsageError("the configuration file is no YAML", seen=problem, next=f"mend {file}") from problem
    if not isinstance(loaded, dict):
        raise UsageError("a configuration is a mapping", seen=f"{file} holds {loaded!r:.80}", next="key: value lines")
    return {str(key): value for key, value in loaded.items()}


def numbers_of(given: str | None, option: str) -> tuple[int, ...]:
    """``"1, 2, 4"`` as ``(1, 2, 4)``; raises `UsageError` under the name of the option."""
    try:
        return tuple(int(part) for part in names_of(given))
    except ValueError as problem:
        raise UsageError(
            f"{option} takes whole numbers with a comma between", seen=given, next=f"{option} 1,2,4,8"
        ) from problem


def names_of(given: str | None) -> tuple[str, ...]:
    """``"en, zh"`` as ``("en", "zh")``."""
    return tuple(name.strip() for name in (given or "").split(",") if name.strip())
