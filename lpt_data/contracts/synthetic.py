"""Generated conversations: who made them from what, whether they still pass their verifier, how alike they are.

A row is an SFT record with columns of provenance beside it (`provenance` lists them), so that what is admitted trains
as SFT does; all checks of the `sft` contract hold as well. Verification is not believed but run again, by the verifier
that a row names, on the last reply and the row's `answer`. Left out: whether an answer without a verifier is right, and
likeness in meaning.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from lpt_data.batches import RecordBatch
from lpt_data.contracts import diversity, likeness, provenance, rendered, sft
from lpt_data.contracts.common import Outcome, Verifier, ask, share, skipped
from lpt_data.contracts.provenance import Origin, origin, pass_rate
from lpt_data.contracts.survey import Contract, Judgement, Measure, Survey
from lpt_data.record_text import prompt_text, response_text
from manifests.canon import json_text

FAILED, UNSCORED = "synthetic.verified.failed_share", "synthetic.verified.unscored_share"
BAND = (0.2, 0.4)  # of the pass rate of a source, whose rows are found; the policy judges
OPENING = 600  # characters in which the first words are looked for
ASKS = 2  # words of an opening
_WORD = re.compile(r"\w+")


class Row(NamedTuple):
    """What is kept of one row: what the `sft` contract keeps of its reply, its origin, its words as numbers."""

    length: int
    opening: str
    ending: str
    origin: Origin
    asked: bytes  # uint32 each
    said: bytes
    asks: str  # how the prompt begins


def look(batch: RecordBatch, normaliser: str, keys: Sequence[bytes]) -> list[Row]:
    """Return the facts of the rows of a batch."""
    said = [response_text("sft", record) for record in batch.records]
    asked = [prompt_text("sft", record) for record in batch.records]
    rows = zip(sft.look(batch, normaliser, keys), batch.beside, asked, said, strict=True)
    return [
        Row(
            *facts,
            origin(beside),
            diversity.numbers_of(question).tobytes(),
            diversity.numbers_of(reply).tobytes(),
            _opening(question, ASKS),
        )
        for facts, beside, question, reply in rows
    ]


def _opening(text: str, words: int) -> str:
    return " ".join(_WORD.findall(text[:OPENING].casefold())[:words])


def judge(batch: RecordBatch, verifiers: Mapping[str, Verifier], known: dict[Any, Any]) -> Judgement:
    """Let the verifier of each generated row score its reply again."""
    rows = list(zip(batch.records, batch.beside, strict=True))
    facts = [origin(extra) for _, extra in rows]
    results: list[dict[str, str | None]] = [{} if fact.real else {UNSCORED: _unable(fact, rows[i][1], verifiers)}
                                            for i, fact in enumerate(facts)]  # fmt: skip
    for name, verifier in verifiers.items():
        able = [i for i, fact in enumerate(facts) if fact.verifier == name and results[i].get(UNSCORED, "") is None]
        calls = [(response_text("sft", rows[i][0]), _answer(rows[i][1])) for i in able]
        for i, said in zip(able, ask(verifier, "score", calls), strict=True):
            if said.value is None:
                results[i][UNSCORED] = f"{name}: {said.reason or 'cannot read the answer'}"
            else:
                results[i][FAILED] = None if said.value == 1 else f"{name} scores {said.value:g}"
    found = Judgement()
    for place, result in enumerate(results):
        found.asked.update(result.keys())
        found.note(place, result)
    return found


def _answer(extra: Mapping[str, Any]) -> str:
    value = extra.get("answer")
    return value if isinstance(value, str) else json_text(value)


def _unable(fact: Origin, extra: Mapping[str, Any], verifiers: Mapping[str, Verifier]) -> str | None:
    """Why a row cannot be scored, None where it can."""
    if not fact.verifier:
        return "no column names the verifier"
    if fact.verifier not in verifiers:
        return f"no verifier here is called {fact.verifier!r}"
    return "no answer to verify by" if extra.get("answer") is None else None


def _verified(name: str, nothing: str) -> Measure:
    def measure(survey: Survey) -> Outcome:
        if survey.lent.verifiers is None:
            return skipped("no verifier was given", survey.n)
        asked = sum(part.judged[name] for part in survey.splits)
        if not asked:
            return skipped(nothing, survey.n)
        findings = survey.faults(name)
        return Outcome(share(len(findings), asked), asked, findings)

    return measure


def words_of(facts: Sequence[Row]) -> list[np.ndarray]:
    """The words of the prompts of rows, as numbers."""
    return [np.frombuffer(fact.asked, np.uint32) for fact in facts]


MEASURES: dict[str, Measure] = {
    # Several answers to one prompt are what rejection sampling keeps.
    **{name: measure for name, measure in sft.MEASURES.items() if not name.startswith("sft.inputs.")},
    **provenance.MEASURES,
    FAILED: _verified(FAILED, "no row could be scored"),
    UNSCORED: _verified(UNSCORED, "no row is generated"),
    "synthetic.pass_rate.lowest": pass_rate(FAILED, highest=False, line=BAND[0]),
    "synthetic.pass_rate.highest": pass_rate(FAILED, highest=True, line=BAND[1]),
    **likeness.MEASURES,
    **diversity.MEASURES,
}
CONTRACT = Contract(
    "synthetic",
    default_key="text",
    parts=sft.parts,
    questions=sft.questions,
    sample=sft.reply,
    rules=sft.RULES,
    measures=MEASURES,
    render=rendered.conversation,
    judge=judge,
    look=look,
    sees=("language", "contamination by n-grams or by meaning (whole questions only)"),
)
