"""Near-duplicates between splits: rows of a later split that ask almost what an earlier one taught, with witnesses."""

from __future__ import annotations

import numpy as np

from lpt_data.contracts.common import Outcome, share, skipped
from lpt_data.contracts.survey import Survey
from lpt_data.prompt_groups import NEAR, prompt_batches


def near_share(survey: Survey) -> Outcome:
    """Share of the rows of later splits whose prompt is a near-duplicate of one in an earlier split.

    Prompts (of plain text: the text) are compared by the Jaccard similarity of their word 5-grams, at least 0.8 and
    verified; what more than 5 % of the conversations share is left out, as in `lpt data dedup`. n counts the rows of
    the later splits. Skipped where the canonical key says exactly what is the same problem.
    """
    if len(survey.splits) < 2:
        return skipped("one split alone has nothing to leak into", survey.n)
    if survey.normaliser == "countdown":
        return skipped("numbers are problems of their own, however alike their words", survey.n)
    from lpt_data.dedup.near import nearest  # loads the compiled kernels

    findings = []
    later = sum(len(part) for part in survey.splits[1:])
    for number, part in enumerate(survey.splits[1:], 1):
        before = survey.splits[:number]
        places = [(other, position) for other in before for position in range(len(other))]
        earlier = (batch for other in before for batch in prompt_batches(other.dataset))
        found, score = nearest(earlier, len(places), prompt_batches(part.dataset), NEAR, part.dataset.kind)
        for position in np.flatnonzero(found >= 0).tolist():
            other, at = places[found[position]]
            findings.append(
                part.finding(position, f"{score[position]:.2f} similar to {other.name} row {int(other.rows[at])}")
            )
    return Outcome(share(len(findings), later), later, tuple(findings))
