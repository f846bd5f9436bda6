"""Rules that drop a text of poor quality, in the three published families. Each names its paper and its default.

    Gopher   Rae et al. 2021, arXiv:2112.11446, appendix A: quality, and repetition (table A1)
    C4       Raffel et al. 2020, arXiv:1910.10683, section 2.2
    FineWeb  Penedo et al. 2024, arXiv:2406.17557, section 3

Words, lines and paragraphs are those of `lpt_data.clean.measure`. A share of a text without words is 0.
"""

from __future__ import annotations

from lpt_data.clean.measure import DUPLICATE_NGRAMS, TOP_NGRAMS
from lpt_data.clean.outcome import KEEP, Document, Drop, Limits, Outcome


def _above(value: float, limit: float, reason: str, unit: str) -> Outcome:
    return Drop(reason, round(value, 6), f"{value:.4g} {unit}, at most {limit:g}") if value > limit else KEEP


def _below(value: float, limit: float, reason: str, unit: str) -> Outcome:
    return Drop(reason, round(value, 6), f"{value:.4g} {unit}, at least {limit:g}") if value < limit else KEEP


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def gopher_words(doc: Document, limits: Limits) -> Outcome:
    """Gopher: a document has 50 to 100,000 words."""
    words = doc.facts.words
    outcome = _below(words, limits["min"], "too_few_words", "words")
    return _above(words, limits["max"], "too_many_words", "words") if outcome is KEEP else outcome


def gopher_word_length(doc: Document, limits: Limits) -> Outcome:
    """Gopher: words have 3 to 10 characters on average; scripts without spaces, whose words are letters, are exempt."""
    facts = doc.facts
    if not facts.words or facts.unspaced_words > limits["unspaced"] * facts.words:
        return KEEP
    mean = facts.word_chars / facts.words
    outcome = _below(mean, limits["min"], "words_too_short", "characters a word")
    return _above(mean, limits["max"], "words_too_long", "characters a word") if outcome is KEEP else outcome


def gopher_symbols(doc: Document, limits: Limits) -> Outcome:
    """Gopher: at most 0.1 hash signs, and at most 0.1 ellipses, a word."""
    facts = doc.facts
    outcome = _above(_share(facts.hashes, facts.words), limits["max"], "too_many_hash_signs", "hash signs a word")
    if outcome is not KEEP:
        return outcome
    return _above(_share(facts.ellipses, facts.words), limits["max"], "too_many_ellipses", "ellipses a word")


def gopher_bullets(doc: Document, limits: Limits) -> Outcome:
    """Gopher: at most 90 % of the lines start with a bullet."""
    facts = doc.facts
    return _above(_share(facts.bullet_lines, facts.lines), limits["max"], "mostly_bullet_lines", "of the lines")


def gopher_ellipsis_lines(doc: Document, limits: Limits) -> Outcome:
    """Gopher: at most 30 % of the lines end with an ellipsis."""
    facts = doc.facts
    share = _share(facts.ellipsis_lines, facts.lines)
    return _above(share, limits["max"], "too_many_lines_end_with_ellipsis", "of the lines")


def gopher_alphabetic(doc: Document, limits: Limits) -> Outcome:
    """Gopher: at least 80 % of the words have a letter in them."""
    facts = doc.facts
    if not facts.words:
        return KEEP
    share = facts.alphabetic_words / facts.words
    return _below(share, limits["min"], "too_few_alphabetic_words", "of the words")


def gopher_stop_words(doc: Document, limits: Limits) -> Outcome:
    """Gopher: at least two of the, be, to, of, and, that, have, with; in English, which `--languages` must name."""
    if doc.languages != ("en",) and doc.language[0] != "en":
        return KEEP
    return _below(doc.facts.stop_words, limits["min"], "too_few_stop_words", "different stop words")


def repeated_lines(doc: Document, limits: Limits) -> Outcome:
    """Gopher repetition: at most 30 % of the lines repeat an earlier one, with at most 20 % of the characters."""
    facts = doc.facts
    outcome = _above(_share(facts.duplicate_lines, facts.lines), limits["lines"], "repeated_lines", "of the lines")
    if outcome is not KEEP:
        return outcome
    share = _share(facts.duplicate_line_chars, facts.chars)
    return _above(share, limits["chars"], "characters_in_repeated_lines", "of the characters")


