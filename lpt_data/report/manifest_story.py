"""The story of one admission: its manifest, the folder that it describes, and the stages behind it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lpt_data.progress import Progress, silent
from lpt_data.record_text import all_text
from lpt_data.report.numbers import lengths_histogram
from lpt_data.report.shape import check_shape
from lpt_data.report.stage_story import flow_of, stage_story
from lpt_data.report.story import ColumnStory, FailingRow, Flow, Histogram, JudgedCheck, ManifestStory, Pair, SplitStory
from manifests.arrow import plain_rows
from manifests.canon import FIELDS
from manifests.catalog import Catalog
from manifests.digests import bytes_sha256
from manifests.errors import BadInputError, LptError
from manifests.loaded import TYPE, LoadedManifest

SAMPLE = 20_000  # rows of a split whose lengths are measured: those with the smallest record ids
ROWS = 5  # rows shown behind a check
PAIRS = 40  # removals shown, of all stages together
EXCERPT = 240  # characters of a row behind a check
EARLIER = 20  # versions before that are listed

_WORST = {"fail": 0, "error": 0, "warn": 1, "skipped": 3, "pass": 4}


def manifest_story(loaded: LoadedManifest, catalog: Catalog | None, *, progress: Progress = silent) -> ManifestStory:
    """Gather what a report tells of an admission; `catalog` has the stages behind it, where there is one.

    Files of the folder that are not what was admitted are not read, and noted. Raises BadInputError for a manifest of
    another shape.
    """
    body = loaded.body
    check_shape(body, str(loaded.path))
    notes: list[str] = []
    stages = _stages(catalog, body, notes)
    failing = _failing(loaded, notes)
    wanted = {row["record_id"] for rows in failing.values() for row in rows[:ROWS]} - {"", None}
    splits, texts, lengths = [], {}, {}
    for name in sorted(body["splits"], key=_usual):
        entry = body["splits"][name]
        intact = _intact(loaded, entry["files"], f"the split {name}", notes)
        read = _Read(wanted, _sample(loaded, entry) if intact else None)
        columns: tuple[ColumnStory, ...] = ()
        for file in entry["files"] if intact else ():
            columns = read.file(loaded, file["path"], progress)
        splits.append(SplitStory(name, entry, intact, columns))
        texts.update(read.texts)
        lengths[name] = np.array(read.lengths, np.int64)
    pairs, pairs_of = _weakest(catalog, stages, notes, progress)
    return ManifestStory(
        id=loaded.id,
        body=body,
        flows=tuple(_flows(body, stages)),
        checks=tuple(_judged(check, failing, texts) for check in sorted(body["checks"], key=_severity)),
        splits=tuple(splits),
        lengths=_lengths(body, lengths),
        stages=tuple(stages),
        pairs=pairs,
        pairs_of=pairs_of,
        files=(loaded.path, *(loaded.file(f["path"]) for f in _listed(body))),
        earlier=_earlier(catalog, body),
        notes=tuple(dict.fromkeys(notes)),
    )


def _severity(check: Mapping[str, Any]) -> tuple[int, bool, str]:
    """The worst first: failures, warnings, required checks that did not run, other skipped ones, passes."""
    rank = _WORST[check["status"]]
    if check["status"] == "skipped" and check.get("required"):
        rank = 2
    return rank, not check.get("required"), check["id"]


def _usual(split: str) -> tuple[int, str]:
    """The order in which people name splits."""
    known = ("train", "validation", "calibration", "test")
    return (known.index(split) if split in known else len(known)), split


def _stages(
    catalog: Catalog | None, body: Mapping[str, Any], notes: list[str]
) -> list[tuple[str, Mapping[str, Any] | None]]:
    found: list[tuple[str, Mapping[str, Any] | None]] = []
    for name in body.get("stages") or []:
        known = None
        if catalog is not None:
            try:
                known = catalog.get(name)
                if known.get("type") != "lpt.stage/1":
                    raise BadInputError("not a stage", seen=f"{name[:16]}: {known.get('type')}")
            except LptError as error:
                notes.append(f"a stage behind this data is not shown: {error.what} ({error.seen})")
        found.append((str(name), known))
    if catalog is None and found:
        notes.append("the catalog that made this is not here, so its stages and the rows they removed are not shown")
    return found


def _flows(body: Mapping[str, Any], stages: Sequence[tuple[str, Mapping[str, Any] | None]]) -> Iterable[Flow]:
    """The funnel as the manifest has it; its first entries are the stages, in their order, its last the splits."""
    made: set[str] = set()
    for number, entry in enumerate(body.get("funnel") or []):
        known = stages[number][1] if number < len(stages) else None
        split = str(entry.get("stage")).removeprefix("admit ")
        fresh = [f for f in body.get("sources") or () if f.get("split") == split and f.get("sha256") not in made]
        if known is not None:
            origin = flow_of(known, made)
            made |= {str(file.get("sha256")) for file in known.get("outputs") or ()}
        yield Flow(
            title=str(entry.get("stage")),
            rows_in=int(entry.get("rows_in") or 0),
            rows_out=int(entry.get("rows_out") or 0),
            removed=dict(entry.get("removed") or {}),
            quarantined=int(entry.get("quarantined") or 0),
            repeated=int(entry.get("repeated") or 0),
            stage_id=origin.stage_id if known is not None else "",
            sources=origin.sources
            if known is not None
            else tuple((str(file["path"]).rpartition("/")[2], None) for file in fresh),
        )


def _weakest(
    catalog: Catalog | None,
    stages: Sequence[tuple[str, Mapping[str, Any] | None]],
    notes: list[str],
    progress: Progress,
) -> tuple[tuple[Pair, ...], int]:
    """The removals of all stages with the weakest evidence, and how many removals there were."""
    pairs: list[Pair] = []
    total = 0
    for name, body in stages:
        if catalog is None or body is None or body.get("stage") == "mix":  # a draw is no judgement of a row
            continue
        story = stage_story(catalog, name, body, progress=progress, measure=False)
        notes += [f"{story.title}: {note}" for note in story.notes]
        pairs += [pair for pair in story.pairs if pair.reason not in (body.get("rewritten") or {})]
        total += story.pairs_of
    return _a_share_of_each(pairs), total


def _a_share_of_each(pairs: Sequence[Pair]) -> tuple[Pair, ...]:
    """The weakest of each stage and reason, about as many of each: scores of two stages are no one scale."""
    groups: dict[tuple[str, str], list[Pair]] = {}
    for pair in sorted(pairs, key=_doubt):
        groups.setdefault((pair.stage, pair.reason), []).append(pair)
    share = max(1, PAIRS // max(1, len(groups)))
    first = [pair for group in groups.values() for pair in group[:share]]
    rest = [pair for group in groups.values() for pair in group[share:]]
    room = max(0, PAIRS - len(first))
    return tuple(sorted([*first, *sorted(rest, key=_doubt)[:room]], key=_doubt)[:PAIRS])


def _doubt(pair: Pair) -> tuple[bool, float, str, int]:
    return pair.score is None, pair.score or 0.0, pair.stage, pair.row


def _listed(body: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The entries of all files of the folder."""
    return [f for s in body["splits"].values() for f in s["files"]] + list(body.get("side_files") or ())


