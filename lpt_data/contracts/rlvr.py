"""Prompts with verifiable answers: the gold must parse with the verifier that will score, and the verifier must bite.

What it does not do: sample a model for the pass-rate band, or look for prompts close in meaning.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from lpt_data.contracts import answers, groups, rendered
from lpt_data.contracts.common import (
    Asked,
    Outcome,
    Record,
    Rule,
    Verifier,
    ask,
    is_blank,
    share,
    skipped,
    user_turns,
)
from lpt_data.contracts.survey import Contract, Judgement, Measure, Parts, Survey

UNSCORED = "rlvr.verifier.unscored_share"  # the verifier hung, died or raised
SPEAKERS = ("system", "user", "assistant", "tool")


def prompt_fault(record: Record) -> str | None:
    """A prompt that poses nothing: no turn, an empty turn, an unknown role, a last turn that asks nothing."""
    messages = record["prompt"]
    if not messages:
        return "the prompt has no turns"
    for index, message in enumerate(messages):
        if message.get("role") not in SPEAKERS:
            return f"turn {index}: unknown role {message.get('role')!r}"
        if message.get("role") == "system" and index:
            return f"turn {index}: system after the start"
        if is_blank(message.get("content")) and not message.get("tool_calls") and message.get("role") != "tool":
            return f"turn {index}: {message.get('role')} is empty"
    if messages[-1]["role"] not in ("user", "tool"):
        return f"ends with {messages[-1]['role']}, so nothing is asked"
    return None


def blank_answer(record: Record) -> str | None:
    """An answer without visible text."""
    return "the answer is empty" if is_blank(record.get("answer")) else None


def parts(record: Record, data: bytes) -> Parts:
    """The prompt is asked, the answer is learned."""
    return Parts(orjson.dumps(record["prompt"], option=orjson.OPT_SORT_KEYS), record["answer"].encode())


def questions(record: Record) -> list[str]:
    """The turns of the user."""
    return user_turns(record["prompt"])


def perturbed(answer: str) -> str:
    """Return an answer that means something else: a number plus one, JSON with every number plus one, text reversed."""
    stripped = answer.strip()
    try:
        if re.fullmatch(r"[-+]?\d+", stripped):
            return str(int(stripped) + 1)
        return orjson.dumps(_shift(orjson.loads(stripped))).decode()
    except (ValueError, TypeError, RecursionError):  # no JSON, or numbers that Python or JSON have no room for
        return stripped[::-1] if stripped[::-1] != stripped else stripped + " not"


def _shift(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value + 1
    if isinstance(value, list):
        return [_shift(v) for v in value]
    if isinstance(value, dict):
        return {k: _shift(v) for k, v in value.items()}
    return value


def judge(rows: Sequence[tuple[Record, Mapping[str, Any]]], verifiers: Mapping[str, Verifier]) -> list[Judgement]:
    """Ask each row's own verifier, both ways: its gold must score 1; a wrong, empty or echoed answer must not."""
    judgements = [Judgement(missing=record.get("verifier") or "(no verifier named)") for record, _ in rows]
    for name, verifier in verifiers.items():
        places = [place for place, (record, _) in enumerate(rows) if record.get("verifier") == name]
        trials = [_Trial(rows[place][0], name) for place in places]
        _self_test(trials, verifier)
        for place, trial in zip(places, trials, strict=True):
            judgements[place] = Judgement(trial.results)
    return judgements


@dataclass
class _Trial:
    """One row under test: what is known so far."""

    record: Record
    verifier: str
    results: dict[str, str | None] = field(default_factory=dict)
    gold: str | None = None  # a completion that must score 1

    @property
    def answer(self) -> str:
        return self.record["answer"]

    def unanswered(self, reason: str) -> None:
        """Note that the verifier gave no answer at all to one of the calls."""
        if reason and not self.results.get(UNSCORED):
            self.results[UNSCORED] = f"{self.verifier} {reason} on {self.answer!r}"


def _self_test(trials: Sequence[_Trial], verifier: Verifier) -> None:
    read = ask(verifier, "parse_gold", [(trial.answer,) for trial in trials])
    for trial, said in zip(trials, read, strict=True):
        trial.results[UNSCORED] = None
        trial.unanswered(said.reason)
        fault = f"{trial.verifier} {said.reason or 'cannot read'}{' on' if said.reason else ''} {trial.answer!r}"
        trial.results["rlvr.gold.unparsed_share"] = None if said.value else fault
    live = [trial for trial, said in zip(trials, read, strict=True) if said.value]
    if hasattr(verifier, "gold_completion"):
        live = _with_gold(live, verifier)
    wrong = _wrong(live, verifier)
    told = {
        "rlvr.verifier.wrong_accepted_share": [(bad, f"wrong answer {bad!r}") for bad in wrong],
        "rlvr.verifier.empty_accepted_share": [("", "empty completion")] * len(live),
        "rlvr.verifier.echo_accepted_share": [(_echo(t.record), "prompt repeated as the answer") for t in live],
    }
    for check, completions in told.items():
        calls = [(text, trial.answer) for trial, (text, _) in zip(live, completions, strict=True)]
        for trial, (_, what), said in zip(live, completions, ask(verifier, "score", calls), strict=True):
            trial.unanswered(said.reason)
            paid = said.reason or (f"scores {said.value:g}" if said.value else "")
            trial.results[check] = f"{what}: {paid}" if paid else None


