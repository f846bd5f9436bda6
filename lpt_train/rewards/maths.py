r"""Mathematical answers: numbers compared exactly, other expressions by their normalised text.

Where the answer is read, first that is there: after the last ``####`` (a heading, where a box or tag comes behind it);
in the last ``<answer>…</answer>``; in the last ``\boxed{…}``; on the last line that begins ``Answer:`` or ``A:``; the
last number of the text (or what follows the last "answer is", where the gold is no number). A number may be an integer,
a decimal, a fraction (``3/4``, ``\frac{3}{4}``), a mixed number, a percentage, arithmetic of those with integer powers
and square roots of squares;
thousands commas, currency, degrees, a unit behind it and words around the only number are form. ``50%`` equals 50 and
1/2. Pairs, intervals and sets are compared part by part. No floats: 0.333 is not 1/3.

Left out: algebra (``x + 1`` equals ``1 + x`` by its text alone, that is, not at all), words for numbers. Nothing of the
text is evaluated but the grammar below, and its numbers are bounded.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction

from lpt_train.rewards.integer import MAX_TAIL, boxed, last_number, numbers
from lpt_train.rewards.verifier import Canary, Verifier, last_tagged

MAX_ANSWER = 2_000  # characters of an answer
MAX_DIGITS = 60  # of one number, and of a power
MAX_DEPTH = 24  # nested brackets
MAX_PARTS = 64  # of a tuple
MAX_NESTED = 3  # tuples inside tuples

_DROPPED = re.compile(
    r"\\left(?![a-z])|\\right(?![a-z])|\\[!,;:]|\\q?quad|\\displaystyle|\\\(|\\\)|\\\[|\\\]"
    r"|\^\s*\\circ|\^\{\s*\\circ\s*\}|°|\\\$|\$|€|£|(?<=\d)\{,\}(?=\d)"
)
_WORDS = re.compile(r"\\(?:text|textbf|mathrm|mathbf|mbox|operatorname)\s*\{([^{}]*)\}")
_SAME = (
    ("\u2212", "-"), ("\u00d7", "*"), ("\u00f7", "/"), ("\\cdot", "*"), ("\\times", "*"), ("\\div", "/"),
    ("\\dfrac", "\\frac"), ("\\tfrac", "\\frac"), ("\\cfrac", "\\frac"), ("\\%", "%"), ("\\ ", " "), ("**", "^"),
    ("\\lbrace", "\\{"), ("\\rbrace", "\\}"),
)  # fmt: skip
_NAMED = re.compile(r"^\s*[a-zA-Z]\w{0,12}(?:\([a-z]\))?\s*=\s*(?=[^=])")
_VARIABLE = r"(?!\s*[abijknpqruvwxyz](?:\^|\s*$))"  # 3x, 6r^2 and 2i are no 3, 6 and 2
_TIMES = "hundred|thousand|million|billion|trillion|dozen"  # make another number of the one before
_UNIT = re.compile(
    rf"(?<=[\d)}}%]){_VARIABLE}(?!\s*(?:{_TIMES})\b)"
    r"\s*[a-zA-Z\u00b5][a-zA-Z .\u00b5]{0,40}(?:\^\{?[23]\}?)?(?:/[a-zA-Z]{1,20})?\s*$"
)
_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d{1,3}(?:,\d{3})+(?:\.\d+)?(?!\d)|\d+(?:\.\d+)?|\.\d+)|(?P<frac>\\frac)|(?P<sqrt>\\sqrt)"
    r"|(?P<mark>[-+*/^(){}%]))"
)
_SAID = re.compile(r"(?i)\banswer(?: is|:| =)[ \t]*:?[ \t]*([^\n]{1,300})")
_LABEL = re.compile(r"(?i)(?:the )?(?:final )?(?:answer|result|solution)(?: is)?[ \t]*(?:[:=][ \t*]*|$)")
# Words with a number among them: no signs of calculation, no name beside the number or in front of a bracket, nothing
# that makes another number of it.
_NO_SENTENCE = re.compile(
    r"(?i)[\\^_+*/=<>|{}\[\]\u2264\u2265\u00b1\u221a\u03c0\u221e]|(?<![a-z])[b-hj-z]\s*\("
    r"|\d\s*-?\s*[b-hj-z](?![a-z'])|(?<![a-z'])[b-hj-z]\s*-?\s*\d"
    r"|\b(?:log|ln|lg|exp|sqrt|root|sin|cos|tan|cot|sec|csc|mod|pi|tau|infinity|factorial|squared|cubed|plus|minus|times"
    rf"|{_TIMES}|half|not|than|least|most|or)\b"
)
_EQUALS = re.compile(r"^[a-zA-Z ]{1,60}=(?=[^=]*$)")  # so x = 3
_WORD = re.compile(r"(?i)[a-z]{2}")
_LABELLED = re.compile(r"(?im)^[ \t]*(?:final )?(?:answer|a):[ \t]*([^\n]{1,300})$")
_BRACKETED = re.compile(r"(\\\{|[(\[])(.*)(\\\}|[)\]])", re.DOTALL)
_THOUSANDS = re.compile(r"(?<!\d)\d{1,3}(?:,\d{3})+(?!\d)")


class _Malformed(Exception):
    """The text is no arithmetic, or has no value of a size that is worth computing."""


@dataclass(frozen=True)
class Number:
    """An exact value; `percent` says that it was written with a percent sign, so that a hundredth is meant as well."""

    value: Fraction
    percent: bool = False

    def means(self) -> set[Fraction]:
        """The values that the writing may stand for."""
        return {self.value, self.value / 100} if self.percent else {self.value}


@dataclass(frozen=True)
class Parts:
    """A tuple, an interval (with its brackets) or a set (brackets ``{}``, or none: the order says nothing)."""

    brackets: str
    parts: tuple[Answer, ...]


Answer = Number | Parts | str


class _Parser:
    r"""sum = product {(+|-) product}; product = power {[*|/] power}; power = unary [^ integer]; unary = [-|+] atom;
    atom = number [\frac..] | (sum) | {sum} | \frac{sum}{sum} | \sqrt{sum}."""

    def __init__(self, text: str) -> None:
        self.tokens: list[tuple[str, str]] = []
        self.at = self.depth = 0
        position, text = 0, text.rstrip()
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None:
                raise _Malformed
            kind = match.lastgroup or ""
            self.tokens.append((kind, match[kind]))
            position = match.end()

    def peek(self) -> str:
        return self.tokens[self.at][1] if self.at < len(self.tokens) else ""

    def take(self, wanted: str) -> bool:
        if self.peek() and self.peek() in wanted:
            self.at += 1
            return True
        return False

    def need(self, mark: str) -> None:
        if not self.take(mark):
            raise _Malformed

    def sum(self) -> Fraction:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise _Malformed
        value = self.product()
        while (sign := self.peek()) in ("+", "-"):
            self.at += 1
            right = self.product()
            value = value + right if sign == "+" else value - right
        self.depth -= 1
        return _bounded(value)

    def product(self) -> Fraction:
        value = self.power()
        while True:
            sign = self.peek()
            if sign in ("*", "/"):
                self.at += 1
                right = self.power()
                if sign == "/" and right == 0:
                    raise _Malformed
                value = value * right if sign == "*" else value / right
            elif sign in ("(", "\\frac", "\\sqrt"):  # side by side: a product
                value *= self.power()
            else:
                return _bounded(value)

    def power(self) -> Fraction:
        sign = -1 if self.take("-") else 1
        if sign == 1:
            self.take("+")
        base = self.atom()
        if not self.take("^"):
            return sign * base
        exponent = self.group() if self.peek() in ("{", "(") else (-1 if self.take("-") else 1) * self.atom()
        if exponent.denominator != 1 or abs(exponent) * _digits(base) > MAX_DIGITS or (base == 0 and exponent <= 0):
            raise _Malformed
        return sign * base ** int(exponent)

    def atom(self) -> Fraction:
        if self.at >= len(self.tokens):
            raise _Malformed
        kind, text = self.tokens[self.at]
        if kind == "number":
            self.at += 1
            if len(text) > MAX_DIGITS:
                raise _Malformed
            value = Fraction(text.replace(",", ""))
            return value + self.mixed() if value.denominator == 1 else value
        if text in ("(", "{"):
            return self.group()
        self.at += 1
        if kind == "frac":
            over, under = self.argument(), self.argument()
            if under == 0:
                raise _Malformed
            return over / under
        if kind == "sqrt":
            return _root(self.argument())
        raise _Malformed

    def mixed(self) -> Fraction:
        r"""The fraction behind a whole number, as in ``1\frac{1}{2}`` and ``1 1/2``; 0 where there is none."""
        ahead = self.tokens[self.at : self.at + 3]
        if [kind for kind, _ in ahead] == ["number", "mark", "number"] and ahead[1][1] == "/":
            return self.product()
        return self.atom() if self.peek() == "\\frac" else Fraction(0)

    def argument(self) -> Fraction:
        r"""What a command takes: a group, or one digit (``\frac12``)."""
        if self.peek() == "{":
            return self.group()
        kind, text = self.tokens[self.at] if self.at < len(self.tokens) else ("", "")
        if kind != "number" or not text.isdigit():
            raise _Malformed
        self.tokens[self.at : self.at + 1] = [(kind, digit) for digit in text[:MAX_DIGITS]]
        self.at += 1
        return Fraction(text[0])

    def group(self) -> Fraction:
        closing = {"(": ")", "{": "}"}[self.peek()]
        self.at += 1
        value = self.sum()
        self.need(closing)
        return value


def _digits(value: Fraction) -> int:
    return len(str(abs(value.numerator))) + len(str(value.denominator)) - 1


def _bounded(value: Fraction) -> Fraction:
    if value.numerator.bit_length() + value.denominator.bit_length() > 8 * MAX_DIGITS:
        raise _Malformed
    return value


def _root(value: Fraction) -> Fraction:
    """The square root of a square; other roots are no rational numbers."""
    if value < 0:
        raise _Malformed
    root = Fraction(math.isqrt(value.numerator), math.isqrt(value.denominator))
    if root * root != value:
        raise _Malformed
    return root


def _plain(text: str) -> str:
    for old, new in _SAME:
        text = text.replace(old, new)
    text = _DROPPED.sub("", text)
    text = _WORDS.sub(r" \1", text)
    return _NAMED.sub("", text.strip().rstrip(".").strip(), count=1).strip()


def _number(text: str) -> Number | None:
    for tried in (text, _UNIT.sub("", text, count=1)):
        body = tried.strip()
        percent = body.endswith("%")
        try:
            parser = _Parser(body.rstrip("%"))
            value = parser.sum()
        except (_Malformed, RecursionError):
            continue
        if parser.at == len(parser.tokens):
            return Number(value, percent)
    return None


def _split(text: str) -> list[str]:
    """The parts between commas outside brackets; a comma inside a number with thousands is no end."""
    inside = {at for match in _THOUSANDS.finditer(text) for at in range(*match.span())}
    parts, depth, start = [], 0, 0
    for at, c in enumerate(text):
        depth += (c in "([{") - (c in ")]}")
        if c == "," and depth == 0 and at not in inside:
            parts.append(text[start:at])
            start = at + 1
    return [*parts, text[start:]]


def read(text: str, depth: int = 0) -> Answer | None:
    """The answer that a text says, whole; None for a text that says nothing or is too long to be an answer."""
    if len(text) > MAX_ANSWER:
        return None
    plain = _plain(text)
    if not plain or depth > MAX_NESTED:
        return None
    if (number := _number(plain)) is not None:
        return number
    if 1 < len(parts := _split(plain)) <= MAX_PARTS:
        return _parts("{}", parts, depth)
    bracketed = _BRACKETED.fullmatch(plain)
    if bracketed and 1 < len(parts := _split(bracketed[2])) <= MAX_PARTS:
        return _parts((bracketed[1] + bracketed[3]).replace("\\", ""), parts, depth)
    return "".join(plain.split()).replace("{", "").replace("}", "").casefold()


def _parts(brackets: str, texts: list[str], depth: int) -> Parts | None:
    parts = [read(text, depth + 1) for text in texts]
    return None if any(part is None for part in parts) else Parts(brackets, tuple(p for p in parts if p is not None))


def same(a: Answer, b: Answer) -> bool:
    """Whether two answers are equal: numbers by value, parts one by one, other text by its letters."""
    if isinstance(a, Number) and isinstance(b, Number):
        return a.value == b.value if a.percent == b.percent else not a.means().isdisjoint(b.means())
    if isinstance(a, Parts) and isinstance(b, Parts):
        if a.brackets != b.brackets or len(a.parts) != len(b.parts):
            return False
        if a.brackets != "{}":
            return all(same(x, y) for x, y in zip(a.parts, b.parts, strict=True))
        left = list(b.parts)
        for part in a.parts:
            found = next((i for i, other in enumerate(left) if same(part, other)), None)
            if found is None:
                return False
            del left[found]
        return True
    return isinstance(a, str) and a == b


def marked(completion: str) -> str | None:
    r"""What a completion commits to: after its last ``####``, in its last answer tag, in its last box, after ``A:``."""
    text = completion[-MAX_TAIL:]
    at = text.rfind("####")
    heading = at < max(text.rfind("\\boxed{"), text.rfind("</answer>"))  # of Markdown, with the answer below it
    if at >= 0 and not heading and (line := _behind(text[at + 4 :])):
        return line
    lines = _LABELLED.findall(text)
    said = (last_tagged(text), boxed(text), lines[-1] if lines else None)
    return next((part for part in said if part is not None and part.strip()), None)


