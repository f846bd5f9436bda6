"""Failed writes, whichever library met them, as the one error that a user sees."""

from __future__ import annotations

import os
import re
from pathlib import Path

from safetensors import SafetensorError

from manifests.errors import BadInputError
from manifests.files import cannot_write

WRITE_ERRORS = (OSError, SafetensorError)  # the latter is no OSError and has the number in its text alone


def cannot_save(path: Path, error: OSError | SafetensorError) -> BadInputError:
    """The three-part error for a failed write to `path`."""
    if isinstance(error, OSError):
        return cannot_write(path, error)
    number = re.search(r"\(os error (\d+)\)", str(error))
    found = OSError(int(number[1]), os.strerror(int(number[1]))) if number else OSError(str(error))
    return cannot_write(path, found)
