"""The views that read Parquet files beside the catalog: `v_decision` and `v_rollout`.

They are made over the files that are there when a question is asked; one that is missing, damaged or a link out of the
catalog becomes a note, and the rest answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from manifests import decisions, rollouts, views
from manifests.catalog import Catalog
from manifests.errors import BadInputError, LptError


def folders(catalog: Catalog) -> list[Path]:
    """The folders whose files SQL may read."""
    return [(catalog.directory / part).resolve() for part in ("decisions", "rollouts")]


def make(connection: duckdb.DuckDBPyConnection, catalog: Catalog, notes: list[str], text: str) -> None:
    """Make both views; the files of one that the text does not name are not looked for."""
    asked = text.lower()
    found: list[Path] = []
    if "decision" in asked:
        recorded = "SELECT DISTINCT stage_id, decisions FROM v_stage WHERE decisions IS NOT NULL"
        named = {str(stage): str(written) for stage, written in connection.execute(recorded).fetchall()}
        found = _readable(named, catalog.decisions_path, decisions.SCHEMA, "decisions of stage", notes)
    stages = "(SELECT stage_id, any_value(stage) AS stage FROM v_stage GROUP BY stage_id) s"
    parts = ", ".join(f"d.{name}" for name in decisions.SCHEMA.names)
    join = f"LEFT JOIN {stages} ON s.stage_id = parse_filename(d.filename, true)"
    select = f"parse_filename(d.filename, true) AS stage_id, s.stage, {parts}"
    _create(connection, "v_decision", views.DECISION_COLUMNS, found, select, join)
    found = []
    if "rollout" in asked:
        recorded = """
            SELECT head->>'$.run_id' AS run, any_value(head->>'$.rollouts.path') FROM object
            WHERE type LIKE 'lpt.run/%' AND head->>'$.rollouts.path' IS NOT NULL AND run IS NOT NULL GROUP BY run"""
        named = {str(run): str(written) for run, written in connection.execute(recorded).fetchall()}
        found = _readable(named, catalog.rollouts_path, rollouts.SCHEMA, "rollouts of run", notes)
    parts = ", ".join(f"d.{name}" for name in rollouts.SCHEMA.names)
    select = f"parse_filename(d.filename, true) AS run_id, {parts}"
    _create(connection, "v_rollout", views.ROLLOUT_COLUMNS, found, select, "")


def quoted(path: Path) -> str:
    """A path as a string of SQL."""
    return "'" + str(path).replace("'", "''") + "'"


def _create(
    connection: duckdb.DuckDBPyConnection,
    view: str,
    columns: Mapping[str, str],
    found: list[Path],
    select: str,
    join: str,
) -> None:
    """The view over the files, or without rows where there are none."""
    body = f"SELECT {', '.join(f'NULL::{kind} AS {name}' for name, kind in columns.items())} WHERE false"
    if found:
        files = ", ".join(quoted(path) for path in found)
        options = "union_by_name = true, filename = true, hive_partitioning = false"
        body = f"SELECT {select} FROM read_parquet([{files}], {options}) d {join}"
    connection.execute(f"CREATE TEMP VIEW {view} AS {body}")


def _readable(
    named: Mapping[str, str], place: Callable[[str], Path], schema: pa.Schema, what: str, notes: list[str]
) -> list[Path]:
    """The files of the names that can be read; what is wrong with the others goes into the notes."""
    found = []
    for name, written in sorted(named.items()):
        try:
            beside = place(name)
            path = beside.resolve()
            if path.parent != beside.parent.resolve():
                raise BadInputError("the file is a link out of the catalog", seen=str(path))
            missing = set(schema.names) - set(pq.read_schema(path).names)
            if missing:
                raise BadInputError(f"the file has not the columns of {what.split()[0]}", seen=sorted(missing))
            found.append(path)
        except (LptError, OSError, pa.ArrowException) as error:
            reason = str(error).splitlines()[0] if not isinstance(error, FileNotFoundError) else "the file is missing"
            notes.append(f"{what} {name} are not in this answer: {reason} ({written})")
    return found
