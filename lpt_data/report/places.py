"""How a report names a row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from manifests.places import place_of_row


def place_name(body: Mapping[str, Any], row: int) -> str:
    """Return where a row is: its file by name and its number there, from 1; the row of the input otherwise."""
    place = place_of_row(body, row)
    if place is None or place[1] is None:
        return f"row {row}"
    name = place[0].rpartition("/")[2]
    return f"row {row}, {name}" if len(body.get("inputs") or ()) > 1 else f"row {row}"
