"""The DuckDB index of a catalog: tables and views made from the log and the objects, never a truth of its own.

DuckDB lets one process write and then nobody else even read, so it is opened late, used in one transaction and
closed at once. A file or a write-ahead log that cannot be read is moved to `quarantine/` and made again.
`locks/index.lock` serialises our own writers, so that two of them never judge or replace the file at once.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import orjson
import pyarrow as pa

from manifests import views
from manifests.errors import BadInputError, BusyError, LptError
from manifests.events import GENESIS, Event
from manifests.files import cannot_write, exclusive_lock, fsync_file, fsync_folder, make_folder

if TYPE_CHECKING:
    from manifests.catalog import Catalog

MEMORY_LIMIT = "512MB"
THREADS = 2
_POLL = 0.05  # seconds between two tries for the file
_CHUNK = 500  # events in one transaction: their bodies are in memory meanwhile
_LOCKED = re.compile(
    r"Could not set lock on file.*?Conflicting lock is held in (?P<command>.*?) \(PID (?P<pid>\d+)\)", re.S
)
_SAME_PROCESS = "with a different configuration"
_DISK = ("No space left", "Permission denied", "Read-only file system", "Disk quota", "File too large")


class BrokenIndexError(BadInputError):
    """The index file cannot be read; it is quarantined and made again, so users see this only when that fails, too."""


def connect(path: Path | str, *, read_only: bool, wait: float = 5.0, temp: str = "") -> duckdb.DuckDBPyConnection:
    """Open a DuckDB file with bounded memory; wait for its holder, then raise BusyError naming it.

    `temp` is the folder for what does not fit in memory; empty means none, then such a query fails instead of spilling.
    """
    config: dict[str, str | bool | int | float | list[str]] = {
        "memory_limit": MEMORY_LIMIT,
        "threads": str(THREADS),
        "temp_directory": temp,
        "python_enable_replacements": "false",
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
    }
    if os.path.exists(path) and not os.path.isfile(path):  # opening a pipe would wait for ever
        raise BrokenIndexError("the catalog's index is no file", seen=str(path), next="lpt catalog rebuild")
    deadline = time.monotonic() + wait
    while True:
        try:
            return duckdb.connect(str(path), read_only=read_only, config=config)
        except duckdb.Error as error:
            text = str(error)
            held = _LOCKED.search(text)
            if not held and _SAME_PROCESS not in text:
                raise _translate(error, path) from error
            if time.monotonic() >= deadline:
                raise BusyError(
                    "the catalog's index is in use by another process",
                    seen=f"{_holder(held)} holds {path}",
                    next=f"close it or wait for it, then run the same command again (waited {wait:g} s)",
                ) from None
            time.sleep(_POLL)


@contextlib.contextmanager
def opened(catalog: Catalog, *, wait: float, read_only: bool) -> Iterator[duckdb.DuckDBPyConnection | None]:
    """Yield a connection to the index and close it; None when the file is broken."""
    try:
        connection = connect(catalog.index_path, read_only=read_only, wait=wait)
    except BrokenIndexError:
        yield None
        return
    try:
        yield connection
    finally:
        connection.close()


def ingest(catalog: Catalog, *, wait: float) -> int:
    """Add what the log has and the index has not; return how many events were added.

    A missing, broken or outdated index is made again. Raises BusyError, or BadInputError when the folder cannot be
    written.
    """
    with _writing(catalog, wait):
        path = catalog.index_path
        if not path.exists():
            return _rebuild(catalog, wait)
        try:
            connection = connect(path, read_only=False, wait=wait)
        except BrokenIndexError as error:
            return _replace_broken(catalog, wait, error)
        try:
            start = _position(connection, catalog)
            added = _add(connection, catalog, start) if start is not None else None
        except duckdb.Error as error:
            translated = _translate(error, path)
            if not isinstance(translated, BrokenIndexError):
                raise translated from error
            _close(connection)
            return _replace_broken(catalog, wait, translated)
        finally:
            _close(connection)
        return _rebuild(catalog, wait) if added is None else added


def rebuild(catalog: Catalog, *, wait: float) -> int:
    """Make the index from the files alone, beside the old one, and put it in its place; return the number of events."""
    with _writing(catalog, wait):
        try:
            if catalog.index_path.exists():
                connect(catalog.index_path, read_only=False, wait=wait).close()  # refuses while somebody holds it
        except BrokenIndexError as error:
            return _replace_broken(catalog, wait, error)
        return _rebuild(catalog, wait)


def behind(connection: duckdb.DuckDBPyConnection, catalog: Catalog) -> bool:
    """Whether the log has events that an open index lacks, or is not the log that the index was made from."""
    try:
        meta = _meta(connection)
    except duckdb.Error:
        return True
    return meta.get("schema") != views.VERSION or meta.get("hash") != catalog.head


def fill(connection: duckdb.DuckDBPyConnection, catalog: Catalog) -> int:
    """Make the tables and views in an empty database and load the whole log; return the number of events."""
    connection.execute("BEGIN")
    connection.execute(views.TABLES)
    for name, sql in views.STORED.items():
        connection.execute(f"CREATE VIEW {name} AS {sql}")
    connection.execute("INSERT INTO meta VALUES ('schema', ?)", [views.VERSION])
    connection.execute("COMMIT")
    return _add(connection, catalog, {})


def _rebuild(catalog: Catalog, wait: float) -> int:
    path = catalog.index_path
    for stale in path.parent.glob(".catalog-*.duckdb*"):  # of killed rebuilds: we hold the lock, so nobody uses them
        with contextlib.suppress(OSError):
            stale.unlink()
    fresh = path.with_name(f".catalog-{os.getpid()}-{time.time_ns()}.duckdb")
    try:
        connection = connect(fresh, read_only=False, wait=wait)
        try:
            added = fill(connection, catalog)
        finally:
            _close(connection)
        fsync_file(fresh)
        if _wal(path).exists():
            _set_aside(catalog, [_wal(path)])  # it belongs to the old file and would be replayed into the new one
        os.replace(fresh, path)
        fsync_folder(path.parent)
        return added
    except duckdb.Error as error:
        raise _translate(error, path) from error
    except OSError as error:
        raise cannot_write(path, error) from error
    finally:
        for leftover in (fresh, _wal(fresh)):
            with contextlib.suppress(OSError):
                leftover.unlink()


def _replace_broken(catalog: Catalog, wait: float, error: LptError) -> int:
    path = catalog.index_path
    folder = _set_aside(catalog, [p for p in (path, _wal(path)) if p.exists()])
    catalog.notes.append(f"the index could not be read ({error.seen}); it was moved to {folder} and made again")
    return _rebuild(catalog, wait)


def _set_aside(catalog: Catalog, paths: list[Path]) -> Path:
    folder = make_folder(catalog.directory / "quarantine" / str(time.time_ns()))
    for path in paths:
        try:
            os.replace(path, folder / path.name)
        except OSError as error:
            raise cannot_write(path, error) from error
    return folder


def _position(connection: duckdb.DuckDBPyConnection, catalog: Catalog) -> dict[str, str] | None:
    """Where the index stopped reading the log; None when it was made by other code or from another log."""
    try:
        meta = _meta(connection)
    except duckdb.CatalogException:
        return None  # a database, but not ours
    if meta.get("schema") != views.VERSION:
        return None
    end, seen = int(meta.get("end", "0")), meta.get("hash", GENESIS)
    if end == 0:
        return meta
    before = int(meta.get("start", "0"))
    try:
        last = next(catalog.events.read(before), None)
    except BadInputError:  # the middle of a line of another log
        return None
    return meta if last is not None and (last.hash, last.end) == (seen, end) else None


def _add(connection: duckdb.DuckDBPyConnection, catalog: Catalog, meta: dict[str, str]) -> int:
    """Add the events behind the place that `meta` gives, some at a time: each transaction also moves the place on."""
    place, added = int(meta.get("end", "0")), 0
    while events := list(itertools.islice(catalog.events.read(place), _CHUNK)):
        connection.execute("BEGIN")
        _insert(connection, catalog, events, place)
        connection.execute("COMMIT")
        place, added = events[-1].end, added + len(events)
    return added


def _insert(connection: duckdb.DuckDBPyConnection, catalog: Catalog, events: list[Event], start: int) -> None:
    """Insert events and their objects, and remember where the last line starts and ends."""
    bodies = [(event, body) for event in events if (body := _body(catalog, event)) is not None]
    _load(
        connection,
        "INSERT INTO event SELECT seq, TRY_CAST(recorded AS TIMESTAMP), type, object, hash, prev FROM fresh",
        ("seq", "recorded", "type", "object", "hash", "prev"),
        [(e.seq, e.at.removesuffix("Z"), e.type, e.object, e.hash, e.prev) for e in events],
    )
    _load(
        connection,
        "INSERT INTO object SELECT id, type, seq, head::JSON, body::JSON FROM fresh",
        ("id", "type", "seq", "head", "body"),
        [(e.object, e.type, e.seq, _json(_head(body)), _json(body)) for e, body in bodies],
    )
    _load(
        connection,
        "INSERT INTO item SELECT object, part, position, key, value::JSON FROM fresh",
        ("object", "part", "position", "key", "value"),
        [row for event, body in bodies for row in _items(event.object, body)],
    )
    before = events[-2].end if len(events) > 1 else start
    connection.execute("DELETE FROM meta WHERE key IN ('start', 'end', 'hash')")
    connection.execute(
        "INSERT INTO meta VALUES ('start', ?), ('end', ?), ('hash', ?)",
        [str(before), str(events[-1].end), events[-1].hash],
    )


def _load(connection: duckdb.DuckDBPyConnection, sql: str, names: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
    if not rows:
        return
    schema = pa.schema([(n, pa.int64() if n in ("seq", "position") else pa.large_string()) for n in names])
    arrays = [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), schema, strict=True)]
    connection.register("fresh", pa.Table.from_arrays(arrays, schema=schema))
    connection.execute(sql)
    connection.unregister("fresh")


def _head(body: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name not in views.HEAVY}


def _items(object_id: str, body: dict[str, Any]) -> Iterator[tuple[str, str, int, str | None, str]]:
    """Yield one row for each entry of the lists and maps that views show, whatever shape a body has."""
    for part in views.ITEMS:
        for position, (key, value) in enumerate(_entries(body.get(part))):
            yield object_id, part, position, key, _json(value)
            if part == "splits" and isinstance(value, dict):
                for place, (_, file) in enumerate(_entries(value.get("files"))):
                    yield object_id, "files", place, key, _json(file)


def _entries(value: Any) -> list[tuple[str | None, Any]]:
    if isinstance(value, dict):
        return list(value.items())
    return [(None, item) for item in value] if isinstance(value, list) else []


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()


def _body(catalog: Catalog, event: Event) -> dict[str, Any] | None:
    try:
        return catalog.objects.read(event.object)
    except LptError as error:
        catalog.notes.append(f"object {event.object[:16]} ({event.type}) is not in the index: {error.what}")
        return None


def _meta(connection: duckdb.DuckDBPyConnection) -> dict[str, str]:
    return dict(connection.execute("SELECT key, value FROM meta").fetchall())


@contextlib.contextmanager
def _writing(catalog: Catalog, wait: float) -> Iterator[None]:
    make_folder(catalog.directory / "locks")
    with exclusive_lock(catalog.directory / "locks" / "index.lock", wait=wait, what="the catalog's index"):
        yield


def _close(connection: duckdb.DuckDBPyConnection) -> None:
    with contextlib.suppress(duckdb.Error):  # a failed transaction is rolled back by closing; nothing more can be done
        connection.close()


def _wal(path: Path) -> Path:
    return path.with_name(path.name + ".wal")


def _translate(error: duckdb.Error, path: Path | str) -> LptError:
    first = str(error).splitlines()[0][:300]
    if any(part in str(error) for part in _DISK):
        return BadInputError(
            "the catalog's index cannot be written", seen=f"{path}: {first}", next="free space or fix the permissions"
        )
    return BrokenIndexError("the catalog's index cannot be read", seen=f"{path}: {first}", next="lpt catalog rebuild")


def _holder(held: re.Match[str] | None) -> str:
    if held is None:
        return f"this process (pid {os.getpid()})"
    pid = held["pid"]
    command = held["command"]
    with contextlib.suppress(OSError):
        given = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
        command = given[:200] or command
    return f"pid {pid} `{command}`"
