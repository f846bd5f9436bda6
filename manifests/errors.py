"""The whole tree of errors that a user can meet, drawn once; each says what happened, the value seen, what to type
next.

    LptError                  exit 1   something unexpected
    ├── UsageError            exit 2   the command or the call is wrong
    ├── RefusedError          exit 4   the rows or the model are not what was admitted, or were rejected
    ├── BadInputError         exit 5   a file, a folder or a record cannot be used
    │   ├── RecordError       exit 5   one record; carries `reason` and `field`, so that a reader can quarantine the row
    │   └── CheckNotRunError  exit 5   a required check could not run
    └── BusyError             exit 75  another process holds what is needed; try again

Imports nothing but the standard library, because the command line loads this module before anything else.
"""

from __future__ import annotations

from typing import ClassVar, Final

NOT_GIVEN: Final = object()  # an error that has no value to show; None and "" are values
_SHOWN = 2000  # characters of a seen value that are worth reading in a terminal


class LptError(Exception):
    """An error with three parts: `what` happened, the value `seen`, and what to type `next`."""

    exit_code: ClassVar[int] = 1

    def __init__(self, what: str, *, seen: object = NOT_GIVEN, next: str = "") -> None:
        self.what = what
        self.seen = "" if seen is NOT_GIVEN else _shorten(seen)
        self.next = next
        super().__init__(what)

    def __reduce__(self) -> tuple[object, ...]:
        # Exceptions cross process borders (worker pools); keyword arguments are lost by the default pickling.
        return _rebuild, (type(self), dict(self.__dict__))

    def __str__(self) -> str:
        parts = [self.what]
        if self.seen:
            parts.append(f"  seen: {self.seen}")
        if self.next:
            parts.append(f"  next: {self.next}")
        return "\n".join(parts)


class UsageError(LptError):
    """The command line, a configuration or a call is wrong."""

    exit_code: ClassVar[int] = 2


class RefusedError(LptError):
    """The gate says no: bytes that differ from what was admitted, a rejected split, another contract."""

    exit_code: ClassVar[int] = 4


class BadInputError(LptError):
    """A file, a folder or a value in them cannot be used."""

    exit_code: ClassVar[int] = 5


class RecordError(BadInputError):
    """One record has no canonical form: `reason` is the noun phrase that decisions carry, `field` the path in it."""

    def __init__(self, what: str, *, reason: str, field: str = "", seen: object = NOT_GIVEN, next: str = "") -> None:
        super().__init__(what, seen=seen, next=next)
        self.reason = reason
        self.field = field


class CheckNotRunError(BadInputError):
    """A check that the policy requires could not run, so there is no verdict that could be green."""


class BusyError(LptError):
    """Another process holds a lock; nothing was changed and the same command will work once it is released."""

    exit_code: ClassVar[int] = 75


def _shorten(seen: object) -> str:
    text = seen if isinstance(seen, str) and seen else repr(seen)  # nothing was typed: that is a value, too
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}… ({len(text)} characters)"


def _rebuild(cls: type[LptError], state: dict[str, object]) -> LptError:
    error = cls.__new__(cls)
    Exception.__init__(error, state["what"])
    error.__dict__.update(state)
    return error
