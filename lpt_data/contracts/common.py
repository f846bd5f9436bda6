"""What every contract shares: the words of a check, the protocols of injected judges, and the rules on characters.

A *rule* looks at one record and returns what is wrong with it, or None. A *measure* looks at the whole survey and
returns an `Outcome`. A contract is two visible tables of those. Nothing here knows thresholds: a policy turns values
into a verdict.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias, overload

if TYPE_CHECKING:
    import numpy as np

    from lpt_data.plain import Plain

Record: TypeAlias = Mapping[str, Any]
DETAIL_LIMIT = 240  # characters of a finding's detail: enough to act on, too few to flood a terminal
# Why a check was skipped, where it is something that the user can give.
NO_TOKENIZER = "no tokenizer was given"
NO_LENGTH = "no maximum length was given"
NO_REFERENCE = "no reference was given"
NO_BENCHMARK = "no benchmark was given"
NO_SEEDS = "no seeds were given"
NO_PREVIOUS = "no earlier round was given"
NO_LANGUAGE = "no language was declared"
NO_RATES = "no row has a pass rate"


class Encoded(Protocol):
    """A rendered conversation: token ids and, for each, 1 where it counts in the loss."""

    @property
    def ids(self) -> Sequence[int]:
        """Token ids, length T."""

    @property
    def loss_mask(self) -> Sequence[int]:
        """1 for supervised tokens, length T."""


class Encoder(Protocol):
    """A tokenizer with its chat template; raises an `LptError` for a conversation that it cannot render.

    Optional attributes are used where present: `bos_token_id: int | None` (its own or its `tokenizer`'s), `stop_ids`
    and `history_ends` (collections of token ids: what stops the model, and what closes a turn that another message
    follows where that is another token), `encode_prompt(messages) -> list[int]` and `decode(ids) -> str`. Where one is
    absent the check that needs it is skipped, and says so.
    """

    name: str
    fingerprint: str
    template_sha256: str

    def encode(self, messages: list[dict[str, Any]], tools: str | None = None) -> Encoded:
        """Return ids and loss mask of the whole conversation, untruncated."""


class Verifier(Protocol):
    """The judge that will score rollouts.

    Optional: `gold_completion(answer) -> str | None` writes a completion that must score 1, `wrong_completion(answer)`
    one that must score 0; `may_pay(completion, answer)` says False only where `score` does not pay;
    `ask_many(function, calls)` answers many calls with (value, reason why there is none) each, which is how a verifier
    that may hang or die is lent.
    """

    def parse_gold(self, answer: str) -> bool:
        """Return True when the verifier can read this gold answer."""

    def score(self, completion: str, answer: str) -> float | None:
        """Return the reward of a completion, or None when it could not be scored."""


@dataclass(frozen=True)
class Finding:
    """One row behind a check: `row` counts every row of the split's input, the quarantined ones included."""

    split: str
    row: int
    record_id: str  # lower-case hex, "" for a row that never became a record
    detail: str
    file: str = ""
    line: int | None = None  # 1-based line (or item) of the file, None where it is not known


class Found(Sequence[Finding]):
    """Findings made when they are looked at: of a check that half of all rows stand behind, five are shown."""

    def __init__(self, places: Sequence[Any], make: Callable[[Any], Finding]) -> None:
        self._places, self._make = places, make

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> Finding: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Finding, ...]: ...

    def __getitem__(self, index: int | slice) -> Finding | tuple[Finding, ...]:
        if isinstance(index, slice):
            return tuple(self._make(place) for place in self._places[index])
        return self._make(self._places[index])


@dataclass(frozen=True)
class Outcome:
    """The result of one measure. `value` is None unless `status` is "ok"; `reason` says why, or comments on it."""

    value: float | None
    n: int
    findings: Sequence[Finding] = ()
    status: Literal["ok", "error", "skipped"] = "ok"
    reason: str = ""
    effect: str = ""  # an estimate of what the next command would change


Rule: TypeAlias = Callable[[Record], str | None]
# (record id, key hash, record) -> share of a model's samples that were right, None where it is not known
PassRates: TypeAlias = Callable[[bytes, bytes, Record], float | None]
TextRule: TypeAlias = Callable[[Sequence[str]], str | None]  # of all strings of a record, which are collected once


class Asked(NamedTuple):
    """What a verifier answered, or None with the reason why it gave no answer."""

    value: Any
    reason: str = ""


def ask(verifier: Verifier, function: str, calls: Sequence[tuple[str, ...]]) -> list[Asked]:
    """Call a function of a verifier once for each tuple of arguments; a call that fails has a reason and no value."""
    many = getattr(verifier, "ask_many", None)
    if many is not None:
        return list(map(Asked._make, many(function, calls))) if calls else []
    answers = []
    for call in calls:
        try:
            answers.append(Asked(getattr(verifier, function)(*call)))
        except Exception as error:  # the same call will be made in training
            answers.append(Asked(None, f"raises {type(error).__name__}: {error}"))
    return answers