def _earlier(catalog: Catalog | None, body: Mapping[str, Any]) -> tuple[tuple[str, str, str], ...]:
    """NAME@V, verdict and time of the versions that this one supersedes, the newest first."""
    found: list[tuple[str, str, str]] = []
    name = body.get("supersedes")
    while catalog is not None and name and len(found) < EARLIER:
        try:
            before = catalog.get(str(name))
        except LptError:
            break
        if before.get("type") != TYPE:
            break
        found.append((f"{before['name']}@{before['version']}", str(before["verdict"]), str(before.get("created", ""))))
        name = before.get("supersedes")
    return tuple(found)


# -- the folder


def _intact(loaded: LoadedManifest, files: Sequence[Mapping[str, Any]], what: str, notes: list[str]) -> bool | None:
    """Whether all files are what was admitted: None where they are not here."""
    for file in files:
        path = loaded.file(file["path"])
        if not path.is_file():
            notes.append(f"the files of {what} are not here: {path}")
            return None
        if path.stat().st_size != file["bytes"] or bytes_sha256(path) != file["sha256"]:
            notes.append(f"{path} is NOT what was admitted; nothing of it is shown: lpt manifest verify {loaded.path}")
            return False
    return True


def _failing(loaded: LoadedManifest, notes: list[str]) -> dict[str, list[dict[str, Any]]]:
    """Rows behind each check, as the admission wrote them, in the order of split and row."""
    side = [file for file in loaded.body.get("side_files") or [] if file["path"] == "failing_rows.parquet"]
    if not side or not _intact(loaded, side, "the rows behind the checks", notes):
        return {}
    try:
        rows = pq.read_table(loaded.file(side[0]["path"])).to_pylist()
        found: dict[str, list[dict[str, Any]]] = {}
        for row in sorted(rows, key=lambda one: (one["split"], one["row"])):
            found.setdefault(str(row["check_id"]), []).append(row)
    except (OSError, pa.ArrowException, KeyError, TypeError) as error:
        notes.append(f"the rows behind the checks cannot be read: {error}")
        return {}
    return found


