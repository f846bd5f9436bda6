"""Rewards of conversations by a trained reward model, and completions sampled to be scored by it and by a verifier."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lpt_train.adapter_folder import read_provenance
from lpt_train.admitted import AdmittedSplit, check_contract
from lpt_train.answers import check_temperature, choose
from lpt_train.models import (
    check_vocabulary,
    load_model,
    load_tokenizer,
    model_digest,
    pad_id,
    placement,
    resolve,
)
from lpt_train.packing import Row, fit
from lpt_train.render import Renderer
from lpt_train.reward_batch import rewards_of, scoring_batch
from lpt_train.reward_model import load_reward_model
from lpt_train.rewards import parse_rewards
from lpt_train.rewards.pool import RewardPool
from lpt_train.rollouts import completion_texts
from lpt_train.sampler.generate import Sampling, sample
from lpt_train.tasks import probes, read_tasks
from manifests.errors import BadInputError, RecordError, UsageError

Messages = Sequence[Mapping[str, Any]]


class RewardModel:
    """A reward model that is ready to score; `digest` is that of its weights, `notes` what its users should hear."""

    def __init__(
        self, model: str, *, max_length: int = 4096, batch_size: int = 16, device: str = "auto", dtype: str = "auto"
    ) -> None:
        if model == "tiny":
            raise BadInputError(
                "tiny is no reward model", seen=model, next="give the folder of a run of lpt train reward"
            )
        place = placement(device, dtype)
        source = resolve(model, Path())
        self.max_length, self.batch_size = max_length, batch_size
        self.renderer = Renderer(load_tokenizer(source), max_length=max_length)
        loaded = load_reward_model(source, dtype=place.dtype, device=place.device)
        check_vocabulary(loaded, self.renderer.tokenizer)
        self.digest = model_digest(source)
        self.notes = self.renderer.notes_for("reward") + _template_notes(source, self.renderer)
        self._run = scoring_batch(loaded, place, max_length, pad_id(self.renderer.tokenizer))

    def score(self, conversations: Sequence[Messages]) -> list[tuple[float | None, str]]:
        """The reward of each conversation, which ends with a reply; None with the reason where there is none."""
        rows: list[Row] = []
        found: list[tuple[float | None, str]] = [(None, "")] * len(conversations)
        for number, messages in enumerate(conversations):
            try:
                rows.append(self._row(number, messages))
            except RecordError as error:
                found[number] = (None, error.reason)
        rows.sort(key=lambda row: (len(row.ids), row.index))
        for row, reward in zip(rows, rewards_of(self._run, rows, self.batch_size).tolist(), strict=True):
            found[row.index] = (reward, "")
        return found

    def _row(self, number: int, messages: Messages) -> Row:
        if not messages or messages[-1].get("role") != "assistant":
            raise RecordError("the conversation does not end with a reply", reason="no_reply", field="messages")
        encoded = fit(self.renderer.encode(messages), self.max_length, "drop")
        return Row(number, np.asarray(encoded.ids, np.int32), np.asarray(encoded.loss_mask, np.uint8))


def _template_notes(source: str, renderer: Renderer) -> list[str]:
    """A note where the run that made the reward model read its conversations under another template."""
    told = (read_provenance(source) or {}).get("tokenizer") or {}
    if told.get("fingerprint") != renderer.fingerprint or told.get("template_sha256") == renderer.template_sha256:
        return []
    then, now_ = (
        f"{one.get('training_template') or 'its chat template'} ({str(one.get('template_sha256'))[:16]}…)"
        for one in (told, renderer.told())
    )
    return [f"the reward model was trained under {then} and scores under {now_}: its rewards may be others"]


def sample_and_score(
    policy: str,
    split: AdmittedSplit,
    proxy: RewardModel,
    *,
    samples: int,
    prompts: int | None = None,
    reward: str = "",
    temperature: float = 1.0,
    max_completion_length: int = 256,
    max_prompt_length: int = 4096,
    batch_size: int = 256,
    seed: int = 0,
    device: str = "auto",
    dtype: str = "auto",
) -> list[dict[str, Any]]:
    """`samples` completions of a policy for each of `prompts` rows (all when None) of an admitted `rlvr` split.

    Each with its proxy `reward` and the `gold` of the verifier that its record (or `reward`) names; both are None where
    they could not be had, and `not_scored` says why. A row is a chat of one prompt and one completion.
    """
    check_contract(split, "grpo")
    check_temperature(temperature)
    if samples < 2 or temperature <= 0:
        raise UsageError(
            "best-of-n needs several different completions of a prompt",
            seen=f"{samples} at temperature {temperature}", next="give 2 samples or more, and a temperature above 0",
        )  # fmt: skip
    place = placement(device, dtype)
    with tempfile.TemporaryDirectory(prefix="lpt-sample-") as spare:
        source = resolve(policy, Path(spare), seed=seed)
        renderer = Renderer(load_tokenizer(source))
        tasks, _ = read_tasks(split, renderer, max_prompt_length)
        chosen = choose(tasks, prompts, seed)
        loaded = load_model(source, dtype=place.dtype, device=place.device)
    check_vocabulary(loaded, renderer.tokenizer)
    asked = dict(zip(split.record_ids, (row["prompt"] for row in split.rows()), strict=True))
    with RewardPool(parse_rewards(reward)) as pool:
        pool.check(probes(chosen))
        groups = sample(
            loaded, [task.prompt_ids for task in chosen],
            Sampling(max_completion_length, temperature, batch_size=batch_size), num_generations=samples,
            stop_ids=renderer.stop_ids, generator=torch.Generator(place.device).manual_seed(seed),
            autocast=place.autocast(),
        )  # fmt: skip
        texts = completion_texts(renderer, groups)
        golds = pool.score([task.item(text) for task, group in zip(chosen, texts, strict=True) for text in group])
    rows = [
        {
            "prompt": asked[task.record_id], "completion": [{"role": "assistant", "content": text}],
            "prompt_id": task.record_id, "sample": number, "finish": made.finish, "tokens": len(made.ids),
        }
        for task, group, said in zip(chosen, groups, texts, strict=True)
        for number, (made, text) in enumerate(zip(group, said, strict=True))
    ]  # fmt: skip
    proxies = proxy.score([[*row["prompt"], *row["completion"]] for row in rows])
    for row, (value, why), gold in zip(rows, proxies, golds, strict=True):
        row |= {"reward": value, "gold": gold.total, "not_scored": why or gold.reason or None}
    return rows
