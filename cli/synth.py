"""``lpt data synth``: a generated file into one that ``lpt admit --contract synthetic`` takes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from cli.audit import verifiers
from cli.dedup import finish
from cli.next_commands import command
from cli.options import CatalogDir, Inputs, Json, examples
from cli.output import Progress_, say, table, tell_next

EXAMPLES = examples(
    "lpt data synth samples.jsonl --verifier math --generator Qwen3-8B --generator-revision 9c925d6 --out made.jsonl",
    "lpt data synth batch_output.jsonl --requests batch_input.jsonl --verifier schema --answer schema --out made.jsonl",
    "lpt data synth samples.jsonl --verifier code --keep shortest --most-rate 0.8 --out made.parquet",
    "lpt admit made --contract synthetic --train made.jsonl",
)


def synth(
    inputs: Inputs,
    out: Annotated[Path, typer.Option("--out", help="Output file; its extension is its format.", show_default=False)],
    verifier: Annotated[
        str, typer.Option(help="Who scores: math, integer, countdown, code or schema. Default: the row's column.")
    ] = "",
    prompt: Annotated[str | None, typer.Option(help="Column of the prompt. Default: by name.")] = None,
    completion: Annotated[
        str | None,
        typer.Option(help="Columns of the answers (texts or lists), with a comma between. Default: by name."),
    ] = None,
    answer: Annotated[
        str | None, typer.Option(help="Column of the gold, the tests or the schema. Default: by name.")
    ] = None,
    keep: Annotated[
        Literal["all", "one", "shortest"], typer.Option(help="Which of the passing answers to a prompt stay.")
    ] = "all",
    max_keep_ratio: Annotated[
        float, typer.Option(help="Kept answers to a prompt by those sampled; one may stay.")
    ] = 1.0,
    least_rate: Annotated[float, typer.Option(help="Pass rate of a prompt under which it is too hard.")] = 0.0,
    most_rate: Annotated[float, typer.Option(help="Pass rate of a prompt over which it is too easy.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Of the choice of one.")] = 0,
    requests: Annotated[
        list[str] | None, typer.Option(help="Request file of an API batch, joined by custom_id; repeatable.")
    ] = None,
    generator: Annotated[str, typer.Option(help="The model. Default: the row's column generator or model.")] = "",
    generator_revision: Annotated[str, typer.Option(help="Its revision, digest or date.")] = "",
    prompt_id: Annotated[str, typer.Option(help="Name or digest of the prompt template.")] = "",
    source: Annotated[str, typer.Option(help="Where the prompts come from; pass rates are by source.")] = "",
    sampling: Annotated[str, typer.Option(help='Such as \'{"temperature": 0.8, "top_p": 0.95}\'.')] = "",
    licence: Annotated[str, typer.Option(help="Licence of the generator's output.")] = "",
    terms: Annotated[str, typer.Option(help="allowed, denied, or the name of known terms.")] = "",
    depth: Annotated[int | None, typer.Option(min=0, help="Generation: 1 when made from what people wrote.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done; write nothing.")] = False,
    catalog: CatalogDir = None,
    json: Json = False,
) -> None:
    """Verify generated answers, keep those that pass, and write down where they come from and how many passed."""
    from lpt_data.config import SynthConfig
    from lpt_data.generations import open_generations, read_requests
    from lpt_data.io import expand
    from lpt_data.stage import run_stage
    from lpt_data.synth import check_config, decider
    from manifests.catalog import Catalog
    from manifests.digests import bytes_sha256

    asked = read_requests(requests) if requests else None
    pinned = expand(requests) if requests else []
    config = SynthConfig(
        prompt=prompt, completion=completion, answer=answer, verifier=verifier, keep=keep, seed=seed,
        max_keep_ratio=max_keep_ratio, least_rate=least_rate, most_rate=most_rate, generator=generator,
        generator_revision=generator_revision, prompt_id=prompt_id, source=source, sampling=sampling, licence=licence,
        terms=terms, depth=depth, requests=tuple(sorted(bytes_sha256(file.path) for file in pinned)),
    )  # fmt: skip
    opened, progress = Catalog.open(catalog), Progress_()
    with verifiers() as lent:
        check_config(config, lent)
        report = run_stage(
            "synth", open_generations(inputs, config, asked), config, decider(lent, asked), output=out,
            catalog=opened, progress=progress, dry_run=dry_run, references=pinned,
        )  # fmt: skip
    progress.close()
    finish(report, opened, lambda: show_synth(report.extra, out, catalog), json=json)


def show_synth(extra: dict[str, Any], out: Path, catalog: Path | None = None) -> None:
    """What became of the answers, and the pass rate of each source with its interval and the band of 20 to 40 %."""
    table(["answers", "n"], list(extra["answers"].items()))
    table(
        ["source", "attempts", "passes", "pass rate", "95 %", "20 to 40 %"],
        [
            (s["source"], s["attempts"], s["passes"], s["rate"], "{:.3f} to {:.3f}".format(*s["interval"]), s["band"])
            for s in extra["sources"]
        ],
    )
    tenths = "  ".join(f"{n / 10:.1f}: {count:,}" for n, count in enumerate(extra["prompt_rates"]) if count)
    say(f"prompts by their pass rate, from: {tenths}")
    for what, n in extra["unscored"].items():
        say(f"{n:,} answers could not be scored: {what}", style="yellow")
    tell_next(command("lpt admit NAME --contract synthetic", "--train", out, catalog=catalog))
