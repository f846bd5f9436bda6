from __future__ import annotations

import itertools
import math
from types import SimpleNamespace

import pytest
import torch

from lpt_train.losses.policy import StepCounts, k3, policy_loss, token_weights

LOSS_TYPES = ["dapo", "bnpo", "grpo", "dr_grpo"]


def counts_of(mask, longest=0):
    """The counts of a step of these rows, each with a token that counts."""
    return StepCounts(float(mask.sum()), float(len(mask)), longest)


def rows(seed=0, B=5, T=7, spread=0.3):
    g = torch.Generator().manual_seed(seed)
    logp = (-torch.rand(B, T, generator=g, dtype=torch.float64) * 3).requires_grad_(True)
    old = logp.detach() + spread * torch.randn(B, T, generator=g, dtype=torch.float64)
    ref = logp.detach() + spread * torch.randn(B, T, generator=g, dtype=torch.float64)
    lengths = torch.tensor([7, 1, 4, 2, 5])[:B]
    mask = (torch.arange(T) < lengths[:, None]).long()
    advantages = torch.tensor([1.0, -0.5, 2.0, -1.5, 0.25], dtype=torch.float64)[:B]
    return logp, old, ref, advantages, mask


def plain_reference(logp, old, ref, advantages, mask, loss_type, low, high, beta, length):
    """The objective as the papers write it, one token at a time, in float64."""
    total_tokens, total_rows = int(mask.sum()), int((mask.sum(1) > 0).sum())
    loss = torch.zeros((), dtype=torch.float64)
    for i in range(len(logp)):
        size = int(mask[i].sum())
        for t in range(logp.shape[1]):
            if not mask[i, t]:
                continue
            ratio = torch.exp(logp[i, t] - old[i, t])
            clipped = (
                ratio if 1 - low <= ratio <= 1 + high else torch.tensor(1 - low if ratio < 1 else 1 + high).double()
            )
            token = -torch.min(ratio * advantages[i], clipped * advantages[i])
            if beta:
                r = torch.exp(ref[i, t] - logp[i, t])
                token = token + beta * ratio * (r - 1 - torch.log(r))
            weight = {
                "dapo": 1 / total_tokens, "bnpo": 1 / total_tokens, "grpo": 1 / (total_rows * size),
                "dr_grpo": 1 / (total_rows * length),
            }[loss_type]  # fmt: skip
            loss = loss + weight * token
    return loss


@pytest.mark.parametrize("beta", [0.0, 0.3])
@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_value_and_gradient_are_those_of_the_papers(loss_type, beta):
    logp, old, ref, advantages, mask = rows()
    found = policy_loss(
        logp, old, advantages, mask, counts_of(mask, 10), epsilon=0.1, epsilon_high=0.2, loss_type=loss_type,
        ref_logp_B_T=ref, beta=beta,
    )  # fmt: skip
    (gradient,) = torch.autograd.grad(found.loss, logp)
    expected = plain_reference(logp, old, ref, advantages, mask, loss_type, 0.1, 0.2, beta, 10)
    (wanted,) = torch.autograd.grad(expected, logp)
    assert found.loss.dtype is torch.float32
    assert torch.allclose(found.loss.double(), expected, atol=1e-6)
    assert torch.allclose(gradient, wanted, atol=1e-6)


def test_hand_worked_clipping():
    # ratios 1.5, .5, 1.5, .5 under A = 1, 1, -1, -1, clip [.8, 1.2]: min(1.5, 1.2), min(.5, .8), min(-1.5, -1.2), …
    old = torch.zeros(4, 1)
    logp = torch.log(torch.tensor([[1.5], [0.5], [1.5], [0.5]])).requires_grad_(True)
    advantages = torch.tensor([1.0, 1.0, -1.0, -1.0])
    found = policy_loss(logp, old, advantages, torch.ones(4, 1), StepCounts(4, 4))
    assert found.loss.item() == pytest.approx(-(1.2 + 0.5 - 1.5 - 0.8) / 4)
    (gradient,) = torch.autograd.grad(found.loss, logp)
    assert gradient[:, 0].tolist() == pytest.approx([0.0, -0.5 / 4, 1.5 / 4, 0.0])  # clipped where it would go too far
    assert (int(found.clipped_low), int(found.clipped_high)) == (1, 1)


