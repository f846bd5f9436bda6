"""Why a row went, or where it is: one record followed through the stages, over its witnesses, to the row that survived.

A row is named by its record id (the first 8 digits are enough), by STAGE:ROW, or by FILE:LINE. Inside a stage a
decision says what happened; a removed row is followed to the kept row that it repeats. Between stages the position
is computed from the decisions (a stage writes its survivors in the order of its input), and files are matched by
the sha256 of their bytes. Where a stage spreads its rows over several outputs, the position is not known any more
and the record id is looked for in the admitted splits instead.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from manifests import decisions
from manifests.answer import Step, WhyAnswer
from manifests.catalog import Catalog
from manifests.digests import bytes_sha256
from manifests.errors import BadInputError, LptError, UsageError
from manifests.loaded import TYPE, load_manifest
from manifests.places import canonical_id, files_named, place_of_row, row_of_line

Identify = Callable[[Mapping[str, Any], str, int], str | None]  # body of the stage, path, 0-based row of that file
_ID = re.compile(r"[0-9a-f]{8,64}")
_STAGE_ROW = re.compile(r"(?P<stage>[A-Za-z0-9._-]+):(?P<row>[0-9]+)")
_MOST = 50  # occurrences of one record that are followed
_MOST_STEPS = 200


def why(catalog: Catalog, ref: str, *, identify: Identify | None = None) -> WhyAnswer:
    """Answer for a record id (a prefix of at least 8 digits), STAGE:ROW or FILE:LINE.

    `identify` maps a row of an input file to its record id where the layout is not the canonical one; it is asked for
    kept rows alone, whose id no decision holds.

    Raises BadInputError when the stage, the row, the file or the line is not known to the catalog, or a prefix fits
    several records; a record that no stage ever decided about is answered as `unknown`, with what that means.
    """
    trail = _Trail(catalog, WhyAnswer(ref), identify)
    if _ID.fullmatch(ref):
        trail.from_id(ref)
    else:
        _start(trail, ref)
    return trail.finish()


def _start(trail: _Trail, ref: str) -> None:
    """Begin at STAGE:ROW, or at FILE:LINE where FILE was read by a stage, written by one, or admitted as it was."""
    name, colon, number = ref.rpartition(":")
    if not colon or not re.fullmatch("[0-9]{1,18}", number):
        raise UsageError(
            "not a row",
            seen=ref,
            next="a record id (8 hex digits or more), STAGE:ROW, or FILE:LINE, e.g. data.jsonl:17",
        )
    if _STAGE_ROW.fullmatch(ref) and (body := trail.stage(name)) is not None:
        if int(number) >= int(body.get("rows_in") or 0):
            raise BadInputError("the stage has no such row", seen=ref, next=f"rows 0 to {int(body['rows_in']) - 1}")
        trail.follow(body, int(number), witness=False)
        return
    path, line = Path(name), int(number)
    if not (_as_input(trail, path, line) or _as_output(trail, path, line) or _as_source(trail, path, line)):
        known = sorted({str(i["path"]) for body in trail.stages for i in body.get("inputs") or []})[:5]
        raise BadInputError(
            "no stage of this catalog has that id, or has read or written that file",
            seen=name,
            next=f"files it knows: {', '.join(known)}" if known else "run a data command first",
        )


def _as_input(trail: _Trail, path: Path, line: int) -> bool:
    found = [(body, file, same) for body in trail.stages for file, same in files_named(body.get("inputs"), path)]
    found = [f for f in found if f[2]] or found  # a path may have been read more than once, with other contents
    found = [f for f in found if not f[0].get("parents")] or found
    row = _row(trail, path, line, found) if found else 0
    for body, file, _ in found:
        trail.follow(body, int(file.get("first_row") or 0) + row, witness=False)
    return bool(found)


def _as_output(trail: _Trail, path: Path, line: int) -> bool:
    found = [(body, file, same) for body in trail.stages for file, same in files_named(body.get("outputs"), path)]
    found = [f for f in found if f[2]] or found
    if not found:
        return False
    body, file, _ = found[-1]
    row = _row(trail, path, line, found[-1:])
    if _scattered(body):
        trail.answer.notes.append(f"{path} was written by {body.get('stage')} {body.get('stage_id')}, which mixes rows")
        trail.readers(str(file.get("sha256")), row, witness=False)
        return True
    for earlier in body["outputs"]:
        if earlier is file:
            break
        row += int(earlier.get("rows") or 0)
    gone = trail.table(body)
    rows = gone.filter(pc.not_equal(gone["action"], "rewrite"))["row"]
    for removed in sorted(set(rows.to_pylist())):
        row += removed <= row
    trail.follow(body, row, witness=False)
    return True


def _as_source(trail: _Trail, path: Path, line: int) -> bool:
    found = [(body, file, same) for _, body in trail.manifests for file, same in files_named(body.get("sources"), path)]
    found = [f for f in found if f[2]] or found
    row = _row(trail, path, line, found) if found else 0
    for digest in dict.fromkeys(str(file.get("sha256")) for _, file, _ in found):
        trail.readers(digest, row, witness=False)
    return bool(found)


def _row(
    trail: _Trail, path: Path, line: int, found: Sequence[tuple[Mapping[str, Any], Mapping[str, Any], bool]]
) -> int:
    """Return the 0-based row of the file that a line is, with a note when the file is not the one on record."""
    row = row_of_line(path, line) if path.is_file() else line - 1
    if not found[0][2]:
        trail.answer.notes.append(f"{path} is not the file that is on record any more; lines may have moved")
    rows = int(found[0][1].get("rows") or 0)
    if row >= rows or row < 0:
        raise BadInputError(
            "the file had no such row when it was recorded", seen=f"{path}:{line}", next=f"it had {rows}"
        )
    return row


class _Trail:
    """The search: stages by what they read, decisions as they are needed, and the answer as it grows."""

    def __init__(self, catalog: Catalog, answer: WhyAnswer, identify: Identify | None) -> None:
        self.catalog = catalog
        self.identify = identify or canonical_id
        self.answer = answer
        newest: dict[str, Mapping[str, Any]] = {}
        for _, body in catalog.find("lpt.stage/1", strict=False):
            newest.setdefault(str(body.get("stage_id")), body)  # a stage that was run again says the same
        self.stages = list(reversed(newest.values()))
        self.manifests = list(catalog.find(TYPE, strict=False))
        answer.notes += [note for note in catalog.notes if note not in answer.notes]
        self._tables: dict[str, pa.Table] = {}
        self._seen: set[tuple[str, int]] = set()
        self._ids: dict[str, None] = {}  # ids under which the row is known, in the order they were met

    def stage(self, ref: str) -> Mapping[str, Any] | None:
        """Return the one stage whose id starts with `ref`, or None."""
        found = [body for body in self.stages if str(body.get("stage_id")).startswith(ref)]
        if len(found) > 1:
            raise BadInputError(
                f"{len(found)} stages start with {ref}",
                seen=[b["stage_id"] for b in found[:5]],
                next="type more digits",
            )
        return found[0] if found else None

    def table(self, body: Mapping[str, Any]) -> pa.Table:
        """Return the decisions of a stage; missing ones become a note and are taken as empty."""
        stage_id = str(body.get("stage_id"))
        if stage_id not in self._tables:
            try:
                path = self.catalog.decisions_path(stage_id)
                self._tables[stage_id] = decisions.read(path)
                entry = body.get("decisions")
                if isinstance(entry, dict) and bytes_sha256(path) != entry.get("sha256"):
                    self.answer.notes.append(f"decisions of {stage_id} were changed after they were written: {path}")
            except LptError as error:
                self.answer.notes.append(f"{body.get('stage')} {stage_id}: {error.what} ({error.seen})")
                self._tables[stage_id] = decisions.empty()
        return self._tables[stage_id]

    def from_id(self, prefix: str) -> None:
        """Find a record by its id among decisions and witnesses, else among the admitted rows."""
        decided: list[tuple[Mapping[str, Any], int]] = []
        witnessed: list[tuple[Mapping[str, Any], int]] = []
        full: set[str] = set()
        for body in self.stages:
            table = self.table(body)
            table = table.append_column("new_id", decisions.new_ids(table))
            for column, row_column, found in (
                ("record_id", "row", decided),
                ("new_id", "row", decided),
                ("witness_id", "witness_row", witnessed),
            ):
                hits = table.filter(pc.fill_null(pc.starts_with(table[column], prefix), False))
                full |= set(hits[column].to_pylist())
                rows = dict.fromkeys(row for row in hits[row_column].to_pylist() if row is not None)
                found += [(body, row) for row in rows]
        admitted = list(self._admitted(prefix))
        full |= {record_id for _, _, record_id in admitted}
        if len(full) > 1:
            raise BadInputError(
                f"{len(full)} records start with {prefix}",
                seen=[f[:16] for f in sorted(full)[:5]],
                next="type more digits",
            )
        self._ids.update(dict.fromkeys(full))
        starts = decided + [start for start in witnessed if start not in decided]
        if len(starts) > _MOST:
            self.answer.notes.append(f"it occurs {len(starts):,} times; the first {_MOST} are shown")
        for body, row in starts[:_MOST]:
            self.follow(body, row, witness=False)
        if not full:
            self.answer.notes.append(
                "either every stage kept it and it was not admitted, which leaves no trace under its id, "
                "or no stage saw it; ask with FILE:LINE or STAGE:ROW"
            )

    def follow(self, body: Mapping[str, Any], row: int, *, witness: bool) -> None:
        """Record what a stage did with a row of its input and go on with the row that stands for it."""
        key = (str(body.get("stage_id")), row)
        if key in self._seen or len(self.answer.steps) >= _MOST_STEPS:
            return
        self._seen.add(key)
        table = self.table(body)
        found = table.filter(pc.equal(table["row"], row)).to_pylist()
        gone = next((d for d in found if d["action"] != "rewrite"), None)
        for decision in found:
            self._add(body, row, decision, witness)
        if gone is None:
            if not found:
                self._add(body, row, None, witness)
            self._next(body, row, table, witness)
        elif gone["witness_row"] is not None:
            self.follow(body, int(gone["witness_row"]), witness=True)

    def _add(self, body: Mapping[str, Any], row: int, decision: Mapping[str, Any] | None, witness: bool) -> None:
        place = place_of_row(body, row) or ("", None)
        given: dict[str, Any] = {"what": "kept"}
        if decision is not None:
            what = {"remove": "removed", "rewrite": "rewritten", "quarantine": "quarantined"}[decision["action"]]
            given = {"what": what, "score": decision["score"], "witness_row": decision["witness_row"]}
            given |= {name: decision[name] or "" for name in ("record_id", "reason", "witness_id", "detail")}
            if given["record_id"] and not witness:
                self._ids.setdefault(given["record_id"])
            if given["witness_id"]:
                self.answer.survivor = given["witness_id"]
            elif given["reason"] == decisions.DUPLICATED:
                self.answer.survivor = ""  # no copy was to stay
            if what == "rewritten" and (new := decisions.rewritten_to(decision["detail"])):
                self.answer.survivor = new
                if not witness:
                    self._ids.setdefault(new)
        stage, stage_id = str(body.get("stage")), str(body.get("stage_id"))
        self.answer.steps.append(Step(stage, stage_id, row, file=place[0], file_row=place[1], witness=witness, **given))

    def _next(self, body: Mapping[str, Any], row: int, table: pa.Table, witness: bool) -> None:
        """Go on in whatever read the output that holds a kept row."""
        gone = table.filter(pc.and_(pc.not_equal(table["action"], "rewrite"), pc.less(table["row"], row)))
        position = row - pc.count_distinct(gone["row"]).as_py()
        outputs = [o for o in body.get("outputs") or [] if isinstance(o, dict)]
        if _scattered(body):
            names = ", ".join(str(o.get("path")) for o in outputs if o.get("rows"))
            self.answer.notes.append(f"{body.get('stage')} {body.get('stage_id')} wrote row {row} to one of: {names}")
            place = place_of_row(body, row)
            found = self.identify(body, *place) if place else None
            if found and not witness:
                self._ids.setdefault(found)
            elif found:
                self.answer.survivor = found
            return
        for output in outputs:
            if position < int(output.get("rows") or 0):
                self.readers(str(output.get("sha256")), position, witness)
                return
            position -= int(output.get("rows") or 0)

    def readers(self, sha256: str, position: int, witness: bool) -> None:
        """Go on in every stage and manifest that read a file of these bytes."""
        for later in self.stages:
            for source in later.get("inputs") or []:
                if source.get("sha256") == sha256:
                    self.follow(later, int(source.get("first_row") or 0) + position, witness=witness)
        for manifest_id, body in self.manifests:
            for split, path, start in _sources_before(body, sha256):
                self._in_split(manifest_id, body, split, path, start + position, witness)

    def _in_split(
        self, manifest_id: str, body: Mapping[str, Any], split: str, path: str, row: int, witness: bool
    ) -> None:
        name = f"{body['name']}@{body['version']}:{split}"
        if int(body["splits"][split].get("quarantined") or 0) or not path:
            self.answer.notes.append(f"it went to {name}, whose rows were renumbered; ask with its record id")
            return
        try:
            folder = load_manifest(self.catalog, manifest_id)
            column = pq.read_table(folder.file(path), columns=["record_id"])["record_id"]
            record_id = str(column[row].as_py())
        except (LptError, OSError, IndexError, pa.ArrowException) as error:
            self.answer.notes.append(f"{name} cannot be read: {str(error).splitlines()[0]}")
            return
        self._admit(name, row, record_id, witness)

    def _admit(self, name: str, row: int, record_id: str, witness: bool) -> None:
        step = Step(name, "", row, "admitted", record_id, witness=witness)
        if any((s.what, s.stage, s.row) == (step.what, step.stage, step.row) for s in self.answer.steps):
            return
        self.answer.steps.append(step)
        self.answer.survivor = record_id
        if not witness:
            self._ids.setdefault(record_id)

    def _admitted(self, prefix: str) -> Iterator[tuple[str, int, str]]:
        """Yield (NAME@V:SPLIT, row, record id) of the admitted rows whose id starts with `prefix`."""
        for manifest_id, body in self.manifests:
            for split, entry in body["splits"].items():
                try:
                    loaded, start = load_manifest(self.catalog, manifest_id), 0
                    for file in entry["files"]:
                        column = pq.read_table(loaded.file(file["path"]), columns=["record_id"])["record_id"]
                        hits = pc.indices_nonzero(pc.fill_null(pc.starts_with(column, prefix), False))
                        for row in hits.to_pylist()[:_MOST]:
                            yield f"{body['name']}@{body['version']}:{split}", start + row, str(column[row].as_py())
                        start += len(column)
                except (LptError, OSError, pa.ArrowException) as error:
                    name = f"{body['name']}@{body['version']}:{split}"
                    self.answer.notes.append(f"{name} cannot be read: {str(error).splitlines()[0]}")

    def finish(self) -> WhyAnswer:
        """Look for the survivor in the admitted splits, and sum up."""
        answer = self.answer
        answer.record_id = next(iter(self._ids), "")
        own = [step for step in answer.steps if not step.witness]
        ends = [step.what for step in own]
        target = answer.survivor or answer.record_id
        if target:
            for name, row, record_id in self._admitted(target):
                self._admit(name, row, record_id, witness="removed" in ends)
        self._runs()
        if "removed" in ends:
            answer.fate = "removed"
        elif "quarantined" in ends:
            answer.fate = "quarantined"
        elif own or any(not step.witness for step in answer.steps):
            answer.fate = "kept"
            answer.survivor = answer.survivor or answer.record_id
        return answer

    def _runs(self) -> None:
        """Name the runs on the splits that hold the row itself, how far they came and how they ended.

        Whether such a run came to the row is not on record: it may have stopped before, or have left the row out.
        """
        found: dict[str, str] = {}
        for step in self.answer.steps:
            if step.what == "admitted" and not step.witness:
                for _, body in self.catalog.find("lpt.run/1", strict=False, split=step.stage):
                    steps = body.get("steps", 0)
                    said = f"{body['run_id']} ({step.stage}), {body.get('status')} at step {steps}"
                    found.setdefault(f"{body['run_id']} {step.stage}", said)  # the newest record of a run comes first
        self.answer.runs = sorted(found.values())


def _scattered(body: Mapping[str, Any]) -> bool:
    """Whether the rows of a stage went to several outputs by their content, or to one in an order of its own."""
    if "repeated" in body:
        return True
    return body.get("stage") == "split" and sum(bool(o.get("rows")) for o in body.get("outputs") or []) > 1


def _sources_before(body: Mapping[str, Any], sha256: str) -> Iterator[tuple[str, str, int]]:
    """Yield (split, its one file or "", rows of the split before this source) where a manifest read a file."""
    for split, entry in body["splits"].items():
        start = 0
        for source in body.get("sources") or []:
            if source.get("split", split) != split:
                continue
            if source.get("sha256") == sha256:
                files = entry["files"]
                yield split, files[0]["path"] if len(files) == 1 else "", start
            start += int(source.get("rows") or 0)
