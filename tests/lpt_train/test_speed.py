"""MFU by hand: the arithmetic of a model of known shape, the peak rate of a device by its name."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from lpt_train import speed as speed_module
from lpt_train.adapters import attach
from lpt_train.config import Lora
from lpt_train.models import load_model
from lpt_train.packing import Row
from lpt_train.rollouts import group_sizes
from lpt_train.sampler.generate import Completion
from lpt_train.speed import Parts, Speed, Work, evaluations_after, peak_rate

# The fixture `tiny`: 2 layers of width 32, 2 heads of 16 of which 1 has keys and values, 3 · 32 inside, 259 tokens.
LAYER = 32 * 32 * 2 + 32 * 16 * 2 + 3 * 32 * 96
BODY, HEAD = 2 * LAYER, 32 * 259
ATTENTION = 4 * 2 * 32  # layers · width, forward


def rows(*lengths: int, counted: int = 3) -> list[Row]:
    masks = [np.array([1] * (counted + 1) + [0] * (n - counted - 1), np.uint8) for n in lengths]
    return [Row(i, np.zeros(n, np.int32), masks[i]) for i, n in enumerate(lengths)]


@pytest.fixture(scope="module")
def model(tiny):
    return load_model(str(tiny), dtype=torch.float32, device=torch.device("cpu"))


def test_when_all_train_it_is_six_operations_a_weight(model):
    work = Work(model.requires_grad_(True))
    forward = 2 * BODY * 15 + 2 * HEAD * 6 + ATTENTION * (10 * 10 + 5 * 5)
    assert work.forward(rows(10, 5)) == forward
    assert work.training(rows(10, 5)) == 3 * forward


def test_under_an_adapter_it_is_four_and_the_adapter_six(tiny):
    loaded = load_model(str(tiny), dtype=torch.float32, device=torch.device("cpu"))
    work = Work(attach(loaded, Lora(lora_r=4, lora_target_modules="q_proj")))
    adapter = 2 * 2 * 32 * 4
    found = work.training(rows(10))
    assert found == 10 * (4 * BODY + 6 * adapter) + 3 * 4 * HEAD + 3 * ATTENTION * 100


def test_the_head_does_not_see_what_does_not_count(model):
    work = Work(model)
    assert work.forward(rows(10, counted=5)) - work.forward(rows(10, counted=3)) == 2 * 2 * HEAD


def test_of_a_mixture_of_experts_nothing_is_claimed(model, monkeypatch):
    monkeypatch.setattr(model.config, "num_experts", 8, raising=False)
    assert Work(model).training(rows(10)) == 0


@pytest.mark.parametrize(
    ("name", "rate"),
    [
        ("NVIDIA H200", 989.4e12), ("NVIDIA H100 80GB HBM3", 989.4e12), ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA A100-SXM4-80GB", 312e12), ("NVIDIA A100-SXM4-40GB", 312e12),
        ("NVIDIA H100 NVL", 835e12), ("NVIDIA L40S", 362e12), ("NVIDIA L4", 121e12), ("NVIDIA A10G", None),
        ("NVIDIA GeForce RTX 4090", 165.2e12), ("Some Accelerator", None),
    ],
)  # fmt: skip
def test_a_device_has_the_rate_of_its_own_name_or_none(name, rate):
    assert peak_rate(name, torch.bfloat16) == rate
    assert peak_rate(name, torch.float32) is None


def test_no_mfu_is_told_where_the_peak_or_the_arithmetic_is_not_known():
    known = Speed(0, 4, 1e12).step(1, 100, 1e9)
    assert known["mfu"] == pytest.approx(1e9 / (known["step_seconds"] * 1e12))
    assert "mfu" not in Speed(0, 4, None).step(1, 100, 1e9)
    assert "mfu" not in Speed(0, 4, 1e12).step(1, 100)


@pytest.fixture
def clock(monkeypatch):
    """The clock of the module: it moves when it is told to."""
    fake = SimpleNamespace(now=0.0)
    fake.perf_counter = lambda: fake.now
    monkeypatch.setattr(speed_module, "time", fake)
    return fake


def test_what_lies_between_steps_is_in_no_rate_and_evaluations_to_come_are_in_what_is_left(clock):
    found = Speed(0, 4, None, lambda done: evaluations_after(done, 4, 2)).begin(0)
    with found.evaluation():  # before the first step
        clock.now += 60
    clock.now += 2
    line = found.step(1, 100)
    assert (line["step_seconds"], line["tokens_per_second"]) == (2, 50)
    assert line["eta_seconds"] == 3 * 2 + 2 * 60  # three steps, evaluations after the second and the last
    clock.now += 4
    line = found.step(2, 100)
    with found.evaluation():
        clock.now += 30
    clock.now += 7  # a checkpoint
    found.resume()
    assert line["tokens_per_second"] == pytest.approx(200 / 6)
    clock.now += 3
    line = found.step(3, 100)
    assert line["tokens_per_second"] == pytest.approx(300 / 9)
    assert line["eta_seconds"] == 3 + 45
    clock.now += 3
    assert found.step(4, 100)["eta_seconds"] == 0
    assert found.tokens_per_second == pytest.approx(400 / 12)


@pytest.mark.parametrize(
    ("done", "total", "every", "together", "left"),
    [(0, 4, 2, 1, 2), (1, 4, 2, 1, 2), (2, 4, 2, 1, 1), (3, 4, 2, 1, 1), (4, 4, 2, 1, 0), (0, 5, 2, 1, 3),
     (4, 5, 2, 1, 1),
     (0, 7, 0, 1, 1), (7, 7, 0, 1, 0), (1, 7, 1, 1, 6), (0, 8, 1, 4, 2), (4, 8, 1, 4, 1)],
)  # fmt: skip
def test_evaluations_to_come(done, total, every, together, left):
    assert evaluations_after(done, total, every, together) == left


def test_completions_are_counted_with_their_prompts_and_the_head_for_what_was_sampled(model):
    groups = [[Completion([1, 2, 3], [0.0] * 3, "stop"), Completion([1], [0.0], "stop")]]
    sizes = group_sizes([[7, 8]], groups)
    assert sizes == (5 + 3, 25 + 9, 4)
    work = Work(model)
    assert work.forward_of(*sizes) == 2 * BODY * 8 + 2 * HEAD * 4 + ATTENTION * 34


def test_parts_of_a_step_have_an_mfu_each():
    parts = Parts(1e9)
    first, second = parts.end("generation", 1e6), parts.end("training", 3e6)
    assert first["mfu_generation"] == pytest.approx(1e6 / (first["generation_seconds"] * 1e9))
    assert second["mfu_training"] == pytest.approx(3e6 / (second["training_seconds"] * 1e9))
    assert second["training_seconds"] >= first["generation_seconds"]  # nobody said that another part begins
    assert parts.operations() == 4e6
    assert parts.operations() == 0
    assert set(Parts(None).end("training", 3e6)) == {"training_seconds"}
