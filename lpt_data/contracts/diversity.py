"""How varied the texts of a set are, and whether they narrow from round to round.

All figures are of the same amount of text on both sides of a comparison, because distinct n-grams and vocabulary fall
with length alone: a sample of rows with the smallest record ids (as good as drawn, and the same for any order of the
files), cut to as many words as the smaller side has.

- distinct-2: distinct pairs of neighbouring words by all of them (Li et al., 2016, arXiv 1510.03055).
- compression ratio: bytes of the sample by bytes of its zlib, which sees templates (Shaib et al., 2024, arXiv
  2403.00553).
- tail: words that the first round says 3 to 10 times in at least 3 rows; of those, another draw of the same words
  leaves out one in twenty at the most (e^-3), another half of a real set about one in eight, because words come in
  bursts, and a collapsing generator far more (Shumailov et al., 2024: tails go first).
"""

from __future__ import annotations

import heapq
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from lpt_data.contracts.common import NO_PREVIOUS, NO_SEEDS, Outcome, skipped
from lpt_data.contracts.survey import Measure, Survey
from lpt_data.dataset import Dataset
from lpt_data.record_text import prompt_text, response_text

SAMPLE = 2_000  # rows
ROW_WORDS = 400  # of a row, from its start
FEWEST_WORDS = 200  # in a sample that says anything
TAIL_LEAST, TAIL_MOST, TAIL_ROWS = 3, 10, 3

Sample = list[np.ndarray]  # the words of each row


@dataclass(frozen=True)
class Profile:
    """What a sample of so many words is like."""

    words: int
    distinct_2: float
    vocabulary: int
    median_length: float  # words of a row, before any cut


def numbers_of(text: str) -> np.ndarray:
    """The words of a text as 32-bit numbers: uint32 [words]. The lowest bit of a hash is a mark, so the upper half."""
    from lpt_data.text import token_hashes  # loads the compiler, which other contracts may do without

    return (token_hashes(text) >> np.uint64(32)).astype(np.uint32)


def sample(rows: Iterable[tuple[bytes, bytes]]) -> Sample:
    """The rows (record id, words as bytes) of the smallest ids, in their order; equal records count once."""
    chosen = heapq.nsmallest(SAMPLE, dict(rows).items())
    return [np.frombuffer(words, np.uint32) for _, words in chosen]


def size(rows: Sample) -> int:
    """Words of a sample, as much of each row as counts."""
    return sum(min(len(row), ROW_WORDS) for row in rows)


def cut(rows: Sample, words: int) -> Sample:
    """The first rows of a sample, with so many words in all."""
    found, left = [], words
    for row in rows:
        taken = row[: min(ROW_WORDS, left)]
        left -= len(taken)
        found.append(taken)
        if left <= 0:
            break
    return found


def profile(rows: Sample, words: int) -> Profile:
    """Measure the first so many words of a sample."""
    parts = cut(rows, words)
    flat = np.concatenate(parts) if parts else np.empty(0, np.uint32)
    pairs = [(part[:-1].astype(np.uint64) << np.uint64(32)) | part[1:] for part in parts if len(part) > 1]
    joined = np.concatenate(pairs) if pairs else np.empty(0, np.uint64)
    distinct = len(np.unique(joined)) / len(joined) if len(joined) else 0.0
    median = float(np.median([len(row) for row in rows])) if rows else 0.0
    return Profile(len(flat), distinct, len(np.unique(flat)), median)


def tail_lost(before: Sample, after: Sample, words: int) -> tuple[int, int]:
    """Return (rare words of `before` that `after` does not say, rare words of `before`), both in so many words."""
    first = cut(before, words)
    counts: Counter[int] = Counter()
    rows: Counter[int] = Counter()
    for row in first:
        counts.update(row.tolist())
        rows.update(set(row.tolist()))
    tail = {w for w, n in counts.items() if TAIL_LEAST <= n <= TAIL_MOST and rows[w] >= TAIL_ROWS}
    said = set(np.concatenate([np.empty(0, np.uint32), *cut(after, words)]).tolist())
    return len(tail - said), len(tail)


# -- the audited rows


def _rows(survey: Survey, which: str) -> Iterator[tuple[bytes, bytes]]:
    for part in survey.splits:
        for position, fact in enumerate(part.facts):
            yield part.ids[position].tobytes(), getattr(fact, which)


def of_survey(survey: Survey, which: str) -> Sample:
    """The sample of what is asked (`asked`) or said (`said`) in all splits."""
    return sample(_rows(survey, which))


def of_datasets(datasets: Iterable[Dataset], which: str) -> Sample:
    """The sample of the prompts (`asked`) or replies (`said`) of other data."""
    text_of = prompt_text if which == "asked" else response_text
    return sample(
        (name, numbers_of(text_of(dataset.kind, record)).tobytes())
        for dataset in datasets
        for _, record, _, name in dataset.identified()
    )


def distinct(which: str) -> Measure:
    """Return the distinct-2 of the prompts or the replies."""

    def measure(survey: Survey) -> Outcome:
        rows = of_survey(survey, which)
        if size(rows) < FEWEST_WORDS:
            return skipped(f"fewer than {FEWEST_WORDS} words", len(rows))
        found = profile(rows, size(rows))
        said = f"{found.vocabulary:,} distinct words in {found.words:,}"
        return Outcome(found.distinct_2, len(rows), reason=said)

    return measure