def _with_gold(trials: Sequence[_Trial], verifier: Verifier) -> list[_Trial]:
    """Let the verifier solve and score its own golds; return the rows that can be tested further."""
    check = "rlvr.verifier.gold_rejected_share"
    live = []
    for trial, said in zip(trials, ask(verifier, "gold_completion", [(t.answer,) for t in trials]), strict=True):
        trial.unanswered(said.reason)
        if said.reason:
            trial.results[check] = said.reason
            continue
        trial.gold = said.value
        unsolved = f"the verifier found no right answer to {trial.answer!r}" if said.value is None else None
        trial.results["rlvr.gold.unsolved_share"] = unsolved
        live.append(trial)
    solved = [trial for trial in live if trial.gold is not None]
    scores = ask(verifier, "score", [(trial.gold or "", trial.answer) for trial in solved])
    for trial, said in zip(solved, scores, strict=True):
        trial.unanswered(said.reason)
        trial.results[check] = None if said.value == 1 else said.reason or f"gold scores {said.value} on itself"
    return [trial for trial, said in zip(solved, scores, strict=True) if not said.reason] + [
        trial for trial in live if trial.gold is None
    ]


def _wrong(trials: Sequence[_Trial], verifier: Verifier) -> list[str]:
    """Return completions that must not score: the verifier's own, or its gold completion of a perturbed answer."""
    own = [Asked(None)] * len(trials)
    if hasattr(verifier, "wrong_completion"):
        own = ask(verifier, "wrong_completion", [(trial.answer,) for trial in trials])
    for trial, said in zip(trials, own, strict=True):
        trial.unanswered(said.reason)
    others = [perturbed(trial.answer) for trial in trials]
    golds = [Asked(None)] * len(trials)
    if hasattr(verifier, "gold_completion"):
        golds = ask(verifier, "gold_completion", [(other,) for other in others])
    return [
        mine.value if mine.value is not None else (gold.value or other)
        for mine, gold, other in zip(own, golds, others, strict=True)
    ]


def _echo(record: Record) -> str:
    return "\n".join(m.get("content") or "" for m in record["prompt"])


def _judged(name: str, *, unable: str = "") -> Measure:
    """Return the share of rows that fail one of the verifier's tests; skipped unless every row's verifier is there."""

    def measure(survey: Survey) -> Outcome:
        if survey.lent.verifiers is None:
            return skipped("no verifier was given", survey.n)
        missing = sum((s.missing for s in survey.splits), Counter[str]())
        if missing:
            said = ", ".join(f"{n} rows name {verifier!r}" for verifier, n in missing.most_common())
            return skipped(f"no such verifier: {said}", survey.n)
        asked = sum(s.judged[name] for s in survey.splits)
        if not asked:
            return skipped(unable or "no row got that far", survey.n)
        findings = tuple(survey.faults(name))
        return Outcome(share(len(findings), asked), asked, findings)

    return measure


RULES: dict[str, Rule] = {
    "rlvr.prompt.bad_share": prompt_fault,
    "rlvr.answers.empty_share": blank_answer,
    "rlvr.answers.guessable_share": answers.guessable,
    "rlvr.answers.in_prompt_share": answers.in_prompt,
}
MEASURES: dict[str, Measure] = {
    "rlvr.prompts.rows_per_key": groups.rows_per_key,
    "rlvr.answers.conflicting_share": groups.conflicting_outputs,
    "rlvr.answers.most_common_share": answers.most_common_answer,
    "rlvr.answers.five_guesses_share": answers.five_guesses,
    "rlvr.pass_rate.no_signal_share": answers.no_signal,
    "rlvr.pass_rate.in_band_share": answers.in_band,
    "rlvr.gold.unparsed_share": _judged("rlvr.gold.unparsed_share"),
    "rlvr.gold.unsolved_share": _judged(
        "rlvr.gold.unsolved_share", unable="the verifier cannot write a completion out of its gold"
    ),
    "rlvr.verifier.gold_rejected_share": _judged(
        "rlvr.verifier.gold_rejected_share", unable="the verifier cannot write a completion out of its gold"
    ),
    "rlvr.verifier.wrong_accepted_share": _judged("rlvr.verifier.wrong_accepted_share"),
    "rlvr.verifier.empty_accepted_share": _judged("rlvr.verifier.empty_accepted_share"),
    "rlvr.verifier.echo_accepted_share": _judged("rlvr.verifier.echo_accepted_share"),
    UNSCORED: _judged(UNSCORED),
    "rlvr.prompt.render_failed_share": rendered.render_failures,
    "rlvr.prompt.double_bos_share": rendered.double_bos,
    "rlvr.prompt.over_budget_share": rendered.over_budget,
}
# Operators are part of an arithmetic question, so the key keeps them: "3 - 2" and "3 + 2" are two prompts.
CONTRACT = Contract(
    "rlvr",
    default_key="math",
    parts=parts,
    questions=questions,
    rules=RULES,
    measures=MEASURES,
    render=rendered.prompt,
    judge=judge,
    rate=answers.rate_of,
    sees=("pass rate of the prompts under a model",),
)
