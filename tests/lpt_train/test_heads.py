"""The chunked head against the naive computation in float64: values, gradients, and what architectures do to logits."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GraniteConfig,
    GraniteForCausalLM,
)

from lpt_train.adapters import attach
from lpt_train.config import Lora
from lpt_train.heads import check_head, token_logprobs
from lpt_train.models import load_model
from manifests.errors import RefusedError


@pytest.fixture
def batch():
    """Ids [3, 9], left, right and no padding, and a completion mask."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 256, (3, 9), generator=generator)
    attention = torch.ones_like(ids)
    attention[0, :3] = 0
    attention[1, 7:] = 0
    completion = torch.zeros_like(ids)
    completion[0, 5:], completion[1, 2:7], completion[2, 1:] = 1, 1, 1
    return ids, attention, completion


def naive(model, ids, attention, completion, temperature=1.0):
    """Full logits, float64, one position at a time."""
    positions = (attention.cumsum(1) - 1).clamp(min=0)
    logits = model(input_ids=ids, attention_mask=attention, position_ids=positions, use_cache=False).logits
    log_probs = torch.log_softmax(logits.double() / temperature, -1)[:, :-1]
    logp = log_probs.gather(-1, ids[:, 1:, None]).squeeze(-1)
    entropy = -(log_probs.exp() * log_probs).sum(-1)
    first = torch.zeros(len(ids), 1, dtype=torch.float64)
    return torch.cat([first, logp], 1) * completion, torch.cat([first, entropy], 1) * completion


def gradients(loss, model):
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("chunk", [1, 4, 1024])
def test_values_and_gradients_equal_the_naive_ones_in_float64(tiny, batch, temperature, chunk):
    model = load_model(str(tiny))
    found = token_logprobs(model, *batch, temperature=temperature, chunk=chunk)
    assert found.logp_B_T.dtype is found.entropy_B_T.dtype is torch.float32
    weight = torch.randn(found.logp_B_T.shape, generator=torch.Generator().manual_seed(1))
    ours = gradients((found.logp_B_T * weight + 0.3 * found.entropy_B_T).sum(), model)
    exact = copy.deepcopy(model).double()
    logp, entropy = naive(exact, *batch, temperature)
    theirs = gradients((logp * weight.double() + 0.3 * entropy).sum(), exact)
    torch.testing.assert_close(found.logp_B_T.double(), logp, atol=2e-5, rtol=0)
    torch.testing.assert_close(found.entropy_B_T.double(), entropy, atol=2e-5, rtol=0)
    assert ours.keys() == theirs.keys()
    for name, gradient in ours.items():
        torch.testing.assert_close(gradient.double(), theirs[name], atol=1e-4, rtol=1e-4, msg=name)


def learned_positions():
    """A model whose positions are absolute: rotary ones are the same wherever a row begins."""
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=2)).eval()


@pytest.mark.parametrize("positions", ["rotary", "learned"])
def test_padding_on_either_side_changes_nothing(tiny, positions):
    model = load_model(str(tiny)) if positions == "rotary" else learned_positions()
    ids = torch.tensor([[5, 6, 7, 8]])
    alone = token_logprobs(model, ids, None, torch.tensor([[0, 0, 1, 1]])).logp_B_T
    left = token_logprobs(
        model,
        torch.tensor([[9, 9, 5, 6, 7, 8]]),
        torch.tensor([[0, 0, 1, 1, 1, 1]]),
        torch.tensor([[0, 0, 0, 0, 1, 1]]),
    ).logp_B_T
    right = token_logprobs(
        model, torch.tensor([[5, 6, 7, 8, 9]]), torch.tensor([[1, 1, 1, 1, 0]]), torch.tensor([[0, 0, 1, 1, 0]])
    ).logp_B_T
    torch.testing.assert_close(left[:, 2:], alone, atol=1e-5, rtol=0)
    torch.testing.assert_close(right[:, :4], alone, atol=1e-5, rtol=0)


