"""``lpt data pack``: rows in bins of so many tokens, as the trainer packs them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cli.audit import encoder
from cli.dedup import finish
from cli.options import CatalogDir, Inputs, Json, Layout, TextColumn, examples
from cli.output import Progress_, say
from manifests.errors import UsageError

EXAMPLES = examples(
    "lpt data pack chats.jsonl --tokenizer ./model --max-length 4096 --dry-run",
    "lpt data pack chats.jsonl --tokenizer ./model --max-length 4096 --out packed.parquet",
)


def pack(
    inputs: Inputs,
    tokenizer: Annotated[str, typer.Option(help="Folder, hub name, or `tiny`.", show_default=False)],
    max_length: Annotated[int, typer.Option(min=2, help="Tokens of a sequence.", show_default=False)],
    out: Annotated[
        Path | None, typer.Option("--out", help="Output file; its extension is its format.", show_default=False)
    ] = None,
    layout: Layout = None,
    text_column: TextColumn = "text",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan; write nothing.")] = False,
    catalog: CatalogDir = None,
    json: Json = False,
) -> None:
    """Plan the sequences of a packed training: which rows lie side by side, how full they are, what does not fit."""
    from lpt_data.pack import pack_work
    from lpt_data.works import Source
    from manifests.catalog import Catalog

    if out is None and not dry_run:
        raise UsageError("nothing says where to write", seen=inputs[0], next="--out FILE, or --dry-run for the plan")
    dataset = Source(tuple(inputs), layout, text_column).open()
    work = pack_work(dataset, encoder(tokenizer), max_length, out or Path("plan-only.jsonl"))
    opened, progress = Catalog.open(catalog), Progress_()
    report = work.run(opened, progress, dry_run=dry_run)
    progress.close()
    finish(report, opened, lambda: show_pack(report.extra), json=json)


def show_pack(told: dict[str, Any]) -> None:
    """How full the sequences are, and what the same rows would waste unpacked."""
    padded = f"a batch padded to the longest row would be {told['padded_fill']:.1%} full"
    say(
        f"{told['bins']:,} sequences of {told['max_length']:,} tokens, {told['fill']:.1%} full, "
        f"{told['rows_per_bin']:.1f} rows each; {padded}"
    )
