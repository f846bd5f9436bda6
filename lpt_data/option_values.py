"""A config out of options as YAML gives them: names as the commands have them, types checked, unknown names refused."""

from __future__ import annotations

import difflib
import math
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any, TypeVar

from manifests.errors import UsageError

Config = TypeVar("Config")
_WRONG = object()
MOST_SEED = 2**63 - 1  # what torch and numpy both take


def plain_name(name: str) -> str:
    """Return an option's name as a field is written: `template-df` and `--template-df` are `template_df`."""
    return name.removeprefix("--").replace("-", "_")


def check_names(given: Iterable[str], known: Iterable[str], where: str, what: str = "option") -> None:
    """Raise UsageError with the closest names for a name that is not among `known`."""
    among = sorted(set(known))
    for name in given:
        if name not in among:
            near = difflib.get_close_matches(str(name), among, n=3, cutoff=0.5)
            listed = f"did you mean {', '.join(near)}?" if near else f"one of: {', '.join(among) or 'it has none'}"
            raise UsageError(f"{where} has no such {what}", seen=name, next=listed)


def config_of(kind: type[Config], options: Mapping[str, Any], where: str, **fixed: Any) -> Config:
    """Return a config of dataclass `kind`: every option is one of its fields, in its type; `fixed` comes on top.

    A list may be given as one text with commas. Raises UsageError that names the option and the value seen.
    """
    hints = typing.get_type_hints(kind)
    known = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    check_names(options, [name for name in known if name not in fixed], where)
    values = {name: _converted(hints[name], value, f"{where}: {name}") for name, value in options.items()}
    return kind(**values, **fixed)


def text(value: Any, where: str) -> str:
    """Return a text that says something, or raise UsageError."""
    if not isinstance(value, str) or not value:
        raise UsageError(f"{where} is no text", seen=repr(value)[:80], next=f"{where.rpartition(' ')[2]}: some text")
    return value


def texts(value: Any, where: str) -> tuple[str, ...]:
    """Return a list of texts; one text is a list of one."""
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, (list, tuple)) or not all(isinstance(item, str) and item for item in listed):
        raise UsageError(f"{where} is no list of texts", seen=repr(value)[:80], next="one text, or [several]")
    return tuple(listed)


def named_files(
    pairs: Iterable[str], option: str, *, advice: str | None = None, bare: bool = False
) -> dict[str, tuple[str, ...]]:
    """Return `["gsm8k=a.jsonl", "gsm8k=b.jsonl"]` as `{"gsm8k": ("a.jsonl", "b.jsonl")}`; with `bare` a name may stand
    without a file, and then has none. Raises UsageError for what is no such pair, and for a name both with and without.
    """
    found: dict[str, tuple[str, ...]] = {}
    for pair in pairs:
        name, equals, path = pair.partition("=")
        if not name or not (path or (bare and not equals)):
            advice = advice or f"{option} gsm8k=test.jsonl"
            raise UsageError(f"{option} takes NAME=PATH", seen=pair, next=advice)
        if name in found and bool(found[name]) != bool(path):
            raise UsageError("a benchmark is named with a file and without one", seen=name, next="one of the two")
        found[name] = (*found.get(name, ()), path) if path else ()
    return found


def _converted(hint: Any, value: Any, where: str) -> Any:
    union = isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union
    kinds = typing.get_args(hint) if union else (hint,)
    for kind in kinds:
        found = _as(kind, value)
        if found is not _WRONG:
            return found
    wanted = " or ".join(_told(kind) for kind in kinds)
    raise UsageError(f"{where} has a value of another kind", seen=repr(value)[:80], next=f"give {wanted}")


def _as(kind: Any, value: Any) -> Any:
    """The value as `kind`, or _WRONG. Whole numbers are no truth values, nor the other way round."""
    origin = typing.get_origin(kind)
    if kind is type(None):
        return None if value is None else _WRONG
    if origin is typing.Literal:
        return value if value in typing.get_args(kind) else _WRONG
    if origin is tuple:
        listed = [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value
        fits = isinstance(listed, (list, tuple)) and all(isinstance(item, str) for item in listed)
        return tuple(listed) if fits else _WRONG
    if isinstance(value, bool) or kind is bool:
        return value if kind is bool and isinstance(value, bool) else _WRONG
    if kind is int:
        return value if isinstance(value, int) else _WRONG
    if kind is float:
        try:
            found = float(value)  # of text, too: YAML reads 1e-3 as text
        except (TypeError, ValueError, OverflowError):
            return _WRONG
        return found if math.isfinite(found) else _WRONG
    return value if kind is str and isinstance(value, str) else _WRONG


def _told(kind: Any) -> str:
    if typing.get_origin(kind) is typing.Literal:
        return ", ".join(map(str, typing.get_args(kind)))
    named = {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "null"}
    return named.get(kind, "a list of texts")