def compression(survey: Survey) -> Outcome:
    """Bytes of the sampled replies by bytes of their zlib."""
    ids = {i for _, i in heapq.nsmallest(SAMPLE, ((p.ids[n].tobytes(), (p.name, n)) for p in survey.splits
                                                  for n in range(len(p))))}  # fmt: skip
    texts = []
    for part in survey.splits:
        for position, (_, record, _, name) in enumerate(part.dataset.identified()):
            if (part.name, position) in ids:
                texts.append((name, response_text(survey.contract.kind, record)[: 16 * ROW_WORDS]))
    data = "\n".join(text for _, text in sorted(texts)).encode("utf-8", "surrogatepass")
    if len(data) < 4 * FEWEST_WORDS:
        return skipped(f"fewer than {4 * FEWEST_WORDS} bytes", len(texts))
    return Outcome(len(data) / len(zlib.compress(data, 6)), len(texts), reason=f"{len(data):,} bytes")


def opening(which: str, what: str) -> Measure:
    """Return the share of rows that begin with the most common words; the rows found are those."""

    def measure(survey: Survey) -> Outcome:
        rows = [(p, i, getattr(f, which)) for p in survey.splits for i, f in enumerate(p.facts) if getattr(f, which)]
        if not rows:
            return skipped(f"no {what} begins with a word", survey.n)
        counts = Counter(words for _, _, words in rows)
        most = min(counts.items(), key=lambda item: (-item[1], item[0]))
        found = [part.finding(i, f"{what} begins {words!r}") for part, i, words in rows if words == most[0]]
        listed = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:5]
        told = ", ".join(f"{words!r} {n}" for words, n in listed)
        return Outcome(most[1] / len(rows), len(rows), tuple(found), reason=f"{len(counts)} openings; {told}")

    return measure


# -- other rounds, and the seeds


def against_seeds(survey: Survey) -> Outcome:
    """The distinct-2 of the prompts by that of the seeds, in the same number of words."""
    if survey.lent.seeds is None:
        return skipped(NO_SEEDS, survey.n)
    mine, theirs = of_survey(survey, "asked"), of_datasets(survey.lent.seeds.datasets, "asked")
    words = min(size(mine), size(theirs))
    if words < FEWEST_WORDS:
        return skipped(f"fewer than {FEWEST_WORDS} words in the prompts or the seeds", survey.n)
    ours, seeds = profile(mine, words), profile(theirs, words)
    told = f"{ours.distinct_2:.3f} here, {seeds.distinct_2:.3f} in the seeds, {words:,} words each"
    return Outcome(ours.distinct_2 / seeds.distinct_2, survey.n, reason=told)


def _watched(value: Callable[[list[Sample], int], tuple[float, str]]) -> Measure:
    """Return a measure over the replies of all rounds, the oldest first, this one last."""

    def measure(survey: Survey) -> Outcome:
        if not survey.lent.previous:
            return skipped(NO_PREVIOUS, survey.n)
        rounds = [of_datasets(r.datasets, "said") for r in survey.lent.previous] + [of_survey(survey, "said")]
        words = min(size(rows) for rows in rounds)
        if words < FEWEST_WORDS:
            return skipped(f"a round has fewer than {FEWEST_WORDS} words", survey.n)
        found, told = value(rounds, words)
        return Outcome(found, survey.n, reason=f"{told} ({words:,} words of each round)")

    return measure


def _trend(values: Sequence[float], form: str) -> tuple[float, str]:
    ratio = values[-1] / values[0] if values[0] else 0.0
    return ratio, "round by round: " + ", ".join(form.format(v) for v in values)


def _distinct_trend(rounds: list[Sample], words: int) -> tuple[float, str]:
    return _trend([profile(rows, words).distinct_2 for rows in rounds], "{:.3f}")


def _vocabulary_trend(rounds: list[Sample], words: int) -> tuple[float, str]:
    return _trend([profile(rows, words).vocabulary for rows in rounds], "{:,}")


def _length_trend(rounds: list[Sample], words: int) -> tuple[float, str]:
    return _trend([profile(rows, words).median_length for rows in rounds], "{:.0f}")


def _tail_trend(rounds: list[Sample], words: int) -> tuple[float, str]:
    lost = [tail_lost(rounds[0], rows, words) for rows in rounds[1:]]
    told = ", ".join(f"{gone} of {all_}" for gone, all_ in lost)
    gone, all_ = lost[-1]
    return (gone / all_ if all_ else 0.0), f"rare words of the first round lost, round by round: {told}"


MEASURES: dict[str, Measure] = {
    "synthetic.diversity.prompts_distinct_2": distinct("asked"),
    "synthetic.diversity.replies_distinct_2": distinct("said"),
    "synthetic.diversity.compression_ratio": compression,
    "synthetic.diversity.of_seeds": against_seeds,
    "synthetic.openings.prompts_share": opening("asks", "a prompt"),
    "synthetic.collapse.distinct_2_ratio": _watched(_distinct_trend),
    "synthetic.collapse.vocabulary_ratio": _watched(_vocabulary_trend),
    "synthetic.collapse.length_ratio": _watched(_length_trend),
    "synthetic.collapse.tail_lost_share": _watched(_tail_trend),
}
