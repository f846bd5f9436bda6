"""How much generated rows repeat each other, their seeds, and the benchmarks they will be measured on.

Prompts are compared by ROUGE-L with the line of Self-Instruct, whole rows by the Jaccard similarity of their shingles,
benchmarks by the n-grams of `lpt_data.contamination`, which looks at the seeds as well: an item of a benchmark among
them is in every row that was made from it, however it is worded there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from lpt_data.contracts.common import NO_BENCHMARK, NO_SEEDS, Outcome, share, skipped
from lpt_data.contracts.diversity import numbers_of
from lpt_data.contracts.survey import Measure, Reference, SplitSurvey, Survey, as_bytes
from lpt_data.record_text import prompt_text

ROUGE_L = 0.7  # Self-Instruct (Wang et al., 2022): an instruction is new below it
NEAR = 0.8  # Jaccard similarity of word 5-grams: the customary line of near-duplication


def _prompts(survey: Survey) -> tuple[list[tuple[SplitSurvey, int]], list[np.ndarray], np.ndarray, list[int]]:
    """Return (row, words and content rank) of each distinct prompt, and for each row the number of its prompt."""
    first: dict[bytes, int] = {}
    places: list[tuple[SplitSurvey, int]] = []
    of_row = []
    for part in survey.splits:
        for position, asked in enumerate(as_bytes(part.asked)):
            number = first.setdefault(asked, len(first))
            of_row.append(number)
            if number == len(places):
                places.append((part, position))
            elif part.ids[position].tobytes() < places[number][0].ids[places[number][1]].tobytes():
                places[number] = (part, position)  # the smallest id stands for a prompt, wherever it is
    words = [np.frombuffer(part.facts[position].asked, np.uint32) for part, position in places]
    order = np.argsort(np.argsort(np.array(list(first), dtype="S16"), kind="stable"), kind="stable")
    return places, words, order, of_row


def rouge_to_pool(survey: Survey) -> Outcome:
    """Share of rows whose prompt has a ROUGE-L of ROUGE_L or more to another prompt of the set."""
    from lpt_data.rouge import nearest_within, number  # loads the compiled kernels

    places, words, order, of_row = _prompts(survey)
    found = nearest_within(number(words), order, ROUGE_L)
    findings = []
    rows = ((part, position) for part in survey.splits for position in range(len(part)))
    for (part, position), prompt in zip(rows, of_row, strict=True):
        if (other := int(found.other[prompt])) >= 0:
            there, at = places[other]
            what = f"ROUGE-L {found.score[prompt]:.3f} to the prompt of {there.name} row {int(there.rows[at])}"
            findings.append(part.finding(position, what))
    return Outcome(share(len(findings), survey.n), survey.n, tuple(findings), reason=f"{len(places)} distinct prompts")


def rouge_to_seeds(survey: Survey) -> Outcome:
    """Share of generated rows whose prompt has a ROUGE-L of ROUGE_L or more to a seed."""
    from lpt_data.rouge import nearest_among

    seeds = survey.lent.seeds
    if seeds is None:
        return skipped(NO_SEEDS, survey.n)
    known = seed_rows(seeds)
    rows = [(p, i) for p in survey.splits for i, fact in enumerate(p.facts) if not fact.origin.real]
    words = [np.frombuffer(part.facts[position].asked, np.uint32) for part, position in rows]
    found = nearest_among(words, [numbers_of(text) for _, text, _ in known])
    findings = tuple(
        part.finding(position, f"ROUGE-L {score:.3f} to seed {known[other][0]}")
        for (part, position), score, other in zip(rows, found.score.tolist(), found.other.tolist(), strict=True)
        if score >= ROUGE_L
    )
    middle = float(np.median(found.score)) if len(rows) else 0.0
    return Outcome(share(len(findings), len(rows)), len(rows), findings, reason=f"{seeds.extent}; median {middle:.2f}")


def near_duplicates(survey: Survey) -> Outcome:
    """Share of rows beyond the first of each group of near-duplicates (prompt and reply together), per split."""
    from lpt_data.dedup.near import components

    findings = []
    for part in survey.splits:
        if not len(part):
            continue
        batches = list(part.dataset.texts("text"))
        rows = [row for batch in batches for row in batch.rows.tolist()]
        roots = components(batches, NEAR).tolist()
        position_of = {int(row): position for position, row in enumerate(part.rows.tolist())}
        groups: dict[int, list[int]] = {}
        for row, root in zip(rows, roots, strict=True):
            groups.setdefault(root, []).append(position_of[row])
        for members in groups.values():
            members.sort(key=lambda position: part.ids[position].tobytes())
            kept = int(part.rows[members[0]])
            findings += [part.finding(position, f"near-duplicate of row {kept}") for position in members[1:]]
    findings.sort(key=lambda found: (found.split, found.row))
    return Outcome(share(len(findings), survey.n), survey.n, tuple(findings))


# -- seeds and benchmarks


def seed_rows(seeds: Reference) -> list[tuple[str, str, bytes]]:
    """(name, prompt, record id) of each seed; the name is its column `seed_id` or `id`, else its row."""
    found = []
    for dataset in seeds.datasets:
        for row, record, extra, name in dataset.identified():
            told = extra.get("seed_id", extra.get("id"))
            found.append((str(row if told is None else told), prompt_text(dataset.kind, record), name))
    return found


def _hits(texts: Sequence[str], ids: np.ndarray, survey: Survey) -> dict[int, tuple[str, int, float]]:
    """Return text -> (benchmark, item, coverage) for the texts that repeat an item by the rule of decontamination."""
    from lpt_data.contamination import config_for, load_benchmarks
    from lpt_data.contamination.index import build_index
    from lpt_data.contamination.scan import scan
    from lpt_data.contamination.stage import judge

    paths = {b.name: [str(source["path"]) for source in b.sources] for b in survey.lent.benchmarks}
    benchmarks = load_benchmarks(paths)
    config = config_for(benchmarks)
    index = build_index(benchmarks, config.stop_items)
    finds = scan(pa.array(list(texts), pa.large_string()), index)
    judged = judge(np.arange(len(texts)), ids, finds, benchmarks, index, config)
    found = {}
    for pair in judged.witness.tolist():
        item = benchmarks.items[int(judged.pairs.part[pair]) // 2]
        name = benchmarks.benchmarks[item.benchmark].name
        found[int(judged.pairs.row[pair])] = (name, item.index, float(judged.pairs.coverage[pair]))
    return found


def contaminated_rows(survey: Survey) -> Outcome:
    """Number of rows that repeat an item of a benchmark, by n-grams."""
    if not survey.lent.benchmarks:
        return skipped(NO_BENCHMARK, survey.n)
    findings = []
    for part in survey.splits:
        position_of = {int(row): position for position, row in enumerate(part.rows.tolist())}
        batches = list(part.dataset.texts("text"))
        positions = [position_of[row] for batch in batches for row in batch.rows.tolist()]
        texts = [text for batch in batches for text in batch.texts.to_pylist()]
        for place, (name, item, covered) in _hits(texts, part.ids[positions], survey).items():
            findings.append(part.finding(positions[place], f"repeats item {item} of {name} (coverage {covered:.2f})"))
    return Outcome(len(findings), survey.n, tuple(findings), reason="; ".join(b.extent for b in survey.lent.benchmarks))


def contaminated_seeds(survey: Survey) -> Outcome:
    """Number of seeds that repeat an item of a benchmark; the rows found are those that name such a seed."""
    if survey.lent.seeds is None:
        return skipped(NO_SEEDS, survey.n)
    if not survey.lent.benchmarks:
        return skipped(NO_BENCHMARK, survey.n)
    known = seed_rows(survey.lent.seeds)
    ids = np.frombuffer(b"".join(name for _, _, name in known), np.uint8).reshape(-1, 32)
    hits = _hits([text for _, text, _ in known], ids, survey)
    bad = {known[place][0]: f"item {item} of {name}" for place, (name, item, _) in hits.items()}
    findings = tuple(
        part.finding(position, f"made from seed {fact.origin.seed}, which repeats {bad[fact.origin.seed]}")
        for part in survey.splits
        for position, fact in enumerate(part.facts)
        if fact.origin.seed in bad
    )
    said = "; ".join(f"seed {name} repeats {what}" for name, what in sorted(bad.items())[:5])
    return Outcome(len(bad), len(known), findings, reason=said or survey.lent.seeds.extent)


MEASURES: dict[str, Measure] = {
    "synthetic.near_duplicates.share": near_duplicates,
    "synthetic.rouge_l.pool_share": rouge_to_pool,
    "synthetic.rouge_l.seeds_share": rouge_to_seeds,
    "synthetic.contamination.rows": contaminated_rows,
    "synthetic.contamination.seeds": contaminated_seeds,
}
