"""Which files a list of paths, globs and folders means, what each one is, and its bytes as they were before
compression.
"""

from __future__ import annotations

import difflib
import glob
import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zstandard

from manifests.errors import BadInputError

FORMATS = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".pq": "parquet",
}
COMPRESSIONS = {".gz": "gz", ".zst": "zst"}
KNOWN = ".jsonl, .ndjson, .json, .csv, .tsv (each also with .gz or .zst), .parquet"

BLOCK = 1 << 21  # bytes handed on at a time: many rows for what each call costs, and still few to hold
Mark = tuple[int, int, int, int]  # what tells a file from what it becomes, see `mark_of`

_COMPRESSED = 1 << 14  # compressed bytes fed at a time: bounds what a hostile archive can unfold to in one go
BYTE_ORDER_MARK = b"\xef\xbb\xbf"  # of UTF-8
_MAGIC = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"PAR1": "Parquet",
    b"PK\x03\x04": "zip",
    b"%PDF": "PDF",
    b"\x7fELF": "a program",
    b"\x89PNG": "PNG",
    b"\xff\xd8\xff": "JPEG",
    b"\xff\xfe": "UTF-16 text",
    b"\xfe\xff": "UTF-16 text",
    b"ARROW1": "Arrow",
    b"SQLite format": "SQLite",
}


@dataclass(frozen=True)
class SourceFile:
    """One input file: path as given, format (jsonl, json, csv, tsv, parquet), compression ('', gz, zst), size in
    bytes.
    """

    path: str
    format: str
    compression: str
    bytes: int


def expand(inputs: str | Sequence[str]) -> list[SourceFile]:
    """Return the files meant by paths, globs and folders: in the order given, those of a glob or folder sorted by path.

    Folders are searched at every depth for files of a known extension; hidden ones are left out. Raises BadInputError
    for what is missing, empty, binary, of an unknown extension, or named twice.
    """
    files: list[SourceFile] = []
    seen: dict[str, str] = {}
    # One path is one input, and not the inputs named by its letters.
    for given in [inputs] if isinstance(inputs, (str, os.PathLike)) else inputs:
        for path in _paths(os.fspath(given)):
            source = _inspect(path)
            real = os.path.realpath(path)
            if real in seen:
                raise BadInputError(
                    "the same file is named twice, which would double its rows",
                    seen=f"{seen[real]} and {path}",
                    next="name it once",
                )
            seen[real] = path
            files.append(source)
    if not files:
        raise BadInputError("no input was named", next=f"name a file, a folder or a glob of {KNOWN}")
    return files


def format_of(path: str | os.PathLike[str]) -> tuple[str, str]:
    """Return (format, compression) by extension, or raise BadInputError with the extensions that are known."""
    suffixes = [s.lower() for s in Path(path).suffixes]
    compression = COMPRESSIONS.get(suffixes[-1], "") if suffixes else ""
    suffix = suffixes[-2] if compression and len(suffixes) > 1 else (suffixes[-1] if suffixes else "")
    found = FORMATS.get(suffix)
    if found is None or (found == "parquet" and compression):
        raise BadInputError(
            "the extension of a file names no format that can be read or written",
            seen=os.fspath(path),
            next=f"use one of {KNOWN}",
        )
    return found, compression


def blocks(source: SourceFile) -> Iterator[bytes]:
    """Yield the uncompressed bytes of a file, without a byte order mark; raise BadInputError where a stream is cut
    short.
    """
    first = True
    for block in _unpacked(source):
        if first and block:
            first = False
            block = block.removeprefix(BYTE_ORDER_MARK)
        if block:
            yield block


def text_start(source: SourceFile) -> tuple[int, Mark]:
    """Return where the text of an uncompressed file begins, behind a byte order mark, and the mark of the file."""
    try:
        with open(source.path, "rb") as file:
            found = mark_of(os.fstat(file.fileno()))
            return len(BYTE_ORDER_MARK) if file.read(len(BYTE_ORDER_MARK)) == BYTE_ORDER_MARK else 0, found
    except OSError as error:
        raise cannot_read(source.path, error) from error


def mark_of(found: os.stat_result) -> Mark:
    """Return device, inode, size and time of change (ns) of a file: another file, or a write, changes one of them."""
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def cannot_read(path: str, error: OSError) -> BadInputError:
    """Return the three-part error for a file that cannot be opened or read."""
    return BadInputError(
        f"{path} cannot be read", seen=error.strerror or repr(error), next="check the path and its permissions"
    )


class InputChangedError(BadInputError):
    """An input is not what it was when it was first read: what was decided of it holds for no file."""


def input_changed(path: str) -> InputChangedError:
    """Return the error for an input that is not what it was when it was first read."""
    return InputChangedError(
        "an input changed while it was read",
        seen=path,
        next="wait until nothing writes to it, then run the same command again",
    )


