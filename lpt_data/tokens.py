"""What a tokenizer costs on given data: compression by language and domain, fragmentation, vocabulary, attention.

    characters/token, bytes/token   of all text of a record, without the tokens that a model adds around it
    tokens per digit run            tokens that touch a run of digits 0-9; 1 is a number in one token
    tokens per indentation          tokens that touch the blanks at the start of a line that says something
    tokens per identifier           tokens that touch a name_like_this or likeThis, which prose has not
    tokens per operator             tokens that touch an operator of two signs or three: ==, ->, +=, **
    attention                       (tokens / tokens of the first tokenizer)^2: cost of attention over the same text

Does not say which tokenizer trains the better model: compression alone does not tell.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lpt_data.dataset import Dataset
from lpt_data.progress import Progress, silent
from lpt_data.record_text import text_of
from lpt_data.tokenizer_file import TokenizerFile
from manifests.errors import BadInputError, UsageError

_BATCH = 256  # texts encoded at a time
_DIGITS = re.compile(r"[0-9]+")
_INDENT = re.compile(r"^[ \t]+(?=\S)", re.MULTILINE)
_IDENTIFIER = re.compile(r"\b(?:[A-Za-z]\w*_\w+|[a-z]+[A-Z][A-Za-z0-9]*)\b")
_OPERATOR = re.compile(r"(?:\*\*|//|<<|>>)=|[=!<>+\-*/%&|^]=|->|=>|\*\*|//|::|&&|\|\||<<|>>|\+\+")
_RUNS = {"digits": _DIGITS, "indentation": _INDENT, "identifiers": _IDENTIFIER, "operators": _OPERATOR}
_MOST_GROUPS = 200  # languages or domains told apart; a column with more is no such column
NO_LETTERS = "no letters"
# First code point of a stretch of Unicode -> the script that most of its letters belong to. Blocks, not characters:
# enough to tell the script of a text by its majority.
_SCRIPTS: tuple[tuple[int, str], ...] = (
    (0x0, ""), (0x41, "Latin"), (0x5B, ""), (0x61, "Latin"), (0x7B, ""), (0xC0, "Latin"), (0x2B0, ""), (0x370, "Greek"),
    (0x400, "Cyrillic"), (0x530, "Armenian"), (0x590, "Hebrew"), (0x600, "Arabic"), (0x700, "other"), (0x750, "Arabic"),
    (0x780, "other"), (0x8A0, "Arabic"), (0x900, "Devanagari"), (0x980, "Bengali"), (0xA00, "other"), (0xB80, "Tamil"),
    (0xC00, "Telugu"), (0xC80, "other"), (0xE00, "Thai"), (0xE80, "other"), (0x10A0, "Georgian"), (0x1100, "Hangul"),
    (0x1200, "Ethiopic"), (0x1400, "other"), (0x1E00, "Latin"), (0x1F00, "Greek"), (0x2000, ""), (0x2C00, "other"),
    (0x3000, ""), (0x3040, "Kana"), (0x3100, "other"), (0x3130, "Hangul"), (0x3190, "other"), (0x31F0, "Kana"),
    (0x3200, ""), (0x3400, "Han"), (0x4DC0, ""), (0x4E00, "Han"), (0xA000, "other"), (0xAC00, "Hangul"), (0xD7B0, ""),
    (0xF900, "Han"), (0xFB00, "Latin"), (0xFB07, "other"), (0xFB1D, "Hebrew"), (0xFB50, "Arabic"), (0xFE00, ""),
    (0xFE70, "Arabic"), (0xFF00, ""), (0xFF21, "Latin"), (0xFF3B, ""), (0xFF41, "Latin"), (0xFF5B, ""),
    (0xFF66, "Kana"), (0xFFA0, "Hangul"), (0xFFE0, ""), (0x10000, "other"), (0x1F000, ""), (0x20000, "Han"),
    (0x32000, ""),
)  # fmt: skip
_STARTS = np.array([start for start, _ in _SCRIPTS])
_NAMES = sorted({name for _, name in _SCRIPTS})
_CODES = np.array([_NAMES.index(name) for _, name in _SCRIPTS])


def script_of(text: str) -> str:
    """Return the script of most letters of a text; `Japanese` where Han stands beside kana, which alone are rare."""
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    counts = np.bincount(_CODES[np.searchsorted(_STARTS, points, side="right") - 1], minlength=len(_NAMES))
    counts[_NAMES.index("")] = 0
    if not counts.any():
        return NO_LETTERS
    kana, han = counts[_NAMES.index("Kana")], counts[_NAMES.index("Han")]
    if kana and kana + han >= counts.max() and kana * 10 >= han:
        return "Japanese"
    return _NAMES[int(counts.argmax())]


@dataclass
class _Tally:
    """Sums over the texts of one group: characters and bytes once, the rest for each tokenizer."""

    rows: int
    characters: int
    bytes: int
    tokens: np.ndarray  # int64 [tokenizers]

    @classmethod
    def empty(cls, tokenizers: int) -> _Tally:
        return cls(0, 0, 0, np.zeros(tokenizers, np.int64))

    def add(self, text: str, tokens: np.ndarray) -> None:
        self.rows += 1
        self.characters += len(text)
        self.bytes += len(text.encode("utf-8", "surrogatepass"))
        self.tokens = self.tokens + tokens

    def told(self, number: int) -> dict[str, Any]:
        tokens = int(self.tokens[number])
        return {
            "rows": self.rows,
            "tokens": tokens,
            "characters_per_token": _ratio(self.characters, tokens),
            "bytes_per_token": _ratio(self.bytes, tokens),
        }


@dataclass
class _Pieces:
    """How one tokenizer cuts runs of digits and indentation, which ids it produced, and what it did not know."""

    used: np.ndarray  # bool [vocabulary]
    unknown: int = 0
    runs: dict[str, list[int]] = field(default_factory=lambda: {kind: [0, 0, 0] for kind in _RUNS})


def measure(
    dataset: Dataset,
    tokenizers: Sequence[TokenizerFile],
    *,
    language: str | None = None,
    domain: str | None = None,
    hidden: int = 2048,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Return rows and, for each tokenizer, what it costs; ratios are None where there is nothing to divide by.

    `language` and `domain` name columns; without them the language is the script of a text, and the domain the column
    `domain` where there is one. `hidden` is the width of the model whose embedding the vocabulary fills. Raises
    UsageError without a tokenizer or with one twice, BadInputError for columns that are not there.
    """
    if not tokenizers:
        raise UsageError("no tokenizer was named", next="--tokenizer FOLDER, as often as you like")
    for column in (language, domain):
        if column is not None and column not in dataset.columns:
            seen = f"columns: {', '.join(dataset.columns)}"
            raise BadInputError(f"no column is called {column}", seen=seen, next="name one of them")
    if domain is None and "domain" in dataset.columns:
        domain = "domain"
    every = _Tally.empty(len(tokenizers))
    groups: dict[str, dict[str, _Tally]] = {"by_language": {}, "by_domain": {}}
    pieces = [_Pieces(np.zeros(t.vocabulary, bool)) for t in tokenizers]
    for texts, names in _batches(dataset, language, domain, progress or silent):
        lengths = np.stack([_encode(t, texts, kept) for t, kept in zip(tokenizers, pieces, strict=True)], axis=1)
        for text, (spoken, source), tokens in zip(texts, names, lengths, strict=True):
            every.add(text, tokens)
            for kind, name in (("by_language", spoken), ("by_domain", source)):
                if name is not None:
                    _group(groups[kind], name, kind, len(tokenizers)).add(text, tokens)
    first = int(every.tokens[0])
    told = []
    for number, tokenizer in enumerate(tokenizers):
        entry = {"name": tokenizer.name, "sha256": tokenizer.sha256, **every.told(number)}
        entry |= _vocabulary(tokenizer, pieces[number], hidden) | _fragmentation(pieces[number])
        ratio = _ratio(int(every.tokens[number]), first)
        entry["length_ratio"] = ratio
        entry["attention_ratio"] = None if ratio is None else round(ratio**2, 6)
        entry["attention_saving"] = None if ratio is None else round(1 - ratio**2, 6)
        for kind, tallies in groups.items():
            entry[kind] = {name: tallies[name].told(number) for name in _largest_first(tallies)}
        told.append(entry)
    return {
        "rows_in": dataset.rows_in,
        "quarantined": len(dataset.quarantined()),
        "rows": every.rows,
        "characters": every.characters,
        "bytes": every.bytes,
        "language": language or "script",
        "domain": domain,
        "hidden": hidden,
        "tokenizers": told,
    }


