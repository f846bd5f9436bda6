"""The head that a run with an adapter takes, `_FrozenHead`, against plain float64; and that such a run does take it."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from test_heads import SMALL
from train_cases import chats
from transformers import CohereConfig, Gemma2Config, GraniteConfig, LlamaConfig

from lpt_train import preference, sft
from lpt_train.adapters import load_for_training
from lpt_train.config import SFTConfig
from lpt_train.config_lora import Lora
from lpt_train.config_preference import PreferenceConfig
from lpt_train.heads import head_logprobs
from lpt_train.models import load_model, placement
from lpt_train.packing import Row, render_rows
from lpt_train.ranks import SOLO
from lpt_train.render_pairs import Pair

N, H, V = 37, 16, 300  # positions, width, vocabulary
FUSED = "_FrozenHeadBackward"
CONFIGS = {
    "plain": LlamaConfig(**SMALL), "softcap": Gemma2Config(**SMALL, final_logit_softcapping=2.0),
    "scale": CohereConfig(**SMALL, logit_scale=0.25), "divide": GraniteConfig(**SMALL, logits_scaling=4.0),
}  # fmt: skip
ADJUST = {
    "softcap": lambda logits: 2.0 * torch.tanh(logits / 2.0), "scale": lambda logits: logits * 0.25,
    "divide": lambda logits: logits / 4.0,
}  # fmt: skip


def head_of(kind: str, dtype: torch.dtype) -> torch.nn.Linear:
    torch.manual_seed(0)
    head = torch.nn.Linear(H, V, bias=kind == "bias").requires_grad_(kind == "trained")
    torch.nn.init.normal_(head.weight)
    return head.to(dtype)


def around(head: torch.nn.Module, kind: str) -> SimpleNamespace:
    """As much of a model as its head: the projection, and the config that says what follows it."""
    return SimpleNamespace(config=CONFIGS.get(kind, CONFIGS["plain"]), get_output_embeddings=lambda: head)


def positions(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Hidden states as `dtype` holds them, targets, and a weight of either sign for each position."""
    torch.manual_seed(1)
    return torch.randn(N, H).to(dtype).requires_grad_(), torch.randint(0, V, (N,)), torch.randn(N)


def plainly(head, kind, hidden_N_H, targets_N, weight_N, temperature):
    """Log-probs and the gradient of their weighted sum in float64, of one position after the other."""
    weight_V_H, gradients, logps = head.weight.detach().double(), [], []
    bias_V = 0.0 if head.bias is None else head.bias.detach().double()
    for hidden_H, target, weight in zip(hidden_N_H.detach().double(), targets_N, weight_N.double(), strict=True):
        hidden_H.requires_grad_()
        logits_V = ADJUST.get(kind, lambda logits: logits)(weight_V_H @ hidden_H + bias_V) / temperature
        logps.append(torch.log_softmax(logits_V, 0)[target])
        gradients.append(torch.autograd.grad(weight * logps[-1], hidden_H)[0])
    return torch.stack(logps).detach(), torch.stack(gradients)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("chunk", [1, 8, 37, 64], ids=lambda chunk: f"chunk{chunk}")  # 37 = 4 x 8 + 5
@pytest.mark.parametrize("kind", ["plain", "bias", "softcap", "scale", "divide", "trained"])
def test_value_and_gradient_are_those_of_float64_in_every_chunk(kind, chunk, temperature, dtype):
    head = head_of(kind, dtype)
    hidden_N_H, targets_N, weight_N = positions(dtype)
    logp_N, entropy_N = head_logprobs(around(head, kind), hidden_N_H, targets_N, temperature, chunk, entropy=False)
    (logp_N * weight_N).sum().backward()
    exact_N, exact_N_H = plainly(head, kind, hidden_N_H, targets_N, weight_N, temperature)
    assert (logp_N.grad_fn.name() == FUSED) is (kind == "plain")  # what it does not know of goes the long way
    assert logp_N.dtype is torch.float32
    assert not entropy_N.any()
    assert hidden_N_H.grad.dtype is dtype
    # Without a GPU a bfloat16 product is rounded to 8 bits: logits from 8 to 16 are off by up to 1/32, both that count.
    value, slope = (1e-5, 1e-5) if dtype is torch.float32 else (1 / 16 / temperature, 0.02)
    torch.testing.assert_close(logp_N.double(), exact_N, atol=value, rtol=0)
    gap_N = (hidden_N_H.grad.double() - exact_N_H).abs().amax(1)
    assert bool((gap_N <= slope * exact_N_H.abs().amax(1).clamp(min=1.0)).all()), gap_N


def test_an_adapter_on_the_head_is_not_passed_over():
    head = torch.nn.Sequential(head_of("plain", torch.float32))  # no Linear by itself: a wrapper, as an adapter is
    logp_N, _ = head_logprobs(around(head, "plain"), *positions(torch.float32)[:2], 1.0, 8, entropy=False)
    assert logp_N.grad_fn.name() != FUSED


