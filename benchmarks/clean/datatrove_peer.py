"""A second peer: datatrove's own filters of the same families, one document after the other, in one process.

Gopher's repetition and quality, C4 and FineWeb as `datatrove.pipeline.filters` have them. Words are split at white
space in place of spaCy, which is slower and not installed. Nothing is mended or masked: that is left out of its work.
"""

from __future__ import annotations

import json
import re
import sys
from itertools import pairwise
from typing import Any

from datatrove.data import Document
from datatrove.pipeline.filters import (
    C4QualityFilter,
    FineWebQualityFilter,
    GopherQualityFilter,
    GopherRepetitionFilter,
)
from datatrove.utils import word_tokenizers

SENTENCE = re.compile(r"[.!?]\s+")


class Spaces:
    """What datatrove asks of a word tokenizer."""

    def word_tokenize(self, text: str) -> list[str]:
        return text.split()

    def sent_tokenize(self, text: str) -> list[str]:
        return [text[start:end] for start, end in self.span_tokenize(text)]

    def span_tokenize(self, text: str) -> list[tuple[int, int]]:
        ends = [match.end() for match in SENTENCE.finditer(text)]
        return [span for span in pairwise([0, *ends, len(text)]) if span[0] < span[1]]


def main() -> None:
    spaces = Spaces()
    for module in [m for name, m in sys.modules.items() if name.startswith("datatrove") and m is not None]:
        if hasattr(module, "load_word_tokenizer"):
            module.load_word_tokenizer = lambda *given: spaces
    assert word_tokenizers.load_word_tokenizer("en") is spaces
    filters: list[Any] = [
        GopherRepetitionFilter(),
        GopherQualityFilter(),
        C4QualityFilter(filter_no_terminal_punct=False),
        FineWebQualityFilter(),
    ]
    kept = 0
    with open(sys.argv[1], encoding="utf-8") as source, open(sys.argv[2], "w", encoding="utf-8") as out:
        for number, line in enumerate(source):
            row = json.loads(line)
            document = Document(text=row["text"], id=str(number))
            if all(each.filter(document) is True for each in filters):
                out.write(json.dumps(row, ensure_ascii=False) + "\n")
                kept += 1
    print(kept)


if __name__ == "__main__":
    main()
