"""``lpt catalog``: the index over the files that are the truth."""

from __future__ import annotations

import typer

from cli.options import CatalogDir, Json, examples
from cli.output import as_json, say, tell_notes

app = typer.Typer(help="The index over manifests, stages and runs.", no_args_is_help=True, rich_markup_mode=None)


@app.command("rebuild", epilog=examples("lpt catalog rebuild", "lpt catalog rebuild --catalog /data/.lpt"))
def rebuild(catalog: CatalogDir = None, json: Json = False) -> None:
    """Make catalog.duckdb again from the objects and the event log, which are checked on the way."""
    from manifests.catalog import Catalog

    opened = Catalog.open(catalog, create=False)
    opened.verify_chain()
    objects = opened.rebuild()
    tell_notes(opened)
    if json:
        body = {"catalog": str(opened.directory), "objects": objects, "head": opened.head, "notes": opened.notes}
        as_json(body)
    else:
        say(f"rebuilt {opened.directory}: {objects:,} objects, event log whole, head {opened.head}")
