"""The story of one stage, from its record, its decisions and the rows that it read."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lpt_data.progress import Progress, silent
from lpt_data.report.compare import alone, compare
from lpt_data.report.numbers import lengths_histogram, scores_histogram
from lpt_data.report.places import place_name
from lpt_data.report.read_back import Excerpt, Found, read_back
from lpt_data.report.story import Aside, Flow, Histogram, Keeper, Pair, Pieces, StageStory
from manifests import decisions
from manifests.catalog import Catalog
from manifests.digests import bytes_sha256
from manifests.errors import BadInputError

WEAKEST = 40  # removals of one reason with a score below 1
SURE = 5  # removals of one reason without such a score
KEEPERS = 10
ASIDE = 50  # rows in quarantine


def stage_story(
    catalog: Catalog, object_id: str, body: Mapping[str, Any], *, progress: Progress = silent, measure: bool = True
) -> StageStory:
    """Gather what a report tells of a stage; what cannot be shown any more is noted, never left out in silence.

    `measure` reads the whole input for the lengths of its rows where it is small enough.
    """
    notes: list[str] = []
    table = _decided(catalog, body, notes)
    chosen = weakest(table)
    keepers = _most_absorbing(table)
    rows = {row for one in chosen for row in (one["row"], one["witness_row"]) if row is not None}
    rows |= {row for row, _ in keepers}
    ids = {one["witness_id"] for one in chosen if one["witness_row"] is None and one["witness_id"]}
    found = read_back(body, rows, ids, progress, measure=measure)
    notes += found.notes
    gone = table.filter(pc.equal(table["action"], "remove"))
    aside = table.filter(pc.equal(table["action"], "quarantine"))
    return StageStory(
        id=object_id,
        body=body,
        flow=flow_of(body),
        reasons=_reasons(body),
        pairs=tuple(_pairs(catalog, body, chosen, found, notes, progress)),
        pairs_of=gone.num_rows,
        scores=_scores(gone),
        lengths=_lengths(table, found),
        keepers=tuple(_keeper(row, count, table, found, body) for row, count in keepers),
        quarantine=tuple(_aside(one, body) for one in aside.slice(0, ASIDE).to_pylist()),
        notes=tuple(dict.fromkeys(notes)),
    )


def flow_of(body: Mapping[str, Any], made: Collection[str] = ()) -> Flow:
    """Return how the rows of a recorded stage went; files whose sha256 is in `made` are no sources of their own."""
    fresh = [entry for entry in body.get("inputs") or () if entry.get("sha256") not in made]
    return Flow(
        title=str(body["stage"]),
        rows_in=int(body["rows_in"]),
        rows_out=int(body["rows_out"]),
        removed=dict(body.get("removed") or {}),
        quarantined=int(body.get("quarantined") or 0),
        repeated=int(body.get("repeated") or 0),
        stage_id=str(body.get("stage_id") or ""),
        sources=tuple((str(entry["path"]).rpartition("/")[2], entry.get("rows")) for entry in fresh),
    )


def weakest(table: pa.Table) -> list[dict[str, Any]]:
    """Return the removals that a reader should doubt first: of each reason those with the lowest scores, then the
    smallest record id; of a reason without scores below 1 a few.
    """
    chosen: list[dict[str, Any]] = []
    gone = table.filter(pc.equal(table["action"], "remove"))
    for reason in sorted(set(gone["reason"].unique().to_pylist())):
        mine = gone.filter(pc.equal(gone["reason"], reason))
        doubtful = mine.filter(pc.fill_null(pc.less(mine["score"], 1.0), False))
        some = doubtful if doubtful.num_rows else mine
        count = WEAKEST if doubtful.num_rows else SURE
        keys = [("score", "ascending"), ("record_id", "ascending"), ("row", "ascending")]
        chosen += some.take(pc.select_k_unstable(some, min(count, some.num_rows), keys)).to_pylist()
    return sorted(chosen, key=_doubt)


def _doubt(one: Mapping[str, Any]) -> tuple[bool, float, str, int]:
    score = one["score"]
    return score is None, score if score is not None else 0.0, one["record_id"] or "", one["row"]


def _decided(catalog: Catalog, body: Mapping[str, Any], notes: list[str]) -> pa.Table:
    path = catalog.decisions_path(str(body["stage_id"]))
    try:
        table = decisions.read(path)
        if bytes_sha256(path) == (body.get("decisions") or {}).get("sha256"):
            return table
        notes.append(f"the decisions were changed after they were written and are not shown: {path}")
    except BadInputError as error:
        notes.append(f"{error.what} and are not shown: {error.seen}")
    return decisions.empty()


def _reasons(body: Mapping[str, Any]) -> tuple[tuple[str, str, int], ...]:
    told = [("remove", body.get("removed")), ("rewrite", body.get("rewritten")), ("quarantine", body.get("quarantine"))]
    return tuple((action, reason, int(n)) for action, counts in told for reason, n in (counts or {}).items())


def _scores(gone: pa.Table) -> Histogram | None:
    series = {
        reason: mine["score"].drop_null().to_numpy()
        for reason in sorted(set(gone["reason"].unique().to_pylist()))
        if (mine := gone.filter(pc.equal(gone["reason"], reason))).num_rows
    }
    return scores_histogram("Scores of the removed rows", "similarity", series)


def _lengths(table: pa.Table, found: Found) -> Histogram | None:
    if found.lengths is None:
        return None
    kept = np.ones(len(found.lengths), bool)
    gone = table.filter(pc.not_equal(table["action"], "rewrite"))["row"].to_numpy()
    kept[gone[gone < len(kept)]] = False
    return lengths_histogram(
        "Lengths of the rows", "characters", {"kept": found.lengths[kept], "removed": found.lengths[~kept]}
    )


# -- pairs


def _pairs(
    catalog: Catalog,
    body: Mapping[str, Any],
    chosen: Sequence[Mapping[str, Any]],
    found: Found,
    notes: list[str],
    progress: Progress,
) -> list[Pair]:
    if body["stage"] == "decontaminate":
        from lpt_data.report.benchmark_pairs import benchmark_pairs  # loads numba, which takes longer than a page

        return benchmark_pairs(catalog, body, notes, progress)
    if body["stage"] == "clean":
        return [*(_rewrite_pairs(body)), *(_pair(body, one, found) for one in chosen)]
    return [_pair(body, one, found) for one in chosen]


def _pair(body: Mapping[str, Any], one: Mapping[str, Any], found: Found) -> Pair:
    row, kept = one["row"], one["witness_row"]
    mine = found.by_row.get(row)
    other = found.by_row.get(kept) if kept is not None else found.by_id.get(one["witness_id"] or "")
    if mine is not None and body["stage"] == "clean":  # personal data and secrets are not for a page
        from lpt_data.clean.stage import hidden

        mine = Excerpt(hidden(mine.text), mine.characters)
    left, right = _beside(mine, other)
    if kept is not None:
        right_name = f"kept: {place_name(body, kept)}"
    else:
        right_name = f"kept row of the reference {one['witness_id'][:16]}" if one["witness_id"] else ""
    return Pair(
        stage=str(body["stage"]),
        reason=one["reason"],
        row=row,
        score=one["score"],
        left=left,
        right=right,
        left_name=f"removed: {place_name(body, row)}",
        right_name=right_name,
        why=f"lpt why {shlex.quote(str(body['stage_id']))}:{row}",
        detail=one["detail"] or "",
    )


def _beside(mine: Excerpt | None, other: Excerpt | None) -> tuple[Pieces, Pieces]:
    if mine is None or other is None:
        return tuple(() if one is None else _whole(alone(one.text), one) for one in (mine, other))  # type: ignore[return-value]
    left, right = compare(mine.text, other.text)
    return _whole(left, mine), _whole(right, other)


def _whole(pieces: Pieces, of: Excerpt) -> Pieces:
    left_out = of.characters - len(of.text)
    return (*pieces, (f"… {left_out:,} characters not looked at …", "gap")) if left_out > 0 else pieces


def _rewrite_pairs(body: Mapping[str, Any]) -> list[Pair]:
    """The examples that cleaning recorded, before beside after; what is masked was never recorded."""
    pairs = []
    for reason, shown in body["extra"].get("examples", {}).items():
        for one in shown:
            if reason in body["rewritten"]:
                masked = reason.endswith("_masked")
                left, right = (
                    (alone(one["before"]), alone(one["after"])) if masked else compare(one["before"], one["after"])
                )
                where = f"before: {place_name(body, one['row'])}"
                why = f"lpt why {shlex.quote(str(body['stage_id']))}:{one['row']}"
                pairs.append(Pair("clean", reason, one["row"], None, left, right, where, "after", why))
    return pairs


# -- keepers and quarantine


def _most_absorbing(table: pa.Table) -> list[tuple[int, int]]:
    """Return (row, rows that went for it) of the kept rows that stand for the most, at least two."""
    gone = table.filter(pc.equal(table["action"], "remove"))["witness_row"].drop_null().to_numpy()
    rows, counts = np.unique(gone, return_counts=True)
    order = np.lexsort((rows, -counts))[:KEEPERS]
    return [(int(rows[i]), int(counts[i])) for i in order if counts[i] > 1]


def _keeper(row: int, count: int, table: pa.Table, found: Found, body: Mapping[str, Any]) -> Keeper:
    name = table.filter(pc.fill_null(pc.equal(table["witness_row"], row), False))["witness_id"][0].as_py() or ""
    mine = found.by_row.get(row)
    said = " ".join(mine.text[:400].split())[:200] if mine else ""
    return Keeper(row, name, count, count / max(1, int(body["rows_in"])), said)


def _aside(one: Mapping[str, Any], body: Mapping[str, Any]) -> Aside:
    return Aside(one["reason"], place_name(body, one["row"]), one["detail"] or "")
