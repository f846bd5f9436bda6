"""How the replies of a data set are written: refusals, talk about oneself, monotony, outlying lengths, languages.

Nothing here says that one reply is wrong. A share says what the whole teaches besides its task: to refuse, to name
another model's maker, to begin every answer alike.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lpt_data.contracts.common import NO_LANGUAGE, Finding, Found, Marked, Outcome, Record, share, skipped
from lpt_data.contracts.survey import Measure, SplitSurvey, Survey
from manifests.errors import LptError

if TYPE_CHECKING:
    from lpt_data.plain import Plain

FEWEST = 100  # replies below which their distribution says nothing
LONG_ENOUGH = 40  # characters of a reply whose opening and ending are compared: "Yes." may well be every answer
WORDS = 4  # of an opening or an ending
SEEN, KEPT = 64, 32  # characters of a reply that they are looked for in, and of them that are compared
OUTLYING = 3.5  # modified z-score of Iglewicz and Hoaglin (1993), here of the logarithm of the length
_HEAD = 240  # characters in which a refusal says so


class Facts(NamedTuple):
    """What is kept of a last reply."""

    length: int  # characters
    opening: str  # its first words, "" where it is short
    ending: str


def look(replies: Sequence[str]) -> list[Facts]:
    """Return the facts of last replies."""
    return [
        Facts(len(text), *_ends(text)) if len(text) >= LONG_ENOUGH else Facts(len(text), "", "") for text in replies
    ]


def look_plain(plain: Plain, texts: np.ndarray) -> list[Facts]:
    """Return the facts of last replies by the numbers of their texts (int64 [n], -1: none)."""
    from lpt_data.plain_kernels import characters, ends_of

    starts, ends = plain.starts[texts], np.where(texts < 0, plain.starts[texts], plain.ends[texts])
    lengths = characters(plain.data, starts, ends)
    heads, tails, odd = ends_of(plain.data, starts, ends, WORDS, SEEN, KEPT)
    openings, endings = ([row.strip("\0") for row in _rows(each)] for each in (heads, tails))
    facts = [
        Facts(n, opening, ending) if n >= LONG_ENOUGH else Facts(n, "", "")
        for n, opening, ending in zip(lengths.tolist(), openings, endings, strict=True)
    ]
    places = np.flatnonzero(odd)
    for place, fact in zip(places.tolist(), look(plain.strings(texts[places])), strict=True):
        facts[place] = fact
    return facts


def _rows(each: np.ndarray) -> list[str]:
    whole, width = each.tobytes().decode("ascii"), each.shape[1]
    return [whole[i : i + width] for i in range(0, len(whole), width)]


def _ends(text: str) -> tuple[str, str]:
    first, last = text[:SEEN].split(None, WORDS)[:WORDS], text[-SEEN:].rsplit(None, WORDS)[-WORDS:]
    return " ".join(first).lower()[:KEPT], " ".join(last).lower()[-KEPT:]


def last_reply(messages: Sequence[Record]) -> str:
    """Return the text of the last turn of the assistant, "" where there is none."""
    for message in reversed(messages):
        if message.get("role") == "assistant":
            return message.get("content") or ""
    return ""


def _said(record: Record) -> list[str]:
    """The texts of the assistant in a record of any kind of conversation."""
    turns = record.get("messages") or record.get("completion") or ()
    return [m["content"] for m in turns if m.get("role") == "assistant" and m.get("content")]


# -- one row

_NOT = (
    r"(?:can['\u2019]?t|cannot|can not|won['\u2019]?t|will not|am unable to|['\u2019]m unable to|am not able to"
    r"|['\u2019]m not able to)"
)
_REFUSED = (
    r"(?:assist|help|provide|fulfil|comply|do that|answer (?:that|this)|engage|participate|support|generate|create"
    r"|write|discuss|share|give|offer|access|browse|continue with)"
)
REFUSAL = re.compile(
    rf"\b[Ii](?:['\u2019]m| am) (?:(?:very |so |really )?sorry|afraid),? (?:but )?(?:that )?"
    rf"(?:(?:[Ii] |as an )?{_NOT}\b|[Aa]s an AI\b)"
    rf"|\b(?:I ?|but ){_NOT} {_REFUSED}\b"
    rf"|(?:\A|\bbut )[Ss]orry,? (?:but )?I ?{_NOT}\b"
    r"|\b[Ii] must (?:respectfully )?(?:decline|refuse)\b|\bI (?:respectfully )?(?:decline|refuse) to\b"
)
SELF = re.compile(
    r"\b[Aa]s an? (?:AI|artificial intelligence|large language|language|ai)(?: language)?(?: model| assistant|, I\b)"
    r"|\bI(?:['\u2019]m| am) (?:just |only |merely )?an? (?:AI|artificial intelligence|large language model"
    r"|language model)\b"
    r"|\bI(?:['\u2019]m| am) (?:ChatGPT|Claude|Gemini|Bard|Qwen|DeepSeek|Copilot)\b"
    r"|\bI was (?:created|developed|trained|made|built) by (?:OpenAI|Anthropic|Google|Meta|Microsoft|Alibaba"
    r"|DeepSeek|Mistral)"
    r"|\b[Mm]y (?:knowledge|training)(?: data)? (?:cut-?off|cuts off|only goes)"
)


def _anywhere(pattern: re.Pattern[str]) -> str:
    """The same pattern without its anchors: in JSON a line break before a word is a letter."""
    return pattern.pattern.replace(r"\b", "").replace(r"\A", "").replace(r"\u2019", "\u2019")


def refusal(record: Record) -> str | None:
    """A reply that refuses, or says that it cannot, at its start."""
    for text in _said(record):
        if found := REFUSAL.search(text[:_HEAD]):
            return f"refuses: {_around(text, found)}"
    return None


def self_reference(record: Record) -> str | None:
    """A reply in which the assistant names itself as a model, its maker, or the end of its knowledge."""
    for text in _said(record):
        if found := SELF.search(text):
            return f"speaks of itself: {_around(text, found)}"
    return None


def _around(text: str, found: re.Match[str]) -> str:
    return repr(text[max(0, found.start() - 20) : found.end() + 40])


_EITHER = f"{_anywhere(REFUSAL)}|{_anywhere(SELF)}"  # searched for once
# Of each branch of the patterns, what it cannot do without.
_REFUSING = (
    *("orry", "fraid", "ecline", "efuse", "can't", "can\u2019t", "cant ", "cannot ", "can not "),
    *("won't", "won\u2019t", "wont ", "will not ", "unable to ", "not able to "),
)
_SELFISH = (
    *(" AI", "n ai", "a ai", "rtificial", "anguage", "ChatGPT", "Claude", "Gemini", "Bard", "Qwen", "DeepSeek"),
    *("Copilot", "I was ", "y knowledge", "y training"),
)
RULES = {
    "sft.refusals.share": Marked(refusal, (_EITHER,), literals=tuple(map(str.encode, (*_REFUSING, "s an AI")))),
    "sft.self_reference.share": Marked(self_reference, (_EITHER,), literals=tuple(map(str.encode, _SELFISH))),
}


# -- all rows


def _same(end: str) -> Measure:
    """Return the share of the replies long enough that have the most frequent opening or ending."""

    def measure(survey: Survey) -> Outcome:
        each = [(part, p, getattr(f, end)) for part in survey.splits for p, f in enumerate(part.facts) if f.opening]
        if len(each) < FEWEST:
            return skipped(f"fewer than {FEWEST} replies of {LONG_ENOUGH} characters and more", len(each))
        counts = Counter(words for _, _, words in each)
        most = max(counts.values())
        top = min(words for words, n in counts.items() if n == most)  # of equals the first by letter, not by place
        places = [(part, p) for part, p, words in each if words == top]
        others = sorted((-n, words) for words, n in counts.items() if n > 1 and words != top)[:3]
        said = "; ".join(f"{words!r} {-n}" for n, words in others)
        return Outcome(
            most / len(each),
            len(each),
            Found(places, lambda place: place[0].finding(place[1], f"{end} {top!r}")),
            reason=f"{top!r} {most} times" + (f"; then {said}" if said else ""),
        )

    return measure


def length_outliers(survey: Survey) -> Outcome:
    """Share of replies whose length is outlying: modified z-score of its logarithm beyond 3.5, over all splits."""
    lengths = np.array([f.length for part in survey.splits for f in part.facts], np.float64)
    if len(lengths) < FEWEST:
        return skipped(f"fewer than {FEWEST} replies", len(lengths))
    logs = np.log(np.maximum(lengths, 1))
    middle = float(np.median(logs))
    away = np.abs(logs - middle)
    # Where half of all replies have one length, the mean deviation stands in for the median one (same source).
    spread = float(np.median(away)) / 0.6745 or float(away.mean()) * 1.253314
    outlying = away > OUTLYING * spread if spread else np.zeros(len(away), bool)
    every = [(part, p) for part in survey.splits for p in range(len(part.facts))]
    places = [every[i] for i in np.flatnonzero(outlying)]
    usual = round(float(np.exp(middle)))

    def found(place: tuple[SplitSurvey, int]) -> Finding:
        part, position = place
        return part.finding(position, f"{part.facts[position].length} characters, the median is {usual}")

    low, high = (np.exp(middle + sign * OUTLYING * spread) for sign in (-1, 1))
    reason = f"median {usual} characters, usual from {low:.0f} to {high:.0f}"
    return Outcome(share(len(places), len(lengths)), len(lengths), Found(places, found), reason=reason)


def other_language(survey: Survey) -> Outcome:
    """Share of sampled replies that are surely in another language than those declared; code in fences is no prose."""
    wanted = survey.lent.languages
    if not wanted:
        return skipped(NO_LANGUAGE, survey.n)
    from lpt_data.clean.language import UNKNOWN, surely

    try:
        told = [(part, p, surely(text)) for part in survey.splits for p, text in part.sample]
    except LptError as error:
        return Outcome(None, survey.n, status="error", reason=f"{error.what}: {error.next}")
    known = [(part, p, name) for part, p, name in told if name != UNKNOWN]
    if not known:
        return skipped("no sampled reply has a language that can be told", len(told))
    findings = tuple(part.finding(p, f"in {name}") for part, p, name in known if name not in wanted)
    counts = Counter(name for _, _, name in known)
    said = ", ".join(f"{name} {n}" for name, n in sorted(counts.items(), key=lambda item: (-item[1], item[0])))
    reason = f"{said}; {len(told) - len(known)} of {len(told)} sampled replies cannot be told"
    return Outcome(share(len(findings), len(known)), len(known), findings, reason=reason)


MEASURES: dict[str, Measure] = {
    "sft.style.same_opening_share": _same("opening"),
    "sft.style.same_ending_share": _same("ending"),
    "sft.length.outlier_share": length_outliers,
    "sft.language.other_share": other_language,
}
