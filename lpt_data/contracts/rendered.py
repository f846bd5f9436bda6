"""What a tokenizer and its template make of the rows: rendering, truncation, supervision, stop tokens, doubled BOS.

The encoder is lent by the caller, so this package never loads a tensor library. Rows are rendered during the survey;
the measures here read the counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from lpt_data.contracts.common import NO_LENGTH, NO_TOKENIZER, Encoder, Finding, Outcome, Record, share, skipped
from lpt_data.contracts.survey import Measure, RowTokens, Survey

ABSENT = object()


def _bos(encode: Encoder) -> Any:
    """Return the id of the start token, None when the tokenizer has none, ABSENT when the encoder does not say."""
    own = getattr(encode, "bos_token_id", ABSENT)
    return own if own is not ABSENT else getattr(getattr(encode, "tokenizer", None), "bos_token_id", ABSENT)


def double_bos_fault(encode: Encoder, ids: list[int]) -> dict[str, str]:
    """Return {"bos": what is wrong} where the start token stands twice in a row, else {}."""
    bos = _bos(encode)
    if bos is None or bos is ABSENT or not any(a == b == bos for a, b in pairwise(ids)):
        return {}
    return {"bos": f"start token {bos} stands twice in a row"}


def mask_fault(encode: Encoder, messages: Sequence[Record], ids: list[int], mask: list[int]) -> dict[str, str]:
    """Return {"mask": what is wrong} where the supervised tokens spell anything but the replies, else {}.

    Blanks at the ends of a reply are the template's to keep or not, and so is the form of a tool call, whose words
    before it must be there. A stop token at the end of a reply belongs to it.
    """
    decode = getattr(encode, "decode", None)
    if decode is None:
        return {}
    stops = getattr(encode, "stop_ids", None) or ()
    replies = [(i, m) for i, m in enumerate(messages) if m.get("role") == "assistant"]
    edges = np.flatnonzero(np.diff(np.array([0, *mask, 0], np.int8)))
    runs = [ids[start:end] for start, end in edges.reshape(-1, 2).tolist()]
    if len(runs) != len(replies):
        return {"mask": f"{len(replies)} replies, {len(runs)} runs of supervised tokens"}
    for (index, message), run in zip(replies, runs, strict=True):
        while run and run[-1] in stops:
            run = run[:-1]
        said, meant = decode(run).strip(), (message.get("content") or "").strip()
        if said != meant and not (message.get("tool_calls") and said.startswith(meant)):
            wide = "more than" if meant and meant in said else "part of" if said in meant else "something else than"
            return {"mask": f"turn {index}: the mask covers {wide} the reply: {said[-60:]!r} for {meant[-60:]!r}"}
    return {}


def conversation(record: Record, encode: Encoder, max_length: int | None) -> RowTokens:
    """Render a conversation and count its tokens; `kept` is what truncation at `max_length` leaves supervised."""
    messages = list(record["messages"])
    encoded = encode.encode(messages, record.get("tools"))
    ids, mask = list(encoded.ids), list(encoded.loss_mask)
    faults = double_bos_fault(encode, ids)
    stops = getattr(encode, "stop_ids", None)
    if stops is not None:
        turns = sum(1 for m in messages if m.get("role") == "assistant")
        turns -= _closed_in_history(encode, messages, ids, mask)
        supervised = sum(1 for token, counts in zip(ids, mask, strict=True) if counts and token in stops)
        if supervised < turns:
            faults["stop"] = f"{turns} assistant turns, {supervised} supervised stop tokens"
    faults |= mask_fault(encode, messages, ids, mask)
    return RowTokens(len(ids), sum(mask), sum(mask[:max_length]), faults)


def _closed_in_history(encode: Encoder, messages: Sequence[Record], ids: list[int], mask: list[int]) -> int:
    """Count the replies that end with what closes a turn in front of another message alone: no stop token, and never a
    target. Behind the last message it is a fault: the model would not learn to stop."""
    others = getattr(encode, "history_ends", None) or ()
    ends = [then for one, then in pairwise(range(len(ids))) if mask[one] > mask[then]]
    if messages and messages[-1].get("role") == "assistant":
        ends = [then for then in ends if any(mask[then:])]
    return sum(1 for then in ends if ids[then] in others)


def prompt(record: Record, encode: Encoder, max_length: int | None) -> RowTokens:
    """Render a prompt with its generation prompt and count its tokens; nothing in it is supervised."""
    render: Callable[..., Any] | None = getattr(encode, "encode_prompt", None)
    messages = list(record["prompt"])
    ids = list(render(messages)) if render is not None else list(encode.encode(messages).ids)
    return RowTokens(len(ids), 0, 0, double_bos_fault(encode, ids))


def unready(survey: Survey, *, length: bool = False) -> Outcome | None:
    """Return why token measures cannot run, None when they can."""
    if survey.lent.encode is None:
        return skipped(NO_TOKENIZER, survey.n)
    if length and survey.lent.max_length is None:
        return skipped(NO_LENGTH, survey.n)
    if reason := survey.broken("render"):
        return Outcome(None, survey.n, status="error", reason=f"the encoder failed: {reason}")
    return None


def _tokens(survey: Survey) -> np.ndarray:
    return np.concatenate([s.tokens for s in survey.splits]) if survey.splits else np.empty((0, 4), np.int64)


def _nothing_rendered(tokens: np.ndarray) -> Outcome | None:
    return None if len(tokens) else skipped("no row could be rendered")


def _where(
    survey: Survey, chosen: Callable[[np.ndarray], np.ndarray], say: Callable[[np.ndarray], str]
) -> tuple[Finding, ...]:
    """Return findings for the token rows that `chosen` marks; `say` words one [position, length, supervised, kept]."""
    return tuple(
        part.finding(int(row[0]), say(row)) for part in survey.splits for row in part.tokens[chosen(part.tokens)]
    )


def gate(name: str) -> Measure:
    """Return the share of rows in which rendering found the fault of that name."""

    def measure(survey: Survey) -> Outcome:
        if (reason := unready(survey)) is not None:
            return reason
        if name == "stop" and getattr(survey.lent.encode, "stop_ids", None) is None:
            return skipped("the encoder does not name its stop tokens", survey.n)
        if name == "bos" and survey.lent.encode is not None and _bos(survey.lent.encode) is ABSENT:
            return skipped("the encoder does not name its BOS token", survey.n)
        if name == "mask" and getattr(survey.lent.encode, "decode", None) is None:
            return skipped("the encoder cannot decode its tokens", survey.n)
        findings = survey.faults(name)
        if name == "render":
            return Outcome(share(len(findings), survey.n), survey.n, findings)
        # Rows that could not be rendered were not looked at, but for those that the renderer refused for this fault.
        looked = [{*part.tokens[:, 0].tolist(), *(at for at, _ in part.faults.get(name, ()))} for part in survey.splits]
        n = sum(map(len, looked))
        return Outcome(share(len(findings), n), n, findings) if n else skipped("no row could be rendered", survey.n)

    return measure


render_failures = gate("render")
unsupervised_stops = gate("stop")
double_bos = gate("bos")
inexact_masks = gate("mask")


def truncation_rate(survey: Survey) -> Outcome:
    """Share of rows longer than max_length tokens, with the rate at 1.5 and 2 times that length as the effect."""
    if (reason := unready(survey, length=True)) is not None:
        return reason
    tokens, limit = _tokens(survey), survey.lent.max_length or 0
    if (nothing := _nothing_rendered(tokens)) is not None:
        return nothing
    findings = _where(survey, lambda t: t[:, 1] > limit, lambda row: f"{row[1]} tokens, limit {limit}")
    value = share(len(findings), len(tokens))
    trials = [limit * 3 // 2, limit * 2]
    effect = (
        ", ".join(f"{share(int((tokens[:, 1] > t).sum()), len(tokens)):.2%} at {t}" for t in trials) if value else ""
    )
    return Outcome(value, len(tokens), findings, effect=effect)


def tokens_lost(survey: Survey) -> Outcome:
    """Share of all tokens that lie beyond max_length; n counts tokens."""
    if (reason := unready(survey, length=True)) is not None:
        return reason
    tokens, limit = _tokens(survey), survey.lent.max_length or 0
    if (nothing := _nothing_rendered(tokens)) is not None:
        return nothing
    total = int(tokens[:, 1].sum())
    return Outcome(share(int(np.maximum(tokens[:, 1] - limit, 0).sum()), total), total)


def supervised_share(survey: Survey) -> Outcome:
    """Share of the tokens left by truncation that count in the loss; n counts tokens."""
    if (reason := unready(survey)) is not None:
        return reason
    tokens, limit = _tokens(survey), survey.lent.max_length
    if (nothing := _nothing_rendered(tokens)) is not None:
        return nothing
    total = int((np.minimum(tokens[:, 1], limit) if limit else tokens[:, 1]).sum())
    return Outcome(share(int(tokens[:, 3].sum()), total), total)


def zero_supervised(survey: Survey) -> Outcome:
    """Number of rows without one supervised token after truncation: their loss is 0 and looks healthy."""
    if (reason := unready(survey)) is not None:
        return reason
    tokens = _tokens(survey)
    if (nothing := _nothing_rendered(tokens)) is not None:
        return nothing
    findings = _where(
        survey, lambda t: t[:, 3] == 0, lambda row: f"{row[1]} tokens, {row[2]} supervised before truncation, 0 after"
    )
    return Outcome(len(findings), len(tokens), findings)


def over_budget(survey: Survey) -> Outcome:
    """Share of prompts longer than max_length tokens: they leave no room for the rollout that was asked for."""
    return truncation_rate(survey)
