"""Rollouts beside the catalog: what a run sampled, one row a completion, as one Parquet file a run.

The run's own folder has the same rows as JSON lines; these are for SQL, and nothing is made from them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from manifests.catalog import Catalog
from manifests.digests import bytes_sha256
from manifests.errors import LptError
from manifests.files import atomic_path, make_folder

SCHEMA = pa.schema(
    [
        pa.field("step", pa.int64()),  # optimizer steps that were done when it was sampled
        pa.field("record_id", pa.string()),
        pa.field("sample", pa.int64()),  # place in the group
        pa.field("completion", pa.string()),  # its start
        pa.field("reward", pa.float64()),  # null where it could not be scored
        pa.field("failure", pa.string()),  # and then why
        pa.field("group_index", pa.int64()),  # place of its prompt in the generation
        pa.field("advantage", pa.float64()),  # null where the completion counts for nothing
        pa.field("finish", pa.string()),  # stop | length
        pa.field("tokens", pa.int64()),
    ]
)
TEXT = 400  # characters of a completion that are kept
_ROWS_PER_GROUP = 20_000


def write(path: Path, rows: Iterable[Mapping[str, Any]]) -> int:
    """Write rows to `path`, whole or not at all, and return how many; raises BadInputError for a disk or a row."""
    make_folder(path.parent)
    rest, count = iter(rows), 0
    with atomic_path(path) as temporary, pq.ParquetWriter(temporary, SCHEMA, compression="zstd") as writer:
        while part := list(islice(rest, _ROWS_PER_GROUP)):
            columns = {name: [_short(row.get(name)) for row in part] for name in SCHEMA.names}
            writer.write_table(pa.table(columns, schema=SCHEMA))
            count += len(part)
    return count


def into_catalog(lines: Path, catalog: Catalog | None, run_id: str) -> tuple[dict[str, Any] | None, list[str]]:
    """Put the lines of a run beside the catalog for SQL: what its record says of them, and notes; never raises.

    Whatever is wrong with the catalog, the run is done, and its own folder has the lines.
    """
    try:
        path = (catalog or Catalog.open()).rollouts_path(run_id)
        count = write(path, _rows(lines))
        return {"path": f"{path.parent.name}/{path.name}", "rows": count, "sha256": bytes_sha256(path)}, []
    except Exception as error:
        reason = f"{error.what} ({error.seen})" if isinstance(error, LptError) else error
        return None, [f"the rollouts are not in the catalog: {reason}; they are in {lines}"]


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a file of JSON lines; a line that a kill cut off is left out."""
    with open(path, "rb") as file:
        for line in file:
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if isinstance(row, dict):
                yield row


def _short(value: Any) -> Any:
    return value[:TEXT] if isinstance(value, str) else value
