"""``lpt data mix``: named domains in asked proportions, with the plan shown before a row is written."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.data import show_report
from cli.options import CatalogDir, Json, examples, named_paths
from cli.output import Progress_, as_json, say, shown, table, tell_head, tell_notes
from cli.tokens import open_any
from manifests.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

EXAMPLES = examples(
    "lpt data mix mix.yaml --plan",
    "lpt data mix mix.yaml --out mixed.jsonl",
    "lpt data mix lpt:maths --input general=chats.jsonl --input maths=gsm8k.jsonl --input proofs=p.jsonl --out m.jsonl",
    "lpt data mix mix.yaml --tokenizer ./model --out mixed.parquet",
)


def mix(
    spec: Annotated[str, typer.Argument(help="Mixture (YAML), or a recipe: lpt:general-chat, lpt:maths, lpt:code.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="Output file; its extension is its format.", show_default=False)
    ] = None,
    inputs: Annotated[
        list[str] | None, typer.Option("--input", help="DOMAIN=PATH adds data to a domain; repeatable.")
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(help="tokenizer.json, model folder or `tiny`, for a total in tokens.", show_default=False),
    ] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Print the plan; write nothing.")] = False,
    catalog: CatalogDir = None,
    json: Json = False,
) -> None:
    """Mix named domains: one temperature, caps, replay, schedules; asked and observed shares side by side."""
    from lpt_data.mix import mix as mix_domains
    from lpt_data.mix_spec import load_spec
    from manifests.catalog import Catalog

    if out is None and not plan:
        raise UsageError("nothing says where to write", seen=spec, next="--out FILE, or --plan to see the plan alone")
    read = load_spec(spec, named_paths(inputs, option="--input"))
    opened, progress = Catalog.open(catalog), Progress_()

    def show(told: Mapping[str, Any]) -> None:
        progress.close()
        if not json:
            show_plan(told)

    report = mix_domains(
        read,
        out=out or Path("plan-only.jsonl"),
        catalog=opened,
        tokenizer=None if tokenizer is None else open_any(tokenizer),
        plan_only=plan,
        show=show,
        progress=progress,
    )
    progress.close()
    tell_notes(opened)
    if json:
        as_json(report.to_json())
    elif plan:
        say(f"plan {report.extra['plan_hash'][:16]}…: {report.body['rows_out']:,} rows; nothing was written")
    else:
        if report.reused:
            show_plan(report.extra)
        show_report(report)
        say(f"plan {report.extra['plan_hash'][:16]}…  {report.body['repeated']:,} rows are repeats (copy > 0)")
        if schedule := report.extra.get("schedule"):
            say(f"rows are in the order of training; a trainer follows {schedule}")
    if not plan:
        tell_head(opened)


def show_plan(told: Mapping[str, Any]) -> None:
    """Asked and observed shares of every domain, the phases, and what to be warned of."""
    table(
        ["domain", "by weight", "asked", "observed", told["unit"], "of", "epochs", "repeats"],
        [
            (
                f"{d['domain']} (replay)" if d["replay"] else d["domain"],
                *(f"{d[name]:.4f}" for name in ("weight_share", "asked", "observed")),
                f"{d['amount']:,}",
                f"{d['size']:,}",
                shown(d["epochs"]),
                f"{d['repeated']:,}",
            )
            for d in told["domains"]
        ],
    )
    if len(told["phases"]) > 1:
        table(
            ["training", "steps", "rows", "learning rate", "shares"],
            [
                (
                    f"{phase['from']:.3g} to {phase['until']:.3g}",
                    "" if phase["first_step"] is None else f"{phase['first_step']:,} to {phase['end_step']:,}",
                    f"{phase['first_row']:,} to {phase['end_row']:,}",
                    " to ".join(shown(rate) for rate in phase["learning_rate"]),
                    "  ".join(f"{name} {share:.3f}" for name, share in phase["observed"].items()),
                )
                for phase in told["phases"]
            ],
        )
    for warning in told["warnings"]:
        say(f"warning: {warning}", style="yellow")