def _sample(loaded: LoadedManifest, entry: Mapping[str, Any]) -> set[str] | None:
    """The record ids whose rows are measured; None: all of them."""
    if entry["rows"] <= SAMPLE:
        return None
    ids: list[str] = []
    for file in entry["files"]:
        ids += pq.read_table(loaded.file(file["path"]), columns=["record_id"])["record_id"].to_pylist()
        ids = sorted(set(ids))[:SAMPLE]
    return set(ids)


class _Read:
    """One pass over the files of a split: the texts of wanted rows, the lengths of sampled ones."""

    def __init__(self, wanted: set[str], sample: set[str] | None) -> None:
        self.wanted = wanted
        self.sample = sample
        self.texts: dict[str, str] = {}
        self.lengths: list[int] = []

    def file(self, loaded: LoadedManifest, written: str, progress: Progress) -> tuple[ColumnStory, ...]:
        """Read one file and return its columns with their types."""
        kind = loaded.body["contract"]
        with pq.ParquetFile(loaded.file(written)) as file:
            schema = file.schema_arrow
            names = [name for name in (*FIELDS[kind], "record_id") if name in schema.names]
            done = 0
            for batch in file.iter_batches(4096, columns=names):
                self._batch(kind, batch)
                done += batch.num_rows
                progress(done, file.metadata.num_rows, f"lengths of {written}")
        return tuple(ColumnStory(field.name, str(field.type), _members(field.type)) for field in schema)

    def _batch(self, kind: str, batch: pa.RecordBatch) -> None:
        ids = batch["record_id"].to_pylist()
        places = [i for i, name in enumerate(ids) if self.sample is None or name in self.sample or name in self.wanted]
        for place, row in zip(places, plain_rows(batch.take(pa.array(places, pa.int64()))), strict=True):
            said = all_text(kind, {name: row[name] for name in FIELDS[kind] if row.get(name) is not None})
            if self.sample is None or ids[place] in self.sample:
                self.lengths.append(len(said))
            if ids[place] in self.wanted:
                self.texts[ids[place]] = " ".join(said[: 4 * EXCERPT].split())[:EXCERPT]


def _members(kind: pa.DataType) -> tuple[tuple[str, str], ...]:
    """The members of the objects in a list that are themselves neither lists nor objects."""
    inner = kind.value_type if pa.types.is_list(kind) or pa.types.is_large_list(kind) else None
    if inner is None or not pa.types.is_struct(inner):
        return ()
    return tuple((field.name, str(field.type)) for field in inner if not pa.types.is_nested(field.type))


def _judged(
    check: Mapping[str, Any], failing: Mapping[str, Sequence[Mapping[str, Any]]], texts: Mapping[str, str]
) -> JudgedCheck:
    rows = failing.get(check["id"], ()) if check["status"] != "pass" else ()
    shown = tuple(
        FailingRow(
            place=f"{row['file']}:{row['line']}" if row["file"] and row["line"] else f"{row['split']} row {row['row']}",
            record_id=row["record_id"] or "",
            detail=row["detail"] or "",
            excerpt=texts.get(row["record_id"] or "", ""),
        )
        for row in rows[:ROWS]
    )
    return JudgedCheck(check, shown, len(rows))


def _lengths(body: Mapping[str, Any], lengths: Mapping[str, np.ndarray]) -> Histogram | None:
    sampled = [name for name, values in lengths.items() if len(values) and len(values) < body["splits"][name]["rows"]]
    note = ""
    if sampled:
        note = f"of {', '.join(sampled)} the {SAMPLE:,} rows with the smallest record ids, which is a random sample"
    return lengths_histogram("Lengths of the admitted rows", "characters", lengths, note)
