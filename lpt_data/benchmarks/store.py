"""The benchmarks of a catalog: added once under a name, pinned to their items, compared ever after.

benchmarks/NAME/items.jsonl      the items: question, answer, code, record_id; what `--benchmark NAME` reads
                benchmark.json   layout, the files they came from with their sha256, content_root, sha256 of the items
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from lpt_data.benchmarks.known import KNOWN
from lpt_data.benchmarks.layouts import Entry, Published, read_published
from lpt_data.option_values import check_names
from manifests.digests import bytes_sha256, content_root
from manifests.errors import BadInputError, RefusedError, UsageError
from manifests.files import make_folder, write_atomic

if TYPE_CHECKING:
    from manifests.catalog import Catalog

ITEMS, RECORD = "items.jsonl", "benchmark.json"


@dataclass(frozen=True)
class Added:
    """A benchmark of a catalog."""

    name: str
    layout: str
    items: int
    unread: int
    content_root: str
    items_sha256: str
    sources: tuple[dict[str, Any], ...]  # path, bytes, sha256
    pinned: bool  # its items are those of the table of names
    expected: int | None  # items in that table
    created: str

    def to_json(self) -> dict[str, Any]:
        """Return the record as one JSON object."""
        return asdict(self)


def root_of(entries: Sequence[Entry]) -> str:
    """Return the content root of items: of their questions and answers, whatever the file and its order."""
    digests = [
        hashlib.sha256(b"lpt-benchmark/1\0" + orjson.dumps([entry.question, entry.answer])).digest()
        for entry in entries
    ]
    return content_root(np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 32)).root


def add(name: str, paths: Sequence[str], catalog: Catalog, *, layout: str | None = None) -> Added:
    """Copy the items of a benchmark into the catalog under `name`; the same items again are the same benchmark.

    Raises RefusedError when the name stands for other items, in the table of names or in the catalog, BadInputError
    for files that hold no items, UsageError for a layout that no benchmark has.
    """
    from manifests.catalog import check_name  # loads the database, which an audit does without

    check_name(name)
    known = KNOWN.get(name)
    if layout is not None:
        from lpt_data.benchmarks.layouts import LAYOUTS

        check_names([layout], LAYOUTS, "--layout: a benchmark", "layout")
    published = read_published(paths, layout or (known.layout if known else None))
    if published is None:
        raise BadInputError(
            f"the columns of {paths[0]} are those of no benchmark", seen=name, next="--layout NAME, or rename them"
        )
    root = root_of(published.entries)
    if known is not None and known.content_root and root != known.content_root:
        theirs = f"{len(published.entries):,} items {root[:16]}…"
        raise RefusedError(
            f"the items are not those of {name} as it was published",
            seen=f"{theirs}; {name} has {known.items:,}, {known.content_root[:16]}…",
            next=f"add them under another name: lpt data benchmarks add my-{name}={paths[0]}",
        )
    before = stored(catalog).get(name)
    if before is not None and before.content_root != root:
        raise RefusedError(
            f"{name} was added with other items", seen=f"{before.content_root[:16]}… then, {root[:16]}… now",
            next=f"add them under another name, or remove {_folder(catalog, name)} first",
        )  # fmt: skip
    if before is not None and _intact(catalog, before):
        return before
    return _write(name, published, root, catalog)


def add_named(given: Sequence[str], catalog: Catalog, *, layout: str | None = None) -> list[Added]:
    """Add each NAME=PATH, and each NAME of the table by what the hub has under it."""
    paths: dict[str, list[str]] = {}
    for pair in given:
        name, equals, path = pair.partition("=")
        if equals and not path:
            raise UsageError("a benchmark is NAME=PATH, or a NAME", seen=pair, next="gsm8k=test.jsonl")
        paths.setdefault(name, []).extend([path] if equals else [])
    return [
        add(name, files, catalog, layout=layout) if files else _fetched(name, catalog) for name, files in paths.items()
    ]


def _fetched(name: str, catalog: Catalog) -> Added:
    from lpt_data.benchmarks.hub import fetch

    check_names([name], KNOWN, "the hub", "benchmark under a name known here")
    path = _folder(catalog, name) / "hub.jsonl"
    fetch(KNOWN[name], path)
    return add(name, [str(path)], catalog)


def stored(catalog: Catalog) -> dict[str, Added]:
    """Return the benchmarks of a catalog by name."""
    records = sorted((catalog.directory / "benchmarks").glob(f"*/{RECORD}"))
    return {found.name: found for found in map(_read, records)}


def added(name: str, catalog: Catalog) -> Added:
    """Return one benchmark of a catalog; raises UsageError with the closest names and how to add it."""
    every = stored(catalog)
    if name not in every:
        what = f"no benchmark is called {name}" if name not in KNOWN else f"the benchmark {name} is not added yet"
        seen = f"added: {', '.join(every) or 'none'}"
        raise UsageError(what, seen=seen, next=f"lpt data benchmarks add {name}=FILE, or --benchmark {name}=FILE")
    return every[name]


def paths_of(name: str, catalog: Catalog) -> list[str]:
    """Return the files that hold an added benchmark's items; raises RefusedError where they were edited."""
    found = added(name, catalog)
    if not _intact(catalog, found):
        raise RefusedError(
            f"the copy of the benchmark {name} was edited",
            seen=str(_folder(catalog, name) / ITEMS),
            next=f"remove {_folder(catalog, name)} and add it again",
        )
    return [str(_folder(catalog, name) / ITEMS)]


