"""``lpt data dedup``: which rows repeat others, and what stays."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from cli.options import CatalogDir, Inputs, Json, Layout, TextColumn, benchmark_paths, examples
from cli.output import Progress_, as_json, most_first, one_line, say, table, tell_head, tell_notes
from cli.semantic import (
    Embedder,
    ExactLimit,
    Floor,
    Rethreshold,
    SameNumbers,
    SemanticThreshold,
    chosen,
    show_semantic,
    show_weakest,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from lpt_data.config import DedupConfig
    from lpt_data.dataset import Dataset
    from lpt_data.semantic.alike import Semantics
    from lpt_data.stage import StageReport
    from manifests.catalog import Catalog

DEDUP_EXAMPLES = examples(
    "lpt data dedup corpus.jsonl --out clean.parquet",
    "lpt data dedup shards/ --out clean.jsonl.zst --method exact,minhash --threshold 0.8 --workers 2",
    "lpt data dedup chats.jsonl --out clean.jsonl --key prompt --threshold 0.9",
    "lpt data dedup chats.jsonl --out clean.jsonl --key prompt+response --keep quality:rating",
    "lpt data dedup new.jsonl --out fresh.parquet --against old.parquet",
    "lpt data dedup corpus.jsonl --out clean.parquet --method exact,minhash,semantic --semantic-threshold 0.92",
    "lpt data dedup corpus.jsonl --out clean.parquet --method exact,minhash,semantic --rethreshold 0.95",
    "lpt data dedup shards/ --out clean.parquet --engine ray --ray-address 10.0.0.5:6379",
    "lpt data dedup chats.jsonl --out clean.jsonl --benchmark gsm8k=test.jsonl",
    'lpt sql "select reason, witness_id, score from v_decision limit 5"',
)

Out = Annotated[Path, typer.Option("--out", help="Output file; its extension is its format.", show_default=False)]
Method = Annotated[str, typer.Option(help="exact, minhash, semantic, or several with commas.")]
Threshold = Annotated[float, typer.Option(help="Jaccard similarity at which a row is a near-duplicate.")]
Key = Annotated[
    str,
    typer.Option(
        help="What is compared: text, prompt, response, row, or a column. prompt+response: the same prompt with "
        "another response is no duplicate, but is counted."
    ),
]
Keep = Annotated[
    str,
    typer.Option(
        help="Who stays: content (longest, then smallest record id), longest, first, or quality:COLUMN (highest "
        "number, then content; rows without one last)."
    ),
]
References = Annotated[
    list[str] | None,
    typer.Option("--against", help="Files whose rows take theirs out of the data and are not written; repeatable."),
]
Benchmark = Annotated[
    list[str] | None,
    typer.Option(
        "--benchmark",
        help="NAME=PATH, or NAME once added: decontaminate in the same read what deduplication leaves; repeatable.",
    ),
]
DropAll = Annotated[bool, typer.Option("--drop-all", help="Keep no copy: every row that resembles another one goes.")]
TemplateDf = Annotated[
    float | None,
    typer.Option(
        help="Leave out shingles that this share of the distinct rows holds, such as those of a chat template; 0: "
        "none. Default: 0.05 for messages, 0 for plain text and columns.",
        show_default=False,
    ),
]
AlarmShare = Annotated[
    float, typer.Option(help="Share of a file's rows for which one kept row may stand without an alarm.")
]
Ngram = Annotated[int, typer.Option(min=1, help="Words in a shingle.")]
Seed = Annotated[int, typer.Option(help="Seed of the signatures.")]
Workers = Annotated[int | None, typer.Option(min=1, help="Threads. Default: the cores at hand.", show_default=False)]
Memory = Annotated[
    str | None,
    typer.Option(
        help="Most memory the process may take, such as 4GB; what does not fit lies in a nameless file beside --out. "
        "Default: 60 % of what is available.",
        show_default=False,
    ),
]
Engine = Annotated[
    Literal["local", "ray"], typer.Option(help="Where the work is done: threads here, or a Ray cluster (lpt[ray]).")
]
RayAddress = Annotated[
    str | None,
    typer.Option(
        help="Cluster of --engine ray: HOST:PORT, auto, or local for one made here. Default: $RAY_ADDRESS, else local.",
        show_default=False,
    ),
]
DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="Foretell time, memory, disk and pairs from a sample, in seconds; write nothing."),
]


def dedup(
    inputs: Inputs,
    out: Out,
    method: Method = "exact,minhash",
    threshold: Threshold = 0.8,
    key: Key = "text",
    keep: Keep = "content",
    against: References = None,
    benchmark: Benchmark = None,
    drop_all: DropAll = False,
    template_df: TemplateDf = None,
    alarm_share: AlarmShare = 0.01,
    ngram: Ngram = 5,
    seed: Seed = 0,
    embedder: Embedder = "minilm",
    semantic_threshold: SemanticThreshold = 0.9,
    floor: Floor = None,
    same_numbers: SameNumbers = True,
    exact_limit: ExactLimit = None,
    rethreshold: Rethreshold = None,
    workers: Workers = None,
    memory: Memory = None,
    engine: Engine = "local",
    ray_address: RayAddress = None,
    layout: Layout = None,
    text_column: TextColumn = "text",
    dry_run: DryRun = False,
    catalog: CatalogDir = None,
    json: Json = False,
) -> None:
    """Remove exact, near and semantic duplicates. Every removed row names a kept row and a verified score."""
    from lpt_data.quick_start import leave_out_unused

    leave_out_unused()
    from dataclasses import replace

    from lpt_data.config import DedupConfig
    from lpt_data.works import Source
    from lpt_data.works import dedup as dedup_work
    from manifests.catalog import Catalog

    methods = tuple(name.strip() for name in method.split(",") if name.strip())
    config = DedupConfig(
        method=methods, threshold=threshold, key=key, keep=keep, drop_all=drop_all, ngram=ngram, seed=seed,
        template_df=template_df, alarm_share=alarm_share, workers=workers, memory=memory, engine=engine,
        ray_address=ray_address,
    )  # fmt: skip
    source = Source(tuple(inputs), layout, text_column)
    opened = None if dry_run else Catalog.open(catalog)
    place = opened.directory if opened else out.parent  # a dry run does not ask what is in the cache
    meant = (semantic_threshold, floor, same_numbers, exact_limit)
    meaning, semantic = chosen(embedder, place, methods, *meant, rethreshold)
    config = replace(config, semantic=semantic)
    if opened is None:
        items, beside = benchmark_paths(benchmark, catalog), source.beside(against) if against else None
        foretell(source.open(), config, out, beside, meaning if rethreshold is None else None, items, json=json)
        return
    progress = Progress_()
    work = dedup_work(source, config, out, against or (), benchmark_paths(benchmark, catalog), meaning)
    report = work.run(opened, progress)
    progress.close()
    finish(report, opened, lambda: show_dedup(report.extra), json=json)


def foretell(
    dataset: Dataset,
    config: DedupConfig,
    out: Path,
    reference: Dataset | None,
    semantics: Semantics | None,
    items: dict[str, Any],
    *,
    json: bool,
) -> None:
    """What the command would take, from a sample; nothing is written or recorded."""
    from lpt_data.contamination import load_benchmarks
    from lpt_data.dedup.predict import predict

    if items:
        load_benchmarks(items)  # one that is not there is told now
        say("the scan for benchmark items is not in these figures", style="yellow")
    told = predict(dataset, config, out, reference, semantics)
    if json:
        as_json({"dry_run": True, **told.to_json()})
        return
    low, high = told.candidates_between
    rows: list[tuple[str, Any]] = [
        ("rows", told.rows),
        ("seconds", told.seconds),
        ("peak memory, MB", round(told.peak_memory_bytes / 1e6)),
        ("  cap, MB", f"{told.cap_bytes / 1e6:,.0f} ({told.cap_from})"),
        ("  smallest cap that works, MB", round(told.needed_bytes / 1e6)),
        ("disk beside the output, MB", round(told.spilled_bytes / 1e6)),
        ("pairs to compare", told.candidates if low == high else f"{told.candidates:,} ({low:,} to {high:,})"),
    ]
    if meant := told.meaning:
        rows += [
            ("vectors, MB (no text twice, none known yet)", round(meant.vector_bytes / 1e6)),
            ("  seconds to embed", meant.embedding_seconds),
            (f"  seconds to compare ({meant.search})", meant.search_seconds),
        ]
    table(["foretold", ""], rows)
    how = "all of its rows" if told.rows_are_exact else f"{told.sample_rows:,} rows; rows counted by bytes"
    say(f"from {how}; nothing was written", style="yellow")
    if told.needed_bytes > told.cap_bytes:
        say("the cap is too small: the command would refuse", style="bold red")


def finish(report: StageReport, catalog: Catalog, more: Callable[[], None], *, json: bool) -> None:
    """End the command of one stage: the catalog's notes, the report (`more` after its funnel), the head of the log."""
    tell_notes(catalog)
    if json:
        as_json(report.to_json())
    else:
        show_report(report)
        more()
    if not report.dry_run:
        tell_head(catalog)


