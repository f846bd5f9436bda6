"""The one table of cleaning rules, in the order in which they run, and which of them a preset has."""

from __future__ import annotations

from lpt_data.clean import language, private, quality, repair
from lpt_data.clean.marks import (
    AMPERSAND,
    ANGLE,
    AT,
    CARD,
    CONTROL,
    IBAN,
    IPV4,
    IPV6,
    LOREM,
    MOJIBAKE,
    NOTICE,
    PHONE,
    SECRET,
    UNCOMPOSED,
    UNTIDY,
)
from lpt_data.clean.outcome import Rule

_LANGUAGE = {"min_letters": language.LETTERS, "min_probability": 0.0, "sure": language.SURE}
_TOP = {"top_2": 0.20, "top_3": 0.18, "top_4": 0.16}
_DUPLICATE = {
    f"duplicate_{n}": limit for n, limit in zip(range(5, 11), (0.15, 0.14, 0.13, 0.12, 0.11, 0.10), strict=True)
}

# To add a rule: a function in one of the modules, one line here, a case in tests/lpt_data/cases/clean.
RULES: dict[str, Rule] = {
    rule.name: rule
    for rule in (
        # mend
        Rule("unicode.mojibake", repair.mojibake, {}, MOJIBAKE),
        Rule("unicode.nfc", repair.not_nfc, {}, UNCOMPOSED),
        Rule("unicode.control", repair.control_characters, {}, CONTROL),
        Rule("unicode.invisible", repair.invisible_characters, {}, CONTROL),
        Rule("html.tags", repair.tags, {}, ANGLE),
        Rule("html.entities", repair.entities, {}, AMPERSAND),
        Rule("lines.boilerplate", repair.boilerplate, {"longest": 300}, NOTICE),
        Rule("lines.terminal_punctuation", repair.lines_without_end, {"min_words": 5}),
        Rule("space.tidy", repair.white_space, {}, UNTIDY),
        # private
        Rule("secrets.drop", private.secrets_dropped, {}, SECRET, private=True),
        Rule("secrets.mask", private.secrets_masked, {}, SECRET, private=True),
        Rule("pii.email", private.email_addresses, {}, AT, private=True),
        Rule("pii.iban", private.ibans, {}, IBAN, private=True),
        Rule("pii.card", private.card_numbers, {}, CARD, private=True),
        Rule("pii.phone", private.phone_numbers, {}, PHONE, private=True),
        Rule("pii.ip", private.ip_addresses, {}, IPV4 | IPV6, private=True),
        # drop
        Rule("empty", repair.empty, {}),
        Rule("language", language.wanted, _LANGUAGE, needs="languages"),
        Rule("gopher.words", quality.gopher_words, {"min": 50, "max": 100_000}),
        Rule("gopher.word_length", quality.gopher_word_length, {"min": 3, "max": 10, "unspaced": 0.5}),
        Rule("gopher.symbols", quality.gopher_symbols, {"max": 0.1}),
        Rule("gopher.bullets", quality.gopher_bullets, {"max": 0.9}),
        Rule("gopher.ellipsis_lines", quality.gopher_ellipsis_lines, {"max": 0.3}),
        Rule("gopher.alphabetic", quality.gopher_alphabetic, {"min": 0.8}),
        Rule("gopher.stop_words", quality.gopher_stop_words, {"min": 2}, needs="english"),
        Rule("repetition.lines", quality.repeated_lines, {"lines": 0.3, "chars": 0.2}),
        Rule("repetition.paragraphs", quality.repeated_paragraphs, {"paragraphs": 0.3, "chars": 0.2}),
        Rule("repetition.top_ngrams", quality.top_ngrams, _TOP),
        Rule("repetition.duplicate_ngrams", quality.duplicate_ngrams, _DUPLICATE),
        Rule("c4.lorem_ipsum", quality.c4_lorem_ipsum, {"max": 0}, LOREM),
        Rule("c4.curly_brackets", quality.c4_curly_brackets, {"max": 0}),
        Rule("c4.sentences", quality.c4_sentences, {"min": 3}),
        Rule("fineweb.line_ends", quality.fineweb_line_ends, {"min": 0.12}),
        Rule("fineweb.short_lines", quality.fineweb_short_lines, {"max": 0.67}),
        Rule("fineweb.line_feeds", quality.fineweb_line_feeds, {"max": 0.3}),
        Rule("fineweb.repeated_lines", quality.fineweb_repeated_lines, {"max": 0.1}),
    )
}

_PRIVATE = tuple(name for name in RULES if name.startswith("pii."))
_MEND = ("unicode.mojibake", "unicode.nfc", "unicode.control", "unicode.invisible")
# What web pages must not have and technical documents do: code, tables, lists, headings, lines that repeat.
_PAGES_ALONE = ("c4.curly_brackets", *(name for name in RULES if name.startswith("fineweb.")))
_SECRETS = ("secrets.drop", "secrets.mask")  # one of them, by `--secrets`

# What runs by default; `none` is the start of a --rules list of one's own.
PRESETS: dict[str, tuple[str, ...]] = {
    "web": tuple(name for name in RULES if name != "lines.terminal_punctuation"),
    "docs": tuple(name for name in RULES if name not in ("lines.terminal_punctuation", *_PAGES_ALONE)),
    "sft": (*_MEND, *_SECRETS, *_PRIVATE, "empty"),
    "code": ("unicode.control", *_SECRETS, *_PRIVATE, "empty", "gopher.words", "repetition.lines"),
    "none": (),
}
# A preset's own thresholds, where the kind of text asks for others than the papers' web pages.
PRESET_LIMITS: dict[str, dict[str, dict[str, float]]] = {
    "docs": {
        "gopher.alphabetic": {"min": 0.6},
        "gopher.word_length": {"max": 14},
        "gopher.symbols": {"max": 0.2},
        "repetition.lines": {"lines": 0.6, "chars": 0.4},
        "repetition.paragraphs": {"paragraphs": 0.6, "chars": 0.4},
        "repetition.duplicate_ngrams": {name: 2 * limit for name, limit in _DUPLICATE.items()},
    },
    "code": {"gopher.words": {"min": 5}, "repetition.lines": {"lines": 0.7, "chars": 0.6}},
}
