"""``lpt data decontaminate``: rows that repeat benchmark items go, and the benchmark items are named."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.dedup import finish
from cli.options import CatalogDir, Inputs, Json, Layout, TextColumn, benchmark_paths, examples
from cli.output import Progress_, say, table

EXAMPLES = examples(
    "lpt data decontaminate chats.jsonl --benchmark gsm8k=test.jsonl --out clean.jsonl",
    "lpt data decontaminate shards/ --benchmark gsm8k=gsm8k.jsonl --benchmark humaneval=HumanEval.jsonl.gz"
    " --out clean.parquet --report contamination.html",
    "lpt data decontaminate chats.jsonl --benchmark gsm8k --out clean.jsonl   # after: lpt data benchmarks add …",
    "lpt data decontaminate chats.jsonl --benchmark gsm8k=test.jsonl --out clean.jsonl --coverage 0.7 --dry-run",
    "lpt sql \"select row, witness_id, score, detail from v_decision where reason = 'benchmark_overlap'\"",
)


def decontaminate(
    inputs: Inputs,
    benchmark: Annotated[
        list[str],
        typer.Option("--benchmark", help="NAME=PATH, or NAME once added, of a benchmark; repeatable."),
    ],
    out: Annotated[Path, typer.Option("--out", help="Output file; its extension is its format.", show_default=False)],
    report: Annotated[
        Path | None,
        typer.Option(help="Write a report: .md, .json or .html (self-contained).", show_default=False),
    ] = None,
    coverage: Annotated[
        float, typer.Option(help="Share of a question inside 8-grams of one row at which the row goes.")
    ] = 0.5,
    longest: Annotated[
        int, typer.Option(help="Words matched in one piece that are enough, with --longest-coverage.")
    ] = 13,
    longest_coverage: Annotated[
        float, typer.Option(help="Share of the question that such a row covers at least.")
    ] = 0.3,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Threads. Default: the cores at hand.", show_default=False)
    ] = None,
    layout: Layout = None,
    text_column: TextColumn = "text",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done; write nothing.")] = False,
    catalog: CatalogDir = None,
    json: Json = False,
) -> None:
    """Remove rows that repeat benchmark items; name the items; say with canaries what would have been found."""
    from lpt_data.contamination.report import check_paths
    from lpt_data.report.contamination import write_contamination
    from lpt_data.works import Source
    from lpt_data.works import decontaminate as decontaminate_work
    from manifests.catalog import Catalog

    work, benchmarks = decontaminate_work(
        Source(tuple(inputs), layout, text_column),
        benchmark_paths(benchmark, catalog),
        out,
        coverage=coverage,
        longest=longest,
        longest_coverage=longest_coverage,
        workers=workers,
    )
    check_paths(report, out, work.dataset, benchmarks, dry_run=dry_run)
    opened, progress = Catalog.open(catalog), Progress_()
    ran = work.run(opened, progress, dry_run=dry_run)
    if report is not None:
        write_contamination(report, work.dataset, benchmarks, ran, opened, progress)
    progress.close()
    finish(ran, opened, lambda: show_contamination(ran.extra), json=json)


def show_contamination(extra: dict[str, Any]) -> None:
    """Hits of each benchmark both ways, canary recall, and what cannot be seen."""
    told = extra["benchmarks"]
    table(
        ["benchmark", "items", "undetectable", "items hit", "rows hit", "13-gram rows", "50-char rows"],
        [
            (
                b["name"],
                b["items"],
                len(b["undetectable_items"]),
                b["items_hit"],
                b["rows_hit"],
                b["any_13gram"]["rows"],
                (b["any_50_characters"] or {}).get("rows"),
            )
            for b in told
        ],
    )
    kinds = list(told[0]["canaries"])
    table(
        ["canary recall", "planted", *kinds],
        [
            (b["name"], b["canaries"][kinds[0]]["planted"], *(_recall(b["canaries"][kind]) for kind in kinds))
            for b in told
        ],
    )
    for b in told:
        if programs := b.get("programs"):
            found = f"{programs['items_hit']:,} in {programs['rows_hit']:,} rows"
            short = f"{programs['too_short']:,} too short for that"
            say(
                f"{b['name']}: {programs['items']:,} programs looked for under other names ({short}): {found}; "
                f"canary recall {_recall(programs['canary'])}"
            )
        reasons = Counter(item["reason"] for item in b["undetectable_items"])
        if reasons:
            say(f"{b['name']}: not detectable: " + ", ".join(f"{n} {reason}" for reason, n in reasons.items()))
    stops = extra["stops"]
    if stops["matches_ignored"] or stops["ngrams"]:
        say(f"template n-grams ignored: {stops['ngrams']:,} of the items, {stops['matches_ignored']:,} matches in rows")
    say(f"not checked: {extra['not_checked']}", style="dim")
    for note in extra["notes"]:
        say(f"note: {note}", style="bold yellow")


def _recall(told: dict[str, Any]) -> str:
    return f"{told['recall']:.3f} [{told['low']:.3f}, {told['high']:.3f}]"