def repeated_paragraphs(doc: Document, limits: Limits) -> Outcome:
    """Gopher repetition: at most 30 % of the paragraphs repeat an earlier one, with at most 20 % of the characters."""
    facts = doc.facts
    share = _share(facts.duplicate_paragraphs, facts.paragraphs)
    outcome = _above(share, limits["paragraphs"], "repeated_paragraphs", "of the paragraphs")
    if outcome is not KEEP:
        return outcome
    share = _share(facts.duplicate_paragraph_chars, facts.chars)
    return _above(share, limits["chars"], "characters_in_repeated_paragraphs", "of the characters")


def top_ngrams(doc: Document, limits: Limits) -> Outcome:
    """Gopher repetition: at most 20, 18, 16 % of the characters in the most frequent 2-, 3-, 4-gram of words."""
    for n, chars in zip(TOP_NGRAMS, doc.repeats.top, strict=True):
        share = _share(chars, doc.facts.chars)
        if share > limits[f"top_{n}"]:
            return _above(share, limits[f"top_{n}"], f"one_{n}_gram_repeated", "of the characters")
    return KEEP


def duplicate_ngrams(doc: Document, limits: Limits) -> Outcome:
    """Gopher repetition: at most 15, 14, 13, 12, 11, 10 % of the characters in 5- to 10-grams that came before."""
    for n, chars in zip(DUPLICATE_NGRAMS, doc.repeats.duplicate, strict=True):
        share = _share(chars, doc.facts.chars)
        if share > limits[f"duplicate_{n}"]:
            return _above(share, limits[f"duplicate_{n}"], f"repeated_{n}_grams", "of the characters")
    return KEEP


def c4_lorem_ipsum(doc: Document, limits: Limits) -> Outcome:
    """C4: no page with the placeholder text "lorem ipsum"."""
    found = doc.text.lower().count("lorem ipsum")
    return _above(found, limits["max"], "lorem_ipsum", "times")


def c4_curly_brackets(doc: Document, limits: Limits) -> Outcome:
    """C4: no curly bracket, which is the sign of code; in the preset for web text alone."""
    return _above(doc.facts.curly_brackets, limits["max"], "curly_brackets", "opening brackets")


def c4_sentences(doc: Document, limits: Limits) -> Outcome:
    """C4: at least 3 sentences, told by the punctuation that ends a word."""
    return _below(doc.facts.sentences, limits["min"], "too_few_sentences", "sentences")


def fineweb_line_ends(doc: Document, limits: Limits) -> Outcome:
    """FineWeb: more than 12 % of the lines end with terminal punctuation."""
    facts = doc.facts
    if not facts.lines or facts.terminal_lines > limits["min"] * facts.lines:
        return KEEP
    share = facts.terminal_lines / facts.lines
    detail = f"{share:.4g} of the lines, more than {limits['min']:g}"
    return Drop("too_few_lines_end_with_punctuation", round(share, 6), detail)


def fineweb_short_lines(doc: Document, limits: Limits) -> Outcome:
    """FineWeb: at most 67 % of the lines have 30 characters or fewer."""
    facts = doc.facts
    return _above(_share(facts.short_lines, facts.lines), limits["max"], "too_many_short_lines", "of the lines")


def fineweb_line_feeds(doc: Document, limits: Limits) -> Outcome:
    """FineWeb's filter of lists: at most 0.3 line feeds a word (its datatrove configuration)."""
    facts = doc.facts
    return _above(_share(facts.line_feeds, facts.words), limits["max"], "too_many_line_feeds", "line feeds a word")


def fineweb_repeated_lines(doc: Document, limits: Limits) -> Outcome:
    """FineWeb: at most 10 % of the characters in lines that repeat an earlier one."""
    facts = doc.facts
    share = _share(facts.duplicate_line_chars, facts.chars)
    return _above(share, limits["max"], "fineweb_characters_in_repeated_lines", "of the characters")
