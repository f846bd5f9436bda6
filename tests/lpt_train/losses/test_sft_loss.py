"""The supervised loss: a hand-worked value, its sign, and the equality of every way to cut a step into batches."""

from __future__ import annotations

import math

import pytest
import torch
from train_cases import chats

from lpt_train.config import SFTConfig
from lpt_train.losses.sft import sft_loss
from lpt_train.models import load_model, placement
from lpt_train.packing import Row, best_fit_decreasing, render_rows
from lpt_train.ranks import SOLO
from lpt_train.sft import _micro_batch


def step(model, groups, supervised, execution="eager"):
    """Loss and gradients of one optimizer step whose micro-batches are `groups` of units of rows."""
    model.zero_grad()
    config = SFTConfig(execution=execution, logits_chunk=7)
    run = _micro_batch(model, placement("cpu"), config, [unit for units in groups for unit in units], 0, SOLO)
    assert run.way == execution
    denominator = {"denominator": torch.tensor(float(supervised))}
    total = sum(float(run([row for unit in units for row in unit], denominator)["loss"]) for units in groups)
    return total, {name: p.grad.clone() for name, p in model.named_parameters()}


@pytest.fixture(scope="module")
def rows(renderer) -> list[Row]:
    return render_rows(chats(6), renderer, max_length=512).rows


@pytest.fixture
def model(tiny):
    return load_model(str(tiny)).requires_grad_(True)


def test_hand_worked_value_and_sign():
    logp = torch.log(torch.tensor([[1.0, 0.5, 0.25], [1.0, 0.125, 1.0]]))
    mask = torch.tensor([[0.0, 1.0, 1.0], [0.0, 1.0, 0.0]])
    assert float(sft_loss(logp, mask, 3)) == pytest.approx((1 + 2 + 3) * math.log(2) / 3)
    logp.requires_grad_()
    sft_loss(logp, mask, 3).backward()
    assert logp.grad.tolist() == [
        [0.0, pytest.approx(-1 / 3), pytest.approx(-1 / 3)],
        [0.0, pytest.approx(-1 / 3), 0.0],
    ]


@pytest.mark.parametrize("cut", ["accumulated", "unevenly", "packed", "packed and accumulated", "each row alone"])
def test_a_step_is_the_same_however_it_is_cut(model, rows, cut):
    supervised = sum(row.supervised for row in rows)
    units = [[row] for row in rows]
    bins = [[rows[i] for i in members] for members in best_fit_decreasing([len(row.ids) for row in rows], 120)]
    assert max(len(members) for members in bins) > 1
    groups = {
        "accumulated": [units[:2], units[2:4], units[4:]],
        "unevenly": [units[:1], units[1:]],
        "packed": [bins],
        "packed and accumulated": [[members] for members in bins],
        "each row alone": [units],
    }[cut]
    loss, gradients = step(model, [units], supervised)
    other_loss, other_gradients = step(model, groups, supervised, "rows" if cut == "each row alone" else "eager")
    assert other_loss == pytest.approx(loss, abs=1e-5)
    for name, gradient in gradients.items():
        torch.testing.assert_close(other_gradients[name], gradient, atol=1e-6, rtol=1e-4, msg=name)


def test_value_and_gradient_are_the_library_loss_and_the_float64_one(tiny, model, rows):
    supervised = sum(row.supervised for row in rows)
    loss, gradients = step(model, [[[row] for row in rows]], supervised)
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-5)):
        reference = load_model(str(tiny)).requires_grad_(True).to(dtype)
        width = max(len(row.ids) for row in rows)
        ids, labels = torch.zeros(len(rows), width).long(), torch.full((len(rows), width), -100)
        seen = torch.zeros(len(rows), width).long()
        for line, row in enumerate(rows):
            own = torch.from_numpy(row.ids).long()
            counts = torch.from_numpy(row.loss_mask).bool()
            ids[line, : len(own)], seen[line, : len(own)] = own, 1
            labels[line, : len(own)] = own.masked_fill(~counts, -100)
        output = reference(input_ids=ids, attention_mask=seen, labels=labels)
        output.loss.backward()
        assert loss == pytest.approx(float(output.loss), abs=tolerance)
        for name, parameter in reference.named_parameters():
            torch.testing.assert_close(
                gradients[name].double(), parameter.grad.double(), atol=1e-5, rtol=1e-3, msg=name
            )
