"""The one runner of data operations: rows in, survivors and decisions out, nothing lost, nothing half-written.

A stage is a function that looks at a dataset and says which rows go and why. Everything around it is here: a lock on
the output, the identity of the work, the law `rows_in == rows_out + removed + quarantined`, outputs that appear whole,
decisions as Parquet, the record in the catalog. A stage that writes rows more than once says so:
`rows_in + repeated == rows_out + removed + quarantined`.

    stage_id = sha256("lpt-stage/1", name, code, config without worker counts, kind, layout, sha256 of each input
    file)[:16]

Work is never done twice: with the same stage_id and outputs that are intact, the recorded report is returned; a command
that was killed after it had decided goes on with the decisions it had, and ends with the same bytes. Neither holds for
`--dry-run`, which decides and writes nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import pyarrow as pa

from lpt_data import pending
from lpt_data.config import identity, settings
from lpt_data.conservation import check_conservation, kept_mask, quarantine_table, stage_quarantine
from lpt_data.dataset import Dataset, Quarantine
from lpt_data.io.sources import InputChangedError, Mark, SourceFile, input_changed
from lpt_data.lineage import origin
from lpt_data.ordered import Order, write_ordered
from lpt_data.places import (
    check_marks,
    check_outputs,
    code_digest,
    decisions_entry,
    file_entry,
    intact,
    lock_path,
    mark,
    note_leftovers,
    peak_memory_bytes,
    remove_leftovers,
)
from lpt_data.progress import Progress, silent
from lpt_data.survivors import (
    Rewritten,
    columns_needed,
    types_matter,
    write_quarantine,
    write_survivors,
)
from lpt_data.versions import environment
from manifests import decisions as decision_rows
from manifests.command_line import command_line
from manifests.digests import bytes_sha256, content_root
from manifests.files import atomic_path, exclusive_lock

if TYPE_CHECKING:
    from manifests.catalog import Catalog


@dataclass(frozen=True)
class StageResult:
    """What a stage decided: one decision per row that is not kept as it is (the reader's quarantine excluded)."""

    decisions: pa.Table  # manifests.decisions.SCHEMA
    record_ids: np.ndarray  # uint8 [rows_in, 32], zeros where quarantined; of a rewritten row the new one
    extra: dict[str, Any] = field(default_factory=dict)
    part: np.ndarray | None = None  # uint8 [rows_in], which output a kept row goes to; None: all to the first
    rewritten: pa.Table | None = None  # lpt_data.survivors.REWRITTEN; None: the stage rewrites nothing
    order: Order | None = None  # the kept rows in an order of their own, some repeated; None: as they came, once each

    def written(self, keep: np.ndarray) -> np.ndarray:
        """Return the input row of each output row, int64 [rows_out]."""
        return np.flatnonzero(keep) if self.order is None else self.order.rows

    def output_ids(self, written: np.ndarray) -> np.ndarray:
        """Return the record id of each output row, uint8 [rows_out, 32], for the input rows written."""
        made = self.order.ids if self.order is not None else None
        return self.record_ids[written] if made is None else made


@dataclass(frozen=True)
class StageReport:
    """The recorded outcome of a stage; `object_id` is empty after a dry run."""

    body: dict[str, Any]  # lpt.stage/1
    object_id: str
    reused: bool = False
    dry_run: bool = False
    decisions_path: str = ""

    @property
    def extra(self) -> dict[str, Any]:
        """What the stage itself had to say."""
        return self.body["extra"]

    def to_json(self) -> dict[str, Any]:
        """Return the keys that every data command prints with --json, then what the stage adds."""
        names = ("stage_id", "rows_in", "rows_out", "removed", "quarantined", "output", "content_root")
        common = {name: self.body[name] for name in names}
        cost = {name: self.body[name] for name in ("seconds", "rows_per_second", "peak_memory_bytes")}
        common |= {name: self.body[name] for name in ("repeated",) if name in self.body}
        more: dict[str, Any] = {"rewritten": self.body["rewritten"]} if self.body["rewritten"] else {}
        more |= {"quarantine": self.body["quarantine"], "reused": self.reused, "dry_run": self.dry_run}
        return {**common, "decisions": self.decisions_path, **cost, **more, "object": self.object_id, **self.extra}


Decide = Callable[[Dataset, Any, Progress], StageResult]
Finish = Callable[[list[dict[str, Any]], StageResult], Mapping[str, Any]]


def run_stage(
    name: str,
    dataset: Dataset,
    config: Any,
    decide: Decide,
    *,
    output: Path,
    catalog: Catalog,
    progress: Progress | None = None,
    dry_run: bool = False,
    wait: float = 5.0,
    references: Sequence[SourceFile] = (),
) -> StageReport:
    """Decide, write the survivors and the decisions, check that no row is lost, record.

    `references` are files that `decide` reads besides the dataset: their bytes are part of the identity of the work.
    Raises BadInputError for an output that cannot be written or is an input, BusyError when another process writes it
    or holds the catalog longer than `wait` seconds.
    """
    work = Work(name, dataset, config, decide, (Path(output),), output=str(output), references=tuple(references))
    return work.run(catalog, progress or silent, dry_run=dry_run, wait=wait)


@dataclass(frozen=True)
class Work:
    """One run of a stage: what to decide, and the files that the kept rows go to (`StageResult.part` tells which)."""

    name: str
    dataset: Dataset
    config: Any
    decide: Decide
    outputs: tuple[Path, ...]
    output: str  # what the report calls the output: a file, or the folder of several
    # Called when the outputs are written: may check them, write more files and add to `extra`; returns {} or
    # {"outputs": [...], "extra": {...}}. Its files must not depend on anything but the result.
    finish: Finish | None = None
    references: tuple[SourceFile, ...] = ()  # files read besides the dataset, none of whose rows is written

    def run(
        self, catalog: Catalog, progress: Progress = silent, *, dry_run: bool = False, wait: float = 5.0
    ) -> StageReport:
        """Do the work under the lock of its output, or return the record of the same work done before."""
        started = time.perf_counter()
        check_outputs(self.outputs, self.dataset, self.references)
        if dry_run:
            body = self._dry_body(self._marks(), progress, started)
            return self._report(body, "", catalog, dry_run=True)
        lock = lock_path(catalog, self.outputs[0])
        with exclusive_lock(lock, wait=wait, what=f"the output {self.output}"):
            catalog.check_free(wait)
            remove_leftovers(lock)
            marks = self._marks()
            stage_id, inputs, references = self._identity(progress)
            done = self._done(catalog, stage_id)
            if done is not None:
                return self._report(done[1], done[0], catalog, reused=True)
            try:
                body = self._perform(stage_id, inputs, marks, catalog, lock, progress, started)
            except InputChangedError:  # what was decided may be of other bytes than those of the stage id
                pending.path_of(catalog.directory, stage_id).unlink(missing_ok=True)
                raise
            if references:
                body["references"] = references
            return self._report(body, catalog.put(body), catalog)

    def standing(self, catalog: Catalog, progress: Progress = silent) -> tuple[dict[str, Any], dict[str, Any] | None]:
        """Return the identity of the work (what its stage_id is made of, and that) and the record of the same work
        whose outputs are intact, or None; writes nothing.
        """
        stage_id, inputs, references = self._identity(progress)
        done = self._done(catalog, stage_id)
        told = {"stage_id": stage_id, "config": identity(self.config), "inputs": inputs, "references": references}
        return told, None if done is None else done[1]

    def _identity(self, progress: Progress) -> tuple[str, list[dict[str, Any]], list[dict[str, Any]]]:
        """Return the stage id, and inputs and references with digests; file names and times are no part of the id."""
        every = []
        for number, source in enumerate((*self.dataset.files, *self.references)):
            progress(number, len(self.dataset.files) + len(self.references), "hashing the input")
            digest = bytes_sha256(source.path)
            every.append({"path": source.path, "bytes": source.bytes, "sha256": digest, "format": source.format})
        inputs, references = every[: len(self.dataset.files)], every[len(self.dataset.files) :]
        told = {
            "name": self.name,
            "code": code_digest(),
            "config": identity(self.config),
            "dataset": [self.dataset.kind, self.dataset.layout, self.dataset.text_column],
            "inputs": [[entry["sha256"], entry["format"]] for entry in inputs],
        }
        if references:
            told["references"] = sorted([entry["sha256"], entry["format"]] for entry in references)
        told_bytes = orjson.dumps(told, option=orjson.OPT_SORT_KEYS)
        return hashlib.sha256(b"lpt-stage/1\0" + told_bytes).hexdigest()[:16], inputs, references

    def _done(self, catalog: Catalog, stage_id: str) -> tuple[str, dict[str, Any]] | None:
        for object_id, body in catalog.find("lpt.stage/1", strict=False, stage_id=stage_id):
            decided = {"path": str(catalog.decisions_path(stage_id)), "sha256": body["decisions"]["sha256"]}
            if body["output"] == self.output and all(intact(file) for file in [*body["outputs"], decided]):
                return object_id, body
        return None

    def _marks(self) -> dict[str, Mark]:
        """The marks of all files that are read, by path; taken before any of their bytes is."""
        return {source.path: mark(source.path) for source in (*self.dataset.files, *self.references)}

    def _decided(self, marks: Mapping[str, Mark], progress: Progress) -> tuple[StageResult, list[Quarantine]]:
        self.dataset.watch_columns = types_matter(self.dataset, self.outputs[0])
        result = self.decide(self.dataset, self.config, progress)
        check_marks(marks)
        quarantined = self.dataset.quarantined()
        check_conservation(self.dataset.rows_in, result, quarantined, len(self.outputs))
        return result, quarantined

    def _perform(
        self,
        stage_id: str,
        inputs: list[dict[str, Any]],
        marks: Mapping[str, Mark],
        catalog: Catalog,
        lock: Path,
        progress: Progress,
        started: float,
    ) -> dict[str, Any]:
        note = pending.path_of(catalog.directory, stage_id)
        result = pending.load(note, self.dataset)
        if result is None:
            result, _ = self._decided(marks, progress)
            pending.save(note, self.dataset, result)
        quarantined = self.dataset.quarantined()
        keep = kept_mask(result, quarantined)
        every = decision_rows.concat([result.decisions, quarantine_table(quarantined)])
        decision_rows.write(catalog.decisions_path(stage_id), every)
        outputs = self._write(result, keep, inputs, marks, lock, progress)
        extra = dict(result.extra)
        aside = [*quarantined, *stage_quarantine(result, self.dataset)]
        if aside:
            place = catalog.decisions_path(stage_id).with_suffix(".quarantine.jsonl")
            with atomic_path(place) as temporary:
                write_quarantine(self.dataset, aside, temporary)
            extra["quarantine_file"] = str(place)
        if self.finish is not None:
            added = self.finish(outputs, result)
            outputs = [*outputs, *added.get("outputs", ())]
            extra.update(added.get("extra", {}))
        body = self._body(stage_id, inputs, result, quarantined, keep, started)
        body["outputs"], body["extra"] = outputs, extra
        body["decisions"] = decisions_entry(catalog, stage_id, every.num_rows)
        body["parents"] = list(origin(catalog, [entry["sha256"] for entry in inputs]).parents)
        note.unlink(missing_ok=True)
        lock.with_suffix(".unfinished").unlink(missing_ok=True)
        return body

    def _write(
        self,
        result: StageResult,
        keep: np.ndarray,
        inputs: list[dict[str, Any]],
        marks: Mapping[str, Mark],
        lock: Path,
        progress: Progress,
    ) -> list[dict[str, Any]]:
        """Write every output beside its name and, when all are whole and all rows are there, put them in place."""
        rewritten = Rewritten.of(result.rewritten)
        columns = None
        if result.order is None:
            columns = columns_needed(self.dataset, keep, self.outputs[0], progress, rewritten)
        as_json = [] if columns is None else list(columns.as_json)
        part = result.part if result.part is not None else np.zeros(len(keep), np.uint8)
        counts = []
        with contextlib.ExitStack() as stack:
            temporaries = [stack.enter_context(atomic_path(path)) for path in self.outputs]
            note_leftovers(lock, temporaries)
            for number, (path, temporary) in enumerate(zip(self.outputs, temporaries, strict=True)):
                mine = keep & (part == number)
                if result.order is not None:
                    wanted = len(result.order.rows)
                    written, as_json = write_ordered(self.dataset, result.order, temporary, path, progress)
                else:
                    wanted = int(mine.sum())
                    written = write_survivors(self.dataset, mine, temporary, path, columns, progress, rewritten)
                if written != wanted:
                    raise input_changed(", ".join(entry["path"] for entry in inputs))
                counts.append(written)
            check_marks(marks)
        if as_json:
            result.extra["columns_as_json_text"] = as_json
        return [file_entry(path, rows) for path, rows in zip(self.outputs, counts, strict=True)]

    def _body(
        self,
        stage_id: str,
        inputs: list[dict[str, Any]],
        result: StageResult,
        quarantined: Sequence[Quarantine],
        keep: np.ndarray,
        started: float,
    ) -> dict[str, Any]:
        written = result.written(keep)
        rows_in, rows_out = len(keep), len(written)
        starts = [*self.dataset.first_rows, rows_in]
        for number, entry in enumerate(inputs):
            entry["first_row"] = starts[number]
            entry["rows"] = starts[number + 1] - starts[number]
            entry["layout"], entry["text_column"] = self.dataset.layout_of(number)
        reasons = Counter(found.reason for found in quarantined)
        reasons.update(decision_rows.reasons(result.decisions, "quarantine"))
        seconds = time.perf_counter() - started
        repeated = {} if result.order is None else {"repeated": rows_out - int(keep.sum())}
        return {
            "type": "lpt.stage/1",
            "stage_id": stage_id,
            "stage": self.name,
            "command": command_line(),
            "config": settings(self.config),
            "code": {"lpt": environment()["lpt"], "source": code_digest()},
            "kind": self.dataset.kind,
            "inputs": inputs,
            "rows_in": rows_in,
            "rows_out": rows_out,
            **repeated,
            "removed": decision_rows.reasons(result.decisions, "remove"),
            "rewritten": decision_rows.reasons(result.decisions, "rewrite"),
            "quarantined": reasons.total(),
            "quarantine": dict(reasons.most_common()),
            "output": self.output,
            "content_root": content_root(result.output_ids(written)).root,
            "seconds": round(seconds, 4),
            "rows_per_second": round(rows_in / seconds, 1),
            "peak_memory_bytes": peak_memory_bytes(),
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "env": environment(),
        }

    def _dry_body(self, marks: Mapping[str, Mark], progress: Progress, started: float) -> dict[str, Any]:
        stage_id, inputs, _ = self._identity(progress)
        result, quarantined = self._decided(marks, progress)
        body = self._body(stage_id, inputs, result, quarantined, kept_mask(result, quarantined), started)
        return {**body, "outputs": [], "extra": result.extra, "decisions": None, "parents": []}

    def _report(
        self, body: dict[str, Any], object_id: str, catalog: Catalog, *, reused: bool = False, dry_run: bool = False
    ) -> StageReport:
        decided = "" if dry_run else str(catalog.decisions_path(body["stage_id"]))
        return StageReport(body, object_id, reused=reused, dry_run=dry_run, decisions_path=decided)


# -- the law