def _behind(text: str) -> str:
    """The line behind ``####`` without a label such as ``Answer:``; where the label is all of it, the next line."""
    line, _, rest = text.strip(" \t:*").partition("\n")
    label = _LABEL.match(line)
    said = line[label.end() if label else 0 :].strip(" \t*")
    if label and not said:
        said = rest.lstrip().partition("\n")[0].strip(" \t*")
    return said


def _only_number(said: str) -> Number | None:
    """The number of a sentence that has one and means it; two are two guesses, and ``3x`` is no 3."""
    found = numbers(said)
    plain = _EQUALS.sub("", _plain(said), count=1)
    if isinstance(whole := _number(plain), Number):
        return whole if len(found) == 1 else None
    return Number(found[0]) if len(found) == 1 and _WORD.search(plain) and not _NO_SENTENCE.search(plain) else None


def gold(answer: str) -> Answer | None:
    """The gold answer: the whole text, or what it marks."""
    return read(said if (said := marked(answer)) is not None else answer)


def score(completion: str, answer: str) -> float | None:
    """1.0 when the completion's answer equals the gold, 0.0 when not; None where the gold cannot be read."""
    expected = gold(answer)
    if expected is None:
        return None
    said = marked(completion)
    if said is not None:
        found = read(said)
        if not isinstance(found, Number) and isinstance(expected, Number):
            found = _only_number(said) or found
        return float(found is not None and same(found, expected))
    text = completion[-MAX_TAIL:]
    if isinstance(expected, Number):
        value = last_number(text)
        return float(value is not None and same(Number(value), expected))
    sentences = _SAID.findall(text)
    found = read(sentences[-1]) if sentences else read(text)
    return float(found is not None and same(found, expected))


