"""``lpt data run``: the stages of a recipe in order, what stands reused, one funnel at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.attempts import sampler_of
from cli.audit import encoder, show_checks, show_verdict, verifiers
from cli.options import CatalogDir, Json, examples, named_paths
from cli.output import Progress_, as_json, say, table, tell_head, tell_notes
from cli.tokens import open_any

if TYPE_CHECKING:
    from lpt_data.run import Ran, Recipe, RecipeReport

EXAMPLES = examples(
    "lpt data run recipe.yaml --dry-run",
    "lpt data run recipe.yaml",
    "lpt data run recipe.yaml --from dedup --until split",
    "lpt data run lpt:sft --input chats=chats.jsonl",
    "lpt data run lpt:web-text --input pages=crawl/ --json",
)
MOST_REASONS = 4  # shown of one stage; --json has all


def run(
    recipe: Annotated[str, typer.Argument(help="Recipe (YAML), or one that comes with lpt: lpt:sft, lpt:web-text, …")],
    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", help="NAME=PATH: files for an input of the recipe; repeatable.", show_default=False),
    ] = None,
    first: Annotated[
        str | None,
        typer.Option("--from", help="Begin with this stage; those before it must stand.", show_default=False),
    ] = None,
    last: Annotated[str | None, typer.Option("--until", help="End with this stage.", show_default=False)] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done and why; write nothing.")] = False,
    catalog: CatalogDir = None,
    json: Json = False,
) -> None:
    """Run the stages of a recipe; what is unchanged since it was last done is reused. A gate's verdict is the exit."""
    from lpt_data.run import Tools, load_recipe, planned, wrong_order
    from lpt_data.run import run as run_stages
    from manifests.catalog import Catalog

    read = load_recipe(recipe, named_paths(inputs, option="--input"))
    warnings = [str(wrong) for wrong in wrong_order(read)]
    for warning in warnings:
        say(f"warning: {warning}", style="yellow")
    opened, progress = Catalog.open(catalog), Progress_()
    with verifiers() as lent:
        tools = Tools(open_any, encoder, lambda: lent, sampler_of)
        if dry_run:
            show_plan(read, planned(read, opened, tools, first=first, last=last), warnings, json=json)
            return
        report = run_stages(
            read, opened, tools, first=first, last=last, progress=progress, told=lambda ran: tell(ran, progress)
        )
    progress.close()
    tell_notes(opened)
    if json:
        as_json({**report.to_json(), "warnings": warnings})
    else:
        show_run(report)
    tell_head(opened)
    raise typer.Exit(report.exit_code)


def tell(ran: Ran, progress: Progress_) -> None:
    """One line for a stage that is done."""
    progress.close()
    if ran.report is not None:
        body = ran.report.body
        done = "stands as it was" if ran.report.reused else f"{body['seconds']:.1f} s"
        say(f"{ran.spec.name}: {body['rows_in']:,} rows in, {body['rows_out']:,} out, {done}", style="dim")


def show_plan(recipe: Recipe, stages: list[Any], warnings: list[str], *, json: bool) -> None:
    """What would be reused, and why the rest would not."""
    if json:
        told = [{"as": spec.name, "stage": spec.kind, **stands.to_json()} for spec, stands in stages]
        as_json({"recipe": recipe.ref, "dry_run": True, "warnings": warnings, "stages": told})
        return
    table(
        ["stage", "", "reads", "why"],
        [
            (spec.name, "stands" if stands.reused else "runs", ", ".join(spec.reads), stands.why)
            for spec, stands in stages
        ],
    )
    say("dry run: nothing was written or recorded", style="yellow")


def show_run(report: RecipeReport) -> None:
    """The funnel of all stages, then what each gate said."""
    bodies = [(ran.spec.name, ran.report) for ran in report.ran if ran.report is not None]
    table(
        ["stage", "rows in", "rows out", "removed or set aside", "seconds", "output"],
        [
            (
                name,
                stage.body["rows_in"],
                stage.body["rows_out"],
                reasons(stage.body),
                "stands" if stage.reused else f"{stage.body['seconds']:.1f}",
                stage.body["output"],
            )
            for name, stage in bodies
        ],
    )
    for ran in report.ran:
        if ran.gate is not None:
            show_checks(ran.gate.checks)
            show_verdict(ran.gate.verdict, ran.gate.checks)
            if "manifest_id" in ran.gate.body:
                body = ran.gate.body
                say(f"{body['name']}@{body['version']}  {body['folder']}  manifest {body['manifest_id'][:16]}…")
                say(f"its page: lpt report {body['name']}@{body['version']}", style="dim")
    if report.not_asked:
        say(f"not asked, as they come before --from: {', '.join(report.not_asked)}", style="bold yellow")
    if report.not_run:
        say(f"not run after that verdict: {', '.join(report.not_run)}", style="yellow")


def reasons(body: dict[str, Any]) -> str:
    """The most frequent reasons of one stage, the unreadable rows among them, as one text."""
    counts = {**body["removed"], **body["quarantine"]}
    if body.get("repeated"):
        counts["repeated"] = body["repeated"]
    ordered = sorted(counts, key=lambda name: (-counts[name], name))
    shown = [f"{name} {counts[name]:,}" for name in ordered[:MOST_REASONS]]
    return ", ".join(shown + (["…"] if len(ordered) > MOST_REASONS else []))
