"""``lpt data decontaminate``: rows that repeat benchmark items go, and the benchmark items are named."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.dedup import finish
from cli.options import CatalogDir, Inputs, Json, Layout, TextColumn, benchmark_paths, examples
from cli.output import Progress_, say, table
from cli.semantic import Embedder, chosen, show_embedder

if TYPE_CHECKING:
    from lpt_data.contamination import Second
    from lpt_data.contamination.items import Benchmarks

EXAMPLES = examples(
    "lpt data decontaminate chats.jsonl --benchmark gsm8k=test.jsonl --out clean.jsonl",
    "lpt data decontaminate shards/ --benchmark gsm8k=gsm8k.jsonl --benchmark humaneval=HumanEval.jsonl.gz"
    " --out clean.parquet --report contamination.html",
    "lpt data decontaminate chats.jsonl --benchmark gsm8k --out clean.jsonl   "
    "# once: lpt data benchmarks add gsm8k=test.jsonl",
    "lpt data decontaminate chats.jsonl --benchmark gsm8k=test.jsonl --out clean.jsonl --coverage 0.7 --dry-run",
    "lpt data decontaminate chats.jsonl --benchmark gsm8k=test.jsonl --out clean.jsonl --semantic"
    " --paraphrases rewritten.jsonl",
    "lpt sql \"select row, witness_id, score, detail from v_decision where reason = 'benchmark_overlap'\"",
)


Semantic = Annotated[
    bool,
    typer.Option("--semantic", help="Ask an embedder too: rows that ask an item in other words go as well."),
]
MeaningThreshold = Annotated[
    float, typer.Option(help="Cosine at which a row means what an item means, with --semantic.")
]
MeaningNumbers = Annotated[
    float,
    typer.Option(help="Share of the item's numbers that such a row names at least; 0: numbers do not matter."),
]
Paraphrases = Annotated[
    list[Path] | None,
    typer.Option(
        help='Canaries of the sixth kind: JSON lines such as {"item": 0, "paraphrase": "…"}; repeatable.',
        show_default=False,
    ),
]
Perplexity = Annotated[
    Path | None,
    typer.Option(
        help="Folder of a causal language model: name the items that it finds unusually likely. Removes nothing.",
        show_default=False,
    ),
]


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
    semantic: Semantic = False,
    embedder: Embedder = "minilm",
    semantic_threshold: MeaningThreshold = 0.8,
    semantic_numbers: MeaningNumbers = 0.66,
    paraphrases: Paraphrases = None,
    perplexity: Perplexity = None,
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

    rule = {"coverage": coverage, "longest": longest, "longest_coverage": longest_coverage, "workers": workers}
    meant = (embedder, semantic_threshold, semantic_numbers) if semantic else None
    ask = partial(asked, catalog, meant, paraphrases, perplexity)
    work, benchmarks = decontaminate_work(
        Source(tuple(inputs), layout, text_column), benchmark_paths(benchmark, catalog), out, ask=ask, **rule
    )
    check_paths(report, out, work.dataset, benchmarks, dry_run=dry_run)
    opened, progress = Catalog.open(catalog), Progress_()
    ran = work.run(opened, progress, dry_run=dry_run)
    if report is not None:
        write_contamination(report, work.dataset, benchmarks, ran, opened, progress)
    progress.close()
    finish(ran, opened, lambda: show_contamination(ran.extra), json=json)


def asked(
    catalog: Path | None,
    meant: tuple[str, float, float] | None,
    paraphrases: list[Path] | None,
    perplexity: Path | None,
    benchmarks: Benchmarks,
) -> tuple[Second, dict[str, Any]]:
    """What is asked beside n-grams, and the fields of the config that say so."""
    from lpt_data.contamination import Second
    from lpt_data.contamination.paraphrases import load_paraphrases
    from lpt_data.contamination.perplexity import find_language_model
    from manifests.catalog import Catalog

    semantics = semantic = None
    config: dict[str, Any] = {}
    if meant is not None:
        folder = Catalog.open(catalog).directory
        semantics, semantic = chosen(meant[0], folder, ("semantic",), meant[1], None, True, None, None)
        config["semantic_numbers"] = meant[2]
    read = load_paraphrases(paraphrases, benchmarks) if paraphrases else None
    model = find_language_model(perplexity) if perplexity is not None else None
    config |= {
        "semantic": semantic,
        "paraphrases": read.sha256 if read else (),
        "perplexity": model.digest if model else "",
    }
    return Second(semantics, read, model), config


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
    kinds = [kind for kind in told[0]["canaries"] if kind != "renamed_program"]  # not every benchmark has programs
    table(
        ["canary recall", "planted", *kinds],
        [
            (b["name"], b["canaries"][kinds[0]]["planted"], *(_recall(b["canaries"][kind]) for kind in kinds))
            for b in told
        ],
    )
    if meant := extra.get("semantic"):
        show_meant(meant, told)
    for b in told:
        if odd := b.get("perplexity"):
            say(
                f"{b['name']}: {len(odd['flagged'])} of {odd['items']} items are unusually likely for {odd['model']} "
                f"(measure: {odd['measure']}); flags only"
            )
        if programs := b.get("programs"):
            found = f"{programs['items_hit']:,} in {programs['rows_hit']:,} rows"
            short = f"{programs['too_short']:,} too short for that"
            say(
                f"{b['name']}: {programs['items']:,} programs looked for under other names ({short}): {found}; "
                f"canary recall {_recall(b['canaries']['renamed_program'])}"
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


def show_meant(meant: dict[str, Any], told: list[dict[str, Any]]) -> None:
    """What the embedder said, what other thresholds would, and how well it knew the paraphrases."""
    show_embedder(meant)
    say(
        f"rows that mean an item (cosine {meant['threshold']:g}, {meant['numbers']:.2g} of its numbers): "
        f"{meant['rows_hit']:,}, {meant['rows_by_meaning_alone']:,} of them by meaning alone"
    )
    rates = [b["canaries"].get("paraphrase", {}).get("by_threshold", []) for b in told]
    table(
        ["threshold", "rows by meaning alone", "whatever the numbers", "paraphrase recall", "precision"],
        [
            (
                at["threshold"],
                at["rows_by_meaning_alone"],
                at["rows_by_meaning_alone_whatever_the_numbers"],
                *_rate(rates, at["threshold"], meant["numbers"]),
            )
            for at in meant["by_threshold"]
        ],
        title="the second opinion at other thresholds",
    )


def _rate(rates: list[list[dict[str, Any]]], threshold: float, numbers: float) -> tuple[str, str]:
    found = [one for part in rates for one in part if (one["threshold"], one["numbers"]) == (threshold, numbers)]
    planted = sum(one["planted"] for one in found)
    if not planted:
        return "–", "–"
    right = sum(one["found"] for one in found)
    any_ = right + sum(one["found_for_another_item_alone"] for one in found)
    return f"{right / planted:.3f} of {planted:,}", f"{right / any_:.3f}" if any_ else "–"


def _recall(told: dict[str, Any]) -> str:
    return f"{told['recall']:.3f} [{told['low']:.3f}, {told['high']:.3f}]"
