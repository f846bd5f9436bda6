"""``lpt data generate``: data made by rule, to try everything on before one's own data is at hand."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.groups import Group
from cli.options import examples
from cli.output import say

app = typer.Typer(cls=Group, help="Data made by rule, to try things on.", no_args_is_help=True, rich_markup_mode=None)

Out = Annotated[Path, typer.Option("--out", help="JSONL file to write.", show_default=False)]


@app.command(
    "countdown",
    epilog=examples("lpt data generate countdown --n 2000 --numbers 2 --high 60 --out problems.jsonl"),
)
def countdown(
    out: Out,
    n: Annotated[int, typer.Option(min=1, help="Problems.")] = 1000,
    numbers: Annotated[int, typer.Option(min=2, max=6, help="Numbers in a problem.")] = 3,
    low: Annotated[int, typer.Option(min=1, help="Smallest number.")] = 1,
    high: Annotated[int, typer.Option(min=2, help="Largest number.")] = 99,
    seed: Annotated[int, typer.Option(help="Seed.")] = 0,
) -> None:
    """Countdown problems that have a solution: {nums, target, solution}, no problem twice."""
    from lpt_data.generate.countdown import problems
    from lpt_data.write import write_jsonl

    rows = write_jsonl(out, problems(n, numbers=numbers, seed=seed, low=low, high=high))
    say(f"{rows:,} problems in {out}")


@app.command("package-docs", epilog=examples("lpt data generate package-docs --out corpus.jsonl --max-bytes 20000000"))
def package_docs(
    out: Out,
    max_bytes: Annotated[int | None, typer.Option(min=1, help="Bytes of text at most.", show_default=False)] = None,
) -> None:
    """The documentation and licences of the installed packages: real text with real near-duplicates, no download."""
    from lpt_data.generate.package_docs import documents
    from lpt_data.write import write_jsonl

    rows = write_jsonl(out, documents(max_bytes=max_bytes))
    say(f"{rows:,} documents in {out}")
