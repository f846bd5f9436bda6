"""The catalog: a folder of objects, a log of when they were recorded, and a DuckDB index made from both.

    .lpt/objects/ab/cdef….json   bodies, content-addressed          .lpt/decisions/<stage>.parquet
    .lpt/events.jsonl            the hash-chained log               .lpt/splits/NAME@V/
    .lpt/catalog.duckdb          the index                          .lpt/rollouts/<run>.parquet
                                                                    .lpt/references/<key>.json

`put` reports done when the object and its event are on the disk. The index follows at once when nobody holds it and
at the next command otherwise, so a busy or broken index delays a query and loses nothing.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson

from manifests import index
from manifests.digests import bytes_sha256
from manifests.errors import BadInputError, BusyError, LptError, UsageError
from manifests.events import GENESIS, Event, EventLog
from manifests.files import FILE, cannot_write, exclusive_lock, make_folder, sweep_killed
from manifests.objects import ObjectStore, object_bytes, object_id

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_STALE = 86_400.0  # seconds
_WRITTEN = (
    "objects/*",
    "decisions",
    "rollouts",
    "embeddings/*",
    "pairs",
    "references",
)  # folders of files that writers make whole
_PARTS = ("objects", "decisions", "splits", "locks")


class Catalog:
    """A catalog folder; cheap to open, holds no connection and no lock between calls.

    `notes` lists what a user should be told: an index set aside, records waiting for a busy index.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.objects = ObjectStore(directory / "objects")
        self.events = EventLog(directory / "events.jsonl")
        self.notes: list[str] = []

    @classmethod
    def open(cls, directory: Path | str | None = None, *, create: bool = True) -> Catalog:
        """Open `directory`, else $LPT_CATALOG, else ./.lpt; with `create=False` an absent one raises BadInputError."""
        folder = Path(directory or os.environ.get("LPT_CATALOG") or ".lpt")
        if folder.exists() and not folder.is_dir():
            raise BadInputError("the catalog is not a folder", seen=folder, next="name a folder with --catalog DIR")
        if not create and not ((folder / "objects").is_dir() or (folder / "events.jsonl").is_file()):
            raise BadInputError(
                "there is no catalog here",
                seen=str(folder),
                next="run this in the folder where the data was admitted, or name its catalog: --catalog DIR, or "
                "LPT_CATALOG; lpt admit makes one",
            )
        if create:
            for part in _PARTS:
                make_folder(folder / part)
        return cls(folder)

    # -- writing

    def put(self, body: dict[str, Any]) -> str:
        """Record an object and return its id: file, then log line, both flushed, then the index if nobody holds it.

        Recording the same body again is the same object and adds no second line.
        """
        data = object_bytes(body)
        known = self.objects.path(object_id(data)).is_file()
        name = self.objects.write(data)
        if not (known and any(event.object == name for event in self.events.read())):
            self.events.append(name, orjson.loads(data))  # the body as it was written, not as it was given
        try:  # the record is safe by now: whatever is wrong with the index is a note, not an error
            if not self.sync(wait=0.2):
                self.notes.append("the index is busy; the record is safe and will be indexed by the next command")
        except LptError as error:
            self.notes.append(f"the record is safe; the index was not updated: {error.what} ({error.seen})")
        return name

    def admit_version(
        self,
        name: str,
        build: Callable[[int], dict[str, Any]],
        *,
        same: Callable[[], str | None] = lambda: None,
        wait: float = 5.0,
    ) -> str:
        """Record the next version of a manifest: `build(version)` writes the split folder and returns the body.

        The name is locked meanwhile, so two admissions of one name get two versions, or one where `same()`, asked
        under the lock, names the manifest that says the same already. `manifest.json` in the folder must be
        `objects.object_bytes(body)`. A folder of the version that a killed command left behind is moved aside first.
        """
        check_name(name)
        make_folder(self.directory / "locks")
        with exclusive_lock(self.directory / "locks" / f"admit-{name}.lock", wait=wait, what=f"the manifest {name}"):
            if (there := same()) is not None:
                return there
            known = [
                e.facets.get("version") for e in self.events.read() if _is_admission(e) and e.facets.get("name") == name
            ]
            version = max((v for v in known if isinstance(v, int)), default=0) + 1
            self._set_aside(self.splits_dir / f"{name}@{version}")
            body = build(version)
            if (body.get("name"), body.get("version")) != (name, version):
                raise UsageError("a manifest has another name or version than it was built for", seen=body.get("name"))
            return self.put(body)

    def _set_aside(self, folder: Path) -> None:
        if not folder.exists():
            return
        aside = folder.with_name(f".unfinished-{folder.name}-{time.time_ns()}")
        try:
            folder.rename(aside)
        except OSError as error:
            raise cannot_write(folder, error) from error
        self.notes.append(f"{folder} was left by an admission that did not finish; it was moved to {aside}")

    # -- reading

    def get(self, ref: str) -> dict[str, Any]:
        """Return the body of a full id or of a unique prefix of at least four digits."""
        return self.objects.read(ref if len(ref) == 64 else self.objects.resolve(ref))

    def find(self, type: str, *, strict: bool = True, **equals: Any) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield (id, body) of the objects of a type whose body fields equal the given values, the newest first.

        An object that is gone or was edited raises BadInputError; with `strict=False` it is left out with a note.
        """
        for event in reversed([e for e in self.events.read() if e.type == type]):
            if any(name in event.facets and event.facets[name] != value for name, value in equals.items()):
                continue
            try:
                body = self.objects.read(event.object)
            except BadInputError as error:
                if strict:
                    raise
                note = f"object {event.object[:16]} ({event.type}) is left out: {error.what} ({error.seen})"
                self.notes += [note] if note not in self.notes else []
                continue
            if all(body.get(name) == value for name, value in equals.items()):
                yield event.object, body

    @property
    def head(self) -> str:
        """The hash of the last event: what to keep elsewhere, so that a cut-off log can be noticed."""
        last = self.events.last()
        return last.hash if last else GENESIS

    def verify_chain(self) -> None:
        """Check every link of the log and the bytes of every object in it; raise BadInputError at the first fault."""
        self.events.verify()
        for event in self.events.read():
            self.objects.read(event.object)

    def unreadable(self) -> list[str]:
        """The ids of objects that the log names or that lie here, and that are gone or not as they were written."""
        lost = []
        for name in sorted({event.object for event in self.events.read()} | set(self.objects.ids())):
            try:
                self.objects.read(name)
            except BadInputError:
                lost.append(name)
        return lost

    # -- the index

    @property
    def index_path(self) -> Path:
        """The DuckDB file."""
        return self.directory / "catalog.duckdb"

    def check_free(self, wait: float = 5.0) -> None:
        """Raise BusyError naming the process that has the index open; commands that write call this first."""
        if self.index_path.exists():
            with index.opened(self, wait=wait, read_only=False):
                pass

    def sync(self, wait: float = 5.0) -> bool:
        """Bring the index up to the log; False when another process holds it, and then nothing is lost."""
        try:
            index.ingest(self, wait=wait)
        except BusyError:
            return False
        return True

    def rebuild(self, wait: float = 5.0) -> int:
        """Make the index again from the files alone and return how many events it holds.

        When the log itself is gone, the objects are logged again first, in the order of their `created`, and those of a
        run that went on in that of their seconds and steps. An object that is gone or was edited is left out with a
        note: see `unreadable`.
        """
        make_folder(self.directory)
        if self.events.last() is None:
            found = []
            for name in self.objects.ids():
                try:
                    found.append((name, self.objects.read(name)))
                except BadInputError as error:
                    self.notes.append(f"object {name[:16]} is not logged again: {error.what} ({error.seen})")
            for name, body in sorted(found, key=_recorded):
                self.events.append(name, body)
        self.events.verify()
        self._sweep()
        self._note_unlogged()
        self._note_decisions()
        return index.rebuild(self, wait=wait)

    def _note_unlogged(self) -> None:
        """A kill leaves at most one object that the log does not name; a log whose tail was cut off leaves more."""
        unlogged = sorted(set(self.objects.ids()) - {event.object for event in self.events.read()})
        if unlogged:
            self.notes.append(
                f"{len(unlogged)} objects are not in the log, which was cut off or met a kill: "
                f"{', '.join(name[:16] for name in unlogged[:5])}; to have them again, move {self.events.path} away "
                "and run lpt catalog rebuild"
            )

    def _note_decisions(self) -> None:
        """Say which decisions are gone or are not those that their stage recorded."""
        seen: set[str] = set()
        for _, body in self.find("lpt.stage/1", strict=False):
            stage_id, entry = str(body.get("stage_id")), body.get("decisions")
            if stage_id in seen or not isinstance(entry, dict):
                continue
            seen.add(stage_id)
            path = self.decisions_path(stage_id)
            if not path.is_file():
                self.notes.append(f"the decisions of stage {stage_id} are gone: {path}")
            elif bytes_sha256(path) != entry.get("sha256"):
                self.notes.append(f"the decisions of stage {stage_id} were changed after they were written: {path}")

    def _sweep(self) -> None:
        """Remove what killed writers of this machine left half-written, and name what has lain here for a day.

        Whether a process of another machine or container still writes cannot be told from here, nor whether a file from
        before this machine started is its own.
        """
        for folder in (folder for part in _WRITTEN for folder in self.directory.glob(part)):
            sweep_killed(folder, FILE)
        left = [path for part in _WRITTEN for path in self.directory.glob(f"{part}/.tmp-*") if _is_old(path)]
        if left:
            self.notes.append(
                f"{len(left):,} half-written files of a day and more are kept, since their writers may be alive: "
                f"{', '.join(map(str, left[:5]))}; where they are not, remove them"
            )

    # -- places

    def decisions_path(self, stage_id: str) -> Path:
        """Return where the decisions of a stage lie."""
        if not _NAME.fullmatch(stage_id):
            raise UsageError(
                "not the id of a stage", seen=stage_id, next="stage ids are letters, digits, '.', '_' and '-'"
            )
        return self.directory / "decisions" / f"{stage_id}.parquet"

    def rollouts_path(self, run_id: str) -> Path:
        """Return where the rollouts of a run lie."""
        if not _NAME.fullmatch(run_id):
            raise UsageError("not the id of a run", seen=run_id, next="run ids are letters, digits, '.', '_' and '-'")
        return self.directory / "rollouts" / f"{run_id}.parquet"

    @property
    def references_dir(self) -> Path:
        """The folder of the log-probs that runs share; whatever lies in it may be removed and is computed again."""
        return self.directory / "references"

    @property
    def splits_dir(self) -> Path:
        """The folder of admitted splits."""
        return self.directory / "splits"


def check_name(name: str) -> str:
    """Return a manifest name that can be a folder's, or raise UsageError."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            "not a name for a manifest",
            seen=name or "an empty name",
            next="letters, digits, '.', '_' and '-', at most 100, e.g. gsm8k-clean",
        )
    return name


def _is_old(path: Path) -> bool:
    try:
        return path.stat().st_mtime < time.time() - _STALE
    except OSError:  # it was finished, or swept by another process, meanwhile
        return False


def _recorded(item: tuple[str, dict[str, Any]]) -> tuple[str, float, float, str]:
    """When an object was recorded, as it says itself. A run that went on keeps its `created`; its seconds and steps
    grow."""
    name, body = item
    seconds, steps = (value if isinstance(value := body.get(of), (int, float)) else -1 for of in ("seconds", "steps"))
    return str(body.get("created", "")), seconds, steps, name


def _is_admission(event: Event) -> bool:
    return event.type.startswith("lpt.admission/")
