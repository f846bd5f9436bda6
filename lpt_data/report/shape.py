"""What a report needs of a manifest that came from elsewhere: its shape, checked before anything is made of it.

`manifests.loaded` checks what a trainer relies on; this is the rest of what a page shows. A field that is not there is
fine where the page can do without; one of another type is not.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from manifests.errors import BadInputError

NUMBER = (int, float)
_MOST = 2**63  # what a whole number stays below
# A type or a tuple of types; what a text must match; a mapping of fields ("?" at the end: may be left out or null); a
# list of one such shape.
_FILE = {"path": str, "sha256": str, "bytes?": int, "rows?": int}
MANIFEST: Mapping[str, Any] = {
    "policy": {"name": str, "digest": str, "text?": str},
    "created?": str,
    "key?": str,
    "supersedes?": str,
    "sources?": [{**_FILE, "split": str}],
    "side_files?": [_FILE],
    "stages?": [str],
    "parents?": [str],
    "not_checked?": [str],
    "funnel?": [
        {
            "stage": str,
            "rows_in?": int,
            "rows_out?": int,
            "removed?": {"*": int},
            "quarantined?": int,
            "repeated?": int,
        }
    ],
    "checks": [{"severity?": str, "n?": NUMBER}],
    "disjoint?": [{"n_a?": int, "n_b?": int}],
    "benchmarks?": [{"name": str, "items": int}],
    "splits": {
        "*": {
            "quarantined?": int,
            "key?": {"count?": int},
            "tokenized?": {"tokens": int, "supervised": int, "rows": int, "truncated_rows": int},
        }
    },
    "env?": {},
}


RUN: Mapping[str, Any] = {
    "run_id": re.compile(r"[A-Za-z0-9._-]+"),  # it stands in commands that a reader copies
    "algorithm": str,
    "status": str,
    "steps?": int,
    "seconds?": NUMBER,
    "tokens_per_second?": NUMBER,
    "peak_memory_bytes?": NUMBER,
    "config?": {},
    "model?": {},
    "checkpoint?": {},
    "proof?": {},
    "best?": {},
    "failures?": [str],
}

_MEASURE = {"name": str, "value?": NUMBER, "low?": NUMBER, "high?": NUMBER, "n?": int, "domain?": str}
EVALUATION: Mapping[str, Any] = {
    "split": str,
    "created?": str,
    "content_root?": str,
    "model": {
        "name": str,
        "digest": str,
        "checkpoint_sha256?": str,
        "made_from?": {"run_id?": str, "step?": int},
    },
    "measures?": [_MEASURE],
    "dropped?": {"*": int},
    "temperature?": NUMBER,
    "truncated_share?": NUMBER,
    **{f"{name}?": int for name in ("n", "rows", "seed", "k", "max_length", "max_completion_length", "unscorable")},
}
EXPORT: Mapping[str, Any] = {"digest?": str}
COMPARISON: Mapping[str, Any] = {
    "before": str,
    "after": str,
    "paired?": [
        {
            "name": str,
            **{f"{name}?": NUMBER for name in ("before", "after", "difference", "low", "high", "p_value")},
            **{f"{name}?": int for name in ("n", "gained", "lost")},
        }
    ],
    "measures?": [_MEASURE],
}


def check_shape(
    body: Any, origin: str, shape: Mapping[str, Any] = MANIFEST, what: str = "the manifest is damaged"
) -> None:
    """Raise BadInputError naming the first field of a record that a report cannot read."""
    fault = _fault(body, shape, "")
    if fault or not isinstance(body, Mapping):
        raise BadInputError(what, seen=f"{origin}: {fault}", next="copy it again from its source")


def _fault(value: Any, shape: Any, where: str) -> str:
    if isinstance(shape, list):
        if not isinstance(value, list):
            return where
        return next(filter(None, (_fault(one, shape[0], f"{where}[{i}]") for i, one in enumerate(value))), "")
    if isinstance(shape, re.Pattern):
        return "" if isinstance(value, str) and shape.fullmatch(value) else where
    if not isinstance(shape, Mapping):
        wrong = not isinstance(value, shape) or (isinstance(value, bool) and shape is not bool) or not _a_size(value)
        return where if wrong else ""
    if not isinstance(value, Mapping):
        return where
    if "*" in shape:
        return next(
            filter(None, (_fault(one, shape["*"], f"{where}.{str(name)[:40]}") for name, one in value.items())), ""
        )
    for name, inner in shape.items():
        field = name.removesuffix("?")
        if value.get(field) is None:
            if name == field:
                return f"{where}.{field}"
            continue
        if fault := _fault(value[field], inner, f"{where}.{field}"):
            return fault
    return ""


def _a_size(value: Any) -> bool:
    """Whether a number is one that a page can write: JSON allows a thousand digits, and Python's reader infinity."""
    return not isinstance(value, (int, float)) or (
        math.isfinite(value) if isinstance(value, float) else -_MOST < value < _MOST
    )
