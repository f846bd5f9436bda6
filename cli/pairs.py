"""``lpt data pairs``: preference pairs in splits that share no prompt, and pairs out of scored responses."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from cli.data import next_admit, show_report, train_first
from cli.options import Against, CatalogDir, Inputs, Json, Layout, examples
from cli.output import Progress_, as_json, disjoint, say, table, tell_head, tell_notes

EXAMPLES = examples(
    "lpt data pairs prefs.jsonl --calibration 0.1 --hidden-test 0.1 --seed 1 --out pairs/",
    "lpt data pairs hh.jsonl.gz --group conversation_id --hidden-test 500 --against sft.jsonl --out pairs/",
    "lpt data pairs solutions.jsonl --responses small,large --correct is_correct --hidden-test 0.2 --out pairs/",
)


def pairs(
    inputs: Inputs,
    out: Annotated[Path, typer.Option("--out", help="Folder for train, calibration, hidden_test.", show_default=False)],
    calibration: Annotated[
        float,
        typer.Option("--calibration", "--validation", min=0, help="Groups held out: a count, or a share below 1."),
    ] = 0,
    hidden_test: Annotated[
        float, typer.Option("--hidden-test", "--test", min=0, help="Groups of the hidden test, likewise.")
    ] = 0,
    key: Annotated[
        str, typer.Option(help="Which prompts are equal: text, math, code, countdown, or a column.")
    ] = "math",
    group: Annotated[
        list[str] | None, typer.Option(help="Column whose equal values keep rows together; repeatable.")
    ] = None,
    near: Annotated[float, typer.Option(min=0, max=1, help="Similarity that joins two prompts; 0: none.")] = 0.8,
    seed: Annotated[int, typer.Option(help="Salt of the hash that assigns groups (and draws one pair).")] = 0,
    against: Against = None,
    responses: Annotated[
        str | None,
        typer.Option(help="Make the pairs: columns of scored responses, with a comma between.", show_default=False),
    ] = None,
    correct: Annotated[str, typer.Option(help="Field of a response: true or false, or a score.")] = "is_correct",
    response_text: Annotated[
        str | None, typer.Option(help="Field of a response that holds its text. Default: by name.", show_default=False)
    ] = None,
    prompt: Annotated[
        str | None, typer.Option(help="Column of the prompt, with --responses. Default: by name.", show_default=False)
    ] = None,
    per_prompt: Annotated[Literal["all", "one"], typer.Option(help="Pairs made of each prompt.")] = "all",
    layout: Layout = None,
    catalog: CatalogDir = None,
    json: Json = False,
) -> None:
    """Split preference pairs by groups of connected prompts; with --responses, make the pairs first."""
    from lpt_data.config import PairsConfig
    from lpt_data.dataset import Dataset
    from lpt_data.pairs import split_pairs
    from lpt_data.split import count_or_share
    from manifests.catalog import Catalog

    sizes = count_or_share(calibration), count_or_share(hidden_test)
    opened, progress = Catalog.open(catalog), Progress_()
    reports = []
    if responses is not None:
        built = build_pairs(inputs, out, responses, correct, response_text, prompt, per_prompt, seed, layout, opened)
        reports.append(built)
        inputs, layout = [built.extra["pairs_file"]], None
    if responses is None or calibration or hidden_test:
        config = PairsConfig(
            key=key, group=tuple(group or ()), near=near, calibration=sizes[0], hidden_test=sizes[1], seed=seed
        )
        dataset = Dataset.open(inputs, kind="preference", layout=layout)
        reports.append(split_pairs(dataset, config, out=out, catalog=opened, against=against or (), progress=progress))
    progress.close()
    tell_notes(opened)
    bodies = [report.to_json() for report in reports]
    if json:
        as_json({**bodies[-1], "stages": bodies} if len(bodies) > 1 else bodies[0])
    else:
        for report in reports:
            show_report(report)
            show_pairs(report.extra)
        if "splits" in reports[-1].extra:
            other = None if key == "math" else key
            say(next_admit(out, reports[-1].extra["splits"], "preference", key=other, catalog=catalog))
    tell_head(opened)


def build_pairs(
    inputs: list[str],
    out: Path,
    columns: str,
    correct: str,
    text: str | None,
    prompt: str | None,
    per_prompt: Literal["all", "one"],
    seed: int,
    layout: str | None,
    catalog: Any,
) -> Any:
    """Make pairs out of scored responses; returns the report of that stage."""
    from lpt_data.config import ResponsesConfig
    from lpt_data.scored_responses import build, open_responses

    names = tuple(name.strip() for name in columns.split(",") if name.strip())
    dataset = open_responses(inputs, prompt, layout)
    config = ResponsesConfig(
        prompt=dataset.text_column, responses=names, correct=correct, text=text, per_prompt=per_prompt, seed=seed
    )
    return build(dataset, config, out=out, catalog=catalog)


def show_pairs(extra: dict[str, Any]) -> None:
    """Who won over whom, or what each split holds with the proof that they share nothing."""
    if "wins" in extra:
        columns = sorted({*extra["wins"], *(name for over in extra["wins"].values() for name in over)})
        say(f"{extra['pairs']:,} pairs in {extra['pairs_file']}")
        rows = [(name, *(extra["wins"].get(name, {}).get(other, 0) for other in columns)) for name in columns]
        table(["chosen over", *columns], rows)
        return
    splits = [(name, extra["splits"][name]) for name in train_first(extra["splits"])]
    table(["split", "pairs", "groups", "keys"], [(n, s["rows"], s["groups"], s["keys"]) for n, s in splits])
    say(f"pairs are kept together by {', '.join(extra['joined_by'])}; largest group {extra['largest_group']:,} rows")
    disjoint((pair["a"], pair["b"], pair["by"], pair["intersection"]) for pair in extra["disjoint"])
