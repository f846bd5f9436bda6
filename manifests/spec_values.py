"""Values of a YAML specification, checked one by one; each error names the key, the value and what it must be."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from manifests.errors import BadInputError


def mapping(value: Any, where: str, known: Iterable[str], what: str = "key") -> dict[str, Any]:
    """Return a mapping none of whose keys is unknown."""
    if not isinstance(value, dict):
        raise wrong(where, value, "a mapping")
    names = list(known)
    for key in value:
        if key not in names:
            raise BadInputError(f"{where} has an unknown {what}", seen=key, next=did_you_mean(str(key), names))
    return value


def number(
    value: Any,
    where: str,
    *,
    least: float = 0,
    most: float = math.inf,
    inclusive: bool = False,
    closed_above: bool = False,
    infinite: bool = False,
) -> float:
    """Return a number above `least` (or at it) and below `most` (or at it); text is tried: YAML's 1e6 is text."""
    try:
        found = math.nan if isinstance(value, bool) or value is None else float(value)
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    above = found >= least if inclusive else found > least
    below = found <= most if inclusive or closed_above or most == math.inf else found < most
    if math.isnan(found) or not above or not below or (math.isinf(found) and not infinite):
        limits = f"{'at least' if inclusive else 'above'} {least:g}"
        limits += "" if most == math.inf else f" and {'at most' if inclusive or closed_above else 'below'} {most:g}"
        raise wrong(where, value, f"a {'' if infinite else 'finite '}number {limits}")
    return found


def whole_number(value: Any, where: str, least: int = 1) -> int:
    """Return a whole number of at least `least`."""
    found = number(value, where, least=least, inclusive=True)
    if not found.is_integer() or found >= 2**53:
        raise wrong(where, value, "a whole number")
    return int(found)


def optional_number(
    body: Mapping[str, Any], key: str, where: str, default: float | None = None, *, infinite: bool = False
) -> float | None:
    """Return a number above 0, or the default where the key is absent."""
    return number(body[key], where, infinite=infinite) if key in body else default


def flag(value: Any, where: str) -> bool:
    """Return true or false."""
    if not isinstance(value, bool):
        raise wrong(where, value, "true or false")
    return value


def choice(value: Any, where: str, allowed: Sequence[str]) -> str:
    """Return one of the allowed texts."""
    if value not in allowed or not isinstance(value, str):
        raise wrong(where, value, f"one of: {', '.join(allowed)}")
    return value


def text_value(body: Mapping[str, Any], key: str, where: str = "") -> str | None:
    """Return a text that says something, or None where the key is absent."""
    value = body.get(key)
    if value is not None and (not isinstance(value, str) or not value):
        raise wrong(f"{where}.{key}".lstrip("."), value, "text")
    return value


def wrong(where: str, value: Any, wanted: str) -> BadInputError:
    """Return the error of a value that is not what its key needs."""
    return BadInputError(f"the specification has a wrong {where}", seen=value, next=f"it must be {wanted}")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the nearest known name, or all of them."""
    near = difflib.get_close_matches(name, sorted(known), n=1)
    return f"did you mean {near[0]}?" if near else f"known: {', '.join(sorted(known))}"


def of_choices(value: str, choices: Sequence[str], meant: str | None = None) -> str:
    """Return what to give in place of `value`: the choice that is meant or nearest to it, and all that there are."""
    near = [meant] if meant in choices else [each for each in choices if value and each.startswith(value)]
    near = near or difflib.get_close_matches(value, choices, n=1)
    return f"{f'did you mean {near[0]}? ' if near else ''}one of: {', '.join(choices)}"
