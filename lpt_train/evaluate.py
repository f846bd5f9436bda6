"""Accuracy on an admitted split, item by item, and what a difference between two evaluations is worth.

An accuracy without its n, temperature and samples an item cannot be compared with another; a difference on the same
items is paired, which is what makes a few hundred of them enough. Items that could not be scored are counted, never
wrong.

Left out: averages over several splits, and pass@k.
"""

from __future__ import annotations

import contextlib
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lpt_train.admitted import AdmittedSplit, check_contract, check_tokenizer
from lpt_train.checkpoint import read_provenance
from lpt_train.models import check_vocabulary, load_model, load_tokenizer, model_digest, placement, resolve
from lpt_train.render import Renderer
from lpt_train.rewards import parse_rewards
from lpt_train.rewards.pool import RewardPool
from lpt_train.rollouts import completion_texts
from lpt_train.runs import env, now
from lpt_train.sampler.generate import Sampling, sample
from lpt_train.tasks import Task, probes, read_tasks
from manifests.catalog import Catalog
from manifests.errors import BadInputError, UsageError
from manifests.intervals import Z95, wilson


@dataclass(frozen=True)
class ItemScore:
    """The mean reward of one item over its samples; None when none of them could be scored."""

    record_id: str
    score: float | None
    completion: str  # the first sample's, its start


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

    def to_json(self) -> dict[str, Any]:
        """The body of `lpt.eval/1` but for what was evaluated and when."""
        return {
            "accuracy": self.accuracy, "low": self.low, "high": self.high, "n": self.n, "unscorable": self.unscorable,
            "truncated_share": self.truncated_share, **self.settings,
            "items": [{"record_id": item.record_id, "score": item.score} for item in self.items],
        }  # fmt: skip


@dataclass(frozen=True)
class PairedDifference:
    """After minus before on the same items: the mean difference with its 95 % interval, and an exact test.

    The interval is the normal approximation to the mean of paired differences. `p_value` is McNemar's exact
    two-sided test over the items that changed sides (None when scores are not all 0 or 1).
    """

    n: int
    before: float
    after: float
    difference: float
    low: float
    high: float
    gained: int
    lost: int
    p_value: float | None


def evaluate(
    model: str,
    split: AdmittedSplit,
    *,
    reward: str = "",
    n: int | None = None,
    temperature: float = 0.0,
    k: int = 1,
    seed: int = 0,
    max_completion_length: int = 256,
    max_prompt_length: int = 4096,
    batch_size: int = 256,
    device: str = "auto",
    dtype: str = "auto",
    catalog: Catalog | None = None,
    folder: Path | None = None,
) -> Evaluation:
    """Accuracy of a model (folder of weights or of a run, hub name, or `tiny`, made under `folder`) on `n` items.

    The items are the first `n` of the split shuffled by `seed` (all when None), so that two models see the same ones.
    `temperature` 0 is greedy; else `k` samples an item. Recorded in the catalog as `lpt.eval/1` when one is given.
    Without `folder` the tiny model is made in a temporary one and leaves nothing behind.
    """
    check_contract(split, "grpo")
    if k < 1 or (temperature == 0 and k > 1):
        raise UsageError("k greedy samples are the same one", seen=f"k={k}", next="give a temperature above 0, or k=1")
    place = placement(device, dtype)
    with tempfile.TemporaryDirectory(prefix="lpt-eval-") as spare:
        source = resolve(model, folder or Path(spare), seed=seed)
        renderer = Renderer(load_tokenizer(source))
        check_tokenizer(split, renderer.fingerprint, renderer.name)
        tasks, dropped = read_tasks(split, renderer, max_prompt_length)
        chosen = choose(tasks, n, seed)
        loaded = load_model(source, dtype=place.dtype, device=place.device)
        digest, made_from = model_digest(source), read_provenance(source)
    check_vocabulary(loaded, renderer.tokenizer)
    with RewardPool(parse_rewards(reward)) as pool:
        pool.check(probes(chosen))
        sampling = Sampling(max_completion_length, temperature, batch_size=batch_size)
        found = accuracy(loaded, renderer, chosen, pool, sampling, k=k, seed=seed, autocast=place.autocast)
    if catalog is None:
        return found
    parents = [split.manifest_id] if split.manifest_id else []
    if made_from:
        parents += [name for name, _ in catalog.find("lpt.run/1", run_id=made_from["run_id"])][:1]
    body = {
        "type": "lpt.eval/1", "model": {"name": model if model == "tiny" else source, "digest": digest,
        "made_from": made_from}, "manifest": split.manifest_id, "split": split.ref, "verified": split.verified,
        "tainted": split.tainted or bool(made_from and made_from.get("tainted")), "reward": reward or "record",
        "dropped": dropped, **found.to_json(), "created": now(), "env": env(), "parents": parents,
    }  # fmt: skip
    return Evaluation(**{**found.__dict__, "object_id": catalog.put(body)})


