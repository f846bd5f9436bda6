"""SQL over the catalog: one SELECT, read-only, no file but decisions and rollouts, bounded memory and time.

The statement's type comes from DuckDB's own parser, not from its first word. File access is switched off but for
the folders of decisions and rollouts, and the configuration is locked before the statement runs. DuckDB checks its
memory limit and an interrupt between the pieces of its work, so a single expression that builds one enormous value can
go past both.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import duckdb

from manifests import index, parquet_views, views
from manifests.catalog import Catalog
from manifests.errors import BadInputError, BusyError, LptError, UsageError

MAX_ROWS = 1_000_000  # of a result: what a process can hold as Python values
MAX_SECONDS = 120.0
_MAX_SPILL = "8GB"
_POLL = 0.02  # seconds

CANNED: dict[str, str] = {
    "lost-rows": """
        SELECT stage, reason, action, count(*) AS rows FROM v_decision
        WHERE action <> 'rewrite' GROUP BY ALL ORDER BY rows DESC""",
    "removed": """
        SELECT stage, stage_id, row, reason, score, witness_row, record_id, witness_id FROM v_decision
        WHERE action = 'remove' ORDER BY score NULLS LAST, stage_id, row LIMIT 100""",
    "funnel": """
        SELECT created, stage, rows_in, removed, quarantined, rows_out, seconds FROM v_stage
        ORDER BY created, rows_in DESC""",
    "manifests": """
        SELECT name, version, contract, verdict, rows, policy, created FROM v_manifest ORDER BY created DESC""",
    "checks": """
        SELECT name, version, check_id, status, value, op, threshold, n, next FROM v_check
        ORDER BY name, version DESC, CASE status WHEN 'fail' THEN 0 WHEN 'error' THEN 1 WHEN 'warn' THEN 2
        WHEN 'skipped' THEN 3 ELSE 4 END, check_id""",
    "not-checked": """
        SELECT name, version, check_id, status, required, detail FROM v_check
        WHERE status IN ('skipped', 'error') OR n = 0 ORDER BY name, version DESC, required DESC, check_id""",
    "runs": """
        SELECT created, run_id, algorithm, split, verified, tainted, verdict, status, steps, seconds, model, folder
        FROM v_run ORDER BY created DESC""",
    "compare": """
        SELECT r.created, regexp_replace(r.metrics_path, '/metrics.jsonl$', '') AS run, r.algorithm, r.split, r.model,
        r.steps, r.seed, r.config->>'$.optim.learning_rate' AS learning_rate, r.config->>'$.beta' AS beta,
        r.config->>'$.lora.lora_r' AS lora_r, max(m.last) FILTER (m.metric = 'loss') AS loss,
        max(m.last) FILTER (m.metric = 'eval_loss') AS eval_loss,
        max(m.last) FILTER (m.metric = 'eval_rewards/accuracies') AS eval_accuracies, r.run_id
        FROM v_run r LEFT JOIN v_metric m USING (run_id) GROUP BY ALL ORDER BY r.created DESC""",
    "metrics": """
        SELECT run_id, algorithm, metric, first, last, last - first AS change FROM v_metric ORDER BY run_id, metric""",
    "untrained": """
        SELECT s.name, s.version, s.split, s.rows, m.verdict FROM v_split s JOIN v_manifest m USING (manifest_id)
        WHERE NOT EXISTS (FROM v_run r WHERE r.manifest_id = s.manifest_id AND ends_with(r.split, ':' || s.split))
        ORDER BY s.name, s.version DESC, s.split""",
    "evals": """
        SELECT created, coalesce(run_id, model) AS model, split, reward, accuracy, low, high, n, temperature, k, tainted
        FROM v_eval ORDER BY created DESC, model""",
    "measures": """
        SELECT created, coalesce(run_id, model) AS model, split, domain, measure, value, low, high, n
        FROM v_measure ORDER BY created DESC, model, domain, measure""",
    "matrices": """
        SELECT name, folder, variant, winner, status, metric, mean, low, high, seeds, difference, inside, passed,
        trainable_parameters, peak_memory_bytes, seconds FROM v_matrix ORDER BY created DESC, winner DESC, mean""",
    "rollouts": """
        SELECT run_id, CASE WHEN worst <= 5 THEN 'worst' ELSE 'best' END AS which, step, reward, advantage, finish,
        tokens, record_id, completion FROM (
          SELECT *, row_number() OVER (PARTITION BY run_id ORDER BY reward, step DESC, group_index, sample) AS worst,
          row_number() OVER (PARTITION BY run_id ORDER BY reward DESC, step DESC, group_index, sample) AS best
          FROM v_rollout WHERE reward IS NOT NULL)
        WHERE worst <= 5 OR best <= 5 ORDER BY run_id, which DESC, least(worst, best)""",
    "tainted": """
        SELECT run_id, split, verified, verdict, checkpoint FROM v_run
        WHERE tainted OR verified <> 'admitted' OR verdict = 'reject' ORDER BY created DESC""",
    "lineage": """
        SELECT DISTINCT child_type, child_label, parent_type, coalesce(parent_label, parent) AS parent FROM v_lineage
        ORDER BY child_type, child_label, parent""",
}


@dataclass(frozen=True)
class Result:
    """What a query returned. `truncated` says that there were more rows; `notes` what the reader should know."""

    columns: list[str]
    types: list[str]
    rows: list[tuple[Any, ...]]
    truncated: bool = False
    notes: list[str] = field(default_factory=list)


def query(
    catalog: Catalog, sql: str, *, limit: int | None = None, seconds: float = MAX_SECONDS, wait: float = 5.0
) -> Result:
    """Run one SELECT, or `@name` of CANNED, and return at most `limit` rows (MAX_ROWS by default).

    The index is brought up to the log first. Raises UsageError for anything but one valid SELECT and for a query that
    reaches for files or takes longer than `seconds`, BusyError after `wait` seconds when another process writes.
    """
    sql = _canned(sql)
    text = _one_select(sql)
    most = min(limit, MAX_ROWS) if limit is not None else MAX_ROWS
    notes: list[str] = []
    with tempfile.TemporaryDirectory(prefix="lpt-sql-") as temp, _opened(catalog, temp, wait, notes) as connection:
        parquet_views.make(connection, catalog, notes, text)
        _lock_down(connection, catalog)
        with _time_limit(connection, seconds) as expired:
            try:
                columns, rows = _answer(connection, text, most + 1)
            except duckdb.Error as error:
                raise _explain(error, seconds if expired.is_set() else None) from error
            except OverflowError as error:  # DuckDB's intervals and times go further than Python's
                raise UsageError(
                    "the SQL gives a value that Python cannot hold", seen=str(error), next="cast it to VARCHAR"
                ) from error
    notes += [note for note in catalog.notes if note not in notes]
    return Result([c[0] for c in columns], [c[1] for c in columns], rows[:most], len(rows) > most, notes)


def _answer(
    connection: duckdb.DuckDBPyConnection, text: str, most: int
) -> tuple[list[tuple[str, str]], list[tuple[Any, ...]]]:
    """Return the columns and at most so many rows. DuckDB works in a thread of its own: the main one hears Ctrl-C."""

    def run() -> tuple[list[tuple[str, str]], list[tuple[Any, ...]]]:
        cursor = connection.execute(text)
        return [(str(name), str(kind)) for name, kind, *_ in cursor.description or []], cursor.fetchmany(most)

    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(run)
        try:
            return answer.result()
        except KeyboardInterrupt:
            while not answer.done():
                connection.interrupt()
                time.sleep(_POLL)
            raise


def _canned(sql: str) -> str:
    name = sql.strip().removeprefix("@")
    if not sql.strip().startswith("@"):
        return sql
    if name not in CANNED:
        raise UsageError("no canned query of that name", seen=f"@{name}", next=", ".join(f"@{n}" for n in CANNED))
    return CANNED[name]


def _one_select(sql: str) -> str:
    """Return the text of the one statement, which DuckDB's parser must call a SELECT."""
    try:
        statements = duckdb.extract_statements(sql)
    except duckdb.Error as error:
        raise _explain(error, None) from error
    if len(statements) != 1:
        raise UsageError(
            "lpt sql takes exactly one statement",
            seen=f"{len(statements)} statements",
            next='lpt sql "SELECT * FROM v_stage"',
        )
    if statements[0].type != duckdb.StatementType.SELECT:
        raise UsageError(
            "lpt sql only reads: SELECT statements alone",
            seen=f"a {statements[0].type.name} statement",
            next="ask with SELECT; the files in the catalog's folder are changed by lpt's own commands",
        )
    return statements[0].query


