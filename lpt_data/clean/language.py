"""Which language a text is in, by py3langid (Lui & Baldwin 2012, langid.py), offline, with its model in the wheel."""

from __future__ import annotations

from functools import cache
from typing import Any

from lpt_data.clean.outcome import KEEP, Document, Drop, Limits, Outcome
from manifests.errors import UsageError

_SAMPLE = 2000  # characters that are looked at, from the start: more changes few answers and costs time
UNKNOWN = "und"


@cache
def _identifier() -> Any:
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier
    except ModuleNotFoundError as error:
        raise UsageError(
            "telling languages needs a package that is not installed", seen=str(error), next="pip install 'lpt[clean]'"
        ) from error
    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


@cache
def known() -> frozenset[str]:
    """Return the languages that can be told, as ISO 639-1 codes (639-3 where there is none)."""
    return frozenset(map(str, _identifier().nb_classes))


def identify(text: str) -> tuple[str, float]:
    """Return (language, probability); `und` where the text has no letters."""
    sample = text[:_SAMPLE]
    if not any(map(str.isalpha, sample)):
        return UNKNOWN, 0.0
    found, probability = _identifier().classify(sample)
    return str(found), float(probability)


def wanted(doc: Document, limits: Limits) -> Outcome:
    """Keep the languages of `--languages` (FineWeb and CCNet: Wenzek et al. 2020, which drop below 0.65 as well).

    The row goes where the likeliest language is none of them. A text with fewer letters than `min_letters` stays: on so
    few no answer can be relied on. `min_probability` is 0 by default, for the probabilities of this classifier are not
    those of fastText, which 0.65 was chosen for. Short texts full of names are at times taken for another language.
    """
    if doc.facts.word_chars < limits["min_letters"]:
        return KEEP
    found, probability = doc.language
    if found not in doc.languages:
        return Drop("other_language", round(probability, 6), f"{found}, wanted {', '.join(doc.languages)}")
    if probability < limits["min_probability"]:
        return Drop("uncertain_language", round(probability, 6), f"{found}, at least {limits['min_probability']:g}")
    return KEEP