def test_no_gradient_is_made_where_none_is_wanted_and_an_empty_selection_is_legal():
    model, (hidden_N_H, targets_N, _) = around(head_of("plain", torch.float32), "plain"), positions(torch.float32)
    with torch.no_grad():
        quiet_N, _ = head_logprobs(model, hidden_N_H, targets_N, 1.0, 8, entropy=False)
    assert torch.equal(quiet_N, head_logprobs(model, hidden_N_H, targets_N, 1.0, 8, entropy=False)[0])
    nothing, _ = head_logprobs(model, hidden_N_H[:0], targets_N[:0], 1.0, 8, entropy=False)
    nothing.sum().backward()
    assert not hidden_N_H.grad.any()


def adapted(tiny) -> tuple[torch.nn.Module, torch.nn.Module]:
    """The tiny model with an adapter that has moved from its start, as a run loads it; and the same in float64."""
    torch.manual_seed(2)
    model = load_for_training(str(tiny), Lora(lora_r=4), placement("cpu"))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.2)
    return model, copy.deepcopy(model).double()


def row_logps(model, rows) -> list[torch.Tensor]:
    """Log-probs of the counted tokens of each row, by whole logits of each row alone."""
    found = []
    for row in rows:
        ids = torch.from_numpy(row.ids).long()
        log_probs = torch.log_softmax(model(input_ids=ids[None]).logits[0, :-1], -1)
        found.append(log_probs.gather(-1, ids[1:, None])[:, 0][torch.from_numpy(row.loss_mask[1:]).bool()])
    return found


def heads_taken(run_micro_batch) -> list[str]:
    """Which backward pass the log-probs of each micro-batch have, seen by its objective."""
    taken, objective = [], run_micro_batch.objective

    def watched(logp_N, batch, extras):
        taken.append(logp_N.grad_fn.name())
        return objective(logp_N, batch, extras)

    run_micro_batch.objective = watched
    return taken


def same_by_the_fused_head(taken, loss, exact_loss, model, exact_model) -> None:
    """The fused head was taken, and loss and gradients are those of the model in float64."""
    exact_loss.backward()
    assert taken == [FUSED]
    assert float(loss) == pytest.approx(float(exact_loss), abs=1e-5)
    found, exact = (
        {name: p.grad for name, p in one.named_parameters() if p.requires_grad} for one in (model, exact_model)
    )
    assert found.keys() == exact.keys()
    assert any("layers.0" in name and gradient.any() for name, gradient in exact.items())
    for name, gradient in found.items():
        torch.testing.assert_close(gradient.double(), exact[name], atol=2e-5, rtol=1e-3, msg=name)


def test_sft_with_an_adapter_takes_it_and_trains_as_float64_does(tiny, renderer):
    rows: list[Row] = render_rows(chats(6), renderer, max_length=512).rows
    (model, exact), supervised = adapted(tiny), sum(row.supervised for row in rows)
    run = sft._micro_batch(model, placement("cpu"), SFTConfig(logits_chunk=8), [[row] for row in rows], 0, SOLO)
    taken = heads_taken(run)
    assert supervised > 4 * 8
    assert supervised % 8
    loss = run(rows, {"denominator": torch.tensor(float(supervised))})["loss"]
    exact_loss = -torch.cat(row_logps(exact, rows)).sum() / supervised
    same_by_the_fused_head(taken, loss, exact_loss, model, exact)


def test_dpo_with_an_adapter_takes_it_and_trains_as_float64_does(tiny, renderer):
    rows: list[Row] = render_rows(chats(6), renderer, max_length=512).rows
    pairs = [Pair(chosen, rejected) for chosen, rejected in zip(rows[::2], rows[1::2], strict=True)]
    model, exact = adapted(tiny)
    config = PreferenceConfig(logits_chunk=8, per_device_train_batch_size=3, beta=0.2)
    run = preference._micro_batch(model, placement("cpu"), config, pairs, 0, SOLO)
    taken = heads_taken(run)
    reference_P_2 = np.array([[-20.0, -30.0], [-40.0, -25.0], [-30.0, -30.0]], np.float32)
    loss = run(rows, preference._extras(list(reference_P_2), 3, 1 / 3, 0.0))["loss"]
    sums_P_2 = torch.stack([logp_N.sum() for logp_N in row_logps(exact, rows)]).view(-1, 2)
    ratio_P_2 = sums_P_2 - torch.from_numpy(reference_P_2)
    exact_loss = -torch.nn.functional.logsigmoid(0.2 * (ratio_P_2[:, 0] - ratio_P_2[:, 1])).mean()
    same_by_the_fused_head(taken, loss, exact_loss, model, exact)


def test_a_run_of_every_weight_does_not_take_it(tiny, renderer):
    rows: list[Row] = render_rows(chats(2), renderer, max_length=512).rows
    model = load_model(str(tiny)).requires_grad_(True)
    run = sft._micro_batch(model, placement("cpu"), SFTConfig(logits_chunk=8), [[row] for row in rows], 0, SOLO)
    taken = heads_taken(run)
    run(rows, {"denominator": torch.tensor(1.0)})
    assert taken != [FUSED]
    assert len(taken) == 1