def _batches(
    dataset: Dataset, language: str | None, domain: str | None, progress: Progress
) -> Iterator[tuple[list[str], list[tuple[str, str | None]]]]:
    """Yield texts with their (language, domain)."""
    texts: list[str] = []
    names: list[tuple[str, str | None]] = []
    for row, record, extra, _ in dataset.identified():
        text = text_of(dataset.kind, record, "text")
        spoken = script_of(text) if language is None else _named(extra.get(language))
        texts.append(text)
        names.append((spoken, None if domain is None else _named(extra.get(domain))))
        if len(texts) == _BATCH:
            yield texts, names
            texts, names = [], []
            progress(row + 1, None, "tokenising")
    if texts:
        yield texts, names


def _named(value: Any) -> str:
    return "(none)" if value is None or value == "" else str(value)


def _group(groups: dict[str, _Tally], name: str, kind: str, tokenizers: int) -> _Tally:
    if name not in groups:
        if len(groups) == _MOST_GROUPS:
            raise BadInputError(
                f"the column for {kind.removeprefix('by_')} has more than {_MOST_GROUPS} values",
                seen=", ".join(sorted(groups)[:5]),
                next="name a column with a few values",
            )
        groups[name] = _Tally.empty(tokenizers)
    return groups[name]


def _largest_first(tallies: Mapping[str, _Tally]) -> list[str]:
    return sorted(tallies, key=lambda name: (-tallies[name].characters, name))


