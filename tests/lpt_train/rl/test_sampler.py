from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from lpt_train.heads import token_logprobs
from lpt_train.models import load_model
from lpt_train.sampler.generate import Sampling, cut_support, draw, left_padded, sample

STOP = 258


@pytest.fixture(scope="module")
def model(tiny):
    return load_model(str(tiny))


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def run(model, prompts, sampling, n=1, seed=0, stops=(STOP,)):
    return sample(model, prompts, sampling, num_generations=n, stop_ids=stops, generator=generator(seed))


PROMPTS = [[5, 6, 7], [9], [1, 2, 3, 4, 5, 6, 7, 8]]


def test_left_padding_ends_all_prompts_in_the_last_column():
    ids, mask = left_padded(PROMPTS, torch.device("cpu"))
    assert ids[:, -1].tolist() == [7, 9, 8]
    assert mask.sum(1).tolist() == [3, 1, 8]


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_recorded_logprobs_are_those_of_the_trainer(model, temperature):
    """Padding, groups, compaction and the cache change nothing: the trainer's own pass gives the same numbers."""
    groups = run(model, PROMPTS, Sampling(12, temperature), n=3, stops=range(200, 259))
    assert len({len(c.ids) for group in groups for c in group}) > (temperature > 0)
    for prompt, group in zip(PROMPTS, groups, strict=True):
        for completion in group:
            ids = torch.tensor([prompt + completion.ids])
            mask = torch.zeros_like(ids)
            mask[0, len(prompt) :] = 1
            found = token_logprobs(model, ids, torch.ones_like(ids), mask, temperature=temperature or 1.0)
            assert found.logp_B_T[0, len(prompt) :].tolist() == pytest.approx(completion.logps, abs=1e-5)


def test_positions_of_a_padded_prompt_begin_at_its_first_token():
    """Of a model with absolute positions: those of the padding would be another prompt."""
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=32, n_embd=16, n_layer=1, n_head=2)).eval()
    for prompt, group in zip(PROMPTS, run(model, PROMPTS, Sampling(6), n=2, stops=[63]), strict=True):
        for completion in group:
            with torch.no_grad():
                logits = model(torch.tensor([prompt + completion.ids])).logits[0, len(prompt) - 1 : -1]
            alone = torch.log_softmax(logits, -1).gather(-1, torch.tensor(completion.ids)[:, None])[:, 0]
            assert completion.logps == pytest.approx(alone.tolist(), abs=1e-5)


def test_greedy_is_transformers_greedy(model):
    for prompt, (completion,) in zip(PROMPTS, run(model, PROMPTS, Sampling(10, 0.0)), strict=True):
        ids = torch.tensor([prompt])
        theirs = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=10, do_sample=False, eos_token_id=STOP,
            pad_token_id=0,
        )  # fmt: skip
        assert theirs[0, len(prompt) :].tolist() == completion.ids


def test_stop_token_is_kept_and_ends_the_completion(model):
    stops = set(range(100, 259))
    groups = run(model, PROMPTS, Sampling(6), n=20, stops=stops)
    finishes = Counter()
    for completion in (c for group in groups for c in group):
        finishes[completion.finish] += 1
        assert len(completion.ids) == len(completion.logps) <= 6
        assert not stops & set(completion.ids[:-1])
        assert (completion.ids[-1] in stops) == (completion.finish == "stop")
        assert completion.finish == "stop" or len(completion.ids) == 6
    assert finishes["stop"] > 0


def test_without_a_stop_all_are_cut(model):
    (group,) = run(model, PROMPTS[:1], Sampling(3), n=4, stops=[])
    assert [(c.finish, len(c.ids)) for c in group] == [("length", 3)] * 4


def test_same_generator_state_same_completions_and_the_global_generator_is_left_alone(model):
    torch.manual_seed(7)
    before = torch.get_rng_state()
    first = run(model, PROMPTS, Sampling(5), n=2, seed=3)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(99)
    assert run(model, PROMPTS, Sampling(5), n=2, seed=3) == first
    assert run(model, PROMPTS, Sampling(5), n=2, seed=4) != first


def test_a_saved_generator_goes_on_where_it_was(model):
    g = generator(1)
    options = {"num_generations": 2, "stop_ids": [STOP]}
    sample(model, PROMPTS, Sampling(4), generator=g, **options)
    state = g.get_state()
    second = sample(model, PROMPTS, Sampling(4), generator=g, **options)
    again = torch.Generator()
    again.set_state(state)
    assert sample(model, PROMPTS, Sampling(4), generator=again, **options) == second


def test_frequencies_are_the_distribution():
    logits = torch.tensor([2.0, 0.0, -1.0, 1.0])
    for temperature, top_p, top_k in ((1.0, 1.0, 0), (0.5, 1.0, 0), (1.0, 0.8, 0), (1.0, 1.0, 2)):
        expected = cut_support(torch.log_softmax(logits / temperature, -1)[None], top_p, top_k)[0].exp()
        sampling = Sampling(1, temperature, top_p, top_k)
        n = 40_000
        token, logp = draw(logits.expand(n, 4), sampling, generator(5))
        seen = torch.bincount(token, minlength=4) / n
        assert torch.allclose(seen, expected, atol=4 * math.sqrt(0.25 / n))
        assert torch.allclose(logp.exp(), expected[token], atol=1e-6)


def test_cut_support_by_hand():
    logp = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    assert cut_support(logp, 1.0, 2).exp()[0].tolist() == pytest.approx([0.625, 0.375, 0, 0])
    assert cut_support(logp, 0.45, 0).exp()[0].tolist() == pytest.approx([1, 0, 0, 0])
    assert cut_support(logp, 0.6, 0).exp()[0].tolist() == pytest.approx([0.625, 0.375, 0, 0])
    assert torch.equal(cut_support(logp, 1.0, 0), logp)


def test_the_model_is_left_in_the_mode_it_was_in(model):
    model.train()
    run(model, PROMPTS, Sampling(2))
    assert model.training
    model.eval()
    run(model, PROMPTS, Sampling(2))
    assert not model.training


def test_batches_do_not_mix_prompts(model):
    """Greedy completions are the same however many prompts are sampled at once."""
    together, alone = run(model, PROMPTS, Sampling(8, 0.0)), run(model, PROMPTS, Sampling(8, 0.0, batch_size=1))
    assert [[c.ids for c in group] for group in alone] == [[c.ids for c in group] for group in together]
