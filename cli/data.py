"""``lpt data``: the stages that take raw files towards admission."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from cli.dedup import DEDUP_EXAMPLES, dedup, finish, show_dedup, show_report
from cli.options import CatalogDir, Inputs, Json, Layout, TextColumn, examples
from cli.output import Progress_, say, table

__all__ = ["app", "dedup", "show_dedup", "show_report", "split"]

app = typer.Typer(
    help="Raw files: clean, dedup, boilerplate, decontaminate, split, mix, synth, audit, drop.",
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
    finish(report, opened, lambda: show_split(report.extra), json=json)


def show_split(extra: dict[str, Any]) -> None:
    """Rows and keys of each split, and the proof that no key is shared."""
    table(
        ["split", "rows", "keys"],
        [(name, body["rows"], body["keys"]) for name, body in extra["splits"].items()],
    )
    for pair in extra["disjoint"]:
        say(f"{pair['a']} ∩ {pair['b']}: {pair['intersection']} keys shared")
