"""FLOPs by hand: 6 N D, 4 N D under LoRA, attention over whole rows, hours, cost, tokens that a size asks for."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModelForCausalLM

from lpt_train.adapters import attach
from lpt_train.config import Lora
from lpt_train.packing import Row
from lpt_train.plan.compute import MEASURED_MFU, MFU_RANGE, flops_per_token, plan_compute, usual_mfu
from lpt_train.plan.gpus import GPU, GPUS, gpu
from lpt_train.plan.shape import shape_of
from lpt_train.speed import Work
from manifests.errors import UsageError

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"
CONFIG = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 500, "tie_word_embeddings": False,
}  # fmt: skip
SHAPE = shape_of(CONFIG)
ONE = GPU("one", 1.0, 10.0, 1.0, "made up: 10^12 operations a second")


def test_six_and_four_operations_a_parameter_and_token():
    # A layer has 64 · 64 twice, 64 · 32 twice and 3 · 64 · 160; the head 64 · 500. Attention: 4 c a a layer, c of 128.
    n, attention = 3 * (2 * 4096 + 2 * 2048 + 30720) + 32000, 4 * 3 * 64 * 128
    assert (n, attention) == (161024, 98304)
    full = flops_per_token(SHAPE, context=128)
    assert full.model == full.hardware == 6 * n + 3 * attention
    lora = flops_per_token(SHAPE, context=128, scope="lora", adapter=1000)
    assert lora.model == 4 * n + 3 * attention + 6 * 1000
    again = flops_per_token(SHAPE, context=128, checkpoint_every=2)
    assert again.model == full.model
    assert again.hardware == full.model + (2 * n + attention) / 2
    held = flops_per_token(SHAPE, context=128, references=1)
    assert held.model == full.model + 2 * n + attention
    half = flops_per_token(SHAPE, context=128, head_share=0.5)
    assert full.model - half.model == 6 * 32000 / 2


@pytest.mark.parametrize("scope", ["full", "lora"])
def test_a_plan_and_the_mfu_of_a_run_count_the_same(scope):
    """A row of 64 tokens whose 63 targets all count: the head is applied to 63 of 64."""
    options = {name: value for name, value in CONFIG.items() if name != "model_type"}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **options))
    adapter = sum(SHAPE.adapter_tensors(4)) if scope == "lora" else 0
    work = Work(attach(model, Lora(lora_r=4)) if scope == "lora" else model)
    rows = [Row(0, np.zeros(64, np.int32), np.ones(64, np.uint8))]
    plan = flops_per_token(SHAPE, context=64, scope=scope, adapter=adapter, head_share=63 / 64)
    assert work.forward(rows) == pytest.approx(64 * plan.forward, rel=1e-12)
    assert work.training(rows) == pytest.approx(64 * plan.model, rel=1e-12)


@pytest.mark.parametrize("scope", ["full", "lora"])
def test_the_formula_agrees_with_operations_counted_in_torch(scope):
    """torch counts products of matrices, attention over whole rows, nothing of norms."""
    options = {name: value for name, value in CONFIG.items() if name != "model_type"}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **options), attn_implementation="eager")
    if scope == "lora":
        model = attach(model, Lora(lora_r=4))
    ids = torch.randint(0, 500, (2, 64))
    with FlopCounterMode(display=False) as counter:
        model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    adapter = sum(SHAPE.adapter_tensors(4)) if scope == "lora" else 0
    own = flops_per_token(SHAPE, context=64, scope=scope, adapter=adapter).model
    assert own * 128 == pytest.approx(counter.get_total_flops(), rel=0.03)


def test_hours_cost_and_the_tokens_that_a_size_asks_for():
    report = plan_compute(SHAPE, 1e6, gpu=ONE, gpus=4, mfu=0.5, price=2.0, context=128)
    seconds = report["flops"] / (1e12 * 0.5)  # of one GPU
    assert report["gpu_hours"] == pytest.approx(seconds / 3600)
    assert report["hours"] == pytest.approx(seconds / 3600 / 4)
    assert report["cost"] == pytest.approx(2 * seconds / 3600)
    assert report["tokens_per_second"] == pytest.approx(1e6 / seconds * 4)
    assert report["chinchilla_tokens"] == 20 * SHAPE.parameters
    assert report["over_training"] == pytest.approx(1e6 / 20 / SHAPE.parameters)
    assert plan_compute(SHAPE, 1e6, gpu=ONE)["cost"] is None


def test_what_is_computed_again_is_told_and_charged_once_by_the_mfu():
    plain = plan_compute(SHAPE, 1e6, gpu=ONE, context=128, mfu=0.3)
    again = plan_compute(SHAPE, 1e6, gpu=ONE, context=128, checkpoint_every=1, mfu=0.3)
    assert again["flops"] == plain["flops"]
    assert again["gpu_hours"] == plain["gpu_hours"] == pytest.approx(plain["flops"] / (1e12 * 0.3) / 3600)
    assert (plain["computed_again"], again["computed_again"]) == (0, pytest.approx(1 / 3))


def test_an_mfu_that_is_not_given_is_the_measured_one_of_that_size():
    """135M 15.2 %, 494M 27.2 %; their geometric mean lies in the middle, beyond them the nearest counts."""
    assert [usual_mfu(size) for size in (134_515_008, 494_032_768)] == pytest.approx([0.152, 0.272])
    assert usual_mfu(257_788_650) == pytest.approx((0.152 + 0.272) / 2, abs=1e-6)
    assert (usual_mfu(1000), usual_mfu(70_000_000_000)) == (0.152, 0.272)
    report = plan_compute(SHAPE, 1e6, gpu=ONE, context=128)
    assert (report["mfu"], report["mfu_measured"]) == (0.152, MFU_RANGE)
    assert report["tokens_per_second"] == pytest.approx(0.152 * 1e12 / report["flops_per_token"])
    assert plan_compute(SHAPE, 1e6, gpu=ONE, mfu=0.152)["mfu_measured"] is None


def test_what_was_measured_is_what_the_records_have():
    for file, (_, mfu) in zip(("train-sft-135m-h200", "train-sft-05b-h200"), MEASURED_MFU, strict=True):
        ours = next(r for r in json.loads((RESULTS / f"{file}.json").read_text())["results"] if r["engine"] == "lpt")
        assert ours["mfu"] == pytest.approx(mfu, abs=5e-4)
    cases = json.loads((RESULTS / "plan-compute-h200.json").read_text())["cases"]
    assert {case["parameters"] for case in cases} == {size for size, _ in MEASURED_MFU}
    assert (min(c["measured_mfu"] for c in cases), max(c["measured_mfu"] for c in cases)) == pytest.approx(
        MFU_RANGE, abs=5e-4
    )


def test_seven_billion_parameters_by_hand():
    """The seed's example: 7B and 140 billion tokens are 20 a parameter; 6 N D is 5.9e21 without attention."""
    seven = shape_of({
        "model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
        "num_attention_heads": 32, "vocab_size": 32000, "tie_word_embeddings": False,
    })  # fmt: skip
    report = plan_compute(seven, 140e9, gpu=gpu("h100"), mfu=0.4, context=1)
    assert report["over_training"] == pytest.approx(1.04, abs=0.01)
    assert report["flops"] == pytest.approx(6 * (seven.parameters - 32000 * 4096) * 140e9, rel=1e-3)
    assert report["gpu_hours"] == pytest.approx(report["flops"] / (989.4e12 * 0.4 * 3600), rel=1e-9)


def test_a_window_bounds_attention():
    windowed = shape_of({**CONFIG, "model_type": "mistral", "sliding_window": 32})
    assert flops_per_token(windowed, context=1000) == flops_per_token(windowed, context=32)
    assert flops_per_token(windowed, context=16).model < flops_per_token(windowed, context=32).model


def test_gpus_are_known_by_name():
    assert gpu("H200").teraflops == 989.4
    assert len({each.name for each in GPUS}) == len(GPUS)
    for each in GPUS:
        # Operations a byte at the ridge of the roofline: a figure off by ten would stand out.
        assert 50 < each.teraflops / each.terabytes_per_second < 450, each.name
        assert 10e9 < each.usable_bytes < 250e9
    with pytest.raises(UsageError, match="no GPU"):
        gpu("h1000")
