"""The proof of an update says yes only when there was one."""

from __future__ import annotations

import pytest
import torch

from lpt_train.proof import Proof, tensor_digest


@pytest.fixture
def model():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    model[0].requires_grad_(False)
    return model


def test_a_real_update(model):
    proof = Proof(model)
    proof.observe(0.0)
    proof.observe(2.5)
    with torch.no_grad():
        model[1].weight += 1
    found = proof.finish()
    assert found["verdict"] == "effective"
    assert (found["updates"], found["nonzero_gradients"]) == (2, 1)
    assert (found["trainable_tensors"], found["changed_tensors"], found["frozen_tensors"]) == (2, 1, 2)
    assert found["frozen_unchanged"]
    assert found["start"] != found["end"]


def test_no_gradient_or_no_change_is_no_update(model):
    proof = Proof(model)
    proof.observe(1.0)
    assert proof.finish()["verdict"] == "no_effective_update"
    proof = Proof(model)
    proof.observe(0.0)
    with torch.no_grad():
        model[1].weight += 1  # weight decay alone moves weights as well
    assert proof.finish()["verdict"] == "no_effective_update"


def test_a_frozen_tensor_that_moved_is_worse(model):
    proof = Proof(model)
    proof.observe(1.0)
    with torch.no_grad():
        model[0].bias += 1
        model[1].bias += 1
    assert proof.finish()["verdict"] == "frozen_tensors_changed"


def test_it_reaches_back_over_a_resume(model):
    first = Proof(model)
    first.observe(1.0)
    with torch.no_grad():
        model[1].weight += 1
    resumed = Proof(model)
    resumed.restore(first.state())
    assert resumed.finish() == first.finish()


def test_digests_are_of_type_shape_and_bytes():
    ones = torch.ones(2, 3)
    assert tensor_digest(ones) == tensor_digest(torch.ones(3, 2).t())
    assert tensor_digest(ones) != tensor_digest(torch.ones(3, 2))
    assert tensor_digest(ones) != tensor_digest(ones.to(torch.bfloat16))
    assert tensor_digest(torch.tensor(0.0)) != tensor_digest(torch.tensor(-0.0))
