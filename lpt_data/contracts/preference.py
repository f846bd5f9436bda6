"""Preferences: two answers to one prompt, one of them better.

What it does not do: judge which answer is better, or find prompts that mean the same in other words. Lengths are in
characters. "The same prompt" is the canonical key, "the same answer" its words whatever the white space between them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np

from lpt_data.contracts import rendered, sft, suspects
from lpt_data.contracts.common import (
    NO_REFERENCE,
    Encoder,
    Finding,
    Found,
    Marked,
    Outcome,
    Record,
    Rule,
    share,
    skipped,
    user_turns,
)
from lpt_data.contracts.cycles import on_cycles
from lpt_data.contracts.pair_facts import SIDES, Facts, look, said, spoken
from lpt_data.contracts.survey import Contract, Measure, RowTokens, SplitSurvey, Survey
from lpt_data.prompt_groups import Groups, links

NO_SCORES = "no scores beside the pairs"


# -- one row


def role_fault(record: Record) -> str | None:
    """Turns out of order in the prompt and one of its answers, or an answer that does not end with the assistant."""
    asked = sft.shape(record.get("prompt") or ())
    for side in SIDES:
        if (fault := sft.order_fault(asked + sft.shape(record[side]))) is not None:
            return f"{side}: {fault}"
    return None


def empty_side(record: Record) -> str | None:
    """A side without turns, or a turn without visible text."""
    prompt = record.get("prompt") or ()
    for side in SIDES:
        if not record[side]:
            return f"{side} has no turns"
    for side in SIDES:
        if (fault := sft.empty_turn({"messages": [*prompt, *record[side]]})) is not None:
            return f"{side}: {fault}"
    return None


def mixed_prompts(record: Record) -> str | None:
    """Sides that answer different histories: one goes on with a turn of the user, so its last reply is to another."""
    for side in SIDES:
        asked = next((i for i, message in enumerate(record[side]) if message.get("role") == "user"), None)
        if asked == 0:
            return f"{side} starts with a turn of the user: the two sides share no prompt"
        if asked is not None:
            return f"{side} has a turn of the user of its own (turn {asked} after the shared history)"
    return None


def identical(record: Record) -> str | None:
    """Two sides of the same words."""
    if _begin_differently(record):
        return None
    one, other = said(record["chosen"]), said(record["rejected"])
    return "chosen and rejected say the same" if one == other else None


def _begin_differently(record: Record) -> bool:
    """Whether the first letters tell that neither side is the start of the other: most pairs need no closer look."""
    one, other = ((record[side][0].get("content") if record[side] else "") or " " for side in SIDES)
    if one[0] != other[0] and not one[0].isspace() and not other[0].isspace():
        return True
    heads = ["".join(next(spoken(record[side]), "")[:64].split())[:8] for side in SIDES]
    length = min(map(len, heads))
    return heads[0][:length] != heads[1][:length]


def prefix(record: Record) -> str | None:
    """A side that is the start of the other, cut between words: what is learned is to go on, or to stop."""
    if _begin_differently(record):
        return None
    one, other = said(record["chosen"]), said(record["rejected"])
    short, long = (
        (("chosen", one), ("rejected", other)) if len(one) < len(other) else (("rejected", other), ("chosen", one))
    )
    if not short[1] or short[1] == long[1] or not long[1].startswith(short[1]):
        return None
    if short[1][-1].isalnum() and long[1][len(short[1])].isalnum():
        return None  # "4" and "42"
    return f"{short[0]} is the start of {long[0]}: {len(short[1])} of {len(long[1])} characters"


def questions(record: Record) -> list[str]:
    """The turns of the user, in the prompt and on either side."""
    turns = user_turns([*(record.get("prompt") or ()), *record["chosen"], *record["rejected"]])
    return list(dict.fromkeys(turns))


# -- rows among each other


def _every(survey: Survey) -> Iterator[tuple[SplitSurvey, int, Facts]]:
    """Yield each pair of each split with its position; a contradiction between splits is one all the same."""
    for part in survey.splits:
        for position, facts in enumerate(part.facts):
            yield part, position, facts


def _place(part: SplitSurvey, position: int) -> str:
    return f"{part.name} row {int(part.rows[position])}"


def _compared_again(survey: Survey) -> list[tuple[SplitSurvey, int, Facts]]:
    """Pairs whose prompt has more than one of them, in any split: no other can repeat or contradict anything."""
    prompts = [facts.prompt for part in survey.splits for facts in part.facts]
    if len(set(prompts)) == len(prompts):
        return []
    times = Counter(prompts)
    return [found for found in _every(survey) if times[found[2].prompt] > 1]


def duplicated_pairs(survey: Survey) -> Outcome:
    """Share of rows that repeat an earlier pair of their split: same prompt, chosen and rejected, white space aside."""
    findings = []
    first: dict[tuple[str, bytes, bytes, bytes], int] = {}
    for part, position, facts in _compared_again(survey):
        before = first.setdefault((part.name, facts.prompt, facts.chosen, facts.rejected), position)
        if before != position:
            findings.append(part.finding(position, f"same pair as row {int(part.rows[before])}"))
    return Outcome(share(len(findings), survey.n), survey.n, tuple(findings))


def conflicting_pairs(survey: Survey) -> Outcome:
    """Share of rows whose pair occurs, in any split, with its sides exchanged."""
    first: dict[tuple[bytes, bytes, bytes], str] = {}
    again = _compared_again(survey)
    for part, position, facts in again:
        first.setdefault((facts.prompt, facts.chosen, facts.rejected), _place(part, position))
    findings = tuple(
        part.finding(position, f"{first[reverse]} prefers the other")
        for part, position, facts in again
        if facts.chosen != facts.rejected and (reverse := (facts.prompt, facts.rejected, facts.chosen)) in first
    )
    return Outcome(share(len(findings), survey.n), survey.n, findings)


def cyclic_pairs(survey: Survey) -> Outcome:
    """Share of rows on a cycle of preferences of one prompt (A over B over C over A); a conflict is the shortest."""
    again = _compared_again(survey)
    edges = [((facts.prompt, facts.chosen), (facts.prompt, facts.rejected)) for _, _, facts in again]
    known = set(edges)
    findings = []
    direct = 0
    for (part, position, _), (better, worse), on in zip(again, edges, on_cycles(edges), strict=True):
        if on:
            direct += (worse, better) in known
            findings.append(part.finding(position, "on a cycle of preferences"))
    reason = f"{len(findings)} rows on cycles, {direct} of them in direct conflicts" if findings else ""
    return Outcome(share(len(findings), survey.n), survey.n, tuple(findings), reason=reason)


def _lengths(survey: Survey) -> np.ndarray:
    return np.array([facts.lengths for part in survey.splits for facts in part.facts], np.int64).reshape(-1, 2)


def _longer(side: int) -> Measure:
    def measure(survey: Survey) -> Outcome:
        lengths = _lengths(survey)
        starts = np.cumsum([0, *map(len, survey.splits)])

        def found(number: int) -> Finding:
            split = int(np.searchsorted(starts, number, "right")) - 1
            one, other = lengths[number].tolist()
            position = number - int(starts[split])
            return survey.splits[split].finding(position, f"chosen {one} characters, rejected {other}")

        places = np.flatnonzero(lengths[:, side] > lengths[:, 1 - side]).tolist()
        means = lengths.mean(axis=0) if survey.n else (0.0, 0.0)
        reason = f"mean {means[0]:.0f} characters chosen, {means[1]:.0f} rejected"
        return Outcome(share(len(places), survey.n), survey.n, Found(places, found), reason=reason)

    return measure


def longer_wins(survey: Survey) -> Outcome:
    """Accuracy of preferring the longer side, pairs of equal length counting one half: what length alone predicts."""
    lengths = _lengths(survey)
    if not len(lengths):
        return skipped("no record in any split")
    right = float((lengths[:, 0] > lengths[:, 1]).sum() + 0.5 * (lengths[:, 0] == lengths[:, 1]).sum())
    return Outcome(right / len(lengths), len(lengths))


def _scored(test: Callable[[float], bool], what: str) -> Measure:
    def measure(survey: Survey) -> Outcome:
        every = _every(survey) if any(part.has_extra for part in survey.splits) else ()
        scored = [(part, position, facts.margin) for part, position, facts in every if facts.margin is not None]
        if not scored:
            return skipped(NO_SCORES, survey.n)
        findings = tuple(part.finding(position, f"{what}: margin {m:g}") for part, position, m in scored if test(m))
        without = survey.n - len(scored)
        reason = f"{without} rows have no scores" if without else ""
        return Outcome(share(len(findings), len(scored)), len(scored), findings, reason=reason)

    return measure


# -- isolation


def shared_groups(survey: Survey) -> Outcome:
    """Number of groups of connected prompts (`lpt_data.prompt_groups`) with rows in more than one split."""
    if len(survey.splits) < 2:
        return skipped("one split alone has nothing to leak into", survey.n)
    joined = Groups()
    where = [(part, position) for part, position, facts in _every(survey) if joined.add(facts.links) >= 0]
    joined.join_near(part.dataset for part in survey.splits)
    roots = joined.roots().tolist()
    last: dict[int, tuple[SplitSurvey, int]] = {}  # of each group, the first row of the last split that it is in
    for root, (part, position) in zip(roots, where, strict=True):
        if root not in last or last[root][0] is not part:
            last[root] = (part, position)
    findings = []
    straddling = set()
    for root, (part, position) in zip(roots, where, strict=True):
        other, at = last[root]
        if other is not part:
            straddling.add(root)
            findings.append(part.finding(position, f"prompt connected with {_place(other, at)}"))
    return Outcome(len(straddling), survey.n, tuple(findings))


def against_groups(survey: Survey) -> Outcome:
    """Number of rows whose group of connected prompts holds a row of the references, of whatever stage those are."""
    reference = survey.lent.against
    if reference is None:
        return skipped(NO_REFERENCE, survey.n)
    if reference.error:
        return Outcome(None, survey.n, status="error", reason=reference.error)
    joined = Groups()
    number = 0
    for dataset in reference.datasets:
        start = number
        for row, record, extra in dataset.records():
            joined.add(links(dataset.kind, record, extra, survey.normaliser))
            number = start + row + 1
    theirs = len(joined)
    where = [(part, position) for part, position, facts in _every(survey) if joined.add(facts.links) >= 0]
    joined.join_near([*reference.datasets, *(part.dataset for part in survey.splits)])
    roots = joined.roots()[theirs:].tolist()
    findings = tuple(
        part.finding(position, f"prompt connected with a row of {reference.name}")
        for root, (part, position) in zip(roots, where, strict=True)
        if root < theirs  # the root is the smallest node, and the references came first
    )
    return Outcome(len(findings), survey.n, findings, reason=reference.extent)


# -- tokens


def render(record: Record, encode: Encoder, max_length: int | None) -> RowTokens:
    """Render both sides after the prompt; counts are those of the longer and of what is left of the shorter lesson."""
    prompt = list(record.get("prompt") or ())
    asked = rendered.prompt({"prompt": prompt}, encode, max_length).length
    sides = [encode.encode([*prompt, *record[side]]) for side in SIDES]
    ids = [list(side.ids) for side in sides]
    masks = [list(side.loss_mask)[asked:] for side in sides]
    room = None if max_length is None else max(max_length - asked, 0)
    kept = [sum(mask[:room]) for mask in masks]
    faults = {name: fault for side in ids for name, fault in rendered.double_bos_fault(encode, side).items()}
    if ids[0][:max_length] == ids[1][:max_length]:
        faults["preference.truncation.identical_share"] = f"the same {len(ids[0][:max_length])} tokens on both sides"
    if max_length is not None and asked > max_length:
        faults["preference.prompt.over_budget_share"] = f"the prompt alone has {asked} tokens, limit {max_length}"
    if gone := [side for side, left in zip(SIDES, kept, strict=True) if not left]:
        faults["preference.completion.fully_truncated_share"] = (
            f"nothing of {' and '.join(gone)} is left to learn: the prompt takes {asked} tokens, limit {max_length}"
        )
    return RowTokens(max(map(len, ids)), min(map(sum, masks)), min(kept), faults)


def _needs_length(measure: Measure) -> Measure:
    def measured(survey: Survey) -> Outcome:
        unready = rendered.unready(survey, length=True)
        return unready if unready is not None else measure(survey)

    return measured


_CUT = ("preference.prompt.over_budget_share", "preference.completion.fully_truncated_share")
RULES: dict[str, Rule] = {
    "preference.roles.bad_share": Marked(role_fault, suspects=suspects.by_shape(role_fault)),
    "preference.turns.empty_share": Marked(
        empty_side, suspects=suspects.either(suspects.by_shape(empty_side), suspects.blank)
    ),
    "preference.prompts.mixed_share": Marked(mixed_prompts, suspects=suspects.by_shape(mixed_prompts)),
    "preference.pairs.identical_share": Marked(identical, suspects=suspects.alike_from_the_start),
    "preference.pairs.prefix_share": Marked(prefix, suspects=suspects.alike_from_the_start),
}
MEASURES: dict[str, Measure] = {
    "preference.pairs.duplicated_share": duplicated_pairs,
    "preference.pairs.conflicting_share": conflicting_pairs,
    "preference.pairs.cyclic_share": cyclic_pairs,
    "preference.length.chosen_longer_share": _longer(0),
    "preference.length.chosen_shorter_share": _longer(1),
    "preference.length.longer_wins_accuracy": longer_wins,
    "preference.scores.tie_share": _scored(lambda m: m == 0, "a tie"),
    "preference.scores.inverted_share": _scored(lambda m: m < 0, "the judge preferred the other side"),
    "leakage.groups": shared_groups,
    "against.groups": against_groups,
    "preference.render.failed_share": rendered.render_failures,
    "preference.bos.double_share": rendered.double_bos,
    "preference.truncation.rate": rendered.truncation_rate,
    "preference.truncation.identical_share": rendered.gate("preference.truncation.identical_share"),
    **{name: _needs_length(rendered.gate(name)) for name in _CUT},
}
# Operators are part of a question, so the key keeps them: "3 - 2" and "3 + 2" are two prompts.
CONTRACT = Contract(
    "preference",
    default_key="math",
    parts=None,
    questions=questions,
    rules=RULES,
    measures=MEASURES,
    render=render,
    look=look,
)
