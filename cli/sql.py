"""``lpt sql``: read-only SQL over the catalog."""

from __future__ import annotations

import sys
from typing import Annotated, Literal

import orjson
import typer

from cli.options import CatalogDir, Json, examples
from cli.output import as_json, clean, data, say, table

EXAMPLES = examples(
    'lpt sql "select stage, rows_in, rows_out from v_stage"',
    'lpt sql "select reason, count(*) n from v_decision group by reason order by n desc" --format md',
    "lpt sql @removed --format csv > removed.csv",
    "lpt sql @compare   # runs beside each other: settings, losses",
    'lpt sql "describe v_decision"',
    "cat query.sql | lpt sql -",
)

Format = Literal["table", "csv", "json", "md"]


def sql(
    query: Annotated[
        str,
        typer.Argument(help="One SELECT, `@name` of a canned query, or - to read it from stdin.", show_default=False),
    ] = "@help",
    format: Annotated[Format, typer.Option(help="table, csv, json or md.")] = "table",
    limit: Annotated[int | None, typer.Option(min=1, help="Rows to print at most.", show_default=False)] = None,
    catalog: CatalogDir = None,
    json: Json = False,
) -> None:
    """Ask the catalog in SQL. Read-only: SELECT statements alone, and no file outside the catalog's folder.

    Without a query it lists the canned ones. Views: v_manifest, v_split, v_check, v_stage, v_decision, v_run, v_metric,
    v_quarantine, v_checkpoint, v_eval, v_measure, v_comparison, v_matrix, v_rollout, v_artifact, v_gate, v_waiver,
    v_lineage; "describe v_run" shows the columns of one.
    """
    from manifests.catalog import Catalog
    from manifests.sql import CANNED
    from manifests.sql import query as ask

    if query == "@help":
        table(["canned query", "SQL"], [("@" + name, text.strip()) for name, text in CANNED.items()])
        return
    text = sys.stdin.read() if query == "-" else query
    result = ask(Catalog.open(catalog, create=False), text, limit=limit)
    for note in result.notes:
        say(note, style="yellow")
    show(result.columns, result.rows, "json" if json else format)
    if result.truncated:
        say(f"more rows match; {len(result.rows):,} are shown, --limit N shows others", style="yellow")


def show(columns: list[str], rows: list[tuple], format: Format) -> None:
    """Print a result in one of the four formats."""
    if format == "table":
        # Numbers as they are: a row number copied from here has to fit `lpt why STAGE:ROW`.
        plain = [[str(cell) if isinstance(cell, int) else _cell(cell) for cell in row] for row in rows]
        table(columns, plain, to_stdout=True)
    elif format == "json":
        as_json({"columns": columns, "rows": [dict(zip(columns, row, strict=True)) for row in rows]})
    elif format == "csv":
        import csv
        import io

        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(["" if value is None else _cell(value) for value in row] for row in rows)
        data(buffer.getvalue().rstrip("\n"))
    else:
        cells = [[_md(value) for value in row] for row in rows]
        lines = ["| " + " | ".join(map(_md, columns)) + " |", "|" + " --- |" * len(columns)]
        data("\n".join(lines + ["| " + " | ".join(row) + " |" for row in cells]))


def _cell(value: object) -> object:
    """A list or a struct as JSON text; other values as they are."""
    return orjson.dumps(value, default=str).decode() if isinstance(value, (list, tuple, dict)) else value


def _md(value: object) -> str:
    text = "" if value is None else clean(str(_cell(value))).replace("\t", " ")
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")
