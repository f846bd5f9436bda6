"""``lpt catalog``: the index over the files that are the truth."""

from __future__ import annotations

import typer

from cli.groups import Group
from cli.options import CatalogDir, Json, examples
from cli.output import as_json, say, tell_notes

app = typer.Typer(
    cls=Group, help="The index over manifests, stages and runs.", no_args_is_help=True, rich_markup_mode=None
)


@app.command("rebuild", epilog=examples("lpt catalog rebuild", "lpt catalog rebuild --catalog /data/.lpt"))
def rebuild(catalog: CatalogDir = None, json: Json = False) -> None:
    """Make catalog.duckdb again from the objects and the event log, which are checked on the way.

    Objects that are gone or were edited are named and left out; then the exit code is 5, and the others can be asked.
    """
    from manifests.catalog import Catalog

    opened = Catalog.open(catalog, create=False)
    objects = opened.rebuild()
    lost = opened.unreadable()
    tell_notes(opened)
    if json:
        body = {"catalog": str(opened.directory), "objects": objects, "head": opened.head, "notes": opened.notes}
        as_json({**body, "unreadable": lost})
    else:
        say(f"rebuilt {opened.directory}: {objects:,} objects, event log whole, head {opened.head}")
    if lost:
        say(
            f"{len(lost)} of the objects are gone or not as they were written; the index is made without them. Copy "
            f"them back into {opened.directory / 'objects'} and run lpt catalog rebuild again",
            style="red",
        )
        raise typer.Exit(5)