def test_sign_on_policy_a_step_raises_what_was_good():
    logits = torch.zeros(2, 3, requires_grad=True)
    logp = torch.log_softmax(logits, -1).gather(1, torch.tensor([[0], [1]]))
    policy_loss(logp, None, torch.tensor([1.0, -1.0]), torch.ones(2, 1), StepCounts(2, 2)).loss.backward()
    after = torch.log_softmax(logits.detach() - logits.grad, -1)
    assert after[0, 0] > math.log(1 / 3) > after[1, 1]


def test_on_policy_is_the_policy_gradient():
    logp, _, _, advantages, mask = rows()
    found = policy_loss(logp, None, advantages, mask, counts_of(mask))
    (gradient,) = torch.autograd.grad(found.loss, logp)
    assert torch.allclose(gradient, -(advantages[:, None] * mask) / mask.sum(), atol=1e-7)
    assert float(found.ratio_kl) == 0.0


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_padding_order_and_micro_batches_change_nothing(loss_type):
    logp, old, ref, advantages, mask = rows()
    counts = counts_of(mask, 10)
    options = {"loss_type": loss_type, "beta": 0.1}
    whole = policy_loss(logp, old, advantages, mask, counts, ref_logp_B_T=ref, **options)
    parts = [
        policy_loss(logp[a:b], old[a:b], advantages[a:b], mask[a:b], counts, ref_logp_B_T=ref[a:b], **options)
        for a, b in ((0, 1), (1, 4), (4, 5))
    ]
    order = torch.tensor([3, 0, 4, 2, 1])
    moved = policy_loss(
        logp[order], old[order], advantages[order], mask[order], counts, ref_logp_B_T=ref[order], **options
    )
    wide = [torch.cat([x, torch.full((5, 3), float("nan"))], 1) for x in (logp, old, ref)]
    padded = policy_loss(
        wide[0], wide[1], advantages, torch.cat([mask, torch.zeros(5, 3).long()], 1), counts, ref_logp_B_T=wide[2],
        **options,
    )  # fmt: skip
    for name in ("loss", "clipped_low", "clipped_high", "ratio_kl", "reference_kl"):
        expected = getattr(whole, name).item()
        assert sum(getattr(part, name).item() for part in parts) == pytest.approx(expected, abs=1e-6)
        assert getattr(moved, name).item() == pytest.approx(expected, abs=1e-6)
        assert getattr(padded, name).item() == pytest.approx(expected, abs=1e-6)
    (gradient,) = torch.autograd.grad(padded.loss, logp)
    assert torch.isfinite(gradient).all()


def test_weights_sum_to_one_over_a_step_and_dr_grpo_is_a_constant():
    mask = rows()[4]
    counts = counts_of(mask, 10)
    for loss_type in ("dapo", "bnpo", "grpo"):
        assert float(token_weights(mask, counts, loss_type).sum()) == pytest.approx(1.0)
    assert token_weights(mask, counts, "dr_grpo")[mask.bool()].tolist() == pytest.approx([1 / 50] * int(mask.sum()))


@pytest.mark.parametrize("off_policy", [False, True])
def test_kl_term_and_its_gradient_are_the_analytic_kl(off_policy):
    """On a vocabulary of 5, the mean over all tokens, weighted as they would be sampled, is KL(p || ref) exactly."""
    g = torch.Generator().manual_seed(1)
    theta = torch.randn(5, generator=g, dtype=torch.float64, requires_grad=True)
    ref = torch.log_softmax(torch.randn(5, generator=g, dtype=torch.float64), -1)
    sampling = torch.log_softmax(torch.randn(5, generator=g, dtype=torch.float64), -1)
    logp = torch.log_softmax(theta, -1)
    sampling = sampling if off_policy else logp.detach()
    exact = (logp.exp() * (logp - ref)).sum()
    (exact_gradient,) = torch.autograd.grad(exact, theta, retain_graph=True)

    # One row a token; sampling it with probability q is weighing it with q: q enters as the row's weight.
    found = torch.zeros((), dtype=torch.float32)
    for v in range(5):
        term = policy_loss(
            logp[v].reshape(1, 1), sampling[v].reshape(1, 1), torch.zeros(1), torch.ones(1, 1), StepCounts(1, 1),
            ref_logp_B_T=ref[v].reshape(1, 1), beta=1.0,
        ).loss  # fmt: skip
        found = found + sampling[v].exp() * term
    (gradient,) = torch.autograd.grad(found, theta, retain_graph=True)
    assert found.item() == pytest.approx(exact.item(), abs=1e-5)
    assert torch.allclose(gradient, exact_gradient, atol=1e-5)

    # The plain k3 has the right value on-policy, and another gradient: this is what the ratio corrects.
    plain = (logp.detach().exp() * k3(logp, ref)).sum()
    (plain_gradient,) = torch.autograd.grad(plain, theta)
    assert not torch.allclose(plain_gradient, exact_gradient, atol=1e-2)


