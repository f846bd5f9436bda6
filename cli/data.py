"""``lpt data``: the stages that take raw files towards admission."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from cli.options import CatalogDir, Inputs, Json, Layout, TextColumn, examples
from cli.output import Progress_, as_json, one_line, say, table, tell_head, tell_notes
from manifests.errors import UsageError

if TYPE_CHECKING:
    from lpt_data.stage import StageReport

app = typer.Typer(help="Raw files: dedup, split, mix, tokens, audit.", no_args_is_help=True, rich_markup_mode=None)

DEDUP_EXAMPLES = examples(
    "lpt data dedup corpus.jsonl --out clean.parquet",
    "lpt data dedup shards/ --out clean.jsonl.zst --method exact,minhash --threshold 0.8 --workers 2",
    "lpt data dedup chats.jsonl --out clean.jsonl --key prompt --threshold 0.9",
    'lpt sql "select reason, witness_id, score from v_decision limit 5"',
)


@app.command("dedup", epilog=DEDUP_EXAMPLES)
def dedup(
    inputs: Inputs,
    out: Annotated[Path, typer.Option("--out", help="Output file; its extension is its format.", show_default=False)],
    method: Annotated[str, typer.Option(help="exact, minhash, or both with a comma.")] = "exact,minhash",
    threshold: Annotated[float, typer.Option(help="Jaccard similarity at which a row is a near-duplicate.")] = 0.8,
    key: Annotated[
        str, typer.Option(help="What is compared: text, prompt, response, row, or the name of a column.")
    ] = "text",
    keep: Annotated[
        str, typer.Option(help="Who stays: content (longest, then smallest record id), longest, or first.")
    ] = "content",
    ngram: Annotated[int, typer.Option(min=1, help="Words in a shingle.")] = 5,
    seed: Annotated[int, typer.Option(help="Seed of the signatures.")] = 0,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Threads. Default: the cores at hand.", show_default=False)
    ] = None,
    memory: Annotated[
        str | None, typer.Option(help="Refuse, before it is too late, what needs more: 4GB.", show_default=False)
    ] = None,
    layout: Layout = None,
    text_column: TextColumn = "text",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done; write nothing.")] = False,
    catalog: CatalogDir = None,
    json: Json = False,
) -> None:
    """Remove exact and near duplicates. Every removed row names a kept row and a verified score."""
    from lpt_data.config import DedupConfig
    from lpt_data.dataset import Dataset
    from lpt_data.dedup import decide
    from lpt_data.stage import run_stage
    from manifests.catalog import Catalog

    methods = tuple(name.strip() for name in method.split(",") if name.strip())
    config = DedupConfig(
        method=methods, threshold=threshold, key=key, keep=keep, ngram=ngram, seed=seed, workers=workers, memory=memory
    )
    dataset = Dataset.open(inputs, layout=layout, text_column=text_column)
    opened, progress = Catalog.open(catalog), Progress_()
    report = run_stage("dedup", dataset, config, decide, output=out, catalog=opened, progress=progress, dry_run=dry_run)
    progress.close()
    tell_notes(opened)
    if json:
        as_json(report.to_json())
    else:
        show_report(report)
        show_dedup(report.extra)
    if not dry_run:
        tell_head(opened)


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
    from lpt_data.split import split as split_dataset
    from manifests.catalog import Catalog

    config = SplitConfig(key=key, test=_count(test), validation=_count(validation), seed=seed, method=method)
    dataset = Dataset.open(inputs, layout=layout, text_column=text_column)
    opened, progress = Catalog.open(catalog), Progress_()
    report = split_dataset(dataset, config, out=out, catalog=opened, progress=progress)
    progress.close()
    tell_notes(opened)
    if json:
        as_json(report.to_json())
    else:
        show_report(report)
        show_split(report.extra)
    tell_head(opened)


def _count(value: float) -> int | float:
    if value >= 1 and not value.is_integer():  # inf, too
        raise UsageError("a count of keys is whole", seen=value, next="--test 500, or a share below 1: --test 0.1")
    return int(value) if value >= 1 or value == 0 else value


def show_report(report: StageReport) -> None:
    """The funnel of one stage, on one screen."""
    body = report.to_json()
    rows: list[tuple[str, Any]] = [("rows in", body["rows_in"])]
    if body.get("repeated"):
        rows.append(("  repeated", body["repeated"]))
    rows += [(f"  removed: {reason}", n) for reason, n in body["removed"].items()]
    if body["quarantined"]:
        rows.append(("  quarantined", body["quarantined"]))
    rows.append(("rows out", body["rows_out"]))
    table(["", "rows"], rows)
    if getattr(report, "reused", False):
        say("done before with the same input and settings; the output stands as it was", style="dim")
    say(f"{body['output']}  content_root {str(body['content_root'])[:16]}…  stage {body['stage_id']}")
    say(f"{body['seconds']:.1f} s, {body['rows_per_second']:,.0f} rows/s, {body['peak_memory_bytes'] / 2**20:,.0f} MiB")
    if body["removed"] or body["quarantined"]:
        say(f"why a row went: lpt why {body['stage_id']}:ROW   or: lpt sql @lost-rows", style="dim")


def show_dedup(extra: dict[str, Any]) -> None:
    """How pairs were proposed and verified, and the weakest removals first."""
    if near := extra.get("minhash"):
        points = "  ".join(f"{float(j):.2f}→{float(p):.3f}" for j, p in near["s_curve"])
        say(f"chance that a pair is proposed, by its true Jaccard: {points}")
        say(
            f"{near.get('candidates', 0):,} pairs compared, {near.get('verified', 0):,} at or above {near['threshold']}"
        )
    if keeper := extra.get("biggest_keeper"):
        say(f"row {keeper['row']:,} stands for the most rows: {keeper['absorbed']:,} ({keeper['share']:.1%} of all)")
    if weakest := extra.get("weakest"):
        table(
            ["score", "removed row", "its text", "kept row", "its text"],
            [
                (w["score"], w["row"], one_line(w["text"]), w["witness_row"], one_line(w["witness_text"]))
                for w in weakest
            ],
            title="weakest removals",
        )


def show_split(extra: dict[str, Any]) -> None:
    """Rows and keys of each split, and the proof that no key is shared."""
    table(
        ["split", "rows", "keys"],
        [(name, body["rows"], body["keys"]) for name, body in extra["splits"].items()],
    )
    for pair in extra["disjoint"]:
        say(f"{pair['a']} ∩ {pair['b']}: {pair['intersection']} keys shared")
