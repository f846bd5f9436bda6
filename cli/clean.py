"""``lpt data clean``: texts mended, masked or dropped by a table of rules."""

from __future__ import annotations

from os.path import commonprefix
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from cli.dedup import finish
from cli.options import CatalogDir, Inputs, Json, Layout, TextColumn, examples
from cli.options import settings as read_settings
from cli.output import Progress_, most_first, one_line, say, say_short, table

EXAMPLES = examples(
    "lpt data clean corpus.jsonl --out clean.parquet",
    "lpt data clean chats.jsonl --out clean.jsonl --preset sft --secrets mask",
    "lpt data clean pages/ --out clean.jsonl.zst --languages en,zh --rules gopher,-gopher.bullets,pii",
    "lpt data clean corpus.jsonl --out clean.jsonl --config rules.yaml   # with: limits: {gopher.words: {min: 20}}",
    "lpt sql \"select reason, count(*) from v_decision where action = 'rewrite' group by 1\"",
)


def clean(
    inputs: Inputs,
    out: Annotated[Path, typer.Option("--out", help="Output file; its extension is its format.", show_default=False)],
    preset: Annotated[
        Literal["web", "docs", "sft", "code", "none"] | None,
        typer.Option(
            help="Which rules run: web (all), docs (for technical text), sft and code (mend, private), none. "
            "Default: web for text rows."
        ),
    ] = None,
    rules: Annotated[
        str | None,
        typer.Option(help="Rules or families instead of the preset's; -NAME leaves one out.", show_default=False),
    ] = None,
    languages: Annotated[
        str | None, typer.Option(help="Languages that stay, such as en,zh; needs lpt[clean].", show_default=False)
    ] = None,
    pii: Annotated[
        Literal["mask", "keep"] | None, typer.Option(help="Personal data: mask (default) or keep.", show_default=False)
    ] = None,
    secrets: Annotated[
        Literal["drop", "mask", "keep"] | None,
        typer.Option(help="Keys and tokens: drop the row (default), mask, or keep.", show_default=False),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="YAML with the same settings and `limits`: rule, threshold, value.", show_default=False),
    ] = None,
    layout: Layout = None,
    text_column: TextColumn = "text",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done; write nothing.")] = False,
    catalog: CatalogDir = None,
    json: Json = False,
) -> None:
    """Mend, mask or drop texts by the published rules (Gopher, C4, FineWeb); every decision has its reason."""
    from lpt_data.quick_start import leave_out_unused
    from lpt_data.works import Source
    from lpt_data.works import clean as clean_work
    from manifests.catalog import Catalog

    leave_out_unused()
    given = {"preset": preset, "rules": rules, "languages": languages, "pii": pii, "secrets": secrets}
    chosen = read_settings(None, config) | {name: value for name, value in given.items() if value is not None}
    work = clean_work(Source(tuple(inputs), layout, text_column), chosen, out)
    opened, progress = Catalog.open(catalog), Progress_()
    report = work.run(opened, progress, dry_run=dry_run)
    progress.close()
    finish(report, opened, lambda: show_clean(report.body), json=json)


def show_clean(body: dict[str, Any]) -> None:
    """What was rewritten by reason, what each reason looks like, and which rules did not run."""
    extra = body["extra"]
    counts = {**body["removed"], **body["rewritten"]}
    if body["rewritten"]:
        table(["rewritten", "rows"], most_first(body["rewritten"]))
        say(f"rows rewritten: {extra['rows_rewritten']:,}; a row may be counted under several reasons")
    for reason, _ in most_first(counts):
        for example in extra["examples"].get(reason, [])[:1]:
            show_example(reason, example)
    for name, why in extra["rules_skipped"].items():
        say(f"not run: {name}: {why}", style="yellow")


LEAD = 24  # characters before the first one that changed


def show_example(reason: str, example: dict[str, Any]) -> None:
    """What one decision looks like: the text before and after, or what was measured, each on a line of its own."""
    before, after, measured = one_line(example["before"]), one_line(example["after"]), example.get("detail", "")
    say(f"{reason}, row {example['row']}" + (f": {measured}" if measured and not after else ""), style="bold")
    same = len(commonprefix([before, after]))
    begin = max(0, same - LEAD) if same > 2 * LEAD else 0  # what was changed is to be seen on a narrow screen, too
    for sign, text in (("-", before), ("+", after)):
        if text:
            say_short(f"  {sign} {'…' if begin else ''}{text[begin:]}")
