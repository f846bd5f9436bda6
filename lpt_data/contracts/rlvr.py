"""Prompts with verifiable answers: the gold must parse with the verifier that will score, and the verifier must bite.

What it does not do: sample a model for the pass-rate band, or look for prompts close in meaning.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from lpt_data.contracts import answers, groups, rendered
from lpt_data.contracts.common import Outcome, Record, Rule, Verifier, is_blank, share, skipped, user_turns
from lpt_data.contracts.survey import Contract, Judgement, Measure, Parts, Survey

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
    if re.fullmatch(r"[-+]?\d+", stripped):
        return str(int(stripped) + 1)
    try:
        value = orjson.loads(stripped)
    except orjson.JSONDecodeError:
        return stripped[::-1] if stripped[::-1] != stripped else stripped + " not"
    return orjson.dumps(_shift(value)).decode()


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


def _wrong(verifier: Verifier, answer: str) -> str:
    """Return a completion that must not score: the verifier's own, or its gold completion of a perturbed answer."""
    write_wrong: Callable[[str], str | None] | None = getattr(verifier, "wrong_completion", None)
    if write_wrong is not None and (own := write_wrong(answer)) is not None:
        return own
    write_gold: Callable[[str], str | None] | None = getattr(verifier, "gold_completion", None)
    other = perturbed(answer)
    return (write_gold(other) if write_gold is not None else None) or other


def _scored(verifier: Verifier, completion: str, answer: str, what: str) -> str | None:
    """Return what is wrong when a completion that must score nothing is paid or raises."""
    try:
        reward = verifier.score(completion, answer)
    except Exception as error:  # the same call will be made in training
        return f"{what}: raises {type(error).__name__}: {error}"
    return f"{what}: scores {reward:g}" if reward else None


def judge(record: Record, verifiers: Mapping[str, Verifier]) -> Judgement:
    """Ask the row's own verifier, both ways: its gold must score 1; a wrong, an empty and an echoed answer must not."""
    name = record.get("verifier") or ""
    verifier = verifiers.get(name)
    if verifier is None:
        return Judgement(missing=name or "(no verifier named)")
    answer = record["answer"]
    results: dict[str, str | None] = {}
    try:
        read = verifier.parse_gold(answer)
        results["rlvr.gold.unparsed_share"] = None if read else f"{name} cannot read {answer!r}"
    except Exception as error:
        read = False
        results["rlvr.gold.unparsed_share"] = f"{name} raises {type(error).__name__}: {error} on {answer!r}"
    if not read:
        return Judgement(results)
    results.update(_self_test(record, verifier, answer))
    return Judgement(results)


def _self_test(record: Record, verifier: Verifier, answer: str) -> dict[str, str | None]:
    results: dict[str, str | None] = {}
    write_gold: Callable[[str], str | None] | None = getattr(verifier, "gold_completion", None)
    try:
        gold = write_gold(answer) if write_gold is not None else None
        if write_gold is not None:
            unsolved = f"the verifier found no right answer to {answer!r}" if gold is None else None
            results["rlvr.gold.unsolved_share"] = unsolved
        if gold is not None:
            reward = verifier.score(gold, answer)
            results["rlvr.verifier.gold_rejected_share"] = None if reward == 1 else f"gold scores {reward} on itself"
        wrong = _wrong(verifier, answer)
    except Exception as error:
        results["rlvr.verifier.gold_rejected_share"] = f"raises {type(error).__name__}: {error}"
        return results
    results["rlvr.verifier.wrong_accepted_share"] = _scored(verifier, wrong, answer, f"wrong answer {wrong!r}")
    results["rlvr.verifier.empty_accepted_share"] = _scored(verifier, "", answer, "empty completion")
    echo = "\n".join(m.get("content") or "" for m in record["prompt"])
    results["rlvr.verifier.echo_accepted_share"] = _scored(verifier, echo, answer, "prompt repeated as the answer")
    return results


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
