"""What `lpt eval` recorded of the weights that a run made, alone and against other models.

An evaluation belongs to a run by a digest: that of a checkpoint, among whose files is the name of its run, or that of a
model that `lpt export` recorded. One that only names the run (of weights beside an adapter of somebody else's, say) is
counted and not shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lpt_data.report import words
from lpt_data.report.shape import COMPARISON, EVALUATION, EXPORT, check_shape
from lpt_data.report.story import Compared, Evaluated
from manifests.catalog import Catalog
from manifests.errors import BadInputError

MOST = 20  # evaluations, and comparisons, of one run that a page shows
Found = tuple[tuple[Evaluated, ...], tuple[Compared, ...], list[str]]


def evaluations_of(catalog: Catalog, run: Mapping[str, Any]) -> Found:
    """The evaluations and comparisons of a run, the newest first, and what is not among them.

    Of the same weights measured in the same way on the same rows, drawn by the same seed, the newest counts.
    """
    run_id: str = run["run_id"]
    notes: list[str] = []
    exports = {body.get("digest") for _, body in _records(catalog, "lpt.export/1", EXPORT, notes, run_id=run_id)}
    found: dict[tuple[Any, ...], Evaluated] = {}
    others: dict[str, tuple[str, str]] = {}  # of every evaluation: its split, and what was measured
    own, untied, replaced = set(), 0, 0
    for object_id, body in _records(catalog, "lpt.eval/1", EVALUATION, notes):
        model = body["model"]
        others[object_id] = (body["split"], model["name"])
        if (model.get("made_from") or {}).get("run_id") != run_id:
            continue
        if (weights := _weights(model, run, exports)) is None:
            untied += 1
            continue
        others[object_id] = (body["split"], weights)
        own.add(object_id)
        one = Evaluated(
            object_id, body["split"], weights, model["digest"], _how(body), body.get("created") or "",
            tuple(body.get("measures") or ()),
        )  # fmt: skip
        measured = frozenset((measure["name"], measure.get("domain") or "") for measure in one.measures)
        key = (body["split"], body.get("content_root"), one.digest, one.how, measured)
        replaced += key in found
        found.setdefault(key, one)
    if replaced:
        notes.append(f"older evaluations that were made again in the same way: {replaced:,}; lpt sql shows them")
    if untied:
        notes.append(f"evaluations that name the run, but no digest of what it wrote: {untied:,}")
    comparisons = []
    for object_id, body in _records(catalog, "lpt.comparison/1", COMPARISON, notes) if own else ():
        if own & {body["before"], body["after"]}:
            (split, before), (_, after) = (others.get(body[side], ("", body[side])) for side in ("before", "after"))
            comparisons.append(
                Compared(
                    object_id, split, before, after, tuple(body.get("paired") or ()), tuple(body.get("measures") or ())
                )
            )
    for what, there in (("evaluations", len(found)), ("comparisons", len(comparisons))):
        if there > MOST:
            notes.append(f"earlier {what}: {there - MOST:,}; lpt sql shows them")
    return tuple(found.values())[:MOST], tuple(comparisons[:MOST]), notes


def _records(
    catalog: Catalog, type: str, shape: Mapping[str, Any], notes: list[str], **equals: Any
) -> Iterator[tuple[str, dict[str, Any]]]:
    for object_id, body in catalog.find(type, strict=False, **equals):
        try:
            check_shape(body, object_id, shape, "the record is damaged")
        except BadInputError as error:
            notes.append(f"{type} {object_id[:16]}: {error.what} ({error.seen.partition(': ')[2]})")
            continue
        yield object_id, body


def _weights(model: Mapping[str, Any], run: Mapping[str, Any], exports: set[Any]) -> str | None:
    """Which weights of the run were measured; None where no digest says that they are the run's."""
    step = (model.get("made_from") or {}).get("step")
    named = "weights" if step is None else f"step {step:,}"
    if (checkpoint := model.get("checkpoint_sha256")) is not None:
        return f"{named}, the last" if checkpoint == (run.get("checkpoint") or {}).get("sha256") else named
    return f"export of {named}" if model["digest"] in exports else None


def _how(body: Mapping[str, Any]) -> str:
    """What numbers of an evaluation depend on, and what they leave out."""
    parts = []
    if (items := body.get("n")) is not None:
        parts.append(f"{items:,} items")
    drawn = "" if body.get("rows") is None else f"{words.rows(body['rows'])} drawn by "
    if (seed := body.get("seed")) is not None:
        parts.append(f"{drawn}seed {seed}")
    if body.get("temperature") is not None:
        sampled = f"temperature {body['temperature']:g}, {body.get('k') or 1:,} samples each"
        parts.append("greedy" if body["temperature"] == 0 else sampled)
    for name, what in (("max_completion_length", "of a completion"), ("max_length", "of a row")):
        if body.get(name) is not None:
            parts.append(f"at most {body[name]:,} tokens {what}")
    if body.get("reward"):
        parts.append(f"scored by {body['reward']}")
    if body.get("truncated_share"):
        parts.append(f"{words.share(body['truncated_share'], 1)} of the completions cut")
    if body.get("unscorable"):
        parts.append(f"{body['unscorable']:,} that could not be scored")
    if dropped := sum((body.get("dropped") or {}).values()):
        parts.append(f"{words.rows(dropped)} left out")
    return ", ".join(parts)