def show_report(report: StageReport) -> None:
    """The funnel of one stage, on one screen."""
    body = report.to_json()
    rows: list[tuple[str, Any]] = [("rows in", body["rows_in"])]
    if body.get("repeated"):
        rows.append(("  repeated", body["repeated"]))
    rows += [(f"  removed: {reason}", n) for reason, n in most_first(body["removed"])]
    if body["quarantined"]:
        rows.append(("  quarantined", body["quarantined"]))
    rows.append(("rows out", body["rows_out"]))
    table(["", "rows"], rows)
    if getattr(report, "reused", False):
        say("done before with the same input and settings; the output stands as it was", style="dim")
    say(f"{body['output']}  content_root {str(body['content_root'])[:16]}…  stage {body['stage_id']}")
    say(f"{body['seconds']:.1f} s, {body['rows_per_second']:,.0f} rows/s, {body['peak_memory_bytes'] / 2**20:,.0f} MiB")
    if getattr(report, "dry_run", False):
        say("dry run: nothing was written or recorded, so `lpt why` does not know this stage", style="yellow")
        return
    if body["removed"] or body["quarantined"]:
        say(f"why a row went: lpt why {body['stage_id']}:ROW   or: lpt sql @removed", style="dim")
    say(f"all of it on one page, rows side by side: lpt report {body['stage_id']}", style="dim")