def _encode(tokenizer: TokenizerFile, texts: Sequence[str], kept: _Pieces) -> np.ndarray:
    """Return the tokens of each text, int64 [n], and note what was seen."""
    encodings = tokenizer.encode(texts)
    unknown = getattr(tokenizer.backend.model, "unk_token", None)
    unknown_id = None if unknown is None else tokenizer.backend.token_to_id(unknown)
    for text, encoding in zip(texts, encodings, strict=True):
        ids = np.array(encoding.ids, np.int64)
        if len(ids) and ids.max() >= len(kept.used):  # ids with gaps between them
            kept.used = np.concatenate([kept.used, np.zeros(int(ids.max()) + 1 - len(kept.used), bool)])
        kept.used[ids] = True
        kept.unknown += 0 if unknown_id is None else int((ids == unknown_id).sum())
        found = [(kind, [m.span() for m in pattern.finditer(text)]) for kind, pattern in _RUNS.items()]
        if any(runs for _, runs in found):
            offsets = np.array(encoding.offsets, np.int64).reshape(-1, 2)
            for kind, runs in found:
                if runs:
                    sums = kept.runs[kind]
                    sums[0] += len(runs)
                    sums[1] += sum(end - start for start, end in runs)
                    sums[2] += int(touching(offsets, np.array(runs, np.int64)).sum())
    return np.array([len(encoding.ids) for encoding in encodings], np.int64)


def touching(offsets: np.ndarray, runs: np.ndarray) -> np.ndarray:
    """Return how many tokens share a character with each run, int64 [n]; both are sorted [n, 2], end exclusive."""
    real = offsets[offsets[:, 1] > offsets[:, 0]]
    begun = np.searchsorted(real[:, 0], runs[:, 1], side="left")
    ended = np.searchsorted(real[:, 1], runs[:, 0], side="right")
    return np.maximum(begun - ended, 0)


def _vocabulary(tokenizer: TokenizerFile, pieces: _Pieces, hidden: int) -> dict[str, Any]:
    size = tokenizer.vocabulary
    used = int(pieces.used.sum())
    return {
        "vocabulary": size,
        "embedding_parameters": size * hidden,  # twice that where the output layer has weights of its own
        "embedding_parameters_untied": 2 * size * hidden,
        "unused_share": round(1 - used / size, 6),
        "unknown_tokens": pieces.unknown,
    }


def _fragmentation(pieces: _Pieces) -> dict[str, Any]:
    told = {}
    for kind, (runs, characters, tokens) in pieces.runs.items():
        told[kind] = {
            "runs": runs,
            "tokens_per_run": _ratio(tokens, runs),
            "characters_per_run": _ratio(characters, runs),
        }
    return told


def _ratio(above: int, below: int) -> float | None:
    return round(above / below, 6) if below else None
