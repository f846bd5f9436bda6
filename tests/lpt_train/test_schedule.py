"""The learning rate by hand, and against the schedules of the same names in transformers."""

from __future__ import annotations

import pytest
import torch
from transformers import get_scheduler

from lpt_train.config import Optim
from lpt_train.schedule import decay_start, multiplier, rates_sha256, schedule_of
from manifests.errors import UsageError


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


@pytest.mark.parametrize("low", [0.0, 0.1])
@pytest.mark.parametrize(
    ("kind", "shape"),
    [("warmup_stable_decay", "cosine"), ("warmup_stable_decay", "linear"), ("warmup_stable_decay", "1-sqrt"),
     ("cosine_with_min_lr", "")],
)  # fmt: skip
def test_schedules_with_an_end_as_transformers_has_them(kind, shape, low):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    more = {"min_lr_rate": low} if not shape else {"num_decay_steps": 4, "decay_type": shape, "min_lr_ratio": low}
    theirs = get_scheduler(kind, optimizer, 3, 13, scheduler_specific_kwargs=more)
    ours = Optim(
        lr_scheduler_type=kind, warmup_steps=3, num_decay_steps=4, min_lr_rate=low, decay_type=shape or "cosine"
    )
    for step in range(13):
        assert schedule_of(ours, 13)(step) == pytest.approx(theirs.get_last_lr()[0], abs=1e-12)
        optimizer.step()
        theirs.step()


def test_shares_of_the_run_round_up_as_transformers_rounds_them():
    from transformers import TrainingArguments

    for share, total in ((0.1, 25), (0.03, 100), (0.5, 7)):
        warmup = TrainingArguments("unused", warmup_steps=share, use_cpu=True).get_warmup_steps(total)
        ours = schedule_of(Optim(warmup_ratio=share), total)
        assert [step for step in range(total) if ours(step) == 1.0][0] == warmup
    wsd = Optim(lr_scheduler_type="warmup_stable_decay", decay_ratio=0.25)
    assert [decay_start(wsd, total) for total in (8, 9)] == [6, 6]
    assert [schedule_of(wsd, 8)(step) for step in range(8)] == pytest.approx([1, 1, 1, 1, 1, 1, 1, 0.5])
    assert decay_start(Optim(), 8) is None


def test_a_longer_run_begins_alike_until_the_shorter_one_decays():
    wsd = Optim(lr_scheduler_type="warmup_stable_decay", warmup_steps=2, num_decay_steps=3)
    short, long = schedule_of(wsd, 10), schedule_of(wsd, 20)
    assert rates_sha256(short, 8) == rates_sha256(long, 8)  # the first step of the decay still has the peak rate
    assert rates_sha256(short, 9) != rates_sha256(long, 9)
    cosine = Optim(lr_scheduler_type="cosine", warmup_steps=2)
    assert rates_sha256(schedule_of(cosine, 10), 3) == rates_sha256(schedule_of(cosine, 20), 3)
    assert rates_sha256(schedule_of(cosine, 10), 4) != rates_sha256(schedule_of(cosine, 20), 4)


@pytest.mark.parametrize(
    "options",
    [{"min_lr_rate": 0.1}, {"min_lr_rate": 1.5}, {"warmup_ratio": -0.1}, {"decay_type": "square"},
     {"lr_scheduler_type": "wsd"}, {"num_decay_steps": -1}, {"decay_ratio": float("nan")}],
)  # fmt: skip
def test_what_a_schedule_cannot_be(options):
    with pytest.raises(UsageError):
        Optim(**options)


def test_a_run_that_is_shorter_than_its_warm_up_and_decay_is_refused():
    wsd = Optim(lr_scheduler_type="warmup_stable_decay", warmup_steps=6, num_decay_steps=5)
    assert schedule_of(wsd, 11)(6) == 1.0
    with pytest.raises(UsageError, match="longer than the run"):
        schedule_of(wsd, 10)
