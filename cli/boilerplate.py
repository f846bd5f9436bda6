"""``lpt data boilerplate``: lines, paragraphs and passages that documents repeat among each other, cut out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from cli.dedup import finish
from cli.options import CatalogDir, Inputs, Json, Layout, TextColumn, examples
from cli.output import Progress_, one_line, say, table

EXAMPLES = examples(
    "lpt data boilerplate pages.jsonl --out lean.parquet",
    "lpt data boilerplate pages/ --out lean.jsonl.zst --method paragraphs --min-documents 3 --fold",
    "lpt data boilerplate corpus.jsonl --out lean.jsonl --method substring --length 200",
    "lpt sql \"select row, witness_row, score, detail from v_decision where reason = 'repeated_line' limit 5\"",
)


def boilerplate(
    inputs: Inputs,
    out: Annotated[Path, typer.Option("--out", help="Output file; its extension is its format.", show_default=False)],
    method: Annotated[
        Literal["lines", "paragraphs", "substring"],
        typer.Option(help="What is cut: lines or paragraphs that many documents hold, or any passage that two hold."),
    ] = "lines",
    min_documents: Annotated[
        int, typer.Option(min=2, help="Documents that hold a line or paragraph before it is cut.")
    ] = 7,
    min_words: Annotated[int, typer.Option(min=0, help="Words of a line or paragraph below which it stays.")] = 5,
    fold: Annotated[bool, typer.Option("--fold", help="Lines that differ in case and digits alone are the same.")] = (
        False
    ),
    length: Annotated[int, typer.Option(min=1, help="Characters of a passage (substring).")] = 200,
    drop_all: Annotated[
        bool,
        typer.Option("--drop-all", help="Keep no copy: the line goes from the longest document that holds it too."),
    ] = False,
    memory: Annotated[
        str | None, typer.Option(help="Refuse, before it is too late, what needs more: 4GB.", show_default=False)
    ] = None,
    layout: Layout = None,
    text_column: TextColumn = "text",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done; write nothing.")] = False,
    catalog: CatalogDir = None,
    json: Json = False,
) -> None:
    """Cut text that documents repeat among each other; the longest document keeps it and is the witness."""
    from lpt_data.config import BoilerplateConfig
    from lpt_data.works import Source
    from lpt_data.works import boilerplate as boilerplate_work
    from manifests.catalog import Catalog

    config = BoilerplateConfig(
        method=method,
        least_documents=min_documents,
        least_words=min_words,
        fold=fold,
        length=length,
        drop_all=drop_all,
        memory=memory,
    )
    work = boilerplate_work(Source(tuple(inputs), layout, text_column), config, out)
    opened, progress = Catalog.open(catalog), Progress_()
    report = work.run(opened, progress, dry_run=dry_run)
    progress.close()
    finish(report, opened, lambda: show_boilerplate(report.extra), json=json)


def show_boilerplate(extra: dict[str, Any]) -> None:
    """How much was cut of how many documents, and what was repeated most."""
    cut = sum(extra["characters_cut"].values())
    share = cut / extra["characters"] if extra["characters"] else 0.0
    say(
        f"{cut:,} of {extra['characters']:,} characters cut ({share:.1%}), in {extra['cuts']:,} pieces; "
        f"{extra['rows_rewritten']:,} documents rewritten, of {extra['rows_emptied']:,} nothing was left"
    )
    if extra["rows_given_up"]:
        say(f"{extra['rows_given_up']:,} documents repeat themselves too much to be searched whole", style="yellow")
    if extra["most_repeated"]:
        table(
            ["documents", "characters cut", "kept in row", "begins"],
            [
                (p["documents"], p["characters_cut"], p["kept_row"], one_line(p["text"])[:100])
                for p in extra["most_repeated"]
            ],
            title=f"most repeated, of {extra['passages']:,}",
        )