@contextmanager
def _opened(catalog: Catalog, temp: str, wait: float, notes: list[str]) -> Iterator[duckdb.DuckDBPyConnection]:
    connection = _current(catalog, temp, wait, notes)
    try:
        yield connection
    finally:
        with suppress(duckdb.Error):
            connection.close()


def _current(catalog: Catalog, temp: str, wait: float, notes: list[str]) -> duckdb.DuckDBPyConnection:
    """Open an index that has all of the log; where the folder cannot be written, make one in memory."""
    stale = False
    if catalog.index_path.exists():
        with suppress(index.BrokenIndexError):
            connection = index.connect(catalog.index_path, read_only=True, wait=wait, temp=temp)
            if not index.behind(connection, catalog):
                return connection
            connection.close()
            stale = True
    try:
        index.ingest(catalog, wait=wait)
    except BusyError:
        if not stale:
            raise
        notes.append("the index is in use by others, so the newest records are missing from this answer")
    except BadInputError as error:
        notes.append(f"the index was made in memory: {error.what} ({error.seen})")
        return _in_memory(catalog, temp)
    return index.connect(catalog.index_path, read_only=True, wait=wait, temp=temp)


def _in_memory(catalog: Catalog, temp: str) -> duckdb.DuckDBPyConnection:
    connection = index.connect(":memory:", read_only=False, temp=temp)
    try:
        index.fill(connection, catalog)
    except (duckdb.Error, LptError):
        connection.close()
        raise
    return connection