def test_ratio_kl_estimates_the_distance_to_the_sampling_policy():
    p, q = torch.tensor([0.7, 0.3]).log(), torch.tensor([0.5, 0.5]).log()
    found = [
        policy_loss(p[v].reshape(1, 1), q[v].reshape(1, 1), torch.zeros(1), torch.ones(1, 1), StepCounts(1, 1)).ratio_kl
        for v in range(2)
    ]
    assert 0.5 * float(found[0] + found[1]) == pytest.approx(0.5 * math.log(0.5 / 0.7) + 0.5 * math.log(0.5 / 0.3))


@pytest.mark.parametrize(
    ("loss_type", "beta"), list(itertools.product(["grpo", "bnpo", "dr_grpo", "dapo"], [0.0, 0.2]))
)
def test_parity_with_trl(loss_type, beta):
    """TRL's own loss on the same tensors, gradient included. Its KL correction is switched on; ours always is."""
    trl = pytest.importorskip("trl.trainer.grpo_trainer")
    logp, old, ref, advantages, mask = (x.detach().float() if x.is_floating_point() else x for x in rows())
    ours, theirs = logp.clone().requires_grad_(True), logp.clone().requires_grad_(True)
    B, T = mask.shape
    trainer = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *a, **k: (theirs, torch.zeros(B, T), None),
        aux_loss_enabled=False, top_entropy_quantile=1.0, off_policy_mask_threshold=None, beta=beta,
        importance_sampling_level="token", epsilon_low=0.1, epsilon_high=0.2, loss_type=loss_type, use_vllm=False,
        vllm_importance_sampling_correction=False, current_gradient_accumulation_steps=1, max_completion_length=10,
        model=SimpleNamespace(training=True), _entropy_bonus_enabled=False,
        args=SimpleNamespace(use_bias_correction_kl=True, delta=None, steps_per_generation=1),
        accelerator=SimpleNamespace(num_processes=1, gather=lambda x: x, reduce=lambda x, reduction: x),
        _metrics={"train": _Anything()},
    )  # fmt: skip
    inputs = {
        "prompt_ids": torch.zeros(B, 1).long(), "prompt_mask": torch.ones(B, 1).long(), "completion_mask": mask,
        "completion_ids": torch.zeros(B, T).long(), "advantages": advantages, "old_per_token_logps": old,
        "ref_per_token_logps": ref, "num_items_in_batch": mask.sum(),
    }  # fmt: skip
    try:
        expected = trl.GRPOTrainer._compute_loss(trainer, None, inputs)
    except AttributeError as missing:  # another version of TRL wants more of its trainer
        pytest.skip(f"this TRL needs more of a trainer: {missing}")
    found = policy_loss(
        ours, old, advantages, mask, counts_of(mask, 10), epsilon=0.1, epsilon_high=0.2, loss_type=loss_type,
        ref_logp_B_T=ref if beta else None, beta=beta,
    ).loss  # fmt: skip
    assert float(found) == pytest.approx(float(expected), rel=1e-5)
    (ours_gradient,), (theirs_gradient,) = torch.autograd.grad(found, ours), torch.autograd.grad(expected, theirs)
    assert torch.allclose(ours_gradient, theirs_gradient, rtol=1e-4, atol=1e-7)


class _Anything(dict):
    """A table of metrics that takes every name."""

    def __missing__(self, key):
        self[key] = []
        return self[key]
