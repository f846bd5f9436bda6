r"""Integer answers, as in GSM8K: does the completion end with the right number?

Where the number is read, first that is there: the last ``#### n``; the last number in the last
``<answer>…</answer>``; the last number in the last ``\boxed{…}``; the last number of the text. Thousands commas, a
dollar sign, a sign, a trailing full stop or percent sign, a unit and ``72.0`` for 72 are form, not value; ``1/2``
and ``71.9`` are numbers that equal no integer.

Left out: words for numbers, scientific notation. A gold answer that is no integer makes the item unscorable.
"""

from __future__ import annotations

import functools
import re
from fractions import Fraction

from lpt_train.rewards.verifier import Canary, Verifier, last_tagged

MAX_TAIL = 20_000  # characters read from the end of a completion
MAX_DIGITS = 60  # characters of one number
_NEAR = 64  # characters at the end of a text in which its last number is looked for first

# Neither part of a word ("h2o", "1e3") nor of a longer number; a fraction is one number.
_NUMBER = re.compile(
    r"(?<![\w.])(?P<over>(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)(?:/(?P<under>[0-9]+))?"
    r"(?![0-9_]|[.,/][0-9]|[eE][-+]?[0-9])"
)
_MARKER = re.compile(r"####[ \t*:]*[-+\u2212$]*(?=[0-9.])")
_SIGN = re.compile(r"(?<![\w).])([-+\u2212])\$?\Z|(?<![\w).])\$([-+\u2212])\Z")
_PREFIXES = ("", "-", "\u2212", "+", "$", "-$", "$-")  # what may stand before a gold number
_FRAC = re.compile(r"\\[dt]?frac\{([0-9]+)\}\{([0-9]+)\}")


def _value(text: str, match: re.Match[str]) -> Fraction | None:
    """The exact value of a matched number with the sign before it; None for a zero denominator or too many digits."""
    over, under = match["over"].replace(",", ""), match["under"] or "1"
    if len(over) + len(under) > MAX_DIGITS or int(under) == 0:
        return None
    sign = _SIGN.search(text[max(0, match.start() - 3) : match.start()])
    plain = under == "1" and "." not in over  # most numbers, and four times as fast
    value = Fraction(int(over)) if plain else Fraction(over) / int(under)
    return -value if sign and (sign[1] or sign[2]) in "-\u2212" else value


def last_number(text: str) -> Fraction | None:
    """The last number of a text; looked for from blanks further and further from its end, for no number holds one."""
    start, size = len(text), _NEAR
    while start > 0:
        start = max(0, text.rfind(" ", 0, max(0, len(text) - size)))
        last = None
        for match in _NUMBER.finditer(text, start):
            last = match
        if last is not None:
            return _value(text, last)
        size *= 8
    return None


def numbers(text: str) -> list[Fraction]:
    """The distinct numbers of a text, in the order in which they first occur."""
    found = (_value(text, match) for match in _NUMBER.finditer(text))
    return list(dict.fromkeys(value for value in found if value is not None))


def _marked(text: str) -> Fraction | None:
    """The number after the last ``####`` that is followed by one (a Markdown heading of four signs is not)."""
    found = None
    for marker in _MARKER.finditer(text):
        number = _NUMBER.match(text, marker.end())
        found = number if number is not None else found
    return None if found is None else _value(text, found)


def boxed(text: str) -> str | None:
    r"""The content of the last balanced ``\boxed{…}``."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    depth = 0
    for at in range(start + 6, len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return text[start + 7 : at].replace("{,}", ",")
    return None


def read_number(completion: str) -> Fraction | None:
    """The number that a completion answers with, by the order in the module's docstring."""
    text = completion[-MAX_TAIL:]
    if "frac{" in text:
        text = _FRAC.sub(r"\1/\2", text)
    if "####" in text and (value := _marked(text)) is not None:
        return value
    for part in (last_tagged(text), boxed(text)):
        if part is not None and (value := last_number(part)) is not None:
            return value
    return last_number(text)


@functools.lru_cache(4096)
def gold(answer: str) -> int | None:
    """The integer of a gold answer: the whole text, or what follows its last ``####``; None where that is no
    integer."""
    text = answer.strip().rstrip(".")
    if len(text) > MAX_TAIL:
        return None
    if "####" in text:
        value = _marked(text)
    else:
        match = _NUMBER.search(text)
        whole = match is not None and match.end() == len(text) and text[: match.start()] in _PREFIXES
        value = _value(text, match) if match is not None and whole else None
    return int(value) if value is not None and value.denominator == 1 else None


def may_pay(completion: str, answer: str) -> bool:
    """Whether the gold integer may stand in a completion: its last digits do, whatever commas it has, or a fraction."""
    expected = gold(answer)
    if expected is None:
        return False
    return str(expected)[-3:].lstrip("-") in completion or "/" in completion or "frac" in completion


def score(completion: str, answer: str) -> float | None:
    """1.0 when the completion's number equals the gold integer, 0.0 when not or when there is none."""
    expected = gold(answer)
    if expected is None:
        return None
    return 1.0 if may_pay(completion, answer) and read_number(completion) == expected else 0.0


def parse_gold(answer: str) -> bool:
    """Whether the gold answer is an integer."""
    return gold(answer) is not None


def gold_completion(answer: str) -> str | None:
    """A completion that must score 1."""
    expected = gold(answer)
    return None if expected is None else f"The answer is {expected}.\n#### {expected}"


def wrong_completion(answer: str) -> str | None:
    """A completion that must score 0: right in its text, wrong where it commits."""
    expected = gold(answer)
    return None if expected is None else f"The answer is {expected}.\n#### {expected + 1}"


def committed(completion: str) -> str | None:
    """The completion's number, as a fraction in lowest terms."""
    value = read_number(completion)
    return None if value is None else str(value)


VERIFIER = Verifier(
    name="integer",
    score=score,
    parse_gold=parse_gold,
    gold_completion=gold_completion,
    wrong_completion=wrong_completion,
    canaries=(
        Canary("6 * 12 = 72\n#### 72", "72", 1.0),
        Canary("<answer>$1,072.00</answer>", "1072", 1.0),
        Canary(r"so \boxed{-72}.", "-72", 1.0),
        Canary("It costs 72 dollars.", "72", 1.0),
        Canary("#### 71\nor 72", "72", 0.0),
        Canary("I do not know.", "72", 0.0),
        Canary("#### 72", "seventy-two", None),
    ),
    committed=committed,
    may_pay=may_pay,
)