@dataclass(frozen=True)
class Marked:
    """A rule on a record or its texts that is asked only where the canonical JSON of the row may hold what it finds.

    `patterns` are searched for in every row (RE2, compiled; a plain text is a pattern and the fastest one), `marks` in
    the rows that are not ASCII; without any of them every row is asked. `suspects` (`lpt_data.contracts.suspects`) says
    it of plain records instead, from their columns; or `literals`: one of them stands in a text in which the rule finds
    something. What these miss the rule never sees: a test holds them against it.
    """

    rule: Callable[[Any], str | None]
    patterns: tuple[str, ...] = ()
    marks: tuple[bytes, ...] = ()
    suspects: Callable[[Plain], np.ndarray] | None = None  # bool [n]
    literals: tuple[bytes, ...] = ()

    def __call__(self, value: Any) -> str | None:
        """Return what the rule says."""
        return self.rule(value)


def skipped(reason: str, n: int = 0) -> Outcome:
    """Return the outcome of a check that could not run; it never counts as a pass."""
    return Outcome(None, n, status="skipped", reason=reason)


def share(bad: int, n: int) -> float:
    """Return bad / n, and 0.0 for n = 0 (an empty split is the business of `rows.empty_splits`)."""
    return bad / n if n else 0.0


def printable(text: str, limit: int = DETAIL_LIMIT) -> str:
    """Return text cut to `limit` characters with control and format characters escaped: details end on terminals."""
    cut = text if len(text) <= limit else text[: limit - 1] + "…"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in cut)


def strings(value: Any) -> list[str]:
    """Return every string value inside a canonical record, depth first; object names are not values."""
    found: list[str] = []
    waiting = [value]
    while waiting:
        inner = waiting.pop()
        if type(inner) is str:
            found.append(inner)
        elif isinstance(inner, dict):
            waiting.extend(reversed(inner.values()))
        elif isinstance(inner, (list, tuple)):
            waiting.extend(reversed(inner))
    return found


def user_turns(messages: Sequence[Any]) -> list[str]:
    """Return what the user said, turn by turn."""
    return [m["content"] for m in messages if m.get("role") == "user" and isinstance(m.get("content"), str)]


# White space of str.strip() plus the zero-width characters that it leaves.
_BLANK = "".join(chr(c) for c in range(0x3001) if chr(c).isspace()) + "\u200b\u200c\u200d\u2060\ufeff"


def is_blank(text: Any) -> bool:
    """Return True for absent text and for text of white space and zero-width characters alone."""
    return not isinstance(text, str) or not text or (text[0] in _BLANK and not text.strip(_BLANK))


NUL = re.compile(r"\x00")
# Tab, line feed, carriage return and form feed are white space in documents; ESC, DEL and the C1 block are no text.
CONTROL = re.compile(r"[\x01-\x08\x0b\x0e-\x1f\x7f-\x9f\ufffd]")
# UTF-8 read with a one-byte code page: lead byte C3, C2 or E2 80 shows as "\xc3", "\xc2" or "\xe2\u20ac", followed by
# what Latin-1 or Windows-1252 show for a continuation byte.
MOJIBAKE = re.compile(
    r"\xc3[\x80-\xbf\u20ac\u0192\u2020\u2021\u02c6\u2030\u0160\u2039\u0152]"
    r"|\xc2[\x80-\xbf]"
    r"|\xe2\u20ac[\x80-\xbf\u2122\u0153\u02dc\u201c\u201d\u2013\u2014\u0161\u2026]"
)


def _first_match(pattern: re.Pattern[str], texts: Sequence[str], what: str) -> str | None:
    for text in texts:
        found = pattern.search(text)
        if found:
            around = text[max(0, found.start() - 20) : found.end() + 20]
            return f"{what} at character {found.start()}: {around!r}"
    return None


def nul_character(texts: Sequence[str]) -> str | None:
    """A NUL inside a string: C tokenizers and databases end the text there."""
    return _first_match(NUL, [t for t in texts if "\0" in t], "NUL")


def control_character(texts: Sequence[str]) -> str | None:
    """A control character other than white space, or U+FFFD, the mark of a decoding that already lost bytes."""
    return _first_match(CONTROL, texts, "control character or U+FFFD")


def mojibake(texts: Sequence[str]) -> str | None:
    """UTF-8 decoded with a one-byte code page, as in the two characters that stand where an e-acute was."""
    return _first_match(MOJIBAKE, [t for t in texts if not t.isascii()], "mojibake")


# JSON writes control characters as \\u00XX, but U+0008 as \\b and DEL as it is; C1 is C2 80 to C2 9F in UTF-8.
_CONTROLS = tuple(chr(code).encode() for code in (*range(1, 32), *range(127, 160), 0xFFFD) if CONTROL.match(chr(code)))
_MOJIBAKE = (b"\xc3\x83", b"\xc3\x82", b"\xc3\xa2\xe2\x82\xac")
CHARACTER_RULES: dict[str, TextRule] = {
    "characters.nul_share": Marked(nul_character, (r"\\u0000",), literals=(b"\0",)),
    "characters.control_share": Marked(
        control_character, (r"\\u00", r"\\b", r"\x7f"), marks=(b"\xc2", b"\xef\xbf\xbd"), literals=_CONTROLS
    ),
    "characters.mojibake_share": Marked(mojibake, marks=_MOJIBAKE, literals=_MOJIBAKE),
}
