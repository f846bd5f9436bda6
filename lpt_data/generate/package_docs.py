"""A corpus of real text out of the packages installed around this one: licences, readmes, documentation, docstrings.

Real near-duplicates come with it (the same licences with other names and years), and no download. Files are read as
text and never imported or run; of a module its docstring is taken, found at the head of the source.
"""

from __future__ import annotations

import importlib.metadata
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_DOCUMENT = re.compile(r"(^|/)(licen[cs]e|copying|notice|readme|changelog|changes|authors)[^/]*$|\.(rst|md)$", re.I)
_TEXT = {"", ".txt", ".md", ".rst", ".apache", ".bsd", ".mit", ".apache2", ".psf"}
_LARGEST = 200_000  # bytes of one text: longer ones are tables and word lists
_HEAD = 32_000  # bytes of a module in which its docstring is looked for
_DOCSTRING = re.compile(r"(?:[ \t]*(?:#[^\n]*)?\n)*[rRuU]?(\"{3}|'{3})(.+?)\1", re.S)
_SHORTEST = 200  # characters under which a text says little


def documents(*, max_bytes: int | None = None) -> Iterator[dict[str, Any]]:
    """Yield rows {id, package, text}, the packages by name, the texts of one by path; at most `max_bytes` of text."""
    total = 0
    for package, distribution in _distributions():
        for name, text in _texts(distribution):
            size = len(text.encode())
            if max_bytes is not None and total + size > max_bytes:
                return
            total += size
            yield {"id": f"{package}:{name}", "package": package, "text": text}


def _distributions() -> list[tuple[str, importlib.metadata.Distribution]]:
    """Installed packages by normalised name, the first on the path where one is there twice."""
    found: dict[str, importlib.metadata.Distribution] = {}
    for distribution in importlib.metadata.distributions():
        name = distribution.metadata["Name"]
        if name:
            found.setdefault(re.sub(r"[-_.]+", "-", name).lower(), distribution)
    return sorted(found.items())


def _texts(distribution: importlib.metadata.Distribution) -> Iterator[tuple[str, str]]:
    metadata: Any = distribution.metadata
    description = metadata.get_payload()
    if isinstance(description, str) and len(description.strip()) >= _SHORTEST:
        yield "METADATA", description.strip()
    for file in sorted(distribution.files or [], key=str):
        name = file.as_posix()
        if ".." in file.parts or file.is_absolute():
            continue  # scripts and the like, outside the package's own folders
        suffix = file.suffix.lower()
        if suffix == ".py":
            text = _docstring(Path(str(file.locate())))
        elif suffix in _TEXT and _DOCUMENT.search(name):
            text = _read(Path(str(file.locate())))
        else:
            continue
        if len(text) >= _SHORTEST:
            yield name, text


def _read(path: Path) -> str:
    """The text of a file, or nothing where it is missing, too large or no UTF-8."""
    try:
        if path.stat().st_size > _LARGEST:
            return ""
        return path.read_bytes().decode().replace("\r\n", "\n").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _docstring(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            head = file.read(_HEAD).decode(errors="ignore").replace("\r\n", "\n")
    except OSError:
        return ""
    found = _DOCSTRING.match(head)
    return inspect.cleandoc(found.group(2)) if found else ""
