"""Two texts beside each other: where they differ, word by word, in bounded time.

What they share at the beginning and the end is found by one pass; only the words between are aligned, and of those the
first MOST on each side. Long stretches in common become a gap that says how much it leaves out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import SequenceMatcher

from lpt_data.report.story import Kind, Pieces

LONGEST = 20_000  # characters of a text that are looked at
MOST = 700  # words on each side that are aligned
AROUND = 160  # characters in common that are shown beside a difference
SHOWN = 4_000  # characters of each side that are shown
# Words; every character of scripts without spaces (and all above them) alone; white space; any other character.
_WORD = re.compile(r"[^\W\u2e80-\U0010ffff]+|\s+|.", re.DOTALL)


def compare(left: str, right: str) -> tuple[Pieces, Pieces]:
    """Return both texts in pieces of kind plain, differs, or gap (a remark on what was left out)."""
    a, b = _WORD.findall(left[:LONGEST]), _WORD.findall(right[:LONGEST])
    first = _same(a, b)
    last = _same(a[first:][::-1], b[first:][::-1])
    end_a, end_b = len(a) - last, len(b) - last
    middle_a, middle_b = a[first : min(end_a, first + MOST)], b[first : min(end_b, first + MOST)]
    pieces: tuple[list[tuple[str, Kind]], list[tuple[str, Kind]]] = ([], [])
    lead = _shortened("".join(a[:first]), head=0)
    for side in pieces:
        side += lead
    steps = SequenceMatcher(None, middle_a, middle_b, autojunk=False).get_opcodes()
    cut = first + len(middle_a) < end_a or first + len(middle_b) < end_b
    if cut and len(steps) > 1 and steps[-1][0] != "equal":  # beyond the last word in common nothing is known
        _, i, _, k, _ = steps.pop()
        middle_a, middle_b = middle_a[:i], middle_b[:k]
    for tag, i, j, k, m in steps:
        for side, part in ((pieces[0], middle_a[i:j]), (pieces[1], middle_b[k:m])):
            _add(side, "".join(part), "plain" if tag == "equal" else "differs")
    for side, text, tokens, done, end in (
        (pieces[0], left, a, first + len(middle_a), end_a),
        (pieces[1], right, b, first + len(middle_b), end_b),
    ):
        if done < end:
            side.append((f"… {sum(map(len, tokens[done:end])):,} more characters, not compared …", "gap"))
        side += _shortened("".join(tokens[end:]), tail=0)
        if len(text) > LONGEST:
            side.append((f"… {len(text) - LONGEST:,} characters not looked at …", "gap"))
    return _bounded(pieces[0]), _bounded(pieces[1])


def alone(text: str, length: int = 600) -> Pieces:
    """Return the start of a text that has nothing beside it."""
    if len(text) <= length:
        return ((text, "plain"),)
    return (text[:length], "plain"), (f"… {len(text) - length:,} more characters …", "gap")


def _same(a: Sequence[str], b: Sequence[str]) -> int:
    """Return how many words are the same from the start."""
    size = min(len(a), len(b))
    return next((i for i in range(size) if a[i] != b[i]), size)


def _add(side: list[tuple[str, Kind]], text: str, kind: Kind) -> None:
    """Append a piece; white space between two differences is part of them, so that a phrase is one mark."""
    if not text:
        return
    if side and side[-1][1] == kind:
        side[-1] = (side[-1][0] + text, kind)
    elif kind == "differs" and len(side) > 1 and side[-1][1] == "plain" and side[-1][0].isspace():
        if side[-2][1] == "differs":
            space = side.pop()[0]
            side[-1] = (side[-1][0] + space + text, kind)
        else:
            side.append((text, kind))
    elif kind == "plain":
        side += _shortened(text)
    else:
        side.append((text, kind))


def _shortened(text: str, head: int = AROUND, tail: int = AROUND) -> list[tuple[str, Kind]]:
    """Cut a stretch in common down to `head` characters at its start and `tail` at its end."""
    if len(text) <= head + tail + AROUND:
        return [(text, "plain")] if text else []
    first = _at_a_space(text, head, -1) if head else 0
    last = _at_a_space(text, len(text) - tail, 1) if tail else len(text)
    gap: tuple[str, Kind] = (f"… {last - first:,} characters in common …", "gap")
    shown: list[tuple[str, Kind]] = [(text[:first], "plain"), gap, (text[last:], "plain")]
    return [piece for piece in shown if piece[0]]


def _at_a_space(text: str, place: int, step: int) -> int:
    """Return the nearest end of a word from `place` on in one direction, or `place` where none is near."""
    near = range(place, place + 24 * step, step)
    return next((i for i in near if text[i - 1 : i].isspace() or text[i : i + 1].isspace()), place)


def _bounded(pieces: Sequence[tuple[str, Kind]]) -> Pieces:
    """Cut a side after SHOWN characters; remarks are kept."""
    kept: list[tuple[str, Kind]] = []
    room, left_out = SHOWN, 0
    for part, kind in pieces:
        if kind == "gap":
            kept.append((part, kind))
            continue
        if part[:room]:
            kept.append((part[:room], kind))
        left_out += len(part[room:])
        room = max(0, room - len(part))
    return (*kept, (f"… {left_out:,} more characters …", "gap")) if left_out else tuple(kept)
