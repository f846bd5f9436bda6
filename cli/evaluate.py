"""``lpt eval``: accuracy on held-out keys with intervals, and the paired difference of two models."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from cli.options import CatalogDir, Json, examples
from cli.output import as_json, say, table, tell_head

EXAMPLES = examples(
    "lpt eval --admitted sums:test --model runs/grpo",
    "lpt eval --admitted sums:test --model runs/grpo --baseline ./model --n 500 --json",
    "lpt eval --admitted gsm8k:test --model ./model --temperature 0.7 --k 8",
)


def evaluate(
    admitted: Annotated[
        str,
        typer.Option("--admitted", metavar="NAME[@V]:SPLIT", help="Admitted split to measure on.", show_default=False),
    ],
    model: Annotated[
        str, typer.Option("--model", help="A folder of weights or of a run, or a hub name.", show_default=False)
    ],
    baseline: Annotated[
        str | None,
        typer.Option(help="A second model, for the paired difference on the same items.", show_default=False),
    ] = None,
    reward: Annotated[str, typer.Option(help="Reward; left out: each record's own verifier.", show_default=False)] = "",
    n: Annotated[
        int | None, typer.Option("--n", min=2, help="Items, drawn by seed. Default: all.", show_default=False)
    ] = None,
    temperature: Annotated[float, typer.Option(min=0, help="0 is greedy.")] = 0.0,
    k: Annotated[int, typer.Option(min=1, help="Samples an item; needs a temperature.")] = 1,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens a completion may have.")] = 256,
    batch_size: Annotated[int, typer.Option(min=1, help="Completions sampled at the same time.")] = 256,
    seed: Annotated[int, typer.Option(help="Seed of the choice of items and of sampling.")] = 0,
    catalog: CatalogDir = None,
    json: Json = False,
) -> None:
    """Measure a model on an admitted split, and record it. --baseline adds the paired difference with its interval."""
    from lpt_train.admitted import load_split
    from lpt_train.evaluate import evaluate as run
    from lpt_train.evaluate import paired_difference
    from manifests.catalog import Catalog

    opened = Catalog.open(catalog)
    split = load_split(admitted, catalog=opened)
    settings: dict[str, Any] = {
        "reward": reward,
        "n": n,
        "temperature": temperature,
        "k": k,
        "seed": seed,
        "max_completion_length": max_tokens,
        "batch_size": batch_size,
    }
    found = {name: run(name, split, catalog=opened, **settings) for name in (baseline, model) if name is not None}
    paired = paired_difference(found[baseline], found[model]) if baseline is not None else None
    tell_head(opened)
    if json:
        body = {"models": {name: _brief(evaluation) for name, evaluation in found.items()}, "split": split.ref}
        as_json(body | ({"paired": asdict(paired)} if paired is not None else {}))
        return
    table(
        ["model", "accuracy", "95 % interval", "n", "not scored", "cut off"],
        [
            (name, e.accuracy, f"{e.low:.3f} – {e.high:.3f}", e.n, e.unscorable, f"{e.truncated_share:.1%}")
            for name, e in found.items()
        ],
    )
    if paired is not None:
        show_paired(paired)


def show_paired(paired: Any) -> None:
    """A paired difference in one line."""
    test = "" if paired.p_value is None else f", McNemar p = {paired.p_value:.2g}"
    say(
        f"{paired.before:.3f} → {paired.after:.3f} on the same {paired.n:,} items: "
        f"difference {paired.difference:+.3f}, "
        f"95 % interval {paired.low:+.3f} … {paired.high:+.3f} (gained {paired.gained}, lost {paired.lost}{test})",
        style="bold green" if paired.low > 0 else None,
    )


def _brief(evaluation: Any) -> dict[str, Any]:
    body = evaluation.to_json()
    del body["items"]
    return body | {"object": evaluation.object_id}
