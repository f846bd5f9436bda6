"""Attempts at rows: what bounds them, and what becomes of rows that cannot be attempted."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from lpt_train.pass_rates import Attempts, ModelSampler, open_sampler
from manifests.canon import canonical_bytes
from manifests.errors import BadInputError, LptError, UsageError


def problem(number: int, answer: str = "7") -> dict:
    import orjson

    row = {"prompt": [{"role": "user", "content": f"{number} and what?"}], "answer": answer, "verifier": "integer"}
    return orjson.loads(canonical_bytes("rlvr", row))


@pytest.fixture(scope="module")
def loaded() -> ModelSampler:
    return open_sampler(Attempts("tiny", attempts=2, rows=6, max_tokens=2, batch_size=4))


def test_no_further_batch_is_begun_when_the_time_is_over(loaded: ModelSampler) -> None:
    ticks = itertools.count(0, 400)  # seconds that each look at the clock finds passed
    slow = ModelSampler(loaded.subject, loaded.asked, lambda: float(next(ticks)))
    rates, told = slow([problem(n) for n in range(6)])
    assert [rate is None for rate in rates] == [False] * 4 + [True] * 2  # batches of two rows: at 400 s, not at 800 s
    assert told["stopped_after"] == 600
    rates, told = loaded([problem(n) for n in range(6)])
    assert None not in rates
    assert "stopped_after" not in told


def test_rows_that_cannot_be_attempted_have_no_rate_and_are_no_zeros(loaded: ModelSampler) -> None:
    rates, told = loaded([problem(0), problem(1), problem(2, "no number"), problem(3, "none")])
    assert rates[0] is not None
    assert rates[2:] == [None, None]
    assert told["notes"]
    with pytest.raises(BadInputError, match="no attempt of the model could be scored"):
        loaded([problem(2, "no number"), problem(3, "none")])


def test_one_bad_row_costs_the_others_nothing(loaded: ModelSampler) -> None:
    unknown = problem(2) | {"verifier": "no such"}
    rates, told = loaded([problem(0), unknown, problem(1)])
    assert [rate is None for rate in rates] == [False, True, False]
    assert told["notes"][0].startswith("1 rows without a rate: they name no verifier that exists")
    long = problem(3) | {"prompt": [{"role": "user", "content": "why? " * 5000}]}
    rates, told = loaded([long, problem(2, "none"), problem(0), problem(1)])  # the first batch fails whole
    assert [rate is None for rate in rates] == [True, True, False, False]
    assert sum(note.startswith("1 rows without a rate: ") for note in told["notes"]) == 2


def test_memory_that_runs_out_is_answered(loaded: ModelSampler) -> None:
    much = ModelSampler(loaded.subject, replace(loaded.asked, max_tokens=10**11))
    with pytest.raises(LptError, match="not enough memory") as error:
        much([problem(0)])
    assert "--max-tokens or --attempts" in error.value.next


def test_several_greedy_attempts_are_one() -> None:
    with pytest.raises(UsageError, match="greedy"):
        open_sampler(Attempts("tiny", attempts=2, temperature=0.0))
