"""Countdown: write an expression that uses each given number once and equals the target.

The answer of a record is JSON text, ``{"numbers": [6, 4], "target": 24}``. The completion's last ``<answer>…</answer>``
is read by a parser of our own: integers, ``+ - * /``, parentheses, nothing else. No ``eval``, no signs before a
number (each number is used as it was given), exact fractions, so that 8 / (3 - 8 / 3) is 24 and not 23.999.

Left out: partial credit for a well-formed wrong expression, and ``=``: such rewards are separate functions with a
weight.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations

from lpt_train.rewards.verifier import Canary, Verifier, last_tagged

MAX_EXPRESSION = 256  # characters; an honest answer to six numbers takes under 60
MAX_DEPTH = 32  # nested parentheses
MAX_DIGITS = 12  # of one number
MAX_NUMBERS = 8  # in one problem
MAX_SOLVED = 5  # numbers; the search below tries up to 233,280 combinations for five, 21 million for six

_TOKEN = re.compile(r"\s*(?:([0-9]+)|([-+*/()]))")


class _Malformed(Exception):
    """The text is no expression, or has no value."""


def problem(answer: str) -> tuple[tuple[int, ...], int] | None:
    """The numbers and the target of a record's answer, or None where they cannot be read."""
    try:
        value = json.loads(answer)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    nums, target = value.get("numbers", value.get("nums")), value.get("target")
    if not isinstance(nums, list) or not 1 <= len(nums) <= MAX_NUMBERS:
        return None
    limit = 10**MAX_DIGITS
    if any(type(n) is not int or not 0 <= n < limit for n in nums):
        return None
    if type(target) is not int or not -limit < target < limit:
        return None
    return tuple(nums), target


def tokens(expression: str) -> list[str]:
    """Numbers, operators and parentheses in order; raises `_Malformed` for anything else or for what is too long."""
    if len(expression) > MAX_EXPRESSION:
        raise _Malformed
    text, found, position = expression.rstrip(), [], 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise _Malformed
        number = match.group(1)
        if number is not None and (len(number) > MAX_DIGITS or (number[0] == "0" and number != "0")):
            raise _Malformed
        found.append(number or match.group(2))
        position = match.end()
    return found


class _Parser:
    """Recursive descent over tokens: sum = product {(+|-) product}; product = atom {(*|/) atom}; atom = number |
    (sum)."""

    def __init__(self, found: Sequence[str]) -> None:
        self.tokens, self.at, self.depth = found, 0, 0

    def take(self, wanted: str) -> str | None:
        """The next token if it is one of ``wanted``, else None and nothing is taken."""
        if self.at < len(self.tokens) and self.tokens[self.at] in wanted:
            self.at += 1
            return self.tokens[self.at - 1]
        return None

    def sum(self) -> Fraction:
        value = self.product()
        while operator := self.take("+-"):
            right = self.product()
            value = value + right if operator == "+" else value - right
        return value

    def product(self) -> Fraction:
        value = self.atom()
        while operator := self.take("*/"):
            right = self.atom()
            if operator == "/" and right == 0:
                raise _Malformed
            value = value * right if operator == "*" else value / right
        return value

    def atom(self) -> Fraction:
        if self.at >= len(self.tokens):
            raise _Malformed
        if self.take("("):
            self.depth += 1
            if self.depth > MAX_DEPTH:
                raise _Malformed
            value = self.sum()
            if not self.take(")"):
                raise _Malformed
            self.depth -= 1
            return value
        token = self.tokens[self.at]
        if not token.isdigit():
            raise _Malformed
        self.at += 1
        return Fraction(int(token))


def evaluate(found: Sequence[str]) -> Fraction:
    """The exact value of a token sequence; raises `_Malformed` for bad grammar and division by zero."""
    parser = _Parser(found)
    value = parser.sum()
    if parser.at != len(found):
        raise _Malformed
    return value


def score(completion: str, answer: str) -> float | None:
    """1.0 when the last tagged expression uses each number exactly once and equals the target, 0.0 when not."""
    given = problem(answer)
    if given is None:
        return None
    nums, target = given
    expression = last_tagged(completion)
    if expression is None:
        return 0.0
    try:
        found = tokens(expression)
        # Before evaluating: the given numbers bound the work and the size of every intermediate value.
        if sorted(int(token) for token in found if token.isdigit()) != sorted(nums):
            return 0.0
        return 1.0 if evaluate(found) == target else 0.0
    except _Malformed:
        return 0.0


def parse_gold(answer: str) -> bool:
    """Whether the answer names numbers and a target (that a solution exists is what `gold_completion` shows)."""
    return problem(answer) is not None


def solve(nums: Sequence[int], target: int) -> str | None:
    """An expression for the target over all numbers, or None; exhaustive up to ``MAX_SOLVED`` numbers."""
    if len(nums) > MAX_SOLVED:
        return None
    return _search([(Fraction(n), str(n)) for n in nums], Fraction(target))


def _search(terms: list[tuple[Fraction, str]], target: Fraction) -> str | None:
    if len(terms) == 1:
        value, text = terms[0]
        return text if value == target else None
    for i, j in combinations(range(len(terms)), 2):
        rest = [term for k, term in enumerate(terms) if k not in (i, j)]
        (a, left), (b, right) = terms[i], terms[j]
        options = [(a + b, f"({left}+{right})"), (a * b, f"({left}*{right})")]
        options += [(a - b, f"({left}-{right})"), (b - a, f"({right}-{left})")]
        options += [(a / b, f"({left}/{right})")] if b else []
        options += [(b / a, f"({right}/{left})")] if a else []
        for option in options:
            solution = _search([*rest, option], target)
            if solution is not None:
                return solution
    return None


def gold_completion(answer: str) -> str | None:
    """A completion that must score 1; None where the problem has no solution or more than ``MAX_SOLVED`` numbers."""
    given = problem(answer)
    solution = None if given is None else solve(*given)
    if solution is None:
        return None
    # The outermost pair of parentheses says nothing.
    return f"<answer>{solution[1:-1] if solution[0] == '(' else solution}</answer>"


def wrong_completion(answer: str) -> str | None:
    """A completion that must score 0: one number more than was given."""
    given = problem(answer)
    return None if given is None else f"<answer>{'+'.join(map(str, (*given[0], 1)))}</answer>"


def committed(completion: str) -> str | None:
    """The last tagged expression, token by token; None for what is no expression."""
    expression = last_tagged(completion)
    try:
        return None if expression is None else " ".join(tokens(expression)) or None
    except _Malformed:
        return None


_GOLD = '{"nums": [6, 4], "target": 24}'
VERIFIER = Verifier(
    name="countdown",
    score=score,
    parse_gold=parse_gold,
    gold_completion=gold_completion,
    wrong_completion=wrong_completion,
    canaries=(
        Canary("<answer>6*4</answer>", _GOLD, 1.0),
        Canary("First <answer>6+4</answer>, no: <answer>(4 * 6)</answer>.", _GOLD, 1.0),
        Canary("<answer>6+4</answer>", _GOLD, 0.0),
        Canary("<answer>24</answer>", _GOLD, 0.0),
        Canary("<answer>6*4*1</answer>", _GOLD, 0.0),
        Canary("6*4", _GOLD, 0.0),
        Canary("<answer>8/(3-8/3)</answer>", '{"nums": [3, 3, 8, 8], "target": 24}', 1.0),
        Canary("<answer>6*4</answer>", "no problem at all", None),
    ),
    committed=committed,
)
