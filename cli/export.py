"""``lpt export``: the weights of a run as a folder that others load, an adapter alone or merged and measured; a reward
model with its head."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from cli.next_commands import command
from cli.options import CatalogDir, Json, Seed, catalog_of, examples
from cli.output import as_json, say, table, tell_head, tell_next

EXAMPLES = examples(
    "lpt export runs/sft --out adapter",
    "lpt export runs/sft --out model --merge --admitted chats:validation",
    "lpt export runs/sft --out model --merge --dtype bfloat16 --tolerance 0.02",
    "lpt export runs/rm --out rm",
)


def export(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Folder of a run or of a checkpoint.", show_default=False)],
    out: Annotated[Path, typer.Option("--out", help="Folder to write: whole, or not at all.", show_default=False)],
    merge: Annotated[
        bool, typer.Option("--merge", help="Put the adapter into its base, in float32; left out: the adapter alone.")
    ] = False,
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        typer.Option(help="Precision of the written weights; auto: that of the base as stored."),
    ] = "auto",
    admitted: Annotated[
        str | None,
        typer.Option(
            "--admitted",
            metavar="NAME[@V]:SPLIT",
            help="Measure on rows of this split. Default: token ids drawn by seed.",
            show_default=False,
        ),
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Largest mean KL in nats between the trained model and what was written. Default: 0.01, or a "
            "tenth of what the adapter changes, if that is less.",
            show_default=False,
        ),
    ] = None,
    seed: Seed = 0,
    catalog: CatalogDir = None,
    json: Json = False,
) -> None:
    """Write a run's weights with tokenizer, stop tokens and origin; merged weights are read back and compared. A reward
    model is always merged, with its head and padding, for transformers and TRL."""
    from lpt_train.admitted import load_split
    from lpt_train.export import export as write

    opened = catalog_of(catalog, admitted)
    split = load_split(admitted, catalog=opened) if admitted is not None else None
    made = write(run, out, merge=merge, dtype=dtype, split=split, tolerance=tolerance, seed=seed, catalog=opened)
    if json:
        as_json(made.to_json())
    else:
        _show(made)
    tell_head(opened)
    if not json and "largest_difference" in made.body:  # a reward model
        tell_next(command("lpt reward score FILE", "--model", out, "--out", "scored.jsonl", catalog=catalog))
    elif not json:
        tell_next(command("lpt eval", "--admitted", admitted or "NAME:test", "--model", out, catalog=catalog))


def _show(made: Any) -> None:
    table(["file", "bytes"], [(Path(file["path"]).name, file["bytes"]) for file in made.body["outputs"]])
    measured = made.body["measured"]
    if measured is not None:
        say(
            f"read back, on {measured['positions']:,} positions of {measured['on']}: mean KL {measured['mean_kl']:.3g} "
            f"nats (limit {measured['limit']:.3g}), logits differ by {measured['mean_abs_logit']:.3g}, at most "
            f"{measured['max_abs_logit']:.3g}, same first choice at {measured['top1_agreement']:.2%}"
        )
        if (effect := measured["adapter_effect"]) is not None:
            say(f"the adapter itself: mean KL {effect['mean_kl']:.3g}, same choice at {effect['top1_agreement']:.2%}")
    if "largest_difference" in made.body:
        say(f"read back by transformers: rewards differ by {made.body['largest_difference']:.2g} at most")
    for note in made.notes:
        say(note, style="yellow")
    say(f"exported to {made.path}")