def committed(completion: str) -> str | None:
    """What the completion marks as its answer, else its last number."""
    found = read(said) if (said := marked(completion)) is not None else None
    value = last_number(completion[-MAX_TAIL:]) if found is None else None
    return _key(Number(value) if value is not None else found)


def _key(answer: Answer | None) -> str | None:
    if isinstance(answer, Parts):
        parts = [str(_key(part)) for part in answer.parts]
        return answer.brackets + ",".join(sorted(parts) if answer.brackets == "{}" else parts)
    return f"{answer.value}{'%' * answer.percent}" if isinstance(answer, Number) else answer


def parse_gold(answer: str) -> bool:
    """Whether the gold answer can be read."""
    return gold(answer) is not None


def _written(answer: str) -> str:
    return (said if (said := marked(answer)) is not None else answer).strip()


def gold_completion(answer: str) -> str | None:
    """A completion that must score 1."""
    return None if gold(answer) is None else f"So the answer is \\boxed{{{_written(answer)}}}."


def wrong_completion(answer: str) -> str | None:
    """A completion that must score 0: right in its text, wrong in its box."""
    expected = gold(answer)
    if expected is None:
        return None
    other = str(expected.value + 1000003) if isinstance(expected, Number) else "\\text{none of these}"
    return f"It looks like {_written(answer)}.\n\\boxed{{{other}}}"


VERIFIER = Verifier(
    name="math",
    score=score,
    parse_gold=parse_gold,
    gold_completion=gold_completion,
    wrong_completion=wrong_completion,
    canaries=(
        Canary(r"so \boxed{\frac{3}{4}}", "0.75", 1.0),
        Canary("#### 1,072 apples", "1072", 1.0),
        Canary("<answer>50%</answer>", "1/2", 1.0),
        Canary(r"\boxed{x = -3}", "-3", 1.0),
        Canary(r"\boxed{(1, \frac{1}{2})}", "(1,0.5)", 1.0),
        Canary("It costs 72 dollars.", "72", 1.0),
        Canary("72 at first\n#### 71", "72", 0.0),
        Canary(r"\boxed{5 or 6}", "6", 0.0),
        Canary(r"\boxed{0.333}", "1/3", 0.0),
        Canary("I do not know.", "72", 0.0),
        Canary("#### 72", " ", None),
    ),
    committed=committed,
)