def _lock_down(connection: duckdb.DuckDBPyConnection, catalog: Catalog) -> None:
    folders = ", ".join(parquet_views.quoted(folder) for folder in parquet_views.folders(catalog))
    connection.execute(f"SET max_temp_directory_size = '{_MAX_SPILL}'")
    connection.execute(f"SET allowed_directories = [{folders}]")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")


@contextmanager
def _time_limit(connection: duckdb.DuckDBPyConnection, seconds: float) -> Iterator[threading.Event]:
    expired = threading.Event()

    def stop() -> None:
        expired.set()
        connection.interrupt()

    timer = threading.Timer(seconds, stop)
    timer.daemon = True
    timer.start()
    try:
        yield expired
    finally:
        timer.cancel()


def _explain(error: duckdb.Error, seconds: float | None) -> LptError:
    if any(sign in str(error) for sign in ("catalog.duckdb", "Corrupt database")):
        return BadInputError(
            "the catalog's index is damaged", seen=str(error).splitlines()[0], next="lpt catalog rebuild"
        )
    if seconds is not None:
        return UsageError(
            f"the query took longer than {seconds:g} s and was stopped",
            seen=str(error).splitlines()[0],
            next="ask for less: add a WHERE, or name one stage",
        )
    if isinstance(error, duckdb.PermissionException):
        return UsageError(
            "SQL reaches no file but the decisions and rollouts of this catalog",
            seen=str(error).splitlines()[0],
            next="use the views: " + ", ".join(views.NAMES),
        )
    if isinstance(error, duckdb.OutOfMemoryException):
        return UsageError(
            f"the query needs more than {index.MEMORY_LIMIT} of memory and {_MAX_SPILL} of disk",
            seen=str(error).splitlines()[0],
            next="aggregate, or add a LIMIT or a WHERE",
        )
    return UsageError(
        "the SQL cannot be run",
        seen=str(error).strip(),
        next="views: " + ", ".join(views.NAMES) + "; DESCRIBE v_stage shows columns",
    )
