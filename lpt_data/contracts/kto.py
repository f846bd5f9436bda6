"""Labelled completions: one answer to a prompt, wanted or not (Ethayarajh et al. 2024, KTO).

What it does not do: judge whether a label is right. "The same prompt" is the canonical key, "the same completion" its
words whatever the white space between them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from lpt_data.batches import RecordBatch
from lpt_data.contracts import rendered, sft
from lpt_data.contracts.common import Encoder, Outcome, Record, Rule, share, skipped, user_turns
from lpt_data.contracts.pair_facts import spoken
from lpt_data.contracts.survey import Contract, Measure, RowTokens, Survey
from lpt_data.folding import spaced


class Facts(NamedTuple):
    """What is kept of a row."""

    prompt: bytes
    completion: bytes
    label: bool
    length: int  # characters of the completion


def _whole(record: Record) -> dict[str, list[Record]]:
    return {"messages": [*record["prompt"], *record["completion"]]}


def role_fault(record: Record) -> str | None:
    """Turns out of order, or a completion that does not end with the assistant."""
    return sft.order_fault(sft.shape(_whole(record)["messages"]))


def empty_turn(record: Record) -> str | None:
    """A completion without turns, or a turn without visible text."""
    return sft.empty_turn(_whole(record)) if record["completion"] else "the completion has no turns"


def look(batch: RecordBatch, key: str, keys: Sequence[bytes]) -> list[Facts]:
    """Return the facts of rows whose canonical keys have the hashes given."""
    texts = [" ".join(spoken(record["completion"])) for record in batch.records]
    digests = [hashlib.sha256(words).digest()[:16] for words in spaced(texts)]
    labels = [record["label"] for record in batch.records]
    return list(map(Facts, keys, digests, labels, map(len, texts)))


def questions(record: Record) -> list[str]:
    """The turns of the user."""
    return user_turns(_whole(record)["messages"])


def duplicated(survey: Survey) -> Outcome:
    """Share of rows that repeat an earlier one of their split: prompt, completion and label, white space aside."""
    findings = []
    for part in survey.splits:
        first: dict[tuple[bytes, bytes, bool], int] = {}
        for position, facts in enumerate(part.facts):
            before = first.setdefault(facts[:3], position)
            if before != position:
                findings.append(part.finding(position, f"same as row {int(part.rows[before])}"))
    return Outcome(share(len(findings), survey.n), survey.n, tuple(findings))


def conflicting(survey: Survey) -> Outcome:
    """Share of rows whose prompt and completion occur, in any split, with the other label too."""
    first: dict[tuple[bytes, bytes, bool], str] = {}
    for part in survey.splits:
        for position, facts in enumerate(part.facts):
            first.setdefault(facts[:3], f"{part.name} row {int(part.rows[position])}")
    findings = tuple(
        part.finding(position, f"{other} has the other label")
        for part in survey.splits
        for position, facts in enumerate(part.facts)
        if (other := first.get((facts.prompt, facts.completion, not facts.label)))
    )
    return Outcome(share(len(findings), survey.n), survey.n, findings)


def minority(survey: Survey) -> Outcome:
    """Share of the rarer label, in the split where it is rarest: with one label alone there is nothing to compare."""
    shares = []
    for part in survey.splits:
        wanted = sum(facts.label for facts in part.facts)
        if len(part):
            shares.append((min(wanted, len(part) - wanted) / len(part), part.name, wanted, len(part)))
    if not shares:
        return skipped("no record in any split")
    value, name, wanted, n = min(shares)
    return Outcome(value, survey.n, reason=f"{wanted} of {n} rows of {name} are wanted")


def length_tells(survey: Survey) -> Outcome:
    """How often length alone tells a wanted completion from an unwanted one, whichever way round: at least one half.

    The area under the curve of length against label (Mann and Whitney 1947), equal lengths counting one half, or one
    minus it.
    """
    facts = [facts for part in survey.splits for facts in part.facts]
    labels = np.array([f.label for f in facts], bool)
    wanted, other = int(labels.sum()), int((~labels).sum())
    if not wanted or not other:
        return skipped("there is one label alone", len(facts))
    _, place, counts = np.unique([f.length for f in facts], return_inverse=True, return_counts=True)
    rank = np.cumsum(counts) - (counts - 1) / 2  # mean rank of each length
    area = (float(rank[place][labels].sum()) - wanted * (wanted + 1) / 2) / (wanted * other)
    way = "longer" if area >= 0.5 else "shorter"
    return Outcome(max(area, 1 - area), len(facts), reason=f"wanted completions are the {way} ones")


def render(record: Record, encode: Encoder, max_length: int | None) -> RowTokens:
    """Render prompt and completion as one conversation; as in training, replies in the prompt do not count."""
    whole = rendered.conversation(_whole(record), encode, max_length)
    if not any(message.get("role") == "assistant" for message in record["prompt"]):
        return whole
    asked = rendered.prompt(record, encode, max_length).length
    mask = list(encode.encode([dict(message) for message in _whole(record)["messages"]]).loss_mask)
    return replace(whole, supervised=sum(mask[asked:]), kept=sum(mask[asked:max_length]))


RULES: dict[str, Rule] = {"kto.roles.bad_share": role_fault, "kto.turns.empty_share": empty_turn}
MEASURES: dict[str, Measure] = {
    "kto.rows.duplicated_share": duplicated,
    "kto.labels.conflicting_share": conflicting,
    "kto.labels.minority_share": minority,
    "kto.length.label_accuracy": length_tells,
    "kto.render.failed_share": rendered.render_failures,
    "kto.truncation.rate": rendered.truncation_rate,
    "kto.supervised.zero_rows": rendered.zero_supervised,
    "kto.stop.unsupervised_share": rendered.unsupervised_stops,
    "kto.bos.double_share": rendered.double_bos,
}
CONTRACT = Contract(
    "kto",
    default_key="math",
    parts=None,
    questions=questions,
    rules=RULES,
    measures=MEASURES,
    render=render,
    look=look,
)
