"""Answers that a model samples on an admitted split: accuracy, pass@k and majority votes, item by item.

An accuracy without its n, temperature and samples an item cannot be compared with another. Items that could not be
scored are counted, never wrong. What judges an answer: the verifier of an `rlvr` record, a reward that is named, or,
for `sft` records, whether the reply is the recorded one (`matching`).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import numpy as np
import torch

from lpt_train.admitted import AdmittedSplit, check_contract
from lpt_train.estimates import bootstrap, interval, mean, pass_at_k
from lpt_train.matching import Matcher, match_tasks
from lpt_train.measured import Measure, Subject, check_subject, record
from lpt_train.render import Renderer
from lpt_train.rewards import FROM_RECORD, REWARDS, parse_rewards, verifiers_for
from lpt_train.rewards.pool import Item, RewardPool, Score
from lpt_train.rollouts import completion_texts
from lpt_train.sampler.generate import Sampling, sample
from lpt_train.tasks import Task, probes, read_tasks
from lpt_train.watch import Watch, unwatched
from manifests.catalog import Catalog
from manifests.errors import BadInputError, UsageError

T = TypeVar("T")


class Judge(Protocol):
    """What scores completions."""

    @property
    def failures(self) -> Mapping[str, int]:
        """Completions that could not be scored, by reason."""

    @property
    def examples(self) -> Mapping[str, str]:
        """A message for each reason."""

    def score(self, items: Sequence[Item]) -> list[Score]:
        """One score a completion, in order."""


@dataclass(frozen=True)
class ItemScore:
    """The mean reward of one item over its samples; None when none of them could be scored."""

    record_id: str
    score: float | None
    completion: str  # the first sample's, its start
    scores: tuple[float, ...] = ()  # of the samples that could be scored
    vote: float | None = None  # the score of the answer that most samples give; None where votes are not counted


@dataclass(frozen=True)
class Evaluation:
    """Scores by item and their mean with a 95 % interval; `n` is the number of items that could be scored."""

    items: tuple[ItemScore, ...]
    accuracy: float
    low: float
    high: float
    n: int
    unscorable: int
    truncated_share: float
    settings: Mapping[str, Any]
    object_id: str | None = None
    measures: tuple[Measure, ...] = ()
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The body of `lpt.eval/1` but for what was evaluated and when."""
        return {
            "accuracy": self.accuracy, "low": self.low, "high": self.high, "n": self.n, "unscorable": self.unscorable,
            "truncated_share": self.truncated_share, **self.settings,
            "measures": [measure.to_json() for measure in self.measures],
            "items": [_item_json(item) for item in self.items],
        }  # fmt: skip

    def measure(self, name: str) -> Measure:
        """The measure of that name."""
        return next(found for found in self.measures if found.name == name)


def _item_json(item: ItemScore) -> dict[str, Any]:
    body: dict[str, Any] = {"record_id": item.record_id, "score": item.score}
    if len(item.scores) > 1:
        body["scores"] = list(item.scores)
    return body if item.vote is None else body | {"vote": item.vote}


def answers(
    subject: Subject,
    split: AdmittedSplit,
    *,
    reward: str = "",
    match: str | None = None,
    n: int | None = None,
    temperature: float = 0.0,
    k: int = 1,
    pass_at: Sequence[int] = (),
    seed: int = 0,
    max_completion_length: int = 256,
    max_prompt_length: int = 4096,
    batch_size: int = 256,
    catalog: Catalog | None = None,
    watch: Watch = unwatched,
) -> Evaluation:
    """Accuracy of a model on `n` items of an `rlvr` split, or with `match` (a normaliser) of an `sft` one.

    The items are the first `n` of the split shuffled by `seed` (all when None), so that two models see the same ones.
    `temperature` 0 is greedy; else `k` samples an item, and `pass_at` says for which sizes pass@k is estimated (1 and k
    when it is empty). Recorded in the catalog as `lpt.eval/1` when one is given.
    """
    check_asked(split, match=match, temperature=temperature, k=k, pass_at=pass_at)
    check_subject(subject, split)
    if match is None:
        tasks, dropped = read_tasks(split, subject.renderer, max_prompt_length)
    else:
        tasks, dropped = match_tasks(split, subject.renderer, max_prompt_length, max_completion_length)
    chosen = choose(tasks, n, seed)
    if match is None and reward in ("", FROM_RECORD):
        verifiers_for({task.verifier for task in chosen})
    sampling = Sampling(max_completion_length, temperature, batch_size=batch_size)
    with contextlib.ExitStack() as stack:
        judge: Judge
        if match is None:
            judge = stack.enter_context(RewardPool(parse_rewards(reward)))
            judge.check(probes(chosen))
        else:
            judge = Matcher(match)
        found = accuracy(
            subject.model, subject.renderer, chosen, judge, sampling, k=k, seed=seed, autocast=subject.place.autocast,
            votes=_reader(judge, chosen), watch=watch,
        )  # fmt: skip
    if pass_at or (k > 1 and _right_or_wrong(found)):
        found = replace(found, measures=(*found.measures, *_passes(found, pass_at or (1, k), seed)))
    if sum(dropped.values()):
        said = ", ".join(f"{reason} {count}" for reason, count in dropped.items())
        found = replace(found, notes=(*found.notes, f"{sum(dropped.values())} of {len(split)} rows left out: {said}"))
    body = {"reward": f"match:{match}" if match is not None else reward or "record", "dropped": dropped}
    return replace(found, object_id=record(catalog, subject, split, body | found.to_json()))


