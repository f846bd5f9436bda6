"""Which plain records a rule can find something in, told by columns: what the rules of a contract are spared.

Too many is slow, too few is a fault that nobody sees: a test holds each rule of each contract against its suspects on
hostile rows.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lpt_data.contracts.common import Rule
from lpt_data.plain import Plain, Shape

Suspects = Callable[[Plain], np.ndarray]
_POINT = 46


def by_shape(rule: Rule) -> Suspects:
    """Records of a shape that the rule finds something in whatever the texts: it looks at roles alone."""
    return lambda plain: plain.of_shape(lambda shape: rule(shape.record) is not None)


def either(*each: Suspects) -> Suspects:
    """Records that one of several suspects."""
    return lambda plain: np.logical_or.reduce([suspects(plain) for suspects in each])


def _visible(plain: Plain, at: np.ndarray) -> np.ndarray:
    """Whether the bytes at these places are visible ASCII."""
    if not len(plain.data):
        return np.zeros(len(at), bool)
    byte = plain.data[np.clip(at, 0, len(plain.data) - 1)]
    return (byte > 32) & (byte < 127)


def blank(plain: Plain) -> np.ndarray:
    """Records with a text that does not begin with a visible character of ASCII."""
    odd = (plain.starts == plain.ends) | ~_visible(plain, plain.starts)
    return np.logical_or.reduceat(odd, plain.first[:-1])


def text_of(plain: Plain, field: str) -> np.ndarray:
    """Return the number of the first text of a field in each record: int64 [n]."""
    place = plain.of_shape(lambda shape: next(i for i, slot in enumerate(shape.slots) if slot.field == field))
    return plain.first[:-1] + place


def by_role(plain: Plain, field: str, role: str) -> np.ndarray:
    """Which texts are turns of a role in a field: bool [m]."""

    def wanted(shape: Shape) -> list[bool]:
        return [slot.field == field and slot.role == role for slot in shape.slots]

    return plain.of_slots(wanted)


def alike_from_the_start(plain: Plain) -> np.ndarray:
    """Pairs whose sides may be one the start of the other."""
    from lpt_data.plain_kernels import begin_differently

    one, other = text_of(plain, "chosen"), text_of(plain, "rejected")
    sides = (plain.starts[one], plain.ends[one], plain.starts[other], plain.ends[other])
    return ~begin_differently(plain.data, *sides)


def short_answer(plain: Plain) -> np.ndarray:
    """Answers that may be one of a few words, a letter or a digit, blanks around it and a point behind it."""
    if not len(plain.data):
        return np.ones(len(plain), bool)
    answer = text_of(plain, "answer")
    starts, ends = plain.starts[answer], plain.ends[answer]
    first = plain.data[np.minimum(starts, len(plain.data) - 1)]
    number = (first >= ord("0")) & (first <= ord("9"))
    second = plain.data[np.minimum(starts + 1, len(plain.data) - 1)]
    longer = (ends - starts > 1) & _visible(plain, starts + 1) & (second != _POINT)
    odd = ~_visible(plain, starts) | ~_visible(plain, ends - 1)
    apart = (plain.data[ends - 1] == _POINT) & ~_visible(plain, ends - 2)
    letters = np.isin(first, np.frombuffer(b"yYnNtTfFaAbBcCdDeE(", np.uint8))
    return odd | apart | (number & ~longer) | (letters & (ends - starts <= 8))


def in_prompt(plain: Plain) -> np.ndarray:
    """Answers that may stand in a turn of the user."""
    from lpt_data.plain_kernels import may_hold

    asked = by_role(plain, "prompt", "user")
    return may_hold(plain.data, plain.starts, plain.ends, plain.first, asked, text_of(plain, "answer"))
