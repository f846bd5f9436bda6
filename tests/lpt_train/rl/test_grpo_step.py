"""What an optimizer step divides by and where its gradients go, against the sum written out over plain logits."""

from __future__ import annotations

import pytest
import torch

from lpt_train import grpo
from lpt_train.advantages import group_advantages
from lpt_train.config import from_mapping
from lpt_train.config_grpo import GRPOConfig
from lpt_train.sampler.generate import Completion, Sampling, sample

STOP = 258
PROMPTS = [[5, 6, 7], [9, 8]]
# (ids, how it ended) of the completions of two groups: the cut ones are the longest, and more of them in the second.
GROUPS = [
    [([20, 21, 22, 23, 24, 25], "length"), ([30, STOP], "stop"), ([31, 32, STOP], "stop"), ([STOP], "stop")],
    [([40, 41, 42, 43, 44, 45], "length"), ([46] * 6, "length"), ([47, STOP], "stop"), ([48, 49, 50, STOP], "stop")],
]
REWARDS = torch.tensor([[1.0, 0.0, 0.5, 0.25], [0.0, 1.0, 0.0, 0.5]], dtype=torch.float64)


def made_of(config, tiny, **options):
    config = from_mapping(GRPOConfig, {"loss_type": "dapo", **options}, config)
    return config, grpo.make_policy(config, str(tiny), grpo.placement("cpu", "float32"))


def logps(model, prompt, ids) -> torch.Tensor:
    logits = model(input_ids=torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits, -1).gather(-1, torch.tensor(ids)[:, None])[:, 0]


def sampled(policy) -> list[list[Completion]]:
    """The groups, with the log-probs that the policy gives them."""
    with torch.no_grad():
        return [
            [Completion(ids, logps(policy.model, prompt, ids).tolist(), end) for ids, end in group]
            for prompt, group in zip(PROMPTS, GROUPS, strict=True)
        ]


def gradients(model) -> torch.Tensor:
    found = torch.cat([p.grad.flatten() for p in model.parameters()])
    model.zero_grad()
    return found


def written_out(model, rows, weights) -> torch.Tensor:
    """Gradients of -sum over rows of weight x advantage x log-prob; with the ratio at 1 that is the objective's."""
    total = torch.zeros(())
    for row, weight in zip(rows, weights, strict=True):
        total = total - weight * row.advantage * logps(model, row.prompt_ids, row.completion.ids).sum()
    total.backward()
    return gradients(model)


def weights_of(rows, loss_type):
    if loss_type == "dapo":
        return [1 / sum(len(row.completion.ids) for row in rows)] * len(rows)
    return [1 / (len(rows) * len(row.completion.ids)) for row in rows]


def check_step(policy, config, rows) -> None:
    grpo.update(policy, rows, config)
    found = gradients(policy.model)
    wanted = written_out(policy.model, rows, weights_of(rows, config.loss_type))
    assert float(wanted.abs().max()) > 1e-2
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("loss_type", ["dapo", "grpo"])
@pytest.mark.parametrize("masked", [True, False])
def test_masked_cut_completions_are_neither_in_the_numerator_nor_in_the_denominator(config, tiny, loss_type, masked):
    config, policy = made_of(config, tiny, mask_truncated_completions=masked, loss_type=loss_type)
    groups, advantages = sampled(policy), group_advantages(REWARDS)
    (rows,) = grpo.steps_of(config, PROMPTS, groups, advantages)
    grpo.update(policy, rows, config)
    found = gradients(policy.model)
    counted = [
        grpo.Row(prompt, completion, float(advantages.advantages_P_G[p, g]))
        for p, (prompt, group) in enumerate(zip(PROMPTS, groups, strict=True))
        for g, completion in enumerate(group)
        if not (masked and completion.finish == "length")
    ]
    assert len(counted) == (5 if masked else 8)
    wanted = written_out(policy.model, counted, weights_of(counted, loss_type))
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("loss_type", ["dapo", "grpo"])
def test_the_denominator_is_that_of_the_step_and_not_of_its_generation(config, tiny, loss_type):
    config, policy = made_of(
        config, tiny, gradient_accumulation_steps=1, steps_per_generation=2, max_steps=2, loss_type=loss_type
    )
    steps = list(grpo.steps_of(config, PROMPTS, sampled(policy), group_advantages(REWARDS)))
    tokens = [sum(len(row.completion.ids) for row in rows) for rows in steps]
    assert tokens == [12, 18]  # neither is half of the generation's
    for rows in steps:
        check_step(policy, config, rows)


@pytest.mark.parametrize("ids", [[STOP], [30, 31, STOP]], ids=["alone", "at the end"])
def test_the_sampled_stop_token_has_its_gradient(config, tiny, ids):
    config, policy = made_of(config, tiny)
    row = grpo.Row([5, 6, 7], Completion(ids, [-1.0] * len(ids), "stop"), 1.0)
    assert grpo.collate([row], torch.device("cpu")).mask_B_T.tolist() == [[0, 0, 0, *[1] * len(ids)]]
    check_step(policy, config, [row])
    with torch.no_grad():
        before = float(logps(policy.model, [5, 6, 7], ids)[-1])
    grpo.update(policy, [row], config)
    policy.optimizer.step()
    assert float(logps(policy.model, [5, 6, 7], ids)[-1]) > before


def test_what_the_sampler_ends_with_a_stop_token_trains_it(config, tiny):
    config, policy = made_of(config, tiny)
    (group,) = sample(
        policy.model, [[5, 6, 7]], Sampling(8), num_generations=16, stop_ids=range(200, 259),
        generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    ended = [completion for completion in group if completion.finish == "stop"]
    assert ended
    assert all(completion.ids[-1] >= 200 for completion in ended)
    check_step(policy, config, [grpo.Row([5, 6, 7], completion, 1.0) for completion in ended])


@pytest.mark.parametrize("temperature", [0.5, 1.5])
def test_the_trainer_reads_what_was_sampled_at_the_temperature_it_was_sampled_at(config, tiny, temperature):
    config, policy = made_of(config, tiny, temperature=temperature, steps_per_generation=4)
    (group,) = sample(
        policy.model, [[5, 6, 7]], Sampling(6, temperature), num_generations=4, stop_ids=[STOP],
        generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    found = grpo.update(policy, [grpo.Row([5, 6, 7], completion, 1.0) for completion in group], config)
    assert found["mismatch"] < 1e-5
    assert found["loss"] == pytest.approx(-1.0, abs=1e-5)  # every ratio is 1
