"""``lpt data drop``: take out, on record, the rows behind checks of an audit."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.audit import encoder, verifiers
from cli.dedup import finish
from cli.options import (
    Against,
    Benchmarks,
    CatalogDir,
    Contract,
    Inputs,
    Json,
    Languages,
    Layout,
    MaxLength,
    Scored,
    Seeds,
    TextColumn,
    Tokenizer,
    benchmark_paths,
    examples,
    names_of,
)
from cli.output import Progress_, say

EXAMPLES = examples(
    "lpt data drop chats.jsonl --contract sft --check sft.turns.empty_share --out clean.jsonl",
    "lpt data drop train.jsonl --contract rlvr --against test.jsonl --check against.keys --out train.clean.jsonl",
    "lpt data drop train.jsonl --contract rlvr --benchmark math=b.jsonl --check contamination.rows --out clean.jsonl",
)


def drop(
    inputs: Inputs,
    contract: Contract,
    check: Annotated[
        list[str],
        typer.Option("--check", help="Check whose rows go; repeatable.", show_default=False),
    ],
    out: Annotated[Path, typer.Option("--out", help="Output file; its extension is its format.", show_default=False)],
    against: Against = None,
    benchmark: Benchmarks = None,
    seeds: Seeds = None,
    key: Annotated[
        str | None, typer.Option(help="Canonical key for leakage. Default: by contract.", show_default=False)
    ] = None,
    tokenizer: Tokenizer = None,
    max_length: MaxLength = None,
    languages: Languages = None,
    scored: Scored = None,
    layout: Layout = None,
    text_column: TextColumn = "text",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done; write nothing.")] = False,
    catalog: CatalogDir = None,
    json: Json = False,
) -> None:
    """Remove the rows behind checks of an audit: what it points at, this takes out, on record."""
    from lpt_data.audit import contract_of
    from lpt_data.dataset import Dataset
    from lpt_data.drop import drop as drop_rows
    from manifests.catalog import Catalog

    opened, progress = Catalog.open(catalog), Progress_()
    with verifiers() as lent:
        report = drop_rows(
            Dataset.open(inputs, kind=contract_of(contract).kind, layout=layout, text_column=text_column),
            contract,
            check,
            out=out,
            catalog=opened,
            key=key,
            encode=encoder(tokenizer, max_length),
            max_length=max_length,
            verifiers=lent,
            against=against or (),
            benchmarks=benchmark_paths(benchmark, catalog),
            seeds=seeds or (),
            languages=names_of(languages),
            scored=scored or (),
            progress=progress,
            dry_run=dry_run,
        )
    progress.close()
    both = "a check that names rows on both sides of a pair (duplicates) takes out both; dedup keeps one"
    finish(report, opened, lambda: say(both, style="dim"), json=json)
