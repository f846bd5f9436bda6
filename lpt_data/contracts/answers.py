"""Answers that a policy may find without the task: guessed, most frequent, copied from the prompt; and pass rates.

A pass rate is the share of a model's samples that the verifier paid for one prompt. It comes from a column beside the
row, from a scored file, or from whatever the caller lends, such as the attempts of a model (`sampled`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from lpt_data.contracts import groups
from lpt_data.contracts.common import NO_RATES, Finding, Found, Outcome, PassRates, Record, share, skipped, user_turns
from lpt_data.contracts.survey import SplitSurvey, Survey, row_keys
from lpt_data.dataset import Dataset
from manifests.canon import id_of
from manifests.errors import BadInputError

# Answers that a policy hits by trying the few values there are: yes/no, one of five letters, an integer from 0 to 4.
GUESSABLE = re.compile(r"\s*(?:yes|no|true|false|\(?[a-e]\)?|[0-4])\s*\.?\s*", re.IGNORECASE)
FEWEST = 100  # rows below which a handful of answers covers much of any set
GUESSES = 5  # answers that a policy may try
BAND = (0.1, 0.9)  # pass rates that teach: nearly never and nearly always give groups of one reward
RATE_COLUMNS = ("pass_rate", "solve_rate", "success_rate")
REWARD_COLUMNS = ("rewards", "correct")  # one number, or true and false, for each sample


def guessable(record: Record) -> str | None:
    """An answer that a blind guess hits at least one time in five."""
    answer = record["answer"]
    return f"answer {answer!r}" if GUESSABLE.fullmatch(answer) else None


def in_prompt(record: Record) -> str | None:
    """An answer that stands in the prompt word for word; one in JSON is data for the verifier and no answer."""
    answer = record["answer"].strip().rstrip(".")
    if not answer or answer[0] in "{[":
        return None
    for text in user_turns(record["prompt"]):
        at = text.find(answer)
        while at >= 0:
            if _stands_alone(text, at, at + len(answer)):
                return f"the prompt says {answer!r}: {text[max(0, at - 30) : at + len(answer) + 30]!r}"
            at = text.find(answer, at + 1)
    return None


def _stands_alone(text: str, start: int, end: int) -> bool:
    """Whether no word or number goes on before or after: "5" is not in "15", "5.5" or "1,500"."""
    before, after = text[max(0, start - 2) : start], text[end : end + 2]
    if before and (before[-1].isalnum() or before[-1] == "_" or (before[-1] in ".,-" and before[:-1].isdigit())):
        return False
    return not (after and (after[0].isalnum() or after[0] == "_" or (after[0] in ".,/" and after[1:].isdigit())))


def most_common_answer(survey: Survey) -> Outcome:
    """Share of rows with the most frequent answer of their split: what always saying the same would earn."""
    return _guessed(survey, 1)


def five_guesses(survey: Survey) -> Outcome:
    """Share of rows with one of the five most frequent answers of their split: a small space is tried out."""
    if survey.n < FEWEST:
        return skipped(f"fewer than {FEWEST} rows", survey.n)
    return _guessed(survey, GUESSES)


def _guessed(survey: Survey, guesses: int) -> Outcome:
    worst, total, said = 0.0, 0, ""
    places: Sequence[tuple[SplitSurvey, int]] = ()
    for part in survey.splits:
        learned = groups.as_bytes(part.learned)
        if not learned:
            continue
        total += len(part)
        often = sorted(Counter(learned).items(), key=lambda item: (-item[1], item[0]))[:guesses]
        hits = sum(n for _, n in often)
        if hits / len(part) > worst:
            worst, chosen = hits / len(part), {digest for digest, _ in often}
            places = [(part, p) for p, digest in enumerate(learned) if digest in chosen]
            rows = [int(part.rows[learned.index(digest)]) for digest, _ in often]
            counts = ", ".join(f"{n} like row {row}" for (_, n), row in zip(often, rows, strict=True))
            said = f"of {len(part)} rows of {part.name}: {counts}"
    if not total:
        return skipped("no record in any split")
    found = Found(places, lambda place: place[0].finding(place[1], "a frequent answer"))
    return Outcome(worst, total, found, reason=said)


# -- pass rates


def rate_of(beside: Mapping[str, Any]) -> float | None:
    """Return the pass rate that the other columns of a row give, None without one; above 1 or below 0 as it stands."""
    for name in RATE_COLUMNS:
        if (value := _number(beside.get(name))) is not None:
            return value
    for name in REWARD_COLUMNS:
        rewards = beside.get(name)
        if isinstance(rewards, (list, tuple)) and rewards:
            each = [_number(reward) for reward in rewards]
            if None not in each:
                return float(np.mean([reward for reward in each if reward is not None]))
    return None


def _number(value: Any) -> float | None:
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    return float(value) if isinstance(value, (int, float)) and value == value else None


def read_rates(paths: Sequence[str], kind: str, normaliser: str) -> PassRates:
    """Read scored files: the JSON of `lpt eval --json`, or rows with a pass rate beside them in any layout of the kind.

    Rows are told by record id, then by canonical key. Raises BadInputError where a file gives no rate at all.
    """
    by_id: dict[bytes, float] = {}
    by_key: dict[bytes, float] = {}
    for path in paths:
        before = len(by_id)
        if not _read_evaluation(path, by_id):
            dataset = Dataset.open([path], kind=kind)
            for batch in dataset.record_batches():
                keys = row_keys(kind, normaliser, batch.rows, batch.records, batch.beside)
                for data, beside, key in zip(batch.data, batch.beside, keys, strict=True):
                    if (rate := rate_of(beside)) is not None:
                        by_id[id_of(kind, data)] = by_key[key] = rate
        if len(by_id) == before:
            raise BadInputError(
                "a scored file gives no pass rate",
                seen=path,
                next=f"give each row one of: {', '.join((*RATE_COLUMNS, *REWARD_COLUMNS))}",
            )
    return lambda name, key, record: by_id.get(name, by_key.get(key))


def _read_evaluation(path: str, by_id: dict[bytes, float]) -> bool:
    """Whether a file is the JSON of an evaluation; its items are then taken over."""
    if not path.endswith(".json"):
        return False
    try:
        body = orjson.loads(Path(path).read_bytes())
        items = body["items"] if isinstance(body, dict) else None
        scored = [(bytes.fromhex(item["record_id"]), item["score"]) for item in items or ()]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    by_id.update({name: float(score) for name, score in scored if score is not None})
    return bool(scored)


def _rates(survey: Survey) -> Outcome | list[tuple[SplitSurvey, int, float]]:
    """The rated rows, or why there is nothing to judge."""
    each = [
        (part, p, float(part.rates[p]))
        for part in survey.splits
        for p in np.flatnonzero(~np.isnan(part.rates)).tolist()
    ]
    if not each:
        return skipped(NO_RATES, survey.n)
    outside = [part.finding(p, f"pass rate {rate:g}") for part, p, rate in each if not 0 <= rate <= 1]
    if outside:
        first = outside[0]
        reason = f"{len(outside)} pass rates lie outside 0..1, first {first.detail} of {first.split} row {first.row}"
        return Outcome(None, len(each), tuple(outside), status="error", reason=reason)
    return each


def no_signal(survey: Survey) -> Outcome:
    """Share of the rated rows that the model always or never solves: every group of rollouts has one reward."""
    each = _rates(survey)
    if isinstance(each, Outcome):
        return each
    places = [found for found in each if found[2] in (0.0, 1.0)]
    never = sum(rate == 0 for _, _, rate in places)
    return Outcome(
        len(places) / len(each),
        len(each),
        Found(places, _rated),
        reason=f"{never} never solved, {len(places) - never} always{_limits(survey, each, len(places))}",
    )


def in_band(survey: Survey) -> Outcome:
    """Share of the rated rows with a pass rate within 0.1 to 0.9; the rows found are the others."""
    each = _rates(survey)
    if isinstance(each, Outcome):
        return each
    places = [found for found in each if not BAND[0] <= found[2] <= BAND[1]]
    mean = np.mean([rate for _, _, rate in each])
    reason = f"mean {mean:.2f}{_limits(survey, each, len(each) - len(places))}"
    return Outcome(share(len(each) - len(places), len(each)), len(each), Found(places, _rated), reason=reason)


def _rated(place: tuple[SplitSurvey, int, float]) -> Finding:
    return place[0].finding(place[1], f"pass rate {place[2]:g}")


def _limits(survey: Survey, each: Sequence[Any], found: int) -> str:
    """What limits a share of ``found`` rows: that a model was sampled, or that rows have no rate."""
    if survey.lent.sampled is not None:
        return f"; {survey.lent.sampled.said(found / len(each))}"
    missing = survey.n - len(each)
    return f"; {missing} rows have no pass rate" if missing else ""