# Of the curve in the record, what a line of the screen has room for.
SHOWN_JACCARD = (0.5, 0.7, 0.8, 0.9)


def show_dedup(extra: dict[str, Any]) -> None:
    """How pairs were proposed and verified, and the weakest removals first."""
    if near := extra.get("minhash"):
        points = ", ".join(f"{float(p):.3f} at {float(j):.1f}" for j, p in near["s_curve"] if float(j) in SHOWN_JACCARD)
        say(f"chance that a pair is proposed, by its Jaccard: {points}")
        say(
            f"{near.get('candidates', 0):,} pairs compared (equal texts count once), "
            f"{near.get('verified', 0):,} at or above {near['threshold']}"
        )
        if huge := near.get("huge_buckets"):
            say(
                f"{huge:,} buckets of a thousand rows and more, the largest of {near['largest_bucket']:,}: none was cut"
            )
    if (memory := extra.get("memory")) and memory["spilled_bytes"]:
        cap = f"{memory['cap_bytes'] / 1e6:,.0f} MB ({memory['cap_from']})"
        say(f"{memory['spilled_bytes'] / 1e6:,.0f} MB lay in a spill file, to stay within {cap}")
    if told := extra.get("foretold"):
        say(
            f"foretold: {told['rows']:,} rows, {told['seconds']:,.0f} s, {told['peak_memory_bytes'] / 1e6:,.0f} MB, "
            f"{told['candidates']:,} pairs"
        )
    if (frame := extra.get("templates")) and frame["shingles_left_out"]:
        say(
            f"{frame['shingles_left_out']:,} shingles of a template left out (in {frame['least_rows']:,} or more of "
            f"{frame['distinct_rows']:,} distinct rows); {frame['rows_of_nothing_else']:,} rows hold nothing else and "
            "were compared whole"
        )
    if same := extra.get("same_key_other_fields"):
        fields = " or ".join(same["fields"])
        say(f"{same['rows']:,} rows have the same {same['key']} as another one and another {fields}")
    if reference := extra.get("reference"):
        say(f"compared with {reference['rows']:,} rows of the reference; {reference['quarantined']:,} were unreadable")
    if "rows_without_quality" in extra:
        say(f"{extra['rows_without_quality']:,} rows have no quality and came last")
    if engine := extra.get("engine"):
        say(f"{engine['tasks']:,} parts on a Ray cluster of {engine['nodes']} nodes and {engine['cpus']} cores")
        for message in engine["messages"]:
            say(f"ray: {one_line(message)}", style="yellow")
    if keeper := extra.get("biggest_keeper"):
        who = "row" if not keeper.get("of_reference") else "reference row"
        say(f"{who} {keeper['row']} stands for the most rows: {keeper['absorbed']:,} ({keeper['share']:.1%} of all)")
    for alarm in extra.get("alarms", ()):
        who = "row" if not alarm["of_reference"] else "reference row"
        say(
            f"alarm: {who} {alarm['row']} stands for {alarm['absorbed']:,} rows, {alarm['share']:.1%} of "
            f"{alarm['file']}: {one_line(alarm['text'])}",
            style="bold yellow",
        )
    show_weakest(extra.get("weakest"), "weakest removals by words")
    if meant := extra.get("semantic"):
        show_semantic(meant)
    if contamination := extra.get("decontamination"):
        from cli.decontaminate import show_contamination

        show_contamination(contamination)
