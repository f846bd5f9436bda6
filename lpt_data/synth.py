"""Rejection sampling on record: a generated file in, the answers that pass their verifier out, with their provenance.

Answers to the same prompt belong together, wherever they stand. Each is scored by the verifier; of those that pass,
equal ones (but for white space) count once and `keep` says how many stay, chosen by content. What is written has the
columns that the `synthetic` contract asks for (`lpt_data.contracts.provenance`), pass rates by prompt and by source
among them, so that `lpt admit --contract synthetic` takes it.

    answers = kept + failed_verifier + could_not_score + duplicate_answer + not_chosen + over_keep_ratio
              + too_hard + too_easy

A row goes when none of its answers stays, for the reason that the most of them have (of equals, the first of that
list). Held in memory: the text of every answer.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from lpt_data.config import SynthConfig
from lpt_data.contracts.common import Verifier, ask, printable
from lpt_data.contracts.provenance import origin
from lpt_data.dataset import Dataset
from lpt_data.generations import Generation, gold, read_row
from lpt_data.layouts import LAYOUTS
from lpt_data.ordered import Order
from lpt_data.progress import Progress
from lpt_data.stage import StageResult
from manifests import decisions
from manifests.canon import json_text, record_id
from manifests.errors import CheckNotRunError, UsageError
from manifests.intervals import wilson

REASONS = (
    "failed_verifier", "could_not_score", "duplicate_answer", "not_chosen", "over_keep_ratio", "too_hard", "too_easy",
)  # fmt: skip
BAND = (0.2, 0.4)  # pass rate of a source at which rejection sampling teaches most
ASKED_AT_ONCE = 512  # answers
NO_SOURCE = "prompts"  # where neither the row nor the option names one
PROVENANCE = (
    "generator", "generator_revision", "prompt_id", "seed_id", "verifier", "answer", "sampling", "source", "attempts",
    "passes", "source_attempts", "source_passes", "depth", "licence", "license", "terms",
)  # fmt: skip


@dataclass
class Attempt:
    """One answer to a prompt."""

    row: int
    number: int  # in its row
    text: str
    columns: Mapping[str, Any]  # of provenance
    verifier: str
    answer: str | None
    reason: str = ""  # why it does not stay
    detail: str = ""


@dataclass
class Prompt:
    """A prompt with all answers to it."""

    text: str
    source: str
    attempts: list[Attempt] = field(default_factory=list)
    scored: int = 0
    passes: int = 0

    @property
    def rate(self) -> float:
        """Passes by scored answers, 0 without one."""
        return self.passes / self.scored if self.scored else 0.0


def decider(
    verifiers: Mapping[str, Verifier], requests: Mapping[str, Any] | None = None
) -> Callable[[Dataset, SynthConfig, Progress], StageResult]:
    """Return the stage function with these verifiers; `lpt_data.stage.run_stage` writes what stays."""
    return partial(_decide, verifiers, requests)


def check_config(config: SynthConfig, verifiers: Mapping[str, Verifier]) -> None:
    """Raise UsageError for settings that make no sense."""
    if config.verifier and config.verifier not in verifiers:
        raise UsageError("no such verifier", seen=config.verifier, next=f"--verifier {' | '.join(verifiers)}")
    if not 0 < config.max_keep_ratio <= 1:
        raise UsageError("a ratio above 0, at most 1", seen=config.max_keep_ratio, next="--max-keep-ratio 0.4")
    if not 0 <= config.least_rate <= config.most_rate <= 1:
        raise UsageError(
            "the rates between which a prompt stays are shares, the smaller one first",
            seen=f"{config.least_rate} and {config.most_rate}",
            next="--least-rate 0.05 --most-rate 0.8",
        )


def _decide(
    verifiers: Mapping[str, Verifier],
    requests: Mapping[str, Any] | None,
    dataset: Dataset,
    config: SynthConfig,
    progress: Progress,
) -> StageResult:
    prompts, ids, left_out = _read(dataset, config, requests, progress)
    attempts = [attempt for prompt in prompts for attempt in prompt.attempts]
    _score(attempts, verifiers, progress)
    for prompt in prompts:
        _choose(prompt, config)
    kept = [(prompt, attempt) for prompt in prompts for attempt in prompt.attempts if not attempt.reason]
    kept.sort(key=lambda pair: (pair[1].row, pair[1].number))
    totals = _sources(prompts)
    rows = [_written(prompt, attempt, totals[prompt.source]) for prompt, attempt in kept]
    convert = LAYOUTS["synthetic"].convert["sft"]
    made = np.frombuffer(b"".join(record_id("sft", convert(row)) for row in rows), np.uint8).reshape(-1, 32)
    order = Order(np.array([a.row for _, a in kept], np.int64), _table(rows), tuple(sorted(left_out)), made)
    return StageResult(_decisions(attempts, ids), ids, _report(prompts, attempts, totals), order=order)


def _read(
    dataset: Dataset, config: SynthConfig, requests: Mapping[str, Any] | None, progress: Progress
) -> tuple[list[Prompt], np.ndarray, set[str]]:
    """Return the prompts in the order of their ids, the record id of each row, and the columns that were read."""
    found: dict[tuple[str, bytes], Prompt] = {}
    names: list[tuple[int, bytes]] = []
    used: set[str] = {*PROVENANCE, "prompt", "completion"}
    for row, record, extra, name in dataset.identified():
        read = read_row(extra, config, requests)
        source = config.source or str(extra.get("source") or "") or NO_SOURCE
        prompt = found.setdefault((source, name), Prompt(record["text"], source))
        told = _told(extra, read, config)
        answer, columns = gold(extra, told["verifier"], config)
        used |= {*read.used, *columns}
        prompt.attempts += [
            Attempt(row, n, text, {**told, "generator": told["generator"] or model}, told["verifier"], answer)
            for n, (text, model) in enumerate(zip(read.answers, read.models, strict=True))
        ]
        names.append((row, name))
        if len(names) % 1024 == 0:
            progress(len(names), None, "rows read")
    ids = np.zeros((dataset.rows_in, 32), np.uint8)
    ids[[row for row, _ in names]] = np.frombuffer(b"".join(name for _, name in names), np.uint8).reshape(-1, 32)
    return [found[key] for key in sorted(found)], ids, used


def _told(row: Mapping[str, Any], read: Generation, config: SynthConfig) -> dict[str, Any]:
    """What the options and the row say of the origin of its answers, the options first."""
    said = origin({name: value for name, value in row.items() if name != "answer"})
    sampling = row.get("sampling")
    if sampling is not None and not isinstance(sampling, str):
        sampling = json_text(sampling)
    return {
        "generator": config.generator or said.generator,
        "generator_revision": config.generator_revision or said.revision,
        "prompt_id": config.prompt_id or said.prompt,
        "seed_id": said.seed,
        "verifier": config.verifier or said.verifier,
        "sampling": config.sampling or sampling or "",
        "licence": config.licence or said.licence,
        "terms": config.terms or said.terms,
        "depth": config.depth if config.depth is not None else said.depth,
    }


def _score(attempts: Sequence[Attempt], verifiers: Mapping[str, Verifier], progress: Progress) -> None:
    """Give every answer that does not pass its reason."""
    named = Counter(attempt.verifier for attempt in attempts)
    unknown = [name or "(none named)" for name in named if name not in verifiers]
    if len(unknown) == len(named):
        raise CheckNotRunError(
            "no answer can be verified",
            seen=f"verifier {', '.join(unknown)}",
            next=f"--verifier {' | '.join(verifiers)}",
        )
    done = 0
    for name in named:
        mine = [attempt for attempt in attempts if attempt.verifier == name]
        able = [attempt for attempt in mine if name in verifiers and attempt.answer is not None]
        for attempt in mine:
            if name not in verifiers or attempt.answer is None:
                what = "no answer to verify by" if name in verifiers else f"no verifier is called {name!r}"
                attempt.reason, attempt.detail = "could_not_score", what
        for start in range(0, len(able), ASKED_AT_ONCE):
            part = able[start : start + ASKED_AT_ONCE]
            for attempt, said in zip(
                part, ask(verifiers[name], "score", [(a.text, a.answer or "") for a in part]), strict=True
            ):
                if said.value is None:
                    attempt.reason, attempt.detail = "could_not_score", said.reason or "the answer cannot be read"
                elif said.value != 1:
                    attempt.reason, attempt.detail = "failed_verifier", f"{name} scores {said.value:g}"
            done += len(part)
            progress(done, len(attempts), "answers verified")


def _choose(prompt: Prompt, config: SynthConfig) -> None:
    """Of the answers that pass, say which stay; only content counts."""
    passing = [a for a in prompt.attempts if not a.reason]
    prompt.passes = len(passing)
    prompt.scored = sum(a.reason != "could_not_score" for a in prompt.attempts)
    # A prompt beyond the rates is no longer counted in its source: what it was sampled for is not used.
    if passing and prompt.rate < config.least_rate:
        return _refuse(passing, "too_hard", f"{prompt.passes} of {prompt.scored} passed")
    if passing and prompt.rate > config.most_rate:
        return _refuse(passing, "too_easy", f"{prompt.passes} of {prompt.scored} passed")
    ranked = sorted(passing, key=lambda a: (_draw(prompt, a, config.seed), a.row, a.number))
    if config.keep == "shortest":
        ranked.sort(key=lambda a: len(a.text))
    first: dict[str, Attempt] = {}
    for attempt in ranked:
        same = first.setdefault(" ".join(attempt.text.split()), attempt)
        if same is not attempt:
            attempt.reason, attempt.detail = "duplicate_answer", f"answer {same.number} of row {same.row}"
    distinct = list(first.values())
    if config.keep != "all":
        _refuse(distinct[1:], "not_chosen", f"keep {config.keep}")
        distinct = distinct[:1]
    most = max(1, math.floor(config.max_keep_ratio * prompt.scored + 1e-9))
    _refuse(distinct[most:], "over_keep_ratio", f"{most} of {prompt.scored} answers may stay")
    return None


def _refuse(attempts: Sequence[Attempt], reason: str, detail: str) -> None:
    for attempt in attempts:
        attempt.reason, attempt.detail = reason, detail


def _draw(prompt: Prompt, attempt: Attempt, seed: int) -> bytes:
    told = [seed, prompt.text, " ".join(attempt.text.split()), attempt.text, attempt.columns["generator"]]
    return hashlib.sha256(orjson.dumps([json_text(part) if isinstance(part, str) else part for part in told])).digest()


def _sources(prompts: Sequence[Prompt]) -> dict[str, tuple[int, int]]:
    """Attempts and passes of each source, prompts without a pass included, those beyond the rates not."""
    totals: dict[str, tuple[int, int]] = {}
    for prompt in prompts:
        beyond = any(a.reason in ("too_hard", "too_easy") for a in prompt.attempts)
        attempts, passes = totals.get(prompt.source, (0, 0))
        totals[prompt.source] = (attempts, passes) if beyond else (attempts + prompt.scored, passes + prompt.passes)
    return totals


def _written(prompt: Prompt, attempt: Attempt, totals: tuple[int, int]) -> dict[str, Any]:
    told = {name: value if value != "" else None for name, value in attempt.columns.items()}
    return {
        "prompt": prompt.text,
        "completion": attempt.text,
        **told,
        "answer": attempt.answer,
        "source": prompt.source,
        "attempts": prompt.scored,
        "passes": prompt.passes,
        "source_attempts": totals[0],
        "source_passes": totals[1],
    }


def _table(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    whole = {"depth", "attempts", "passes", "source_attempts", "source_passes"}
    names = ("prompt", "completion", *(name for name in PROVENANCE if name != "license"))
    kinds = {name: pa.int64() if name in whole else pa.large_string() for name in names}
    return pa.table({name: pa.array([row[name] for row in rows], kind) for name, kind in kinds.items()})


def _decisions(attempts: Sequence[Attempt], ids: np.ndarray) -> pa.Table:
    """One decision for each row none of whose answers stays."""
    of_row: dict[int, list[Attempt]] = {}
    for attempt in attempts:
        of_row.setdefault(attempt.row, []).append(attempt)
    gone = sorted(row for row, mine in of_row.items() if all(attempt.reason for attempt in mine))
    if not gone:
        return decisions.empty()
    said = [_why(sorted(of_row[row], key=lambda a: a.number)) for row in gone]
    return decisions.table(
        {
            "row": pa.array(gone, pa.int64()),
            "record_id": decisions.hex_ids(ids[gone]),
            "action": pa.array(["remove"] * len(gone), pa.string()),
            "reason": pa.array([reason for reason, _ in said], pa.string()),
            "detail": pa.array([detail for _, detail in said], pa.string()),
        }
    )


def _why(attempts: Sequence[Attempt]) -> tuple[str, str]:
    counts = Counter(attempt.reason for attempt in attempts)
    reason = max(REASONS, key=lambda name: (counts[name], -REASONS.index(name)))
    first = next(attempt for attempt in attempts if attempt.reason == reason)
    others = "" if len(attempts) == 1 else f"; of {len(attempts)} answers: " + _listed(counts)
    return reason, printable(f"{first.detail}{others}")


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{counts[name]} {name}" for name in REASONS if counts.get(name))


def _report(
    prompts: Sequence[Prompt], attempts: Sequence[Attempt], totals: Mapping[str, tuple[int, int]]
) -> dict[str, Any]:
    counts = Counter(attempt.reason or "kept" for attempt in attempts)
    scored = [prompt for prompt in prompts if prompt.scored]
    tenths = Counter(min(9, int(prompt.rate * 10)) for prompt in scored)
    return {
        "answers": {"all": len(attempts), **{name: counts[name] for name in ("kept", *REASONS) if counts[name]}},
        "prompts": {"all": len(prompts), "with_a_pass": sum(prompt.passes > 0 for prompt in prompts)},
        "prompt_rates": [tenths[n] for n in range(10)],  # prompts by tenth of their pass rate
        "sources": list(_rates(totals)),
        "unscored": dict(Counter(printable(a.detail, 80) for a in attempts if a.reason == "could_not_score")),
    }


def _rates(totals: Mapping[str, tuple[int, int]]) -> Iterator[dict[str, Any]]:
    for source, (attempts, passes) in sorted(totals.items()):
        low, high = wilson(passes, attempts)
        rate = passes / attempts if attempts else None
        band = None if rate is None else "below" if rate < BAND[0] else "above" if rate > BAND[1] else "inside"
        yield {
            "source": source, "attempts": attempts, "passes": passes, "rate": rate,
            "interval": [round(low, 6), round(high, 6)], "band": band,
        }  # fmt: skip
