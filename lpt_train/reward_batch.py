"""Rankings as tensors, their objective, and the rewards of rows: what training and measuring of reward models share.

Axes: `S` rows of a line, `R` rows that are no filler, `Q` pairs, `G` rankings, `K` places of a ranking. On a GPU shapes
must repeat, so every tensor is filled up to a bound with entries of weight 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from lpt_train.config_reward import RewardConfig
from lpt_train.flat import FlatBatch
from lpt_train.losses.reward import bradley_terry, centering, plackett_luce
from lpt_train.micro_batch import Extras, MicroBatch, Objective
from lpt_train.models import Placement
from lpt_train.packing import Row
from lpt_train.rankings import Ranking
from lpt_train.reward_head import last_token_rewards
from lpt_train.steps import batched, most, scores

LEAST, MOST = "min_reward", "max_reward"


@dataclass(frozen=True)
class Bounds:
    """The most that a micro-batch of so many rankings can hold."""

    rankings: int
    rows: int
    pairs: int
    places: int  # of one ranking
    tokens: int
    scores: int

    @classmethod
    def of(cls, rankings: Sequence[Ranking], size: int) -> Bounds:
        """Of micro-batches of `size` of these rankings."""
        return cls(
            size, most((len(r.rows) for r in rankings), size), most((len(r.pairs) for r in rankings), size),
            max(len(r.rows) for r in rankings), most((r.tokens for r in rankings), size),
            most((scores(r.rows) for r in rankings), size),
        )  # fmt: skip


def rows_of(rankings: Sequence[Ranking]) -> list[Row]:
    """The rows of rankings, one after the other, as they go through the model.

    No token is a target: the number of targets would be one more shape that a recording on a GPU is bound to.
    """
    return [replace(row, loss_mask=np.zeros_like(row.loss_mask)) for ranking in rankings for row in ranking.rows]


def inputs(rankings: Sequence[Ranking], bounds: Bounds, weight: float) -> dict[str, torch.Tensor]:
    """What the objective needs to know of a micro-batch; each ranking weighs `weight`, its pairs share that evenly."""
    better_Q, worse_Q = torch.zeros(bounds.pairs, dtype=torch.long), torch.zeros(bounds.pairs, dtype=torch.long)
    margin_Q, weight_Q = torch.zeros(bounds.pairs), torch.zeros(bounds.pairs)
    row_R, row_weight_R = torch.zeros(bounds.rows, dtype=torch.long), torch.zeros(bounds.rows)
    order_G_K = torch.zeros(bounds.rankings, bounds.places, dtype=torch.long)
    ranked_G_K = torch.zeros(bounds.rankings, bounds.places)
    rows = pairs = 0
    for number, ranking in enumerate(rankings):
        of_pairs = slice(pairs, pairs := pairs + len(ranking.pairs))
        better_Q[of_pairs], worse_Q[of_pairs] = rows + torch.tensor(ranking.pairs).T
        margin_Q[of_pairs] = torch.tensor(ranking.margins)
        weight_Q[of_pairs] = weight / len(ranking.pairs)
        if ranking.order:
            order_G_K[number, : len(ranking.order)] = rows + torch.tensor(ranking.order)
            ranked_G_K[number, : len(ranking.order)] = 1.0
        row_weight_R[rows : rows + len(ranking.rows)] = weight / len(ranking.rows)
        rows += len(ranking.rows)
    row_R[:rows] = torch.arange(rows)
    return {
        "better_Q": better_Q, "worse_Q": worse_Q, "margin_Q": margin_Q, "weight_Q": weight_Q, "row_R": row_R,
        "row_weight_R": row_weight_R, "order_G_K": order_G_K, "ranked_G_K": ranked_G_K, "weight": torch.tensor(weight),
    }  # fmt: skip


def objective_of(config: RewardConfig) -> Objective:
    """`ranking_loss` as a micro-batch runs it."""

    def objective(
        rewards_S: torch.Tensor, _: FlatBatch, extras: Extras
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        return ranking_loss(rewards_S, extras, config)

    return objective


def ranking_loss(
    rewards_S: torch.Tensor, extras: Extras, config: RewardConfig
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The loss of a micro-batch, its share of the step's, with TRL's metrics; sums over the parts are of the step.

    `min_reward` and `max_reward` are no sums: see `joined`.
    """
    weight_Q, centre = extras["weight_Q"], config.center_rewards_coefficient
    chosen_Q, rejected_Q = rewards_S[extras["better_Q"]], rewards_S[extras["worse_Q"]]
    if config.ranking == "plackett_luce":
        loss = extras["weight"] * plackett_luce(rewards_S[extras["order_G_K"]], extras["ranked_G_K"]).sum()
    else:
        loss = (weight_Q * bradley_terry(chosen_Q, rejected_Q, extras["margin_Q"])).sum()
    if centre:
        loss = loss + centre * (weight_Q * centering(chosen_Q, rejected_Q)).sum()
    with torch.no_grad():
        rewards_R, real_R = rewards_S[extras["row_R"]], extras["row_weight_R"] > 0
        report = {
            "accuracy": (weight_Q * (chosen_Q > rejected_Q)).sum(),
            "margin": (weight_Q * (chosen_Q - rejected_Q)).sum(),
            "mean_reward": (extras["row_weight_R"] * rewards_R).sum(),
            LEAST: torch.where(real_R, rewards_R, torch.inf).min(),
            MOST: torch.where(real_R, rewards_R, -torch.inf).max(),
        }  # fmt: skip
    return loss, report


def joined(parts: Sequence[Mapping[str, torch.Tensor]]) -> dict[str, torch.Tensor | float]:
    """The metrics of a step from those of its micro-batches, where they lie."""
    return {name: _joint(name, torch.stack([part[name] for part in parts])) for name in parts[0]}


def _joint(name: str, values: torch.Tensor) -> torch.Tensor:
    return values.min() if name == LEAST else values.max() if name == MOST else values.sum()


def reward_micro_batch(
    model: torch.nn.Module,
    place: Placement,
    config: RewardConfig,
    bounds: Bounds,
    padding: int,
) -> MicroBatch:
    """What runs micro-batches of rankings through a reward model."""
    return MicroBatch(
        model, place, objective_of(config), execution=config.execution, longest=config.max_length, pad_id=padding,
        most_tokens=bounds.tokens, most_rows=bounds.rows, most_scores=bounds.scores, head=last_token_rewards,
    )  # fmt: skip


def scoring_batch(model: torch.nn.Module, place: Placement, longest: int, padding: int) -> MicroBatch:
    """What runs rows of up to `longest` tokens through a reward model that does not train."""
    return MicroBatch(
        model, place, objective_of(RewardConfig()), execution="auto" if place.device.type == "cpu" else "eager",
        longest=longest, most_tokens=longest, most_rows=1, pad_id=padding, head=last_token_rewards,
    )  # fmt: skip


@torch.no_grad()
def rewards_of(run_micro_batch: MicroBatch, rows: Sequence[Row], size: int) -> torch.Tensor:
    """The reward of each row, float32 [rows] on the CPU, `size` rows at a time, without dropout."""
    model = run_micro_batch.model
    was_training = model.training
    model.eval()
    parts = [run_micro_batch.logprobs(part)[0].float().cpu() for part in batched(rows, size)]
    model.train(was_training)
    return torch.cat(parts) if parts else torch.zeros(0)