def _paths(given: str) -> list[str]:
    if os.path.isdir(given):
        found = sorted(str(p) for p in Path(given).rglob("*") if p.is_file() and not _hidden(p, given) and _known(p))
        if not found:
            others = sorted(p.name for p in Path(given).rglob("*") if p.is_file())[:5]
            raise BadInputError(
                f"the folder {given} holds no data file",
                seen=", ".join(others) or "no files at all",
                next=f"name a folder with files ending in {KNOWN}",
            )
        return found
    if os.path.exists(given) or os.path.islink(given):
        return [given]
    if glob.has_magic(given):
        found = sorted(p for p in glob.glob(given, recursive=True) if os.path.isfile(p))
        if found:
            return found
        raise BadInputError("no file matches a pattern", seen=given, next="check it with ls; quote it in the shell")
    near = _near(given)
    raise BadInputError("a file does not exist", seen=given, next=f"did you mean {near}?" if near else "check the path")


def _near(given: str) -> str:
    folder = os.path.dirname(given) or "."
    try:
        names = os.listdir(folder)
    except OSError:
        return ""
    close = difflib.get_close_matches(os.path.basename(given), names, n=1)
    return os.path.join(os.path.dirname(given), close[0]) if close else ""


def _hidden(path: Path, root: str) -> bool:
    return any(part.startswith(".") for part in path.relative_to(root).parts)


def _known(path: Path) -> bool:
    try:
        format_of(path)
    except BadInputError:
        return False
    return True


def _inspect(path: str) -> SourceFile:
    try:
        if not os.path.isfile(path):
            raise BadInputError("an input is no regular file", seen=path, next=f"name a file of {KNOWN}")
        file_format, compression = format_of(path)
        size = os.path.getsize(path)
        with open(path, "rb") as file:
            head = file.read(4096)
    except OSError as error:
        raise cannot_read(path, error) from error
    if not head:
        raise BadInputError("a file is empty", seen=path, next="leave it out, or make it again")
    _check_head(path, head, "parquet" if file_format == "parquet" else compression)
    return SourceFile(path, file_format, compression, size)


def _check_head(path: str, head: bytes, expected: str) -> None:
    found = next((name for magic, name in _MAGIC.items() if head.startswith(magic)), "")
    wanted = {"gz": "gzip", "zst": "zstd", "parquet": "Parquet", "": ""}[expected]
    if found != wanted:
        raise BadInputError(
            f"the contents of {path} are not what its extension says",
            seen=found or f"no {wanted} file",
            next="save UTF-16 text as UTF-8"
            if "UTF-16" in found
            else "give it the right extension, or name another file",
        )
    if not wanted and _looks_binary(head):
        raise BadInputError(
            f"{path} is no text file", seen=f"starts with {head[:16]!r}", next="name a text or Parquet file"
        )


def _looks_binary(head: bytes) -> bool:
    """One stray NUL is a bad row; a head in which every twentieth byte is a control character is no text."""
    control = sum(byte < 32 and byte not in (9, 10, 12, 13) for byte in head)
    return control * 20 > len(head)


def _unpacked(source: SourceFile) -> Iterator[bytes]:
    try:
        with open(source.path, "rb") as file:
            if not source.compression:
                while block := file.read(BLOCK):
                    yield block
            else:
                yield from _members(source.path, iter(lambda: file.read(_COMPRESSED), b""), source.compression)
    except OSError as error:
        raise cannot_read(source.path, error) from error


def _unpacker(compression: str) -> Any:
    return zlib.decompressobj(wbits=31) if compression == "gz" else zstandard.ZstdDecompressor().decompressobj()


def _members(path: str, pieces: Iterator[bytes], compression: str) -> Iterator[bytes]:
    """Unpack a file of one or more members (gzip) or frames (zstd), gathering small pieces into blocks."""
    unpacker, started = _unpacker(compression), False
    read = written = held = 0
    gathered: list[bytes] = []
    try:
        for piece in pieces:
            read += len(piece)
            while piece:
                out = unpacker.decompress(piece)
                started = True
                written += len(out)
                held += len(out)
                gathered.append(out)
                piece = b""
                if unpacker.eof:
                    piece, unpacker, started = unpacker.unused_data.lstrip(b"\0"), _unpacker(compression), False
            if held >= BLOCK:
                yield b"".join(gathered)
                gathered, held = [], 0
    except (zlib.error, zstandard.ZstdError) as error:
        raise BadInputError(
            f"{path} is damaged",
            seen=f"{error} near compressed byte {read}, text byte {written}",
            next="fetch it again",
        ) from error
    if started:
        raise BadInputError(
            f"{path} is cut short: the {compression} stream has no end",
            seen=f"{read} compressed bytes, which hold {written} bytes of text",
            next="fetch it again; nothing was written",
        )
    if gathered:
        yield b"".join(gathered)
