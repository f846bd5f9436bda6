"""Prompts with verifiable answers: the gold must parse with the verifier that will score, and the verifier must bite.

What it does not do: sample a model for the pass-rate band, or look for prompts close in meaning.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from lpt_data.batches import RecordBatch
from lpt_data.contracts import answers, groups, rendered, suspects
from lpt_data.contracts.common import (
    Asked,
    Marked,
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

if TYPE_CHECKING:
    import numpy as np

    from lpt_data.plain import Plain

UNSCORED = "rlvr.verifier.unscored_share"  # the verifier hung, died or raised
MOST_KNOWN = 1 << 16  # answers whose self-test is kept
ECHO = "rlvr.verifier.echo_accepted_share"
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


def spans(plain: Plain) -> tuple[np.ndarray, np.ndarray]:
    """The same parts of plain records: the prompt as JSON, and the answer as it stands."""
    from lpt_data.plain_kernels import digests_of

    start = plain.inside[suspects.text_of(plain, "prompt")] - len('[{"content":"')
    behind = plain.of_shape(lambda shape: len(shape.pieces[-1]) - shape.pieces[-1].index(b"]") - 1)
    answer = suspects.text_of(plain, "answer")
    asked = digests_of(plain.json, start, plain.bounds[1:] - behind)
    return asked, digests_of(plain.data, plain.starts[answer], plain.ends[answer])


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


def judge(batch: RecordBatch, verifiers: Mapping[str, Verifier], known: dict[Any, Any]) -> Judgement:
    """Ask each row's own verifier, both ways: its gold must score 1; a wrong, empty or echoed answer must not.

    What hangs on the answer alone is asked once for each answer, however many rows have it, and kept in `known`.
    """
    tasks, found = _tasks(batch), Judgement()
    for name, rows in Counter(tasks.verifiers).items():
        if not name or name not in verifiers:
            found.missing[name or "(no verifier named)"] += rows
            continue
        places = range(rows) if rows == len(batch.rows) else [i for i, own in enumerate(tasks.verifiers) if own == name]
        _judge_rows(places, tasks, verifiers[name], _trials(name, verifiers[name], places, tasks, known), found)
    return found


def _trials(
    name: str, verifier: Verifier, places: Sequence[int], tasks: _Tasks, known: dict[Any, Any]
) -> dict[str, _Trial]:
    """The answers of some rows after their self-test, those that earlier batches had out of `known`."""
    if len(known) > MOST_KNOWN:
        known.clear()
    answers = dict.fromkeys(tasks.answers[place] for place in places)
    fresh = [_Trial(answer, name) for answer in answers if (name, answer) not in known]
    _self_test(fresh, verifier)
    known.update({(name, trial.answer): trial for trial in fresh})
    return {answer: known[name, answer] for answer in answers}


def _judge_rows(
    places: Sequence[int], tasks: _Tasks, verifier: Verifier, trials: Mapping[str, _Trial], found: Judgement
) -> None:
    """Enter what is known of the answers, and score each row's prompt as its own answer."""
    counts: Counter[tuple[str, ...]] = Counter()
    for answer, rows in Counter([tasks.answers[place] for place in places]).items():
        counts[trials[answer].checks] += rows
    for checks, rows in counts.items():
        found.asked.update(dict.fromkeys(checks, rows))
    bad = any(trial.faulty for trial in trials.values())
    dead = {answer for answer, trial in trials.items() if not trial.live}
    live = [place for place in places if tasks.answers[place] not in dead] if dead else places
    if (may_pay := getattr(verifier, "may_pay", None)) is not None:
        live = [place for place in live if may_pay(tasks.echoes[place], tasks.answers[place])]
    said = ask(verifier, "score", [(tasks.echoes[place], tasks.answers[place]) for place in live])
    paid = {place: reply for place, reply in zip(live, said, strict=True) if reply.value or reply.reason}
    for place in places if bad else paid:
        trial = trials[tasks.answers[place]]
        found.note(place, trial.with_echo(paid[place]) if place in paid else trial.results)


@dataclass
class _Trial:
    """One answer under test: what is known so far."""

    answer: str
    verifier: str
    results: dict[str, str | None] = field(default_factory=dict)
    gold: str | None = None  # a completion that must score 1
    live: bool = False  # whether its verifier can be asked about it

    @cached_property
    def checks(self) -> tuple[str, ...]:
        """The checks that a row with this answer goes through."""
        return (*self.results, ECHO) if self.live else tuple(self.results)

    @cached_property
    def faulty(self) -> bool:
        """Whether a row with this answer has a fault, whatever its prompt."""
        return any(self.results.values())

    def with_echo(self, said: Asked) -> dict[str, str | None]:
        """The results of a row whose prompt was scored as its answer."""
        row = replace(self, results=dict(self.results))
        row.note(ECHO, "prompt repeated as the answer", said)
        return row.results

    def note(self, check: str, what: str, said: Asked) -> None:
        """Note under a check whether a completion was paid that must not be."""
        self.unanswered(said.reason)
        paid = said.reason or (f"scores {said.value:g}" if said.value else "")
        self.results[check] = f"{what}: {paid}" if paid else None

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
    for trial in live:
        trial.live = True
    wrong = [(bad, f"wrong answer {bad!r}") for bad in _wrong(live, verifier)]
    _note("rlvr.verifier.wrong_accepted_share", live, wrong, verifier)
    _note("rlvr.verifier.empty_accepted_share", live, [("", "empty completion")] * len(live), verifier)


def _note(check: str, trials: Sequence[_Trial], completions: Sequence[tuple[str, str]], verifier: Verifier) -> None:
    """Let completions be scored that must not be paid, and note under a check which of them are."""
    calls = [(text, trial.answer) for trial, (text, _) in zip(trials, completions, strict=True)]
    for trial, (_, what), said in zip(trials, completions, ask(verifier, "score", calls), strict=True):
        trial.note(check, what, said)


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


class _Tasks(NamedTuple):
    """What a verifier is asked about of the rows of a batch."""

    verifiers: list[str | None]
    answers: list[str]
    echoes: list[str]  # their prompts


def _tasks(batch: RecordBatch) -> _Tasks:
    plain = batch.plain
    if plain is None:
        echoes = ["\n".join(message.get("content") or "" for message in r["prompt"]) for r in batch.records]
        return _Tasks([r.get("verifier") for r in batch.records], [r["answer"] for r in batch.records], echoes)
    named = [shape.record.get("verifier") for shape in plain.shapes]
    return _Tasks(
        [named[shape] for shape in plain.shape.tolist()],
        plain.strings(suspects.text_of(plain, "answer")),
        plain.strings(suspects.text_of(plain, "prompt")),
    )


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
        findings = survey.faults(name)
        return Outcome(share(len(findings), asked), asked, findings)

    return measure


RULES: dict[str, Rule] = {
    "rlvr.prompt.bad_share": Marked(
        prompt_fault, suspects=suspects.either(suspects.by_shape(prompt_fault), suspects.blank)
    ),
    "rlvr.answers.empty_share": Marked(blank_answer, suspects=suspects.blank),
    "rlvr.answers.guessable_share": Marked(answers.guessable, suspects=suspects.short_answer),
    "rlvr.answers.in_prompt_share": Marked(answers.in_prompt, suspects=suspects.in_prompt),
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
    ECHO: _judged(ECHO),
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
    spans=spans,
    questions=questions,
    rules=RULES,
    measures=MEASURES,
    render=rendered.prompt,
    judge=judge,
    rate=answers.rate_of,
    sees=("pass rate of the prompts under a model",),
)
