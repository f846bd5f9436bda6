"""The only place that prints: data on stdout, talk on stderr, one object under ``--json``."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from manifests.errors import LptError
from manifests.files import cannot_write

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

STATUS_STYLE = {"pass": "green", "warn": "yellow", "fail": "bold red", "error": "bold red", "skipped": "dim"}
VERDICT_STYLE = {"accept": "bold green", "tune": "bold yellow", "reject": "bold red"}


class ReaderGoneError(Exception):
    """Whoever read standard output has closed it (`lpt sql … | head`): there is nobody left to print for."""


class ToldExit(SystemExit):
    """The end of a command that was stopped and has said how to go on."""


def say(text: str = "", *, style: str | None = None) -> None:
    """Talk to the user: stderr, with a style; the text is never read as markup, so hostile data cannot colour it.

    Lines are not broken, so that a command to type next can be copied whole.
    """
    _console().print(clean(text), style=style, soft_wrap=True)


def tell_next(*commands: str) -> None:
    """Say what may be typed next, each command on a line of its own, so that it can be copied."""
    for at, command in enumerate(commands):
        say(f"{'  or' if at else 'next'}: {command}")


def say_short(text: str) -> None:
    """Talk that is cut with … where the screen ends, such as an excerpt of a row."""
    _console().print(clean(text), no_wrap=True, overflow="ellipsis")


def data(text: str) -> None:
    """Print data: stdout, nothing added. Lone surrogates, which no stream can encode, become ``?``.

    On a terminal, control characters are made visible; a file or a pipe gets the text as it is.
    """
    _print(clean(text) if sys.stdout is not None and sys.stdout.isatty() else text)


def as_json(body: Mapping[str, Any]) -> None:
    """Print the one object of ``--json``: plain JSON, NaN and infinities as null."""
    data(json.dumps(_jsonable(body), ensure_ascii=False, indent=2, allow_nan=False))


def table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str | None = None, to_stdout: bool = False
) -> None:
    """A table for people. Cells are text as it is, with control characters made visible.

    Where the screen is too narrow, prose is broken between words and names stay whole; a table whose cells would be
    chopped all the same becomes a list with a field on each line. A pipe gets rows as wide as they are.
    """
    cells = [[cell if _is_text(cell) else clean(shown(cell)) for cell in row] for row in rows]
    heads = [clean(column) for column in columns]
    held = io.StringIO()
    console = _console(sys.stdout, held) if to_stdout else _console()
    between = 3 * (len(heads) - 1)
    full, least = _widths(heads, cells)
    if to_stdout and not console.is_terminal:
        console.width = max(console.width, sum(full) + between)
    elif to_stdout and sum(least) + between > console.width:
        cells = [[_short_digest(cell) for cell in row] for row in cells]
        full, least = _widths(heads, cells)
    room = console.width - between
    if sum(least) <= room:
        console.print(_grid(heads, cells, title, _shared(full, least, room)))
    elif console.is_terminal:
        console.print(_as_list(heads, cells, title), soft_wrap=True)
    else:
        console.print(_grid(heads, cells, title, [None] * len(heads)))
    if to_stdout:
        _print(held.getvalue().removesuffix("\n"))


# A column of prose may be broken into lines of this many characters before its table becomes a list.
PROSE = 16
HEX_DIGITS = frozenset("0123456789abcdef")


def _is_text(cell: Any) -> bool:
    return type(cell).__module__ == "rich.text"


def _grid(heads: Sequence[str], cells: Sequence[Sequence[Any]], title: str | None, widths: Sequence[int | None]) -> Any:
    """The table of rich, each column as wide as `widths` says; None: as rich finds best."""
    from rich.table import Table
    from rich.text import Text

    grid = Table(title=title, title_justify="left", show_edge=False, pad_edge=False, header_style="bold")
    for head, width in zip(heads, widths, strict=True):
        grid.add_column(head, overflow="fold", width=width)
    for row in cells:
        grid.add_row(*(cell if _is_text(cell) else Text(cell) for cell in row))
    return grid


def _widths(heads: Sequence[str], cells: Sequence[Sequence[Any]]) -> tuple[list[int], list[int]]:
    """Of each column the width that shows every line whole, and the least: names whole, prose broken between words."""
    from rich.cells import cell_len

    full, least = [], []
    for at, head in enumerate(heads):
        lines = [line for row in cells for line in str(row[at]).splitlines()]
        widest = max(map(cell_len, lines), default=0)
        words = any(" " in line.strip() for line in lines)
        full.append(max(widest, cell_len(head)))
        least.append(max(max(map(cell_len, head.split()), default=0), min(widest, PROSE) if words else widest))
    return full, least


def _shared(full: Sequence[int], least: Sequence[int], room: int) -> list[int]:
    """The least widths, and what room is left over given to the columns that need little more before the others."""
    widths, left = list(least), room - sum(least)
    for at in sorted(range(len(full)), key=lambda column: full[column] - least[column]):
        more = min(full[at] - least[at], left)
        widths[at] += more
        left -= more
    return widths


def _short_digest(cell: Any) -> Any:
    """A digest of 64 digits as its first 16, which every command takes in its place; anything else as it is."""
    text = str(cell)
    return f"{text[:16]}…" if len(text) == 64 and HEX_DIGITS.issuperset(text) else cell


def _as_list(heads: Sequence[str], cells: Sequence[Sequence[Any]], title: str | None) -> Any:
    """Rows below each other, a field on each line, for what no table has room for."""
    from rich.text import Text

    wide = max(map(len, heads))
    parts = [Text(title, style="italic")] if title else []
    for number, row in enumerate(cells, 1):
        if len(cells) > 1:
            parts.append(Text(f"{'' if number == 1 else chr(10)}row {number}", style="bold"))
        named = zip(heads, map(str, row), strict=True)
        parts += [Text.assemble((f"{head:<{wide}}  ", "dim"), one_line(cell)) for head, cell in named]
    return Text("\n").join(parts)


def styled(text: str, style: str) -> Any:
    """One coloured cell for :func:`table`."""
    from rich.text import Text

    return Text(text, style=style)


def disjoint(proven: Iterable[tuple[str, str, str, int]]) -> None:
    """What pairs of splits share, each ``(a, b, by, how many)``; all that is nothing takes one line."""
    none: dict[str, None] = {}
    for a, b, by, shared in proven:
        if shared:
            say(f"{a} ∩ {b} by {by}: {shared:,}", style="bold red")
        else:
            none[by] = None
    if none:
        say(f"recomputed: two splits share no {', no '.join(none)}")


def error(problem: LptError, *, json_too: bool) -> None:
    """The three parts of an error: what happened, the value seen, what to type next."""
    say(f"error: {problem.what}", style="bold red")
    if problem.seen not in ("", None):
        say(f"  seen: {shown(problem.seen)}")
    if problem.next:
        say(f"  next: {problem.next}")
    if json_too:
        parts = {"what": problem.what, "seen": str(problem.seen), "next": problem.next, "exit_code": problem.exit_code}
        with contextlib.suppress(LptError, ReaderGoneError):  # the error may be that stdout cannot be written
            as_json({"error": parts})


def shown(value: Any) -> str:
    """One value as text for people: short numbers, no trailing zeros."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, bytes):
        return value.hex()
    return str(value)