def check_asked(
    split: AdmittedSplit, *, match: str | None, temperature: float, k: int, pass_at: Sequence[int] = ()
) -> None:
    """Raise what `answers` would raise for its options and the kind of split, before a model is loaded."""
    check_sampling(temperature, k)
    if wrong := [size for size in pass_at if not 1 <= size <= k]:
        raise UsageError(
            "pass@k needs at least k samples an item", seen=f"pass@{wrong[0]}, k={k}",
            next=f"--k {max(wrong)}, or smaller sizes",
        )  # fmt: skip
    check_contract(split, "grpo" if match is None else "sft")
    if match is not None:
        Matcher(match)


def check_sampling(temperature: float, k: int) -> None:
    """Raise `UsageError` for a temperature at which nothing can be sampled, or several samples that are one."""
    if k < 1 or (temperature == 0 and k > 1):
        raise UsageError("k greedy samples are the same one", seen=f"k={k}", next="give a temperature above 0, or k=1")
    check_temperature(temperature)


def check_temperature(temperature: float) -> None:
    """Raise `UsageError` for a temperature at which nothing can be sampled."""
    if not 0 <= temperature < math.inf:
        raise UsageError("a temperature is a finite number", seen=temperature, next="give one of 0 (greedy) or above")


def choose(tasks: Sequence[T], n: int | None, seed: int) -> list[T]:
    """`n` tasks drawn by seed, in the order of the split; raises `UsageError` when there are not so many."""
    if n is None:
        return list(tasks)
    if not 1 <= n <= len(tasks):
        raise UsageError("the split has not so many items", seen=f"n={n}, {len(tasks)} items", next="give a smaller n")
    return [tasks[i] for i in sorted(np.random.default_rng([seed, len(tasks)]).permutation(len(tasks))[:n])]


# Which answer each completion commits to, as a text that equal answers share; None where it gives none.
Reader = Callable[[Sequence[Task], Sequence[str]], list[str | None]]


