"""``lpt reward``: what a reward model gives to rows, and how far it can be optimised against."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

from cli.dedup import finish
from cli.groups import Group
from cli.next_commands import command
from cli.options import CatalogDir, Inputs, Json, Layout, Seed, catalog_of, examples, numbers_of
from cli.output import Progress_, as_json, say, table, tell_head, tell_next, tell_notes
from manifests.errors import RefusedError, UsageError

app = typer.Typer(
    cls=Group,
    help="Score rows with a reward model; measure over-optimisation.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

SCORE_EXAMPLES = examples(
    "lpt reward score samples.jsonl --model runs/rm --out scored.jsonl",
    "lpt reward score pairs.parquet --model runs/rm --column rm --out scored.parquet",
)
SAMPLE_EXAMPLES = examples(
    "lpt reward sample --admitted sums:test --policy runs/sft --model runs/rm --n 16 --out completions.jsonl",
    "lpt reward sample --admitted gsm8k:test --policy ./model --model runs/rm --n 64 --prompts 200 --out c.jsonl",
)
CURVE_EXAMPLES = examples(
    "lpt reward curve completions.jsonl --out curve.html",
    "lpt reward curve scored.jsonl --proxy rm_small --gold rm_large --prompt-id id --n 1,2,4,8,16 --json",
)

# Who has rows without the columns of a curve has usually scored some that nobody sampled for one.
WHO_SAMPLES = (
    "lpt reward sample --admitted NAME:SPLIT (rlvr) --policy RUN --model RM --out completions.jsonl makes such a file; "
    "or name the columns: --prompt-id, --proxy, --gold"
)

RewardModelFolder = Annotated[
    str, typer.Option("--model", help="Reward model: a run of lpt train reward, a folder, a hub name.")
]
MaxLength = Annotated[int, typer.Option(min=2, help="Tokens a conversation may have; a longer one has no reward.")]
BatchSize = Annotated[int, typer.Option(min=1, help="Conversations in one forward pass.")]


@app.command("score", epilog=SCORE_EXAMPLES)
def score(
    inputs: Inputs,
    model: RewardModelFolder,
    out: Annotated[Path, typer.Option("--out", help="Output file; its extension is its format.")],
    column: Annotated[str, typer.Option(help="Column of the reward; of pairs COLUMN_chosen and COLUMN_rejected.")] = (
        "reward"
    ),
    layout: Layout = None,
    max_length: MaxLength = 4096,
    batch_size: BatchSize = 16,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Score and tell; write nothing.")] = False,
    catalog: CatalogDir = None,
    json: Json = False,
) -> None:
    """Add a column with the reward of each conversation, completion or side of a pair; null where there is none."""
    from lpt_data.config import RewardColumnConfig
    from lpt_data.reward import reward_work
    from lpt_data.works import Source
    from lpt_train.machine import memory_answered
    from lpt_train.reward_scores import RewardModel
    from manifests.catalog import Catalog

    dataset = Source(tuple(inputs), layout).open()
    scorer = RewardModel(model, max_length=max_length, batch_size=batch_size)
    config = RewardColumnConfig(column, scorer.digest, max_length, **scorer.renderer.rendering())
    tell_notes(scorer)
    opened, progress = Catalog.open(catalog), Progress_()
    with memory_answered("a smaller --batch-size or --max-length"):
        report = reward_work(dataset, scorer.score, config, out).run(opened, progress, dry_run=dry_run)
    progress.close()
    finish(report, opened, lambda: show_scores(report.extra), json=json)
    if not (json or dry_run):
        words = ("--keep", f"quality:{column}", "--out", f"best{out.suffix}")
        best = command("lpt data dedup", out, *words, catalog=catalog)
        admit = command("lpt admit NAME --contract preference", "--train", out, catalog=catalog)
        tell_next(admit if dataset.kind == "preference" else best)


def show_scores(told: dict[str, Any]) -> None:
    """The rewards in one line, and what has none."""
    if told["scored"]:
        say(
            f"{told['scored']:,} rewards: mean {told['mean']:.4g}, sd {told['sd']:.4g}, from {told['least']:.4g} to "
            f"{told['most']:.4g}"
        )
    for reason, count in told["unscored"].items():
        say(f"{count:,} have no reward: {reason}", style="yellow")


@app.command("sample", epilog=SAMPLE_EXAMPLES)
def sample(
    admitted: Annotated[str, typer.Option("--admitted", metavar="NAME[@V]:SPLIT", help="Admitted `rlvr` split.")],
    policy: Annotated[str, typer.Option(help="Model that is sampled: a folder, a run or a hub name.")],
    model: RewardModelFolder,
    out: Annotated[Path, typer.Option("--out", help="Output file, .jsonl.")],
    n: Annotated[int, typer.Option("--n", min=2, help="Completions a prompt.")] = 16,
    prompts: Annotated[int | None, typer.Option(min=2, help="Prompts, drawn by seed. Default: all.")] = None,
    reward: Annotated[str, typer.Option(help="Verifier of the gold. Default: each record's own.")] = "",
    temperature: Annotated[float, typer.Option(help="Above 0.")] = 1.0,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens a completion may have.")] = 256,
    max_length: MaxLength = 4096,
    batch_size: BatchSize = 16,
    seed: Seed = 0,
    catalog: CatalogDir = None,
    json: Json = False,
) -> None:
    """Sample completions, each with the reward of a model (`reward`) and of a verifier (`gold`), for `reward curve`."""
    from lpt_train.admitted import load_split
    from lpt_train.machine import memory_answered
    from lpt_train.reward_scores import RewardModel, sample_and_score
    from lpt_train.samples import record, write

    if out.suffix != ".jsonl":
        raise UsageError("completions are written as JSON lines", seen=out.name, next=f"--out {out.stem}.jsonl")
    opened = catalog_of(catalog, admitted)
    split = load_split(admitted, catalog=opened, contract="rlvr")
    if split.kind != "rlvr":
        raise RefusedError(
            "only prompts with an answer to verify can be sampled and judged", seen=f"{split.ref} is {split.contract}",
            next="--admitted of an rlvr split; rows that are there are scored by lpt reward score FILE",
        )  # fmt: skip
    scorer = RewardModel(model, max_length=max_length, batch_size=batch_size)
    tell_notes(scorer)
    settings = {"samples": n, "prompts": prompts, "reward": reward, "temperature": temperature, "seed": seed}
    with memory_answered("a smaller --n, --max-tokens or --batch-size"):
        rows = sample_and_score(policy, split, scorer, max_completion_length=max_tokens, **settings)  # type: ignore[arg-type]
    write(out, rows)
    settings |= {"policy": policy, "model": model, "max_tokens": max_tokens, **scorer.renderer.rendering()}
    told = record(opened, out, rows, split, settings)
    tell_head(opened)
    if json:
        as_json(told)
        return
    say(f"{told['completions']:,} completions of {told['prompts_sampled']:,} prompts in {out}")
    for reason, count in told["not_scored"].items():
        say(f"{count:,} are not scored: {reason}", style="yellow")
    tell_next(f"lpt reward curve {quote(str(out))} --out {quote(str(out.with_suffix('.html')))}")


@app.command("curve", epilog=CURVE_EXAMPLES)
def curve(
    inputs: Inputs,
    proxy: Annotated[str, typer.Option(help="Column that best-of-n chooses by.")] = "reward",
    gold: Annotated[str, typer.Option(help="Column that says what a completion is worth.")] = "gold",
    prompt_id: Annotated[str, typer.Option(help="Column that is equal for the completions of one prompt.")] = (
        "prompt_id"
    ),
    n: Annotated[str | None, typer.Option("--n", help="Such as 1,2,4,8. Default: powers of two, up to the fewest.")] = (
        None
    ),
    out: Annotated[Path | None, typer.Option("--out", help="A page with the curve, .html.", show_default=False)] = None,
    json: Json = False,
) -> None:
    """Gold and proxy reward of the best of n against KL(n), without bias, with intervals: where the proxy breaks."""
    from lpt_data.io.numbers import name, number, rows_of
    from lpt_train.best_of_n import Scored
    from lpt_train.best_of_n import curve as measured
    from lpt_train.reward_pages import verdict, write_curve_page

    rows = [
        Scored(
            name(row, prompt_id, place, WHO_SAMPLES),
            number(row, proxy, place, WHO_SAMPLES),
            number(row, gold, place, WHO_SAMPLES),
        )  # fmt: skip
        for place, row in rows_of(inputs)
    ]
    found = measured(rows, None if n is None else numbers_of(n, "--n"))
    if out is not None:
        write_curve_page(out, found, ", ".join(inputs))
    if json:
        as_json(found.to_json() | {"page": None if out is None else str(out)})
        return
    columns = ["n", "KL at most", "proxy", "gold", "95 %", "since n = 1", "95 %"]
    table(
        columns,
        [
            (p.n, p.kl, p.proxy, p.gold, f"{p.gold_low:.3f} – {p.gold_high:.3f}", p.gain,
             f"{p.gain_low:+.3f} … {p.gain_high:+.3f}")
            for p in found.points
        ],
    )  # fmt: skip
    say(verdict(found), style="bold red" if found.over_optimised else None)
    for what, count in found.left_out.items():
        if count:
            say(f"{count:,} {what.replace('_', ' ')} left out", style="yellow")