def tell_notes(catalog: Any) -> None:
    """Say what the catalog wants known: an index that is busy, one that was damaged and made again."""
    for note in catalog.notes:
        say(note, style="yellow")


def tell_head(catalog: Any) -> None:
    """Say the hash of the log's last event: kept elsewhere, it shows whether the end of the log was cut off.

    The work is done by now, so a log that cannot be read is no error here.
    """
    with contextlib.suppress(LptError, OSError):
        say(f"catalog head {catalog.head}", style="dim")


def clean(text: str) -> str:
    """The text with terminal control characters made visible, so that a row of data cannot drive the terminal."""
    return "".join(c if c in "\n\t" or (c.isprintable() or c == " ") else f"\\x{ord(c):02x}" for c in text)


def one_line(text: str) -> str:
    """The text with every run of white space as one space."""
    return " ".join(text.split())


def most_first(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """Counts by name, the largest first: a record that is read back has its names in the order of the alphabet."""
    return sorted(counts.items(), key=lambda named: (-named[1], named[0]))


@contextlib.contextmanager
def waiting(text: str, seconds: float = 2.0) -> Iterator[None]:
    """Say `text` where what is done inside takes longer than `seconds`: nobody should have to guess at silence."""
    timer = threading.Timer(seconds, say, [text], {"style": "dim"})
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class Progress_:
    """A progress bar on stderr that appears only once the command has worked for two seconds.

    Called as ``progress(done, total, label)``; ``total`` may be None. Where stderr is no terminal it prints a line
    every ten seconds instead.
    """

    def __init__(self) -> None:
        self._begin = self._start = time.monotonic()  # of the command, of the task
        self._last = self._start
        self._bar: Progress | None = None
        self._task: Any = None
        self._label = ""
        self._terminal = _Talk(sys.stderr).isatty()  # asked once: making a console takes longer than a batch of rows

    def __call__(self, done: int, total: int | None, label: str) -> None:
        """Show how far a task is."""
        now = time.monotonic()
        if label != self._label:
            self._label, self._start = label, now
            if self._bar is not None:
                self._bar.reset(self._task, description=clean(label))
        if now - self._begin < 2.0:
            return
        if not self._terminal:
            if now - self._last >= 10.0:
                self._last = now
                of = f" of {total:,}" if total else ""
                say(f"{label}: {done:,}{of} after {now - self._start:.0f} s")
            return
        if self._bar is None:
            self._open(label)
        assert self._bar is not None
        self._bar.update(self._task, completed=done, total=total, description=clean(label))

    def close(self) -> None:
        """Take the bar down; the next call may open another."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _open(self, label: str) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=_console(),
            transient=True,
        )
        self._task = self._bar.add_task(label, total=None)
        self._bar.start()


class _Talk:
    """stderr, where what cannot be written is dropped: talk that is lost must not end a run of many hours."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream if stream is not None else open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError:
            _discard(self._stream)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError:
            _discard(self._stream)


def _print(text: str) -> None:
    """Write to stdout; raises `ReaderGoneError` when nobody reads it and `BadInputError` when it cannot be written."""
    if sys.stdout is None:  # started with stdout closed
        return
    try:
        sys.stdout.write(text.encode("utf-8", "replace").decode("utf-8") + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        _discard(sys.stdout)
        raise ReaderGoneError from None
    except OSError as problem:
        _discard(sys.stdout)
        raise cannot_write("standard output", problem) from problem


def _discard(stream: TextIO) -> None:
    """Point a stream at nothing, so that the interpreter does not stumble over it once more when it ends."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _console(stream: TextIO | None = None, into: TextIO | None = None) -> Console:
    """A console as wide and colourful as `stream` (stderr when left out) is, that writes to it, or `into` another.

    Text is what it is: no markup, and no `:train:` of a split that becomes a picture of one.
    """
    from rich.console import Console

    shown_on: Any = stream if stream is not None else _Talk(sys.stderr)
    terminal = shown_on.isatty()
    return Console(
        file=into or shown_on, width=None if terminal else 160, force_terminal=terminal or None, markup=False,
        emoji=False, highlight=False,
    )  # fmt: skip


def _jsonable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _jsonable(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_jsonable(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, bytes):
        return value.hex()
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    return str(value)