def accuracy(
    model: torch.nn.Module,
    renderer: Renderer,
    tasks: Sequence[Task],
    judge: Judge,
    sampling: Sampling,
    *,
    k: int = 1,
    seed: int = 0,
    autocast: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
    votes: Reader | None = None,
    watch: Watch = unwatched,
) -> Evaluation:
    """Mean reward by item over `k` samples each. Draws from a generator of its own, so that it disturbs no
    training.

    With `votes` also `format_rate`, the share of completions that stopped and commit to an answer, and, of several
    samples, `maj@k`: the score of the answer that most of an item's samples give (of a tie, the mean of its answers).
    """
    generator = torch.Generator(next(model.parameters()).device).manual_seed(seed)
    groups = sample(
        model, [task.prompt_ids for task in tasks], sampling, num_generations=k, stop_ids=renderer.stop_ids,
        generator=generator, autocast=autocast(), watch=watch,
    )  # fmt: skip
    texts = completion_texts(renderer, groups)
    of = [task for task in tasks for _ in range(k)]
    said = [text for group in texts for text in group]
    scores = [score.total for score in judge.score([task.item(text) for task, text in zip(of, said, strict=True)])]
    read = votes(of, said) if votes is not None else None
    items = []
    for at, (task, group) in enumerate(zip(tasks, texts, strict=True)):
        mine = scores[at * k : (at + 1) * k]
        known = tuple(value for value in mine if value is not None)
        vote = majority(read[at * k : (at + 1) * k], mine) if read is not None and k > 1 else None
        items.append(ItemScore(task.record_id, sum(known) / len(known) if known else None, group[0][:400], known, vote))
    means = [item.score for item in items if item.score is not None]
    if not means:
        raise BadInputError(
            "no item of the evaluation could be scored", seen=dict(judge.failures) | dict(judge.examples),
            next="look at the gold answers with lpt data audit --contract rlvr",
        )  # fmt: skip
    low, high = interval(means)
    stopped = [completion.finish == "stop" for group in groups for completion in group]
    settings = {
        "temperature": sampling.temperature, "k": k, "seed": seed, "max_completion_length": sampling.max_new_tokens,
        "batch_size": sampling.batch_size,
    }  # fmt: skip
    average = sum(means) / len(means)
    measures = [Measure("accuracy", average, low, high, len(means))]
    if read is not None:
        well_formed = [float(stop and answer is not None) for stop, answer in zip(stopped, read, strict=True)]
        by_item = [sum(well_formed[at : at + k]) / k for at in range(0, len(well_formed), k)]
        measures.append(Measure.of("format_rate", mean(by_item)))
        if k > 1:
            measures.append(Measure.of(f"maj@{k}", mean([item.vote for item in items if item.vote is not None])))
    return Evaluation(
        tuple(items), average, low, high, len(means), len(items) - len(means), 1 - sum(stopped) / len(stopped),
        settings, measures=tuple(measures),
    )  # fmt: skip


def majority(read: Sequence[str | None], scores: Sequence[float | None]) -> float | None:
    """The score of the answer that most samples give, of a tie the mean over its answers; 0 when none gives one.

    Samples without an answer do not vote. None when no sample could be scored.
    """
    if all(score is None for score in scores):
        return None
    by_answer: dict[str, list[float]] = {}
    for answer, score in zip(read, scores, strict=True):
        if answer is not None and score is not None:
            by_answer.setdefault(answer, []).append(score)
    most = max((len(votes) for votes in by_answer.values()), default=0)
    winners = [sum(votes) / most for votes in by_answer.values() if len(votes) == most]
    return sum(winners) / len(winners) if winners else 0.0


def _reader(judge: Judge, tasks: Sequence[Task]) -> Reader | None:
    """How the judge reads the answer that a completion commits to; None where it cannot, as of programs."""
    if isinstance(judge, Matcher):
        return lambda _tasks, texts: [judge.normalise(text) or None for text in texts]
    assert isinstance(judge, RewardPool)
    if len(judge.terms) != 1 or judge.terms[0].is_function:
        return None
    names = {judge.terms[0].name} if judge.terms[0].name in REWARDS else {task.verifier for task in tasks}
    if any(REWARDS[name].committed is None for name in names):
        return None
    pool = judge

    def read(of: Sequence[Task], texts: Sequence[str]) -> list[str | None]:
        asked = [Item("", text, task.verifier) for task, text in zip(of, texts, strict=True)]
        return [value for value, _ in pool.ask("committed", asked)]

    return read


def _right_or_wrong(found: Evaluation) -> bool:
    return all(score in (0.0, 1.0) for item in found.items for score in item.scores)


def _passes(found: Evaluation, sizes: Sequence[int], seed: int) -> list[Measure]:
    """pass@k over the items with enough scored samples; its interval is a bootstrap over items."""
    scores = [item.scores for item in found.items]
    if not _right_or_wrong(found):
        raise UsageError(
            "pass@k counts answers that are right or wrong", seen="scores between 0 and 1",
            next="leave --pass-at out, or score with a verifier",
        )  # fmt: skip
    measures = []
    for size in sorted(set(sizes)):
        values = [pass_at_k(len(mine), int(sum(mine)), size) for mine in scores if len(mine) >= size]
        if not values:
            raise BadInputError(
                f"no item has the {size} scored samples that pass@{size} needs",
                seen=f"at most {max(map(len, scores))} of an item",
                next="look at the unscorable ones, or give a larger --k",
            )  # fmt: skip
        measures.append(Measure.of(f"pass@{size}", bootstrap(values, seed=seed)))
    return measures