def verify(found: Added, catalog: Catalog) -> list[str]:
    """Return what is wrong with an added benchmark: its copy, its items, the files it came from; empty when nothing."""
    place = _folder(catalog, found.name) / ITEMS
    if not _intact(catalog, found):
        return [f"{place} is gone or was edited"]
    problems = []
    published = read_published([str(place)])
    root = root_of(published.entries) if published is not None else ""
    if root != found.content_root:
        problems.append(f"{place} holds other items than were added")
    known = KNOWN.get(found.name)
    if known is not None and known.content_root and known.content_root != root:
        problems.append(f"its items are not those of {found.name} as it was published")
    for source in found.sources:
        path = Path(source["path"])
        if path.is_file() and bytes_sha256(path) != source["sha256"]:
            problems.append(f"{path}, which it was added from, has changed since")
    return problems


def _write(name: str, published: Published, root: str, catalog: Catalog) -> Added:
    folder = make_folder(_folder(catalog, name))
    lines = [
        orjson.dumps(
            {
                "lpt_item": entry.index,
                "question": entry.question,
                "answer": entry.answer,
                "code": entry.code,
                "record_id": entry.record_id.hex(),
            }
        )
        for entry in published.entries
    ]
    write_atomic(folder / ITEMS, b"".join(line + b"\n" for line in lines))
    known = KNOWN.get(name)
    made = Added(
        name=name,
        layout=published.layout,
        items=len(published.entries),
        unread=len(published.unread),
        content_root=root,
        items_sha256=bytes_sha256(folder / ITEMS),
        sources=tuple({"path": f.path, "bytes": f.bytes, "sha256": bytes_sha256(f.path)} for f in published.files),
        pinned=known is not None and known.content_root == root,
        expected=None if known is None else known.items,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    write_atomic(folder / RECORD, orjson.dumps(made.to_json(), option=orjson.OPT_INDENT_2))
    return made


def _folder(catalog: Catalog, name: str) -> Path:
    return catalog.directory / "benchmarks" / name


def _intact(catalog: Catalog, found: Added) -> bool:
    place = _folder(catalog, found.name) / ITEMS
    return place.is_file() and bytes_sha256(place) == found.items_sha256


def _read(path: Path) -> Added:
    try:
        body: Mapping[str, Any] = orjson.loads(path.read_bytes())
        return Added(**{**body, "sources": tuple(body["sources"])})
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise BadInputError(
            "the record of a benchmark cannot be read", seen=f"{path}: {error}", next=f"remove {path.parent}"
        ) from error
