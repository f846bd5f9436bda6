"""Pairs out of scored responses: for each prompt, a better response as chosen and a worse one as rejected.

A response is an object with a text and a verdict: true or false, or a number of which more is better. Each pair says
which column (which model) wrote either side and which row it comes from. Rows that give no pair are removed with the
reason, and never silently:

| reason | what it says |
|---|---|
| `no_response` | no column holds a response with text |
| `no_wrong_response`, `no_right_response` | all responses are right, or all are wrong: there is nothing to prefer |
| `equal_scores` | numbers that are all the same |
| `same_text` | the better and the worse response are the same words |
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import pyarrow as pa

from lpt_data.config import ResponsesConfig
from lpt_data.contracts.reference import QUESTION_COLUMNS
from lpt_data.dataset import Dataset
from lpt_data.places import file_entry
from lpt_data.progress import Progress, silent
from lpt_data.stage import StageReport, StageResult, Work
from lpt_data.write import write_jsonl
from manifests import decisions
from manifests.errors import NOT_GIVEN, LptError, RecordError, UsageError
from manifests.files import make_folder

if TYPE_CHECKING:
    from manifests.catalog import Catalog

TEXT_FIELDS = ("solution", "response", "completion", "text", "content", "output", "answer")
PAIRS = "pairs.jsonl"


@dataclass(frozen=True)
class Response:
    """One response to a prompt."""

    source: str  # the column, and the place in it where it holds several
    text: str
    score: float
    verdict: bool  # whether the score was true or false, and no number


def open_responses(inputs: list[str], prompt: str | None, layout: str | None = None) -> Dataset:
    """Open rows whose prompt is plain text in one column: the one named, else the first of QUESTION_COLUMNS."""
    if layout is not None:
        raise UsageError("scored responses have no layout", seen=layout, next="name the prompt with --prompt COLUMN")
    if prompt is not None:
        return Dataset.open(inputs, kind="text", text_column=prompt)
    tried: LptError | None = None
    for name in QUESTION_COLUMNS:
        try:
            return Dataset.open(inputs, kind="text", text_column=name)
        except LptError as error:
            tried = tried or error
    raise UsageError(
        "no column holds the prompts",
        seen=(tried and tried.seen) or NOT_GIVEN,
        next=f"--prompt COLUMN; known: {', '.join(QUESTION_COLUMNS)}",
    )


def build(
    dataset: Dataset, config: ResponsesConfig, *, out: Path, catalog: Catalog, progress: Progress | None = None
) -> StageReport:
    """Write pairs.jsonl and the rows that gave a pair (prompts.*) into the folder `out`; record the stage.

    `rows_out` counts those rows; the pairs are in `extra`. Raises UsageError for columns that are not there.
    """
    _check(dataset, config)
    folder = make_folder(out)
    kept = folder / f"prompts.{dataset.files[0].format}"
    work = Work(
        "pairs_of_responses",
        dataset,
        config,
        _decide,
        (kept,),
        output=str(folder),
        finish=lambda written, result: _finish(dataset, config, folder, result),
    )
    return work.run(catalog, progress or silent, dry_run=False, wait=5.0)


def _check(dataset: Dataset, config: ResponsesConfig) -> None:
    missing = [name for name in config.responses if name not in dataset.columns]
    if missing or not config.responses:
        raise UsageError(
            "no column of that name holds responses",
            seen=f"{', '.join(missing) or 'none named'}; columns: {', '.join(dataset.columns)}",
            next="name those of the columns that hold responses: --responses COLUMN,COLUMN",
        )
    if len(set(config.responses)) < len(config.responses):
        raise UsageError("a column is named twice", seen=", ".join(config.responses), next="name each once")
    if config.per_prompt not in ("all", "one"):
        raise UsageError("no such number of pairs", seen=config.per_prompt, next="--per-prompt all or one")


def _decide(dataset: Dataset, config: ResponsesConfig, progress: Progress) -> StageResult:
    gone: list[tuple[int, str, str, str]] = []
    rows, ids = [], []
    for row, record, extra, name in dataset.identified():
        rows.append(row)
        ids.append(name)
        try:
            found = responses(extra, config)
        except RecordError as error:
            gone.append((row, "quarantine", error.reason, f"{error.what}; {error.seen}"))
            continue
        if not pairs(record["text"], found, config)[0]:
            gone.append((row, "remove", why_none(found), ""))
        if not len(rows) % 1024:
            progress(len(rows), None, "rows read")
    record_ids = np.zeros((dataset.rows_in, 32), np.uint8)
    record_ids[rows] = np.frombuffer(b"".join(ids), np.uint8).reshape(-1, 32)
    at = [row for row, *_ in gone]
    table = decisions.table(
        {
            "row": pa.array(at, pa.int64()),
            "record_id": decisions.hex_ids(record_ids[at]),
            "action": pa.array([action for _, action, _, _ in gone], pa.string()),
            "reason": pa.array([reason for _, _, reason, _ in gone], pa.string()),
            "detail": pa.array([detail or None for *_, detail in gone], pa.string()),
        }
    )
    return StageResult(table, record_ids)


def _finish(dataset: Dataset, config: ResponsesConfig, folder: Path, result: StageResult) -> Mapping[str, Any]:
    gone = set(result.decisions["row"].to_pylist())
    wins: dict[str, Counter[str]] = {}
    left_out: Counter[str] = Counter()

    def every() -> Iterator[dict[str, Any]]:
        for row, record, extra in dataset.records():
            if row in gone:
                continue
            made, skipped = pairs(record["text"], responses(extra, config), config)
            left_out.update(skipped)
            for better, worse in made:
                wins.setdefault(better.source, Counter())[worse.source] += 1
                scores = {} if better.verdict and worse.verdict else scored(better, worse)
                yield {
                    "prompt": record["text"],
                    "chosen": better.text,
                    "rejected": worse.text,
                    **scores,
                    "chosen_model": better.source,
                    "rejected_model": worse.source,
                    "source_row": row,
                }

    count = write_jsonl(folder / PAIRS, every())
    extra = {
        "pairs": count,
        "pairs_file": str(folder / PAIRS),
        "left_out": dict(left_out),
        "wins": {better: dict(sorted(over.items())) for better, over in sorted(wins.items())},
    }
    return {"outputs": [file_entry(folder / PAIRS, count)], "extra": extra}


def scored(better: Response, worse: Response) -> dict[str, float]:
    """Return the columns of the scores of a pair."""
    return {"score_chosen": better.score, "score_rejected": worse.score}


def responses(row: Mapping[str, Any], config: ResponsesConfig) -> list[Response]:
    """Return the responses of a row with a text, in the order of the columns; RecordError for what is none."""
    found = []
    for column in config.responses:
        value = _parsed(row.get(column))
        several = isinstance(value, (list, tuple))
        for index, item in enumerate(value if several else [value]):
            if item is None:
                continue
            place = f"{column}[{index}]" if several else column
            if not isinstance(item, Mapping):
                raise RecordError(f"{place} must be an object", reason="wrong_type", field=place, seen=repr(item)[:80])
            text = _text(item, place, config)
            if text.strip():
                found.append(Response(place, text, *_score(item, place, config)))
    return found


def _parsed(value: Any) -> Any:
    """The value of a cell; a format of text holds it as JSON."""
    if not isinstance(value, str):
        return value
    try:
        return orjson.loads(value)
    except ValueError:
        return value


def _text(item: Mapping[str, Any], place: str, config: ResponsesConfig) -> str:
    names = (config.text,) if config.text else TEXT_FIELDS
    name = next((name for name in names if item.get(name) is not None and name != config.correct), None)
    if name is None:
        raise RecordError(
            f"{place} has no text", reason="missing_field", field=place, seen=f"fields: {', '.join(map(str, item))}"
        )
    if not isinstance(item[name], str):
        raise RecordError(f"{place}.{name} must be text", reason="wrong_type", field=place, seen=repr(item[name])[:80])
    return item[name]


def _score(item: Mapping[str, Any], place: str, config: ResponsesConfig) -> tuple[float, bool]:
    value = item.get(config.correct)
    if isinstance(value, bool):
        return float(value), True
    if isinstance(value, (int, float)) and math.isfinite(value):
        return float(value), False
    reason = "missing_field" if value is None else "wrong_type"
    raise RecordError(
        f"{place}.{config.correct} must be true, false or a number", reason=reason, field=place, seen=repr(value)[:80]
    )


def pairs(
    prompt: str, found: list[Response], config: ResponsesConfig
) -> tuple[list[tuple[Response, Response]], Counter[str]]:
    """Return the (better, worse) pairs of a prompt, and what was left out and why.

    The same two texts make one pair, that of the columns named first. Of all pairs, `one` takes the one of the smallest
    hash of seed, prompt and texts, which depends on nothing else.
    """
    left_out: Counter[str] = Counter()
    made: dict[tuple[str, str], tuple[Response, Response]] = {}
    for better in found:
        for worse in found:
            if better.score <= worse.score:
                continue
            texts = (better.text, worse.text)
            if texts[0].split() == texts[1].split():
                left_out["same_text"] += 1
            elif texts in made:
                left_out["repeated_pair"] += 1
            else:
                made[texts] = (better, worse)
    if config.per_prompt == "one" and len(made) > 1:
        left_out["not_drawn"] += len(made) - 1
        drawn = min(made, key=lambda texts: hashlib.sha256(orjson.dumps([config.seed, prompt, *texts])).digest())
        return [made[drawn]], left_out
    return list(made.values()), left_out


def why_none(found: list[Response]) -> str:
    """Return the reason why the responses of a prompt make no pair."""
    if not found:
        return "no_response"
    scores = {response.score for response in found}
    if len(scores) > 1:
        return "same_text"
    if not all(response.verdict for response in found):
        return "equal_scores"
    return "no_wrong_response" if scores == {1.0} else "no_right_response"
