"""``lpt data``: the stages that take raw files towards admission."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from cli.dedup import DEDUP_EXAMPLES, dedup, finish, show_dedup, show_report
from cli.groups import Group
from cli.next_commands import ADMITTED_AS, command
from cli.options import CatalogDir, Inputs, Json, Layout, TextColumn, examples
from cli.output import Progress_, disjoint, say, table

__all__ = ["app", "dedup", "show_dedup", "show_report", "split"]

app = typer.Typer(
    cls=Group,
    help="Raw files: clean, deduplicate, decontaminate, split, audit; preference pairs, mixtures, recipes.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

app.command("dedup", epilog=DEDUP_EXAMPLES)(dedup)


SPLIT_EXAMPLES = examples(
    "lpt data split problems.jsonl --key countdown --test 500 --validation 200 --seed 1 --out splits/",
    "lpt data split gsm8k.jsonl --key math --test 0.1 --out splits/",
    "lpt data split chats.jsonl --key user_id --test 0.05 --validation 0.05 --out splits/",
)


@app.command("split", epilog=SPLIT_EXAMPLES)
def split(
    inputs: Inputs,
    out: Annotated[Path, typer.Option("--out", help="Folder for train, validation and test.", show_default=False)],
    key: Annotated[
        str, typer.Option(help="What must not straddle splits: text, math, code, countdown, or a column.")
    ] = "text",
    test: Annotated[float, typer.Option(min=0, help="Keys held out for test: a count, or a share below 1.")] = 0,
    validation: Annotated[float, typer.Option(min=0, help="Keys held out for validation, likewise.")] = 0,
    seed: Annotated[int, typer.Option(help="Salt of the hash that assigns keys.")] = 0,
    method: Annotated[
        Literal["hash", "draw"], typer.Option(help="hash (new data moves no old row) or draw (drawn over keys).")
    ] = "hash",
    layout: Layout = None,
    text_column: TextColumn = "text",
    catalog: CatalogDir = None,
    json: Json = False,
) -> None:
    """Split by canonical key, so that no problem is in two splits; the disjointness is proven by recomputation."""
    from lpt_data.config import SplitConfig
    from lpt_data.dataset import Dataset
    from lpt_data.split import count_or_share
    from lpt_data.split import split as split_dataset
    from manifests.catalog import Catalog

    config = SplitConfig(
        key=key, test=count_or_share(test), validation=count_or_share(validation), seed=seed, method=method
    )
    dataset = Dataset.open(inputs, layout=layout, text_column=text_column)
    opened, progress = Catalog.open(catalog), Progress_()
    report = split_dataset(dataset, config, out=out, catalog=opened, progress=progress)
    progress.close()

    def more() -> None:
        show_split(report.extra)
        other = None if key == "text" else key
        say(next_admit(out, report.extra["splits"], dataset.kind, key=other, catalog=catalog))

    finish(report, opened, more, json=json)


def show_split(extra: dict[str, Any]) -> None:
    """Rows and keys of each split, and the proof that no key is shared."""
    table(
        ["split", "rows", "keys"],
        [(name, extra["splits"][name]["rows"], extra["splits"][name]["keys"]) for name in train_first(extra["splits"])],
    )
    disjoint((pair["a"], pair["b"], "key", pair["intersection"]) for pair in extra["disjoint"])


def train_first(splits: Iterable[str]) -> list[str]:
    """The names of splits in the order in which they are used; a record that is read back has the alphabet's."""
    order = ("train", "validation", "calibration", "test", "hidden_test")
    return sorted(splits, key=lambda name: (order.index(name) if name in order else len(order), name))


def next_admit(
    out: Path, splits: Iterable[str], contract: str, *, key: str | None = None, catalog: Path | None = None
) -> str:
    """The command that admits the files of a folder of splits; those held out of pairs have other names there."""
    words = ["--contract", contract]
    words += [word for name in train_first(splits) for word in (f"--{ADMITTED_AS[name]}", f"{out / name}.jsonl")]
    words += [] if key is None else ["--key", key]
    return f"next: {command('lpt admit NAME', *words, catalog=catalog)}"
