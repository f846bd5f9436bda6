"""The learning rate by hand, and against the schedules of the same names in transformers."""

from __future__ import annotations

import pytest
import torch
from transformers import get_scheduler

from lpt_train.schedule import multiplier


def test_by_hand():
    rates = [multiplier(step, total_steps=6, warmup_steps=2, kind="linear") for step in range(7)]
    assert rates == [0.0, 0.5, 1.0, 0.75, 0.5, 0.25, 0.0]
    assert [multiplier(step, total_steps=2, kind="constant") for step in range(3)] == [1.0, 1.0, 1.0]
    assert multiplier(4, total_steps=6, warmup_steps=2, kind="cosine") == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("kind", "name"), [("linear", "linear"), ("cosine", "cosine"), ("constant", "constant_with_warmup")]
)
def test_same_numbers_as_transformers(kind, name):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    theirs = get_scheduler(name, optimizer, num_warmup_steps=3, num_training_steps=11)
    for step in range(11):
        assert multiplier(step, total_steps=11, warmup_steps=3, kind=kind) == pytest.approx(theirs.get_last_lr()[0])
        optimizer.step()
        theirs.step()


def test_a_resumed_schedule_is_the_same_function():
    assert multiplier(5, total_steps=10, warmup_steps=2, kind="cosine") == multiplier(
        5, total_steps=10, warmup_steps=2, kind="cosine"
    )
