"""Immutable objects: a JSON body in a file named by the sha256 of its bytes. The id is the content; nothing is edited.

`object_bytes` is deterministic (sorted keys), so equal bodies are one object. Numbers that JSON cannot carry are
written as the strings "NaN", "Infinity" and "-Infinity" (a diverged run must be recordable), never as null.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import orjson

from manifests.errors import BadInputError, UsageError
from manifests.files import make_folder, write_atomic

_TYPE = re.compile(r"lpt\.[a-z_]+/[0-9]+")
_HEX = re.compile(r"[0-9a-f]{4,64}")


def object_bytes(body: Mapping[str, Any]) -> bytes:
    """Return the bytes of an object; `manifest.json` in an admitted folder is exactly these."""
    kind = body.get("type")
    if not isinstance(kind, str) or not _TYPE.fullmatch(kind):
        raise UsageError("an object has no type such as lpt.stage/1", seen=kind, next="give the body a 'type'")
    return orjson.dumps(_clean(body), option=orjson.OPT_SORT_KEYS | orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def object_id(data: bytes) -> str:
    """Return the id of an object's bytes: their sha256 in hex."""
    return hashlib.sha256(data).hexdigest()


class ObjectStore:
    """The folder `objects/`: ab/cdef….json."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, object_id: str) -> Path:
        """Return where an object lies or would lie."""
        return self.folder / object_id[:2] / f"{object_id[2:]}.json"

    def write(self, data: bytes) -> str:
        """Store bytes and return their id; an object that is there already and is intact is left alone."""
        name = object_id(data)
        path = self.path(name)
        if not path.is_file() or path.read_bytes() != data:
            make_folder(path.parent)
            write_atomic(path, data)
        return name

    def read(self, object_id_: str) -> dict[str, Any]:
        """Return the body of a full id; raise BadInputError when it is missing or its bytes are not those of the id."""
        path = self.path(object_id_)
        try:
            data = path.read_bytes()
        except OSError as error:
            raise BadInputError(
                "the catalog has no such object", seen=object_id_, next="lpt manifest list shows what there is"
            ) from error
        if object_id(data) != object_id_:
            raise BadInputError(
                "an object of the catalog was changed after it was written",
                seen=f"{path}: sha256 is {object_id(data)}",
                next="restore the file from a copy; its name is the sha256 it must have",
            )
        return parse_object(data, path)

    def resolve(self, prefix: str) -> str:
        """Return the full id that a prefix of at least four hex digits stands for."""
        if not _HEX.fullmatch(prefix):
            raise BadInputError("not the id of an object", seen=prefix, next="ids are hex, at least 4 digits of them")
        found = sorted(name for name in self.ids(prefix[:2]) if name.startswith(prefix))
        if len(found) == 1:
            return found[0]
        if found:
            raise BadInputError(
                f"{len(found)} objects start with {prefix}",
                seen=[name[:16] for name in found[:5]],
                next="type more digits",
            )
        raise BadInputError("the catalog has no such object", seen=prefix, next="lpt manifest list shows what there is")

    def ids(self, shard: str = "??") -> Iterator[str]:
        """Yield the ids of all objects, or of those that start with two given digits."""
        for path in self.folder.glob(f"{shard}/*.json"):
            if not path.name.startswith("."):
                yield path.parent.name + path.stem


def parse_object(data: bytes, path: Path | str) -> dict[str, Any]:
    """Parse the bytes of an object; raise BadInputError when they are not one."""
    try:
        body = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise BadInputError("not a JSON object of lpt", seen=f"{path}: {error}", next="check the path") from error
    if not isinstance(body, dict) or not isinstance(body.get("type"), str):
        raise BadInputError("not a JSON object of lpt", seen=f"{path}: no 'type'", next="check the path")
    return body


def _clean(value: Any) -> Any:
    """Return `value` in plain JSON types: paths and numpy scalars as text and numbers, numbers beyond JSON as text."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, (int, np.integer)):
        number = int(value)
        return number if -(2**63) <= number < 2**64 else str(number)
    if isinstance(value, (float, np.floating)):
        real = float(value)
        return real if math.isfinite(real) else str(real).replace("nan", "NaN").replace("inf", "Infinity")
    if isinstance(value, Mapping):
        return {_clean(k) if isinstance(k, str) else str(k): _clean(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_clean(item) for item in (sorted(value) if isinstance(value, (set, frozenset)) else value)]
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, np.ndarray):
        return _clean(value.tolist())
    if isinstance(value, PurePath):
        return _clean(str(value))
    raise UsageError("a value cannot be kept in the catalog", seen=f"{type(value).__name__}: {value!r}"[:200])
