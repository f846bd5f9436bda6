"""The divergence of two models against sums over the whole vocabulary."""

from __future__ import annotations

import pytest
import torch
from train_cases import chat, preferences, write_jsonl

from lpt_train.admitted import load_unadmitted
from lpt_train.answers import choose
from lpt_train.drift import drift, prompts_of
from lpt_train.measured import load_subject
from lpt_train.tiny import make_tiny
from manifests.errors import BadInputError, UsageError


@pytest.fixture(scope="module")
def models(tiny, tmp_path_factory):
    other = make_tiny(tmp_path_factory.mktemp("other") / "tiny", hidden=32, layers=2, heads=2, seed=5)
    return load_subject(str(tiny), merge=False), load_subject(str(other), merge=False)


@pytest.fixture
def split(tmp_path):
    return load_unadmitted(write_jsonl(tmp_path / "p.jsonl", preferences(5)), "preference")


def next_token(subject, ids):
    with torch.no_grad():
        return torch.log_softmax(subject.model(torch.tensor([ids])).logits[0, -1].double(), -1)


def test_one_token_is_the_exact_divergence(models, split):
    found = {measure.name: measure for measure in drift(*models, split, max_completion_length=1)[0]}
    exact = []
    for ids in prompts_of(split, models[0], 100)[0]:
        logp, logq = (next_token(model, ids) for model in models)
        exact.append(float((logp.exp() * (logp - logq)).sum()))
    assert found["kl"].value == pytest.approx(sum(exact) / 5, rel=1e-4)
    assert found["kl"].value == pytest.approx(found["kl_per_token"].value)
    assert found["kl"].low > 0


def test_two_tokens_add_up_in_expectation(models, split):
    """Chain rule: the divergence of two tokens is that of the first plus the mean, over first tokens, of the second."""
    one = load_unadmitted_first(split)
    (ids,), _ = prompts_of(one, models[0], 100)
    logp, logq = (next_token(model, ids) for model in models)
    with torch.no_grad():
        rows = torch.tensor([[*ids, token] for token in range(len(logp))])
        seconds = [torch.log_softmax(model.model(rows).logits[:, -1].double(), -1) for model in models]
    second = (seconds[0].exp() * (seconds[0] - seconds[1])).sum(-1)
    stops = list(models[0].renderer.stop_ids)
    second[stops] = 0.0
    exact = float((logp.exp() * (logp - logq)).sum() + (logp.exp() * second).sum())
    draws = [drift(*models, one, max_completion_length=2, seed=seed)[0][0].value for seed in range(60)]
    assert sum(draws) / 60 == pytest.approx(exact, rel=0.1)


def load_unadmitted_first(split):
    return type(split)(**{**split.__dict__, "table": split.table.slice(0, 1), "record_ids": split.record_ids[:1]})


def test_no_drift_from_itself(models, split):
    (kl, per_token), notes = drift(models[0], models[0], split, max_completion_length=4, n=3)
    assert notes == []
    assert (kl.value, kl.n, per_token.value) == (pytest.approx(0, abs=1e-6), 3, pytest.approx(0, abs=1e-6))


def test_prompts_of_conversations_and_of_none(models, tmp_path):
    sft = load_unadmitted(write_jsonl(tmp_path / "a.jsonl", [{"messages": chat("a", "b", "c", "d")}]), "sft")
    (ids,), _ = prompts_of(sft, models[0], 100)
    assert ids == models[0].renderer.encode_prompt(chat("a", "b", "c"))
    text = load_unadmitted(write_jsonl(tmp_path / "t.jsonl", [{"text": "words"}]), "text")
    with pytest.raises(BadInputError, match="prompt"):
        prompts_of(text, models[0], 100)


def test_the_prompts_are_drawn_by_seed_and_not_the_first_ones(models, split):
    """With one token the divergence of each prompt is exact: the mean of two of five says which two were drawn."""
    each = []
    for ids in prompts_of(split, models[0], 100)[0]:
        logp, logq = (next_token(model, ids) for model in models)
        each.append(float((logp.exp() * (logp - logq)).sum()))
    values = set()
    for seed in range(6):
        (kl, _), _ = drift(*models, split, max_completion_length=1, n=2, seed=seed)
        assert kl.n == 2
        assert kl.value == pytest.approx(sum(choose(each, 2, seed)) / 2, rel=1e-4)
        values.add(round(kl.value, 7))
    assert len(values) > 2
    with pytest.raises(UsageError, match="so many"):
        drift(*models, split, n=6)


def test_rows_without_a_prompt_that_fits_are_counted_and_said(models, tmp_path):
    rows = [{"messages": chat("a", "b")}, {"messages": chat("long " * 40, "b")}, {"messages": chat("c", "d")}]
    rows.append({"messages": [{"role": "assistant", "content": "nobody asked"}]})
    split = load_unadmitted(write_jsonl(tmp_path / "mixed.jsonl", rows), "sft")
    prompts, dropped = prompts_of(split, models[0], 60)
    assert (len(prompts), dropped) == (2, {"prompt_too_long": 1, "no_prompt": 1})
    (kl, _), notes = drift(*models, split, max_completion_length=1, max_prompt_length=60)
    assert kl.n == 2
    assert notes == ["drift: 2 of 4 rows were dropped: prompt_too_long 1, no_prompt 1"]
