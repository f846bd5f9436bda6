"""The command that made a record, as it was typed: provenance that no digest of data depends on."""

from __future__ import annotations

import sys
from pathlib import Path

LONGEST = 2_000  # characters of an argument
MOST = 500  # arguments


def command_line() -> list[str]:
    """The program's name without its folder, and its arguments as they were typed; of a Python program its own.

    Bytes that are no UTF-8 are replaced, since records are UTF-8; what is longer than bounds is cut.
    """
    program, *arguments = sys.argv or [""]
    typed = [Path(program).name, *arguments[:MOST]]
    return [word.encode("utf-8", "surrogateescape").decode("utf-8", "replace")[:LONGEST] for word in typed]