@pytest.mark.parametrize("targets", ["all-linear", "q_proj,v_proj", "q_proj,lm_head"])
def test_adapters_are_seen_even_in_the_vocabulary_head(tiny, batch, targets):
    base = load_model(str(tiny))
    if "lm_head" in targets:  # the head of a tied pair takes no adapter
        base.lm_head.weight = torch.nn.Parameter(base.lm_head.weight.detach().clone())
    model = attach(base, Lora(lora_target_modules=targets))
    with torch.no_grad():  # LoRA starts as the identity: move it
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.2, generator=torch.Generator().manual_seed(2))
    found = token_logprobs(model, *batch)
    logp, entropy = naive(model, *batch)
    torch.testing.assert_close(found.logp_B_T.double(), logp, atol=2e-5, rtol=0)
    with model.disable_adapter():
        base = token_logprobs(model, *batch).logp_B_T
    assert (base - found.logp_B_T).abs().max() > 1e-3
    found.logp_B_T.sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for n, p in model.named_parameters() if "lora_B" in n)


SMALL = dict(
    vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
    num_key_value_heads=1, head_dim=8, max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2,
)  # fmt: skip


@pytest.mark.parametrize(
    "model",
    [
        lambda: Gemma2ForCausalLM(Gemma2Config(**SMALL, final_logit_softcapping=0.5)),
        lambda: CohereForCausalLM(CohereConfig(**SMALL, logit_scale=0.25)),
        lambda: GraniteForCausalLM(GraniteConfig(**SMALL, logits_scaling=4.0)),
    ],
    ids=["softcap", "scale", "divide"],
)
def test_what_architectures_do_to_their_logits_is_done_here_too(model):
    torch.manual_seed(0)
    built = model().eval()
    with torch.no_grad():
        built.get_output_embeddings().weight.normal_()
    ids = torch.tensor([[3, 4, 5, 6]])
    logp, entropy = naive(built, ids, torch.ones_like(ids), torch.tensor([[0, 1, 1, 1]]))
    found = token_logprobs(built, ids, None, torch.tensor([[0, 1, 1, 1]]))
    torch.testing.assert_close(found.logp_B_T.double(), logp, atol=1e-4, rtol=0)
    torch.testing.assert_close(found.entropy_B_T.double(), entropy, atol=1e-4, rtol=0)
    check_head(built)


def test_an_unknown_change_of_logits_is_found_and_refused(tiny):
    model = load_model(str(tiny))
    check_head(model)
    forward = model.forward

    def scaled(*arguments, **named):
        output = forward(*arguments, **named)
        output.logits = output.logits * 3
        return output

    model.forward = scaled
    with pytest.raises(RefusedError, match="are not this model's"):
        check_head(model)


def test_a_mask_on_the_first_token_is_refused(tiny):
    ids = torch.tensor([[1, 2]])
    with pytest.raises(RefusedError, match="first token"):
        token_logprobs(load_model(str(tiny)), ids, None, torch.tensor([[1, 1]]))


def test_an_empty_selection_gives_zeros_and_a_gradient_of_zero(tiny):
    model = load_model(str(tiny))
    ids = torch.tensor([[1, 2, 3]])
    found = token_logprobs(model, ids, None, torch.zeros_like(ids))
    assert found.logp_B_T.tolist() == [[0.0, 0.0, 0.0]]
    found.logp_B_T.sum().backward()
    assert all(p.grad is None or not p.grad.any() for p in model.parameters())


def test_logits_never_exist_for_more_than_a_chunk(tiny, batch):
    model = load_model(str(tiny))
    seen = []
    model.get_output_embeddings().register_forward_hook(lambda _m, _i, output: seen.append(tuple(output.shape)))
    token_logprobs(model, *batch, chunk=5).logp_B_T.sum().backward()
    assert max(rows for rows, _ in seen) == 5
    assert sum(rows for rows, _ in seen) == 2 * int(batch[2].sum())  # once forward, once again in the backward pass
