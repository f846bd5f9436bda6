"""``lpt data benchmarks``: benchmarks under a name, pinned to their items."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.groups import Group
from cli.options import CatalogDir, Json, examples
from cli.output import as_json, say, table
from manifests.errors import RefusedError

app = typer.Typer(
    cls=Group,
    help="Benchmarks by name: what is known, what was added to the catalog, whether it is what it was.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command("list", epilog=examples("lpt data benchmarks list"))
def list_benchmarks(catalog: CatalogDir = None, json: Json = False) -> None:
    """The benchmarks that have a name here, and those that were added."""
    from dataclasses import asdict

    from lpt_data.benchmarks import KNOWN, stored
    from manifests.catalog import Catalog

    there = stored(Catalog.open(catalog))
    names = [*KNOWN, *(name for name in there if name not in KNOWN)]
    told = [
        {
            "name": name,
            "known": asdict(KNOWN[name]) if name in KNOWN else None,
            "added": there[name].to_json() if name in there else None,
        }
        for name in names
    ]
    if json:
        as_json({"benchmarks": told})
        return
    rows = []
    for name in names:
        known, here = KNOWN.get(name), there.get(name)
        layout = known.layout if known else there[name].layout
        columns = known.columns if known else ""
        rows.append((name, layout, columns, known.items if known else None, here.items if here else "not added"))
    table(["benchmark", "layout", "question / answer", "items published", "items here"], rows, to_stdout=True)


@app.command("show", epilog=examples("lpt data benchmarks show gsm8k"))
def show(
    name: Annotated[str, typer.Argument(help="Name of a benchmark that was added.")],
    catalog: CatalogDir = None,
    json: Json = False,
) -> None:
    """Where the items of a benchmark came from, and what pins them."""
    from lpt_data.benchmarks import added
    from manifests.catalog import Catalog

    found = added(name, Catalog.open(catalog))
    if json:
        as_json(found.to_json())
        return
    body = found.to_json() | {"sources": "; ".join(f"{s['path']} {s['sha256'][:16]}…" for s in found.sources)}
    table(["", name], list(body.items()), to_stdout=True)


@app.command(
    "add",
    epilog=examples(
        "lpt data benchmarks add gsm8k=test.jsonl",
        "lpt data benchmarks add mmlu=data/test/ humaneval=HumanEval.jsonl.gz",
        "lpt data benchmarks add mbpp   # fetched by the package datasets",
        "lpt data decontaminate chats.jsonl --benchmark gsm8k --out clean.jsonl",
    ),
)
def add(
    benchmarks: Annotated[list[str], typer.Argument(help="NAME=PATH, or NAME to fetch it from the Hugging Face hub.")],
    layout: Annotated[
        str | None,
        typer.Option(
            help="gsm8k, humaneval, mbpp, mmlu, math or bbh; found by name, then by columns.", show_default=False
        ),
    ] = None,
    catalog: CatalogDir = None,
    json: Json = False,
) -> None:
    """Copy the items of benchmarks into the catalog; the first time pins them, later ones are compared."""
    from lpt_data.benchmarks.store import add_named
    from manifests.catalog import Catalog

    opened = Catalog.open(catalog)
    made = add_named(benchmarks, opened, layout=layout)
    if json:
        as_json({"benchmarks": [found.to_json() for found in made]})
        return
    for found in made:
        pinned = "as published" if found.pinned else "pinned from now on"
        say(f"{found.name}: {found.items:,} items in the layout {found.layout}, {pinned}  {found.content_root[:16]}…")
        if found.unread:
            say(f"{found.name}: {found.unread:,} rows could not be read", style="yellow")
        if found.expected not in (None, found.items):
            say(f"{found.name}: {found.expected:,} items are published", style="yellow")


@app.command("verify", epilog=examples("lpt data benchmarks verify", "lpt data benchmarks verify gsm8k"))
def verify(
    names: Annotated[list[str] | None, typer.Argument(help="Benchmarks; all that were added when left out.")] = None,
    catalog: CatalogDir = None,
    json: Json = False,
) -> None:
    """Read the copies again: are they the items that were added, and those that were published? Exit 4 where not."""
    from lpt_data.benchmarks import added, stored
    from lpt_data.benchmarks import verify as look
    from manifests.catalog import Catalog

    opened = Catalog.open(catalog)
    chosen = [added(name, opened) for name in names] if names else list(stored(opened).values())
    problems = {found.name: look(found, opened) for found in chosen}
    ok = not any(problems.values())
    if json:
        as_json({"ok": ok, "benchmarks": [{"name": name, "problems": told} for name, told in problems.items()]})
    for name, told in problems.items():
        say(f"{name}: {'; '.join(told) if told else 'as it was added'}", style="bold red" if told else None)
    if not chosen:
        say("no benchmark was added: lpt data benchmarks add NAME=PATH")
    if not ok:
        raise typer.Exit(RefusedError.exit_code)
