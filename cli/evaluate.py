"""``lpt eval``: what an admitted split shows about a model, with intervals, and the paired difference of two models."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.attempts import check_scores, write_scores
from cli.next_commands import command
from cli.options import CatalogDir, Json, Seed, catalog_of, examples, numbers_of
from cli.output import Progress_, as_json, say, table, tell_head, tell_next, waiting
from manifests.errors import UsageError

EXAMPLES = examples(
    "lpt eval --admitted sums:test --model runs/grpo",
    "lpt eval --admitted sums:test --model runs/grpo --baseline ./model --n 500 --json",
    "lpt eval --admitted gsm8k:test --model ./model --temperature 0.7 --k 8 --pass-at 1,4,8",
    "lpt eval --admitted gsm8k:train --model ./model --temperature 1 --k 8 --n 500 --scores rates.json",
    "lpt eval --admitted chats:validation --admitted chats:test --model runs/sft --baseline ./model",
    "lpt eval --admitted facts:test --model runs/sft --match words --max-tokens 16",
    "lpt eval --admitted pairs:test --model runs/dpo --baseline runs/sft --drift --n 64",
    "lpt eval --admitted chats:test --model runs/b --baseline runs/a   # two runs on the same items",
)

Match = Annotated[
    str | None,
    typer.Option(
        help="Sample replies to sft records and compare them with the recorded ones: exact, words, number or "
        "first_line says how both are written the same way.",
        show_default=False,
    ),
]
ScoresFile = Annotated[
    Path | None,
    typer.Option(
        help="A .json file for the score of each item: the pass rates that `lpt data audit --scored` reads.",
        show_default=False,
    ),
]


def evaluate(
    admitted: Annotated[
        list[str],
        typer.Option(
            "--admitted", metavar="NAME[@V]:SPLIT", help="Admitted split to measure on; repeatable.", show_default=False
        ),
    ],
    model: Annotated[
        str, typer.Option("--model", help="A folder of weights or of a run, or a hub name.", show_default=False)
    ],
    baseline: Annotated[
        str | None,
        typer.Option(help="A second model, for the paired differences on the same items.", show_default=False),
    ] = None,
    reward: Annotated[str, typer.Option(help="Reward; left out: each record's own verifier.", show_default=False)] = "",
    match: Match = None,
    n: Annotated[int | None, typer.Option("--n", min=2, help="Items, drawn by seed. Default: all.")] = None,
    temperature: Annotated[float, typer.Option(min=0, help="0 is greedy.")] = 0.0,
    k: Annotated[int, typer.Option(min=1, help="Samples an item; needs a temperature.")] = 1,
    pass_at: Annotated[
        str | None,
        typer.Option(metavar="K,…", help="Sizes for pass@k, none above --k. Default: 1 and k.", show_default=False),
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens a completion may have.")] = 256,
    max_length: Annotated[
        int, typer.Option(min=2, help="Tokens of a row whose loss is measured; longer ones are left out and counted.")
    ] = 4096,
    domain_column: Annotated[
        str | None,
        typer.Option(help="Column that names the domain of a row. Default: domain, else source.", show_default=False),
    ] = None,
    drift: Annotated[
        bool, typer.Option("--drift", help="KL to --baseline, on completions sampled from --model.")
    ] = False,
    scores: ScoresFile = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Completions sampled at the same time.")] = 256,
    seed: Seed = 0,
    catalog: CatalogDir = None,
    json: Json = False,
) -> None:
    """Measure a model on admitted splits, and record it. rlvr: accuracy, pass@k, majority votes. sft, text: loss,
    perplexity and bits per byte, by domain. preference: which side is likelier. --baseline adds paired differences."""
    from lpt_train.admitted import load_split

    check_scores(scores)
    opened = catalog_of(catalog, *admitted)
    splits = [load_split(ref, catalog=opened) for ref in admitted]
    with waiting("loading torch …"):
        from lpt_train.evaluate import EvalOptions, evaluate_splits
    options = EvalOptions(
        reward=reward, match=match, n=n, temperature=temperature, k=k,
        pass_at=numbers_of(pass_at, "--pass-at"), seed=seed, max_completion_length=max_tokens, max_length=max_length,
        domain_column=domain_column, batch_size=batch_size, drift=drift,
    )  # fmt: skip
    _tell_other_tiny(baseline, model)
    progress = Progress_()
    models = [name for name in (baseline, model) if name is not None]
    reports = evaluate_splits(models, splits, options, catalog=opened, watch=progress)
    progress.close()
    if scores is not None:
        _write_scores(scores, model, reports)
    tell_head(opened)
    if json:
        as_json(_bodies(reports))
        return
    for report in reports:
        show(report)
    page = [command("lpt report", model, catalog=catalog)] if (Path(model) / "run.json").is_file() else []
    tell_next(*page, command("lpt sql", "@measures", catalog=catalog))


def _bodies(reports: Sequence[Any]) -> dict[str, Any]:
    bodies = [_body(report) for report in reports]
    return bodies[0] if len(bodies) == 1 else {"splits": bodies}


def _tell_other_tiny(baseline: str | None, model: str) -> None:
    """A `tiny` is made from --seed; a run has kept the one that it began with."""
    if baseline == "tiny" and (Path(model) / "tiny").is_dir():
        say(f"tiny is made anew here; the one that {model} began with: --baseline {model}/tiny", style="yellow")


def show(report: Any) -> None:
    """One split: a table of every measure of every model and domain, then the differences."""
    rows = [
        (name, measure.name, measure.domain or "all", *_numbers(measure))
        for name, evaluations in report.found.items()
        for evaluation in evaluations
        for measure in evaluation.measures
    ]
    table(["model", "measure", "domain", "value", "95 % interval", "n"], rows, title=report.split)
    for name, evaluations in report.found.items():
        for evaluation in evaluations:
            for note in _notes(evaluation):
                say(f"{name}: {note}", style="yellow")
    for name, paired in report.paired.items():
        show_paired(paired, name)
    if report.together:
        together = [(measure.name, *_numbers(measure)) for measure in report.together]
        table(["against the baseline", "value", "95 % interval", "n"], together)
    for note in report.notes:
        say(note, style="yellow")


def show_paired(paired: Any, name: str = "accuracy") -> None:
    """A paired difference in one line; of losses less is better."""
    test = "" if paired.p_value is None else f", McNemar p = {paired.p_value:.2g}"
    better = paired.significant and (
        paired.difference < 0 if name in ("loss", "bits_per_byte") else paired.difference > 0
    )
    say(
        f"{name} {paired.before:.3f} → {paired.after:.3f} on the same {paired.n:,} items: "
        f"difference {paired.difference:+.3f}, "
        f"95 % interval {paired.low:+.3f} … {paired.high:+.3f} "
        f"(better on {paired.gained:,}, worse on {paired.lost:,}{test})",
        style="bold green" if better else None,
    )


def _notes(evaluation: Any) -> list[str]:
    notes = list(evaluation.notes)
    if unscorable := getattr(evaluation, "unscorable", 0):
        notes.append(f"{unscorable} items could not be scored and count neither way")
    if (cut := getattr(evaluation, "truncated_share", 0.0)) > 0:
        notes.append(f"{cut:.1%} of the completions were cut at --max-tokens")
    return notes


def _numbers(measure: Any) -> tuple[float, str, int]:
    exact = measure.low == measure.high == measure.value
    value = int(measure.value) if measure.name == "tokens" else measure.value
    return value, "" if exact else f"{measure.low:.4g} – {measure.high:.4g}", measure.n


def _write_scores(path: Path, model: str, reports: Sequence[Any]) -> None:
    """The items of one model over all splits, as `lpt.eval/1` has them."""
    found = [one for report in reports for one in report.found[model] if hasattr(one, "items")]
    items = [item for one in found for item in one.to_json()["items"] if "score" in item]
    if not items:
        raise UsageError(
            "nothing that was measured has scores by item", seen=", ".join(report.split for report in reports),
            next="--admitted of an rlvr split, or --match words on an sft one",
        )  # fmt: skip
    write_scores(path, {"model": model, "splits": [report.split for report in reports]}, items)


def _body(report: Any) -> dict[str, Any]:
    body: dict[str, Any] = {"split": report.split, "models": {}}
    for name, evaluations in report.found.items():
        merged: dict[str, Any] = {"measures": [], "objects": []}
        for evaluation in evaluations:
            found = evaluation.to_json()
            del found["items"]
            merged["measures"] += found.pop("measures")
            merged["objects"].append(evaluation.object_id)
            merged |= found | {"notes": [*merged.get("notes", ()), *evaluation.notes]}
        body["models"][name] = merged
    if report.paired:
        body["paired"] = {name: found.to_json() for name, found in report.paired.items()}
        body["together"] = [measure.to_json() for measure in report.together]
        body["notes"] = report.notes
    return body