def choose(tasks: Sequence[Task], n: int | None, seed: int) -> list[Task]:
    """`n` tasks drawn by seed, in the order of the split; raises `UsageError` when there are not so many."""
    if n is None:
        return list(tasks)
    if not 1 <= n <= len(tasks):
        raise UsageError("the split has not so many items", seen=f"n={n}, {len(tasks)} items", next="give a smaller n")
    return [tasks[i] for i in sorted(np.random.default_rng([seed, len(tasks)]).permutation(len(tasks))[:n])]


def accuracy(
    model: torch.nn.Module,
    renderer: Renderer,
    tasks: Sequence[Task],
    pool: RewardPool,
    sampling: Sampling,
    *,
    k: int = 1,
    seed: int = 0,
    autocast: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
) -> Evaluation:
    """Mean reward by item over `k` samples each. Draws from a generator of its own, so that it disturbs no
    training."""
    generator = torch.Generator(next(model.parameters()).device).manual_seed(seed)
    groups = sample(
        model, [task.prompt_ids for task in tasks], sampling, num_generations=k, stop_ids=renderer.stop_ids,
        generator=generator, autocast=autocast(),
    )  # fmt: skip
    texts = completion_texts(renderer, groups)
    flat = iter(pool.score([task.item(text) for task, group in zip(tasks, texts, strict=True) for text in group]))
    items = []
    for task, group in zip(tasks, texts, strict=True):
        known = [value for value in (next(flat).total for _ in group) if value is not None]
        items.append(ItemScore(task.record_id, sum(known) / len(known) if known else None, group[0][:400]))
    scores = [item.score for item in items if item.score is not None]
    if not scores:
        raise BadInputError(
            "no item of the evaluation could be scored", seen=dict(pool.failures) | pool.examples,
            next="look at the gold answers with lpt data audit --contract rlvr",
        )  # fmt: skip
    low, high = interval(scores)
    cut = sum(completion.finish == "length" for group in groups for completion in group) / (len(items) * k)
    settings = {
        "temperature": sampling.temperature, "k": k, "seed": seed, "max_completion_length": sampling.max_new_tokens,
        "batch_size": sampling.batch_size,
    }  # fmt: skip
    mean = sum(scores) / len(scores)
    return Evaluation(tuple(items), mean, low, high, len(scores), len(items) - len(scores), cut, settings)


def interval(scores: Sequence[float]) -> tuple[float, float]:
    """A 95 % interval of a mean: Wilson's when all scores are 0 or 1, else the normal approximation."""
    if all(score in (0.0, 1.0) for score in scores):
        return wilson(int(sum(scores)), len(scores))
    half = Z95 * float(np.std(scores, ddof=1)) / math.sqrt(len(scores)) if len(scores) > 1 else math.inf
    mean = sum(scores) / len(scores)
    return mean - half, mean + half


def paired_difference(before: Evaluation, after: Evaluation) -> PairedDifference:
    """`after` minus `before` over the items that both could score; raises `UsageError` unless both had the same
    items."""
    first = {item.record_id: item.score for item in before.items}
    second = {item.record_id: item.score for item in after.items}
    if first.keys() != second.keys():
        raise UsageError(
            "the two evaluations are not of the same items",
            seen=f"{len(first.keys() ^ second.keys())} items in one only",
            next="evaluate both on the same split with the same n and seed",
        )  # fmt: skip
    pairs = [(a, b) for a, b in ((first[key], second[key]) for key in sorted(first)) if a is not None and b is not None]
    return paired_interval([a for a, _ in pairs], [b for _, b in pairs])


def paired_interval(before: Sequence[float], after: Sequence[float]) -> PairedDifference:
    """The paired difference of two equally long lists of scores (at least two items)."""
    n = len(before)
    if n != len(after) or n < 2:
        raise UsageError("a paired difference needs the same items twice, two or more", seen=f"{n} and {len(after)}")
    differences = [b - a for a, b in zip(before, after, strict=True)]
    mean = sum(differences) / n
    half = Z95 * math.sqrt(sum((d - mean) ** 2 for d in differences) / (n - 1) / n)
    gained, lost = sum(d > 0 for d in differences), sum(d < 0 for d in differences)
    binary = all(score in (0.0, 1.0) for score in (*before, *after))
    return PairedDifference(
        n=n, before=sum(before) / n, after=sum(after) / n, difference=mean, low=mean - half, high=mean + half,
        gained=gained, lost=lost, p_value=mcnemar(gained, lost) if binary else None,
    )  # fmt: skip


def mcnemar(gained: int, lost: int) -> float:
    """Exact two-sided p of McNemar's test: `gained` of `gained + lost` under a fair coin."""
    n = gained + lost
    tail = sum(math.comb(n, i) for i in range(min(gained, lost) + 1))
    return min(1.0, 2 * tail / 2**n) if n else 1.0
