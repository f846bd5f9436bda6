"""Rollouts on the roofline: floors worked by hand, lengths that fall off, who waits for whom."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lpt_train.plan.gpus import gpu
from lpt_train.plan.rollouts import Rollouts, decode_step, plan_rollouts, survival
from lpt_train.plan.shape import shape_of

QWEN = shape_of({
    "model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
    "num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 151936, "tie_word_embeddings": True,
})  # fmt: skip
H200 = gpu("h200")
FREE = Rollouts(prompts=32, group=8, prompt_tokens=128, tokens=400, max_tokens=1024, reward_seconds=0, step_seconds=0)


def test_the_floor_of_a_decoding_step_by_hand():
    """0.5B on an H200: 0.988 GB of weights, 12,288 bytes a token of context, 4.8 TB/s (.206 ms; .541 for 256)."""
    alone, bound = decode_step(QWEN, H200, 1, 0, 0)
    assert (alone, bound) == (pytest.approx(0.2058e-3, rel=1e-3), "weights")
    many, bound = decode_step(QWEN, H200, 256, 512, 0)
    assert many == pytest.approx((0.98807e9 + 256 * 512 * 12288) / 4.8e12, rel=1e-3)
    assert bound == "key-value cache"
    assert decode_step(QWEN, H200, 256, 512, 0.025) == (0.025, "launches")
    slow = replace(H200, teraflops=1.0)
    assert decode_step(QWEN, slow, 256, 1, 0)[1] == "arithmetic"


@pytest.mark.parametrize(("mean", "longest"), [(1, 100), (10, 100), (400, 1024), (100, 100)])
def test_lengths_have_the_mean_that_was_asked_for(mean, longest):
    go_on = survival(mean, longest)
    assert sum(go_on**position for position in range(longest)) == pytest.approx(mean, rel=1e-6)


def test_training_is_six_operations_a_parameter():
    """256 rows of 528 tokens at 40 % of 989 TFLOP/s: about a second, a little more with attention."""
    report = plan_rollouts(QWEN, FREE, gpu=H200, mfu=0.4)
    training = report["parts"]["training"]["seconds"]
    assert training == pytest.approx(256 * 528 * 6 * 494e6 / (0.4 * 989.4e12), rel=0.05)
    lora = plan_rollouts(QWEN, FREE, gpu=H200, mfu=0.4, scope="lora")["parts"]["training"]["seconds"]
    assert lora == pytest.approx(training * 4 / 6, rel=0.03)


def test_finished_completions_that_keep_their_places_cost_more():
    report = plan_rollouts(QWEN, FREE, gpu=H200)
    assert report["parts"]["decoding"]["seconds"] < report["decoding_without_compaction"]
    full = plan_rollouts(QWEN, replace(FREE, tokens=1024), gpu=H200)
    assert full["parts"]["decoding"]["seconds"] == pytest.approx(full["decoding_without_compaction"], rel=1e-6)


def test_tools_and_rewards_are_what_the_gpu_waits_for():
    """256 completions, 2 calls of .5 s, 16 at once: 16 s; .1 s of reward each, 4 at once: 6.4 s."""
    asked = replace(FREE, tool_calls=2, tool_seconds=0.5, tool_workers=16, reward_seconds=0.1, reward_workers=4)
    report = plan_rollouts(QWEN, asked, gpu=H200, price=3.6)
    assert report["parts"]["tools"]["seconds"] == pytest.approx(16)
    assert report["parts"]["rewards"]["seconds"] == pytest.approx(6.4)
    assert report["gpu_waits"] == pytest.approx(22.4 / report["seconds"])
    assert sum(part["share"] for part in report["parts"].values()) == pytest.approx(1)
    assert report["cost_of_1000_completions"] == pytest.approx(report["seconds"] * 0.001 / 256 * 1000)


def test_launches_bound_an_eager_sampler_and_groups_share_their_prompt():
    eager = plan_rollouts(QWEN, replace(FREE, step_seconds=0.025), gpu=H200)
    assert eager["parts"]["decoding"]["bound_by"] == "launches"
    assert eager["parts"]["decoding"]["seconds"] == pytest.approx(1024 * 0.025)
    wide = plan_rollouts(QWEN, replace(FREE, prompts=1, group=256), gpu=H200)
    narrow = plan_rollouts(QWEN, replace(FREE, prompts=256, group=1), gpu=H200)
    assert narrow["parts"]["prompts"]["seconds"] == pytest.approx(256 * wide["parts"]["prompts"]["seconds"])
    assert narrow["parts"]["decoding"]["seconds"] == wide["parts"]["decoding"]["seconds"]
